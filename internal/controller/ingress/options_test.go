// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnnotations(t *testing.T) {
	cases := map[string]struct {
		reason  string
		pairs   []string
		want    Annotations
		wantErr string
	}{
		"Pair": {"key=value is valid", []string{"foo=bar"}, Annotations{"foo": "bar"}, ""},
		"EqualsSign": {"a value may contain any character", []string{"example.com/a=b=c, d\ne"},
			Annotations{"example.com/a": "b=c, d\ne"}, ""},
		"Empty": {"a value may be empty", []string{"foo="}, Annotations{"foo": ""}, ""},
		"UpperCase": {"the API server accepts a prefix in upper case", []string{"Example.com/Foo=bar"},
			Annotations{"Example.com/Foo": "bar"}, ""},
		"Twice": {"the same pair may be repeated", []string{"foo=bar", "foo=bar"}, Annotations{"foo": "bar"}, ""},
		"TwoValues": {"a key may have only one value", []string{"foo=bar", "foo=baz"}, nil,
			`key "foo": got two values, "bar" and "baz"`},
		"NoValue": {"a key needs a value", []string{"foo"}, nil, "want key=value, for example foo=bar"},
		"NoKey":   {"a value needs a key", []string{"=bar"}, nil, `annotation key "": name part must be non-empty`},
		"BadKey": {"the API server would reject the key", []string{"foo bar=baz"}, nil,
			`annotation key "foo bar": name part must consist of`},
		"BadPrefix": {"the API server would reject the key", []string{"a_b/foo=bar"}, nil,
			`annotation key "a_b/foo": prefix part`},
		"Own": {"the flag must not pause all Ingresses", []string{"useless.container.training/paused=true"}, nil,
			"are reserved for the operator"},
		"Kubectl": {"kubectl apply uses this annotation to decide which fields to delete",
			[]string{"kubectl.kubernetes.io/last-applied-configuration={}"}, nil, "is reserved for kubectl"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got Annotations
			var err error
			for _, pair := range c.pairs {
				if err = got.Set(pair); err != nil {
					break
				}
			}
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Errorf("%s: got error %v, want %q", c.reason, err, c.wantErr)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%s: %v (-want +got):\n%s", c.reason, err, diff)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	fooBar := Annotations{"foo": "bar"}
	class := Annotations{"kubernetes.io/ingress.class": "nginx"}
	for _, c := range []struct {
		reason  string
		options Options
		wantErr string // empty if the options are valid
	}{
		{"the zero value is valid", Options{}, ""},
		{"the default policy may be set explicitly", Options{Policy: PolicyAlways}, ""},
		{"all options are valid together",
			Options{Annotations: fooBar, Policy: PolicyIfNotPresent, Classes: Classes{"nginx"}}, ""},
		{"an unknown policy is invalid", Options{Annotations: fooBar, Policy: "Never"},
			`invalid value "Never" for flag --ingress-annotation-policy: must be Always or IfNotPresent`},
		{"without annotations, a policy has no effect", Options{Policy: PolicyIfNotPresent},
			"--ingress-annotation-policy has no effect without --ingress-annotation"},
		{"without annotations, classes have no effect", Options{Classes: Classes{"nginx"}},
			"--ingress-class has no effect without --ingress-annotation"},
		{"the class may be set on all Ingresses", Options{Annotations: class}, ""},
		{"the operator must not change the class of an Ingress that it selects by class",
			Options{Annotations: class, Classes: Classes{"nginx"}},
			"--ingress-class cannot be used with --ingress-annotation=kubernetes.io/ingress.class=...: that annotation changes the class"},
	} {
		err := c.options.Validate()
		if got := fmt.Sprint(err); (err != nil || c.wantErr != "") && got != c.wantErr {
			t.Errorf("%s: got error %q, want %q", c.reason, got, c.wantErr)
		}
	}
}

func TestClasses(t *testing.T) {
	var got Classes
	for _, name := range []string{"nginx", "example.com", "nginx"} {
		if err := got.Set(name); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(Classes{"nginx", "example.com"}, got); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	for _, name := range []string{"", "nginx,haproxy", "Nginx", "a b", strings.Repeat("a", 254)} {
		if err := got.Set(name); err == nil {
			t.Errorf("%q is accepted, but no IngressClass can have this name", name)
		}
	}
}

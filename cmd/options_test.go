// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"

	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
)

// TestMetricsCertificate checks whether the metrics endpoint uses the certificate of the webhooks.
func TestMetricsCertificate(t *testing.T) {
	webhooks := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }}
	for _, c := range []struct {
		reason  string
		options options
		want    bool // the metrics endpoint uses the certificate of the webhooks
	}{
		{"by default, Prometheus verifies the certificate of the webhooks", options{webhooks: true}, true},
		{"the user provides a certificate", options{webhooks: true, metricsCertDir: "/certificates"}, false},
		{"without webhooks, there is no certificate", options{}, false},
	} {
		config := &tls.Config{}
		for _, set := range c.options.metricsServer(webhooks).TLSOpts {
			set(config)
		}
		if got := config.GetCertificate != nil; got != c.want {
			t.Errorf("%s: the metrics have the certificate of the webhooks: %t, want %t", c.reason, got, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	type result struct {
		Controllers []string
		MaxSwitches int
		LeaderElect bool
		Label       string
		Annotations ingress.Annotations
		Policy      ingress.Policy // Always if empty
		Classes     ingress.Classes
	}
	cases := map[string]struct {
		reason      string
		args        []string
		environment map[string]string
		want        result
		wantErr     string
	}{
		"Defaults": {
			reason: "without flags, the operator runs the default controllers",
			want:   result{MaxSwitches: 100, Label: "pod-count"},
		},
		"Flags": {
			reason: "flags set the options",
			args:   []string{"--max-switches=7", "--leader-elect", "--controllers=*,-machine"},
			want:   result{Controllers: []string{"*", "-machine"}, MaxSwitches: 7, LeaderElect: true, Label: "pod-count"},
		},
		"Environment": {
			reason:      "each flag has an environment variable",
			environment: map[string]string{"USELESS_MAX_SWITCHES": "8", "USELESS_LEADER_ELECT": "true", "USELESS_CONTROLLERS": "machine"},
			want:        result{Controllers: []string{"machine"}, MaxSwitches: 8, LeaderElect: true, Label: "pod-count"},
		},
		"FlagWins": {
			reason:      "a flag takes precedence over its environment variable, even if the flag sets the default value",
			args:        []string{"--max-switches=100", "--leader-elect=false"},
			environment: map[string]string{"USELESS_MAX_SWITCHES": "8", "USELESS_LEADER_ELECT": "true"},
			want:        result{MaxSwitches: 100, Label: "pod-count"},
		},
		"ControllersAdded": {
			reason: "the first flag replaces the default list, and each further flag adds to the list",
			args:   []string{"--controllers=*,podcount", "--controllers=*,ingress"},
			want:   result{Controllers: []string{"*", "podcount", "*", "ingress"}, MaxSwitches: 100, Label: "pod-count"},
		},
		"Label": {
			reason: "a label key may have a prefix",
			args:   []string{"--controllers=*,podcount", "--pod-count-label=example.com/pods"},
			want:   result{Controllers: []string{"*", "podcount"}, MaxSwitches: 100, Label: "example.com/pods"},
		},
		"UselessLabel": {
			reason:  "a label has no effect while the controller podcount is disabled",
			args:    []string{"--pod-count-label=example.com/pods"},
			wantErr: "--pod-count-label has no effect: enable the controller podcount with --controllers=*,podcount",
		},
		"UselessImage": {
			reason:      "the environment variable of a disabled controller has no effect, too",
			args:        []string{"--controllers=*,-virtualmachine"},
			environment: map[string]string{"USELESS_VM_IMAGE": "example.com/vm"},
			wantErr:     "--vm-image has no effect: enable the controller virtualmachine with --controllers=*,virtualmachine",
		},
		"BadLabel": {
			reason:  "an invalid label key is rejected at the start",
			args:    []string{"--pod-count-label=pod count"},
			wantErr: `invalid value "pod count" for flag --pod-count-label: name part must consist of`,
		},
		"NoLabel": {
			reason:      "an empty label key is invalid, and the environment variable does not replace it",
			args:        []string{"--pod-count-label="},
			environment: map[string]string{"USELESS_POD_COUNT_LABEL": "pods"},
			wantErr:     `invalid value "" for flag --pod-count-label: use for example pod-count`,
		},
		"Annotations": {
			reason: "the first = separates the key from the value",
			args:   []string{"--controllers=*,ingress", "--ingress-annotation=foo=bar", "--ingress-annotation=example.com/rule=a=b\nc"},
			want: result{Controllers: []string{"*", "ingress"}, MaxSwitches: 100, Label: "pod-count",
				Annotations: ingress.Annotations{"foo": "bar", "example.com/rule": "a=b\nc"}},
		},
		"AnnotationsInEnvironment": {
			reason:      "an environment variable has one annotation per line",
			environment: map[string]string{"USELESS_CONTROLLERS": "ingress", "USELESS_INGRESS_ANNOTATION": "foo=bar\nexample.com/rule=a=b, c\n"},
			want: result{Controllers: []string{"ingress"}, MaxSwitches: 100, Label: "pod-count",
				Annotations: ingress.Annotations{"foo": "bar", "example.com/rule": "a=b, c"}},
		},
		"BadAnnotationInEnvironment": {
			reason:      "the error names the invalid line",
			environment: map[string]string{"USELESS_INGRESS_ANNOTATION": "foo=bar\nfoo"},
			wantErr:     `invalid value "foo" for environment variable USELESS_INGRESS_ANNOTATION: want key=value`,
		},
		"BadAnnotation": {
			reason:  "the error names the invalid flag",
			args:    []string{"--ingress-annotation=foo=bar", "--ingress-annotation=foo=baz"},
			wantErr: `invalid value "foo=baz" for flag -ingress-annotation: annotation key "foo": got two values`,
		},
		"UselessAnnotation": {
			reason:  "an annotation has no effect while the controller ingress is disabled",
			args:    []string{"--ingress-annotation=foo=bar"},
			wantErr: "--ingress-annotation has no effect: enable the controller ingress with --controllers=*,ingress",
		},
		"ClassesAndPolicy": {
			reason: "the policy and the classes apply to the annotations; each flag adds a class",
			args: []string{"--controllers=*,ingress", "--ingress-annotation=foo=bar", "--ingress-annotation-policy=IfNotPresent",
				"--ingress-class=nginx", "--ingress-class=example.com", "--ingress-class=nginx"},
			want: result{Controllers: []string{"*", "ingress"}, MaxSwitches: 100, Label: "pod-count",
				Annotations: ingress.Annotations{"foo": "bar"}, Policy: ingress.PolicyIfNotPresent,
				Classes: ingress.Classes{"nginx", "example.com"}},
		},
		"ClassesInEnvironment": {
			reason: "an environment variable has one class per line",
			environment: map[string]string{"USELESS_CONTROLLERS": "ingress", "USELESS_INGRESS_ANNOTATION": "foo=bar",
				"USELESS_INGRESS_CLASS": "nginx\n\nhaproxy\n", "USELESS_INGRESS_ANNOTATION_POLICY": "IfNotPresent"},
			want: result{Controllers: []string{"ingress"}, MaxSwitches: 100, Label: "pod-count",
				Annotations: ingress.Annotations{"foo": "bar"}, Policy: ingress.PolicyIfNotPresent,
				Classes: ingress.Classes{"nginx", "haproxy"}},
		},
		"BadClass": {
			reason:  "a comma-separated list of classes is invalid, because each value is one class",
			args:    []string{"--ingress-class=nginx,haproxy"},
			wantErr: `invalid value "nginx,haproxy" for flag -ingress-class: class name "nginx,haproxy": a lowercase RFC 1123 subdomain`,
		},
		"NoClass": {
			reason:  "an empty class is invalid, because Ingresses without a class cannot be selected",
			args:    []string{"--ingress-class="},
			wantErr: `invalid value "" for flag -ingress-class: class name "": a lowercase RFC 1123 subdomain`,
		},
		"BadPolicy": {
			reason:  "the names of the policies are case-sensitive, like those of Kubernetes",
			args:    []string{"--controllers=*,ingress", "--ingress-annotation=foo=bar", "--ingress-annotation-policy=always"},
			wantErr: `invalid value "always" for flag --ingress-annotation-policy: must be Always or IfNotPresent`,
		},
		"NoPolicy": {
			reason:      "an empty policy is invalid, and the environment variable does not replace it",
			args:        []string{"--ingress-annotation-policy="},
			environment: map[string]string{"USELESS_INGRESS_ANNOTATION_POLICY": "Always"},
			wantErr:     `invalid value "" for flag --ingress-annotation-policy: use for example Always`,
		},
		"UselessPolicy": {
			reason:  "a policy without annotations has no effect",
			args:    []string{"--controllers=*,ingress", "--ingress-annotation-policy=IfNotPresent"},
			wantErr: "--ingress-annotation-policy has no effect without --ingress-annotation",
		},
		"UselessClass": {
			reason:  "a class has no effect while the controller ingress is disabled",
			args:    []string{"--ingress-annotation=foo=bar", "--ingress-class=nginx"},
			wantErr: "--ingress-class has no effect: enable the controller ingress with --controllers=*,ingress",
		},
		"BadEnvironment": {
			reason:      "the error names the environment variable, not the flag",
			environment: map[string]string{"USELESS_MAX_SWITCHES": "many"},
			wantErr:     `invalid value "many" for environment variable USELESS_MAX_SWITCHES`,
		},
		"TooManySwitches": {
			reason:  "the schema allows at most 1000 switches",
			args:    []string{"--max-switches=1001"},
			wantErr: "invalid value 1001 for flag --max-switches: must be from 1 to 1000",
		},
		"NoTimeZone": {
			reason:  "the flags of a disabled controller are validated, too",
			args:    []string{"--default-time-zone=Mars", "--controllers=*,-schedule"},
			wantErr: `invalid value "Mars" for flag --default-time-zone: it is not in the time zone database; use for example Europe/Berlin`,
		},
		"NoKind": {
			reason:  "kinds have the plural names that kubectl uses",
			args:    []string{"--schedule-kinds=deployments,cronjob"},
			wantErr: `invalid value "cronjob" for flag --schedule-kinds: choose from deployments, statefulsets, cronjobs, virtualmachines`,
		},
		"NoKinds": {
			reason:      "an empty item in the list of an environment variable is invalid",
			environment: map[string]string{"USELESS_SCHEDULE_KINDS": "cronjobs,,deployments"},
			wantErr:     `invalid value "" for flag --schedule-kinds: choose from `,
		},
		"NoImage": {
			reason:  "an empty image is invalid, because a Pod needs an image",
			args:    []string{"--vm-image="},
			wantErr: `invalid value "" for flag --vm-image: use for example registry.k8s.io/pause:`,
		},
		"NoWorkers": {
			reason:  "a controller needs at least one worker",
			args:    []string{"--concurrent-machine-syncs=0"},
			wantErr: `invalid value "0" for flag --concurrent-machine-syncs: use for example 16`,
		},
		"NoInterval": {
			reason:  "a short interval would overload the metrics API",
			args:    []string{"--vm-usage-interval=10ms"},
			wantErr: "invalid value 10ms for flag --vm-usage-interval: must be at least 1s",
		},
		"Argument": {
			reason:  "an argument that is not a flag is invalid",
			args:    []string{"machine"},
			wantErr: `unexpected argument "machine"`,
		},
		"NoNamespace": {
			reason:  "the Secret with the certificates needs a namespace",
			args:    []string{"--self-managed-certs"},
			wantErr: "--self-managed-certs needs --namespace",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o, err := parse(c.args, func(name string) string { return c.environment[name] })
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Fatalf("%s: got error %v, want %q", c.reason, err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.want.Policy == "" {
				c.want.Policy = ingress.PolicyAlways
			}
			if diff := cmp.Diff(c.want, result{
				o.controllers.Selection, o.maxSwitches, o.leaderElect, o.controllers.PodCount.Label, o.controllers.Ingress.Annotations,
				o.controllers.Ingress.Policy, o.controllers.Ingress.Classes,
			}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// TestCacheOptionsOfAll enables all controllers. Two of them must not configure the cache of the same kind.
func TestCacheOptionsOfAll(t *testing.T) {
	o := &options{namespace: "useless-system", selfManagedCerts: true}
	o.controllers.Selection = controller.Names()
	if _, err := o.manager(t.Context(), &tls.Config{}); err != nil {
		t.Error(err)
	}
}

// TestProfilesAreOptional checks the address of the profiles. The default 0 disables them.
func TestProfilesAreOptional(t *testing.T) {
	for _, tt := range []struct {
		reason string
		args   []string
		want   string
	}{
		{"profiles need no credentials, so they are disabled by default", nil, "0"},
		{"a flag enables them", []string{"--pprof-bind-address=127.0.0.1:6060"}, "127.0.0.1:6060"},
	} {
		o, err := parse(tt.args, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		managerOptions, err := o.manager(t.Context(), &tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if got := managerOptions.PprofBindAddress; got != tt.want {
			t.Errorf("%s: the manager gets the address %q, want %q", tt.reason, got, tt.want)
		}
	}
}

// TestFlagsAreDocumented requires that docs/reference.md lists exactly the existing flags.
func TestFlagsAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(raw), "\n## Flags\n")
	table, _, _ = strings.Cut(table, "\n## ")
	documented := sets.New[string]()
	for _, match := range regexp.MustCompile("`--([a-z-]+)`").FindAllStringSubmatch(table, -1) {
		documented.Insert(match[1])
	}
	flags := sets.New[string]()
	newFlagSet(&options{}).VisitAll(func(f *flag.Flag) { flags.Insert(f.Name) })
	if diff := cmp.Diff(sets.List(flags), sets.List(documented)); diff != "" {
		t.Errorf("flags in docs/reference.md (-existing +documented):\n%s", diff)
	}
}

func TestDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(t.Context())
		ctx := delayed(parent, 3*time.Second)
		cancel()
		start := time.Now()
		<-ctx.Done()
		if got := time.Since(start); got != 3*time.Second {
			t.Errorf("canceled %s after its parent, want 3s", got)
		}
	})
}

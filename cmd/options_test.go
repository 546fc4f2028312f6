// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"

	"container.training/useless/internal/controller/ingress"
)

func TestParse(t *testing.T) {
	type result struct {
		Controllers []string
		MaxSwitches int
		LeaderElect bool
		Label       string
		Annotations ingress.Annotations
	}
	cases := map[string]struct {
		reason      string
		args        []string
		environment map[string]string
		want        result
		wantErr     string
	}{
		"Defaults": {
			reason: "without flags all controllers run that do so by default",
			want:   result{Controllers: []string{"*"}, MaxSwitches: 100, Label: "pod-count"},
		},
		"Flags": {
			reason: "flags are read",
			args:   []string{"--max-switches=7", "--leader-elect", "--controllers=*,-machine"},
			want:   result{Controllers: []string{"*", "-machine"}, MaxSwitches: 7, LeaderElect: true, Label: "pod-count"},
		},
		"Environment": {
			reason:      "each flag has a twin in the environment",
			environment: map[string]string{"USELESS_MAX_SWITCHES": "8", "USELESS_LEADER_ELECT": "true", "USELESS_CONTROLLERS": "machine"},
			want:        result{Controllers: []string{"machine"}, MaxSwitches: 8, LeaderElect: true, Label: "pod-count"},
		},
		"FlagWins": {
			reason:      "a flag wins over its twin, even with its default value",
			args:        []string{"--max-switches=100", "--leader-elect=false"},
			environment: map[string]string{"USELESS_MAX_SWITCHES": "8", "USELESS_LEADER_ELECT": "true"},
			want:        result{Controllers: []string{"*"}, MaxSwitches: 100, Label: "pod-count"},
		},
		"ControllersAdded": {
			reason: "the first mention replaces the default, and each one more adds to it",
			args:   []string{"--controllers=*,podcount", "--controllers=*,ingress"},
			want:   result{Controllers: []string{"*", "podcount", "*", "ingress"}, MaxSwitches: 100, Label: "pod-count"},
		},
		"Label": {
			reason: "the label may have a prefix",
			args:   []string{"--pod-count-label=example.com/pods"},
			want:   result{Controllers: []string{"*"}, MaxSwitches: 100, Label: "example.com/pods"},
		},
		"BadLabel": {
			reason:  "what is no label is said at once, with one that is",
			args:    []string{"--pod-count-label=pod count"},
			wantErr: `invalid value "pod count" for flag --pod-count-label: name part must consist of`,
		},
		"NoLabel": {
			reason:      "nothing is no label either",
			args:        []string{"--pod-count-label="},
			environment: map[string]string{"USELESS_POD_COUNT_LABEL": "pods"},
			wantErr:     "; for example, pod-count or example.com/pod-count",
		},
		"Annotations": {
			reason: "key and value are split at the first =",
			args:   []string{"--controllers=*,ingress", "--ingress-annotation=foo=bar", "--ingress-annotation=example.com/rule=a=b\nc"},
			want: result{Controllers: []string{"*", "ingress"}, MaxSwitches: 100, Label: "pod-count",
				Annotations: ingress.Annotations{"foo": "bar", "example.com/rule": "a=b\nc"}},
		},
		"AnnotationsInEnvironment": {
			reason:      "the environment has one a line",
			environment: map[string]string{"USELESS_CONTROLLERS": "ingress", "USELESS_INGRESS_ANNOTATION": "foo=bar\nexample.com/rule=a=b, c\n"},
			want: result{Controllers: []string{"ingress"}, MaxSwitches: 100, Label: "pod-count",
				Annotations: ingress.Annotations{"foo": "bar", "example.com/rule": "a=b, c"}},
		},
		"BadAnnotationInEnvironment": {
			reason:      "the line is named that is wrong",
			environment: map[string]string{"USELESS_INGRESS_ANNOTATION": "foo=bar\nfoo"},
			wantErr:     `invalid value "foo" for environment variable USELESS_INGRESS_ANNOTATION: want key=value`,
		},
		"BadAnnotation": {
			reason:  "the flag is named that is wrong",
			args:    []string{"--ingress-annotation=foo=bar", "--ingress-annotation=foo=baz"},
			wantErr: `invalid value "foo=baz" for flag -ingress-annotation: annotation key "foo": got two values`,
		},
		"UselessAnnotation": {
			reason:  "an annotation that nobody sets is a mistake",
			args:    []string{"--ingress-annotation=foo=bar"},
			wantErr: "--ingress-annotation is for the controller ingress, which is off: add --controllers=*,ingress",
		},
		"BadEnvironment": {
			reason:      "the variable is named, not the flag that nobody gave",
			environment: map[string]string{"USELESS_MAX_SWITCHES": "many"},
			wantErr:     `invalid value "many" for environment variable USELESS_MAX_SWITCHES`,
		},
		"TooManySwitches": {
			reason:  "the schema allows no more than 1000 switches",
			args:    []string{"--max-switches=1001"},
			wantErr: "invalid value 1001 for flag --max-switches: must be from 1 to 1000",
		},
		"NoTimeZone": {
			reason:  "a mistake is told of at once, also where the controller does not run",
			args:    []string{"--default-time-zone=Mars", "--controllers=*,-schedule"},
			wantErr: `invalid value "Mars" for flag --default-time-zone: the time zone database does not have it; use for example Europe/Berlin`,
		},
		"NoImage": {
			reason:  "a server has to run something",
			args:    []string{"--vm-image="},
			wantErr: `invalid value "" for flag --vm-image: must be an image, such as registry.k8s.io/pause:`,
		},
		"NoWorkers": {
			reason:  "somebody has to do the work",
			args:    []string{"--concurrent-machine-syncs=0"},
			wantErr: "invalid value 0 for flag --concurrent-machine-syncs: must be from 1 to 256",
		},
		"NoInterval": {
			reason:  "the metrics API is not to be asked without a pause",
			args:    []string{"--vm-usage-interval=10ms"},
			wantErr: "invalid value 10ms for flag --vm-usage-interval: must be at least 1s",
		},
		"Argument": {
			reason:  "what is no flag is a mistake",
			args:    []string{"machine"},
			wantErr: `unexpected argument "machine"`,
		},
		"NoNamespace": {
			reason:  "certificates need a place",
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
			if diff := cmp.Diff(c.want, result{
				o.controllers.Selection, o.maxSwitches, o.leaderElect, o.controllers.PodCount.Label, o.controllers.Ingress.Annotations,
			}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// TestFlagsAreDocumented compares the flags with their table, both ways.
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
		t.Errorf("the flags in docs/reference.md are not those that there are (-flags +documented):\n%s", diff)
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
			t.Errorf("done %s after its parent, want 3s", got)
		}
	})
}

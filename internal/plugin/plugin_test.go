// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clocktesting "k8s.io/utils/clock/testing"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// now is a Wednesday, four days before the clocks go back in Berlin.
var now = time.Date(2026, 10, 22, 10, 5, 0, 0, time.UTC)

// run runs the plugin with a manifest on standard input.
func run(stdin string, args ...string) (stdout, stderr string, err error) {
	streams, in, out, errOut := genericiooptions.NewTestIOStreams()
	in.WriteString(stdin)
	command := New(streams, clocktesting.NewFakePassiveClock(now))
	command.SetArgs(args)
	err = command.Execute()
	return out.String(), errOut.String(), err
}

func TestTimeline(t *testing.T) {
	s, problems := schedule.Parse(map[string]string{
		v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00",
		v1beta1.StopScheduleAnnotation:  "Mon-Fri 20:00",
		v1beta1.TimeZoneAnnotation:      "Europe/Berlin",
		v1beta1.ExcludeDatesAnnotation:  "2026-10-23",
	}, time.UTC)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var out strings.Builder
	timeline(&out, s, now)
	const want = `                  0     6     12    18
  Mon 2026-10-19  .......#############....  start 07:00, stop 20:00
  Tue 2026-10-20  .......#############....  start 07:00, stop 20:00
  Wed 2026-10-21  .......#############....  start 07:00, stop 20:00
> Thu 2026-10-22  .......#############....  start 07:00, stop 20:00, now 12:05
  Fri 2026-10-23  ........................  stop 20:00, excluded: no start
  Sat 2026-10-24  ........................
  Sun 2026-10-25  ........................  clocks go back
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	page, err := os.ReadFile("../../docs/kubectl-useless.md")
	if err != nil || !strings.Contains(string(page), "```\n"+want+"```\n") {
		t.Errorf("docs/kubectl-useless.md does not contain this timeline; error %v", err)
	}
}

func TestCheck(t *testing.T) {
	object := func(kind, annotation string) string {
		return "kind: " + kind + "\nmetadata:\n  name: web\n  annotations:\n    useless.container.training/" + annotation + "\n"
	}
	for _, c := range []struct {
		reason, manifest, want string
		invalid                bool
	}{
		{"a schedule that is not a time is a mistake", object("Deployment", "stop-schedule: 1 Jan"), "-:5: ", true},
		{"a value that is not a string is a mistake", object("Deployment", "stop-after: 5"),
			`-:5: useless.container.training/stop-after must be a string: write "5", with the quotes`, true},
		{"a misspelled annotation is a mistake", object("Deployment", "stop-shedule: 20:00"),
			"-:5: useless.container.training/stop-shedule is unknown: do you mean useless.container.training/stop-schedule?", true},
		{"a kind without schedules is a mistake", object("Job", `stop-after: 4h`),
			`-:5: schedules do not apply here: unknown kind "Job"`, true},
		{"an autoscaler needs stop-replicas", object("HorizontalPodAutoscaler", "stop-after: 4h"),
			`-:5: useless.container.training/stop-replicas ""`, true},
		{"a schedule may be that of the Namespace", object("CronJob", `suspend: "true"`), "", false},
		{"a document without annotations is ignored", "kind: Pod\n---\n---\nkind: Job\n", "", false},
		{"stop-after has no fixed times", object("CronJob", "stop-after: 4h"), "  stop   4h0m0s after each start\n", false},
		{"a Namespace cannot have a duration in start-until", object("Namespace", "stop-after: 4h\n"+
			"    useless.container.training/start-until: 3h"), "on a Namespace, it must be a time", true},
	} {
		t.Run(c.reason, func(t *testing.T) {
			stdout, _, err := run(c.manifest, "schedule", "check", "-f", "-")
			if !strings.Contains(stdout, c.want) {
				t.Errorf("got %s, want %s", stdout, c.want)
			}
			if errors.Is(err, errInvalid) != c.invalid {
				t.Errorf("error %v, want one: %t", err, c.invalid)
			}
		})
	}
}

func TestCheckShowsTheNextTenEvents(t *testing.T) {
	stdout, _, err := run("kind: Deployment\nmetadata: {name: web, annotations: {"+
		"useless.container.training/stop-schedule: Sun 20:00, useless.container.training/time-zone: Europe/Berlin}}",
		"schedule", "check", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if want := "  stop   Sun 2026-10-25 20:00 CET"; len(lines) != 11 || lines[1] != want {
		t.Errorf("got %q, want 11 lines and %q", lines, want)
	}
}

// TestWrongArguments needs no cluster, because the commands check their arguments first.
func TestWrongArguments(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"schedule", "add one of: check explain import list"},
		{"schedule start", `unknown command "start"`},
		{"schedule list -o xml", "use json, yaml or wide"},
		{"schedule list --default-time-zone Berlin", "use for example Europe/Berlin"},
		{"schedule list web", "unknown command"},
		{"schedule explain", "write KIND/NAME, for example deployment/web"},
		{"schedule explain web", "write KIND/NAME"},
		{"schedule explain pod/web", "use one of deployment (deploy)"},
		{"schedule check", "-f is missing"},
		{"schedule check -f no-such-file.yaml", "no such file"},
		{"schedule check web.yaml", "unknown command"},
		{"schedule import --apply -f old.yaml", "omit -f"},
		{"schedule import -f no-such-file.yaml", "does not exist"},
		{"schedule import web", "unknown command"},
		{"wake deploy/web", "--for 2h"},
		{"wake deploy/web --for 5s", "from 1m to 30d"},
		{"wake pods/web --for 5m", `unknown kind "pods"`},
		{"wake deploy/web/x --for 5m", "write KIND/NAME"},
		{"sleep deploy/web --until tomorrow", "--until 2026-10-23T10:00:00Z"},
		{"sleep deploy/web --until 2020-01-01T00:00:00Z", "use a later time"},
		{"sleep deploy", "write KIND/NAME"},
		{"flip", "write the name of one Machine"},
		{"flip a b", "write the name of one Machine"},
		{"flip ''", "write the name of one Machine"},
	} {
		t.Run(c.args, func(t *testing.T) {
			args := strings.Fields(c.args)
			for i := range args {
				args[i] = strings.Trim(args[i], "'")
			}
			stdout, _, err := run("", args...)
			if err == nil || !strings.Contains(err.Error(), c.want) || stdout != "" {
				t.Errorf("error %v, want %s; stdout %q", err, c.want, stdout)
			}
		})
	}
}

func TestKindNamed(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"deploy", "deployments"}, {"Deployment", "deployments"}, {"deployments.apps", "deployments"},
		{"sts", "statefulsets"}, {"cj", "cronjobs"}, {"vm", "virtualmachines"},
		{"so", "scaledobjects"}, {"hpa", "horizontalpodautoscalers"}, {"hpa.v2.autoscaling", "horizontalpodautoscalers"},
		{"vm.kubevirt.io", ""}, {"pods", ""}, {"", ""},
	} {
		if got, err := kindNamed(c.name); got.plural != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: got %q, want %q; error %v", c.name, got.plural, c.want, err)
		}
	}
}

func TestImport(t *testing.T) {
	const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: Mon-Fri 08:00-20:00 Europe/Berlin}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dev, annotations: {downscaler/downtime-replicas: "1", downscaler/grace-period: "900"}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: dev, annotations: {downscaler/exclude: "true"}}
---
apiVersion: kube-green.com/v1alpha1
kind: SleepInfo
metadata: {name: night, namespace: test}
spec: {weekdays: "*", sleepAt: "20:00", suspendCronJobs: true}
`
	const prefix = "useless.container.training/"
	want := "kubectl annotate --overwrite namespace/dev '" + prefix + "start-schedule=Mon-Fri 08:00' '" + prefix +
		"stop-schedule=Mon-Fri 20:00' '" + prefix + "time-zone=Europe/Berlin'\n" +
		"# deployment/web: grace-period is not translated: set start-until, for example 15m, on a new workload\n" +
		"kubectl annotate --overwrite deployment/web -n dev '" + prefix + "start-schedule=Mon-Fri 08:00' '" + prefix +
		"stop-replicas=1' '" + prefix + "stop-schedule=Mon-Fri 20:00' '" + prefix + "time-zone=Europe/Berlin'\n" +
		"# job/once: nothing is translated: unknown kind \"Job\": use one of deployment (deploy), statefulset (sts), " +
		"cronjob (cj), virtualmachine (vm), horizontalpodautoscaler (hpa), scaledobject (so)\n" +
		"kubectl annotate --overwrite namespace/test '" + prefix + "stop-schedule=0 20 * * *'\n"
	file := filepath.Join(t.TempDir(), "old.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, _, err := run("", "schedule", "import", "-f", file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Error(diff)
	}
}

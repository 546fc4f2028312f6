// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	controller "container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/schedule"
)

// now is a Thursday, three days before the clocks go back in Berlin.
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

// newWorkload returns the workload that the plugin makes of a Deployment in a cluster.
func newWorkload(d *appsv1.Deployment, of defaults) workload {
	return workload{controller.NewWorkload("deployments", d, of.annotations, time.UTC, now), kinds[0], d, nil, of}
}

// TestImportRejectsNames imports files with names that a shell would read as a command.
func TestImportRejectsNames(t *testing.T) {
	for _, object := range []string{
		`kind: Deployment, metadata: {name: "web; reboot", namespace: dev, annotations: {downscaler/exclude: "true"}}`,
		`kind: Deployment, metadata: {name: web, namespace: "dev\nreboot", annotations: {downscaler/exclude: "true"}}`,
		`kind: "Job\nreboot", metadata: {name: web, namespace: dev, annotations: {downscaler/exclude: "true"}}`,
	} {
		file := filepath.Join(t.TempDir(), "old.yaml")
		if err := os.WriteFile(file, []byte("{apiVersion: apps/v1, "+object+"}"), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, _, err := run("", "schedule", "import", "-f", file)
		if err == nil || stdout != "" {
			t.Errorf("%s: got error %v and output %q, want an error and no output", object, err, stdout)
		}
	}
}

// TestTimeline shows the weeks of both clock changes, with an excluded day in the second one.
func TestTimeline(t *testing.T) {
	checkTimelines(t, map[string]string{
		v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00",
		v1beta1.StopScheduleAnnotation:  "Mon-Fri 20:00",
		v1beta1.TimeZoneAnnotation:      "Europe/Berlin",
		v1beta1.ExcludeDatesAnnotation:  "2026-10-23",
	}, time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC), now, `                  0     6     12    18
  Tue 2026-03-24  .......#############....  start 07:00, stop 20:00
  Wed 2026-03-25  .......#############....  start 07:00, stop 20:00
  Thu 2026-03-26  .......#############....  start 07:00, stop 20:00
> Fri 2026-03-27  .......#############....  start 07:00, stop 20:00, now 13:00
  Sat 2026-03-28  ........................
  Sun 2026-03-29  ..-.....................  clocks go forward
  Mon 2026-03-30  .......#############....  start 07:00, stop 20:00
                  0     6     12    18
  Mon 2026-10-19  .......#############....  start 07:00, stop 20:00
  Tue 2026-10-20  .......#############....  start 07:00, stop 20:00
  Wed 2026-10-21  .......#############....  start 07:00, stop 20:00
> Thu 2026-10-22  .......#############....  start 07:00, stop 20:00, now 12:05
  Fri 2026-10-23  ........................  stop 20:00, excluded: no start
  Sat 2026-10-24  ........................
  Sun 2026-10-25  ........................  clocks go back
`)
}

// checkTimelines compares the timelines of a schedule at two times with want.
func checkTimelines(t *testing.T, annotations map[string]string, first, second time.Time, want string) {
	t.Helper()
	s, problems := schedule.Parse(annotations, time.UTC)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var out strings.Builder
	timeline(&out, s, first)
	timeline(&out, s, second)
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestTimelineWithoutMidnight shows a week in which the clocks go from 24:00 to 01:00, and one in which they go from
// 24:00 to 23:00.
func TestTimelineWithoutMidnight(t *testing.T) {
	checkTimelines(t, map[string]string{
		v1beta1.StartScheduleAnnotation: "00:00",
		v1beta1.StopScheduleAnnotation:  "20:00",
		v1beta1.TimeZoneAnnotation:      "America/Santiago",
	}, time.Date(2026, 9, 6, 15, 0, 0, 0, time.UTC), time.Date(2026, 4, 5, 15, 0, 0, 0, time.UTC), `                  0     6     12    18
  Thu 2026-09-03  ####################....  start 00:00, stop 20:00
  Fri 2026-09-04  ####################....  start 00:00, stop 20:00
  Sat 2026-09-05  ####################....  start 00:00, stop 20:00
> Sun 2026-09-06  -###################....  start 01:00, stop 20:00, now 12:00, clocks go forward
  Mon 2026-09-07  ####################....  start 00:00, stop 20:00
  Tue 2026-09-08  ####################....  start 00:00, stop 20:00
  Wed 2026-09-09  ####################....  start 00:00, stop 20:00
                  0     6     12    18
  Thu 2026-04-02  ####################....  start 00:00, stop 20:00
  Fri 2026-04-03  ####################....  start 00:00, stop 20:00
  Sat 2026-04-04  ####################....  start 00:00, stop 20:00, clocks go back
> Sun 2026-04-05  ####################....  start 00:00, stop 20:00, now 11:00
  Mon 2026-04-06  ####################....  start 00:00, stop 20:00
  Tue 2026-04-07  ####################....  start 00:00, stop 20:00
  Wed 2026-04-08  ####################....  start 00:00, stop 20:00
`)
}

// stopped returns a Deployment with no replicas. The record describes its last start or stop.
func stopped(record schedule.Record, annotations map[string]string) *appsv1.Deployment {
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}}
	d.Namespace, d.Name, d.Annotations = "dev", "web", annotations
	if s, _ := schedule.Parse(annotations, time.UTC); s != nil {
		record.Observed = s.Observed
		record.Write(d.Annotations, false)
	}
	return d
}

// TestExplain explains a Deployment on a Thursday at 10:05. Its schedule starts it at 07:00 and stops it at 20:00.
func TestExplain(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 10, 22, hour, 0, 0, 0, time.UTC) }
	const started, undone = `start-schedule "Mon-Fri 07:00" was due on Thu 2026-10-22 07:00 UTC`,
		", but a user or a tool has undone it\n"
	const byTimer = "stop-after or kubectl useless sleep stopped it on Thu 2026-10-22 08:00 UTC"
	for _, c := range []struct {
		reason   string
		replicas int32
		record   schedule.Record
		key      string // an annotation in addition to the schedule; empty for none
		value    string
		because  string
		last     string // the last event in the list
	}{
		{"the start was executed", 3, schedule.Record{Last: at(7), State: v1beta1.ScheduleStarted}, "", "",
			started + "\n", "start"},
		{"a user has undone the start", 0, schedule.Record{Last: at(7), State: v1beta1.ScheduleStarted}, "", "",
			started + undone, "start"},
		{"the start is late", 0, schedule.Record{Last: at(6), State: v1beta1.ScheduleStopped}, "", "",
			started + ", but the operator has not executed it yet: its events can show the reason\n" +
				"  kubectl events -n dev --for deployment/web\n", "start"},
		{"a dry run does not start it", 0, schedule.Record{}, v1beta1.DryRunAnnotation, "true",
			started + ", but a dry run does not execute it\n", "start"},
		{"the start was suspended", 0, schedule.Record{Last: at(7), State: v1beta1.ScheduleStopped, Original: 3}, "", "",
			started + ", but a suspension or a dry run has skipped it\n", "start"},
		{"the replicas before the stop are not known", 0, schedule.Record{Last: at(7)}, "", "",
			started + ", but the operator had not stopped it, so there was nothing to restore\n", "start"},
		{"it is suspended while it runs", 3, schedule.Record{Last: at(7), State: v1beta1.ScheduleStarted},
			v1beta1.SuspendUntilAnnotation, "2026-10-24T07:00:00Z",
			"it runs, and starts and stops are skipped until Sat 2026-10-24 07:00 UTC (suspend-until)\n", "start"},
		{"it is suspended while it is stopped", 0, schedule.Record{Last: at(7), State: v1beta1.ScheduleStarted},
			v1beta1.SuspendAnnotation, "true",
			"it is stopped, and starts and stops are skipped because suspend is \"true\"\n", "start"},
		{"the command sleep has stopped it", 0,
			schedule.Record{Last: at(8), State: v1beta1.ScheduleStopped, Original: 3}, "", "", byTimer + "\n", "stop"},
		{"stop-after has stopped it", 0, schedule.Record{Last: at(8), State: v1beta1.ScheduleStopped, Original: 3},
			v1beta1.StopAfterAnnotation, "1h", byTimer + "\n", "stop"},
		{"a user starts it after that", 3, schedule.Record{Last: at(8), State: v1beta1.ScheduleStopped, Original: 3},
			v1beta1.StopAfterAnnotation, "1h", byTimer + undone, "stop"},
		{"it runs on demand", 3, schedule.Record{ExpiresAt: at(12), State: v1beta1.ScheduleStarted},
			v1beta1.StartUntilAnnotation, "2026-10-22T12:00:00Z", "start-until keeps it running until Thu 2026-10-22 12:00 UTC, " +
				"and then until the stop on Thu 2026-10-22 20:00 UTC\n", ""},
		{"a user stops it while it runs on demand", 0, schedule.Record{ExpiresAt: at(12), State: v1beta1.ScheduleStarted},
			v1beta1.StartUntilAnnotation, "2026-10-22T12:00:00Z",
			"start-until keeps it running until Thu 2026-10-22 12:00 UTC" + undone, ""},
	} {
		t.Run(c.reason, func(t *testing.T) {
			annotations := map[string]string{
				v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", v1beta1.StopScheduleAnnotation: "Mon-Fri 20:00",
			}
			if c.key != "" {
				annotations[c.key] = c.value
			}
			d := stopped(c.record, annotations)
			*d.Spec.Replicas = c.replicas
			w := newWorkload(d, defaults{})
			var out strings.Builder
			if explain(&out, w, now); !strings.Contains(out.String(), "Because:    "+c.because) {
				t.Errorf("want %q in:\n%s", c.because, out.String())
			}
			if got := newRow(w, now).LastEvent; got != c.last {
				t.Errorf("the list shows the last event %q, want %q", got, c.last)
			}
		})
	}
}

// TestHeldImports checks which objects import --apply does not change. All of them have annotations of kube-downscaler.
func TestHeldImports(t *testing.T) {
	const uptime, excluded, grace = `downscaler/uptime: "Mon-Fri 08:00-20:00"`, `downscaler/exclude: "true"`,
		`downscaler/grace-period: "900"`
	for _, c := range []struct {
		reason, namespace, kind, workload string
		want                              []string
	}{
		{"all is translated", uptime, "Deployment", uptime, nil},
		{"a part is not translated, so the default of the Namespace could stop the workload", uptime, "Deployment",
			uptime + ", " + grace, []string{"deployment/web", "namespace/dev"}},
		{"the workload is excluded, so neither schedule can stop it", uptime, "Deployment",
			uptime + ", " + excluded + ", " + grace, nil},
		{"the uptime of the Namespace is forced", uptime + `, downscaler/force-uptime: "true"`, "Deployment", uptime,
			[]string{"deployment/web", "namespace/dev"}},
		{"a percentage has no equivalent", uptime, "Deployment", `downscaler/downscale-replicas: "50%"`,
			[]string{"deployment/web", "namespace/dev"}},
		{"the default stops another kind", uptime, "StatefulSet", "", []string{"namespace/dev"}},
	} {
		file := filepath.Join(t.TempDir(), "old.yaml")
		manifest := "{apiVersion: v1, kind: Namespace, metadata: {name: dev, annotations: {" + c.namespace + "}}}\n---\n" +
			"{apiVersion: apps/v1, kind: " + c.kind + ", metadata: {name: web, namespace: dev, annotations: {" + c.workload + "}}}\n"
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		infos, err := readFiles([]string{file})
		if err != nil {
			t.Fatal(err)
		}
		changes, err := (&importer{infos: infos, zone: time.UTC}).changes()
		if err != nil {
			t.Fatal(err)
		}
		var held []string
		for _, change := range changes {
			if change.isManual {
				held = append(held, change.target)
			}
		}
		if diff := cmp.Diff(c.want, held); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

// TestDescribeNext describes the next start of a stopped Deployment.
func TestDescribeNext(t *testing.T) {
	const start = "start on Fri 2026-10-23 07:00 UTC (start-schedule)"
	for _, c := range []struct {
		reason, want string
		original     int32
		key, value   string
	}{
		{"the operator has stopped it", start, 3, v1beta1.StopScheduleAnnotation, "20:00"},
		{"a user had stopped it before", start + ", which will not start it: it did not run before the stop", 0,
			v1beta1.StopScheduleAnnotation, "20:00"},
		{"the start sets the replicas", start, 0, v1beta1.StartReplicasAnnotation, "2"},
		{"a dry run starts nothing", start, 0, v1beta1.DryRunAnnotation, "true"},
	} {
		w := newWorkload(stopped(schedule.Record{State: v1beta1.ScheduleStopped, Original: c.original},
			map[string]string{v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", c.key: c.value}), defaults{})
		s, problems := w.Parse()
		if s == nil {
			t.Fatal(problems)
		}
		next := schedule.Event{At: time.Date(2026, 10, 23, 7, 0, 0, 0, time.UTC), Cause: v1beta1.StartScheduleAnnotation}
		if got := w.describeNext(s, next); got != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
		}
	}
}

// TestNextEvent checks the next start or stop that the operator will execute. It is Thursday, 10:05. The schedule
// starts the Deployment from Monday to Friday at 07:00, and stops it at 20:00. The Deployment has
// been running since 09:00.
func TestNextEvent(t *testing.T) {
	const suspendUntil, startUntil, stopAfter = v1beta1.SuspendUntilAnnotation, v1beta1.StartUntilAnnotation,
		v1beta1.StopAfterAnnotation
	const stopOnThursday = "stop on Thu 2026-10-22 20:00 UTC (stop-schedule)"
	type m = map[string]string
	office := m{v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", v1beta1.StopScheduleAnnotation: "Mon-Fri 20:00"}
	for _, c := range []struct {
		reason        string
		base          map[string]string
		added         map[string]string
		explain, list string // empty for none
	}{
		{"a regular stop is next", office, nil, stopOnThursday, "stop in 9h"},
		{"starts and stops are suspended", office, m{v1beta1.SuspendAnnotation: "true"}, "", "-"},
		{"the stop is suspended, and the start is at the end of the suspension", office,
			m{suspendUntil: "2026-10-23T07:00:00Z"}, "start on Fri 2026-10-23 07:00 UTC (start-schedule)", "start in 20h"},
		{"the start is suspended, too", office, m{suspendUntil: "2026-10-23T07:00:01Z"},
			"stop on Fri 2026-10-23 20:00 UTC (stop-schedule)", "stop in 33h"},
		{"stop-after ends before the regular stop", office, m{stopAfter: "2h"},
			"stop on Thu 2026-10-22 11:00 UTC (stop-after)", "stop in 55m"},
		{"stop-after ends later", office, m{stopAfter: "1d"}, stopOnThursday, "stop in 9h"},
		{"stop-after ends during the suspension, and begins again", office,
			m{stopAfter: "2h", suspendUntil: "2026-10-22T12:00:00Z"}, "stop on Thu 2026-10-22 13:00 UTC (stop-after)",
			"stop in 175m"},
		{"stop-after begins again several times", office, m{stopAfter: "2h", suspendUntil: "2026-10-22T15:00:00Z"},
			"stop on Thu 2026-10-22 15:00 UTC (stop-after)", "stop in 4h55m"},
		{"an uptime ends after the regular stop", office, m{startUntil: "2026-10-22T22:00:00Z"},
			"stop on Thu 2026-10-22 22:00 UTC (start-until)", "stop in 11h"},
		{"an uptime ends before the regular stop", office, m{startUntil: "2026-10-22T12:00:00Z"}, stopOnThursday,
			"stop in 9h"},
		{"the stop at the end of the uptime is suspended", office,
			m{startUntil: "2026-10-22T22:00:00Z", suspendUntil: "2026-10-23T12:00:00Z"},
			"stop on Fri 2026-10-23 20:00 UTC (stop-schedule)", "stop in 33h"},
		{"stop-after is the only schedule", m{stopAfter: "4h"}, nil, "stop on Thu 2026-10-22 13:00 UTC (stop-after)",
			"stop in 175m"},
		{"stop-after ends after the uptime", m{stopAfter: "4h"}, m{startUntil: "2026-10-22T12:00:00Z"},
			"stop on Thu 2026-10-22 13:00 UTC (stop-after)", "stop in 175m"},
		{"stop-after ends during the uptime", m{stopAfter: "4h"}, m{startUntil: "2026-10-22T22:00:00Z"},
			"stop on Thu 2026-10-22 22:00 UTC (start-until)", "stop in 11h"},
	} {
		annotations := maps.Clone(c.base)
		maps.Copy(annotations, c.added)
		until, _ := time.Parse(time.RFC3339, annotations[startUntil])
		d := stopped(schedule.Record{Last: now.Add(-3*time.Hour - 5*time.Minute), State: v1beta1.ScheduleStarted,
			RunningSince: now.Add(-time.Hour - 5*time.Minute), ExpiresAt: until}, annotations)
		*d.Spec.Replicas = 3
		w := newWorkload(d, defaults{})
		var out strings.Builder
		explain(&out, w, now)
		_, got, _ := strings.Cut(out.String(), "Next:       ")
		if got, _, _ = strings.Cut(got, "\n"); got != c.explain {
			t.Errorf("%s: explained %q, want %q", c.reason, got, c.explain)
		}
		cells := table([]row{newRow(w, now)}, now, false).Rows[0].Cells
		if got := cells[4]; got != c.list {
			t.Errorf("%s: the list shows %q, want %q", c.reason, got, c.list)
		}
	}
}

// TestUntilStart describes when a workload that sleeps starts again.
func TestUntilStart(t *testing.T) {
	for _, c := range []struct {
		reason   string
		original int32 // the replicas before the stop; 0 if they are not known
		key      string
		value    string
		want     string
	}{
		{"the next start is on the next day", 3, v1beta1.StartScheduleAnnotation, "Mon-Fri 07:00",
			" until Fri 2026-10-23 07:00 UTC"},
		{"without a start, the user starts it", 3, v1beta1.StopAfterAnnotation, "4h",
			": to start it, use kubectl useless wake deployment/web -n dev --for 2h"},
		{"a suspension skips each start", 3, v1beta1.SuspendAnnotation, "true",
			": to start it, use kubectl useless wake deployment/web -n dev --for 2h"},
		{"a dry run executes no start", 3, v1beta1.DryRunAnnotation, "true",
			": a dry run applies to it, so the operator will not start it"},
		{"it was already stopped", 0, v1beta1.StartScheduleAnnotation, "Mon-Fri 07:00",
			": it did not run before, so no start restores it; to start it, use kubectl scale -n dev deployment/web --replicas=1"},
	} {
		annotations := map[string]string{v1beta1.StopScheduleAnnotation: "20:00", c.key: c.value}
		d := stopped(schedule.Record{Original: c.original, State: v1beta1.ScheduleStopped}, annotations)
		w := newWorkload(d, defaults{})
		if got := w.untilStart(now); got != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
		}
	}
}

// TestAfterWake describes what follows an uptime on demand from Thursday at 10:05 to 12:05.
func TestAfterWake(t *testing.T) {
	const start, stop, stopAfter, suspendUntil = v1beta1.StartScheduleAnnotation, v1beta1.StopScheduleAnnotation,
		v1beta1.StopAfterAnnotation, v1beta1.SuspendUntilAnnotation
	const thursday = ", and then until the stop on Thu 2026-10-22 "
	type m = map[string]string
	for _, c := range []struct {
		reason      string
		annotations map[string]string
		since       string // from when the workload has been running; empty if it is stopped
		want        string
	}{
		{"the last event before the end is a stop", m{stop: "20:00"}, "", ""},
		{"the last event before the end is a start", m{stop: "20:00", start: "07:00"}, "", thursday + "20:00 UTC"},
		{"a start at the same time wins", m{stop: "0 18,20 * * *", start: "0 7,18 * * *"}, "", thursday + "20:00 UTC"},
		{"there is no stop", m{start: "07:00"}, "", ", and then until you stop it"},
		{"the stop is years later", m{stop: "0 20 29 2 *", start: "07:00"}, "",
			", and then until the stop on Tue 2028-02-29 20:00 UTC"},
		{"stop-after ends during the uptime", m{stopAfter: "1h", start: "07:00"}, "", ""},
		{"stop-after ends later", m{stopAfter: "4h"}, "", thursday + "14:05 UTC"},
		{"stop-after counts from the start of a running workload", m{stopAfter: "4h"}, "09:00", thursday + "13:00 UTC"},
		{"a start during the uptime begins stop-after again at the end", m{stopAfter: "1h", start: "11:30"}, "",
			thursday + "13:05 UTC"},
		{"stop-after ends after a suspension", m{stopAfter: "4h", suspendUntil: "2026-10-25T12:00:00Z"}, "",
			", and then until the stop on Sun 2026-10-25 14:05 UTC"},
		{"an earlier uptime is replaced", m{stop: "20:00", v1beta1.StartUntilAnnotation: "2026-10-25T11:00:00Z"}, "", ""},
		{"a suspension that ended before the last stop", m{stop: "20:00", suspendUntil: "2026-10-21T11:00:00Z"}, "", ""},
		{"a suspension that ends before the uptime also skips the last stop",
			m{stop: "20:00", suspendUntil: "2026-10-22T11:00:00Z"}, "", thursday + "20:00 UTC"},
		{"a suspension until a later time", m{stop: "20:00", start: "07:00", suspendUntil: "2026-10-26T07:00:00Z"}, "",
			", and then until the stop on Mon 2026-10-26 20:00 UTC"},
		{"a suspension without an end", m{stop: "20:00", v1beta1.SuspendAnnotation: "true"}, "",
			", and then until you stop it, because starts and stops are suspended"},
	} {
		d := stopped(schedule.Record{}, c.annotations)
		if c.since != "" {
			*d.Spec.Replicas = 3
			d.Annotations[v1beta1.RunningSinceAnnotation] = "2026-10-22T" + c.since + ":00Z"
		}
		w := newWorkload(d, defaults{})
		if got := w.afterWake(now, now.Add(2*time.Hour)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
		}
	}
}

// TestDryRunIsShown requires that list and explain show a dry run.
func TestDryRunIsShown(t *testing.T) {
	d := stopped(schedule.Record{}, map[string]string{
		v1beta1.StopScheduleAnnotation: "20:00", v1beta1.DryRunAnnotation: "true"})
	w := newWorkload(d, defaults{})
	var out strings.Builder
	explain(&out, w, now)
	if !strings.Contains(out.String(), "\nDry run:    the operator only emits events about starts and stops") {
		t.Errorf("explain does not show the dry run:\n%s", out.String())
	}
	shown := newRow(w, now)
	if got := table([]row{shown}, now, false).Rows[0].Cells[2]; got != "stopped,dry-run" || !shown.DryRun {
		t.Errorf("the list shows %q, dryRun %t", got, shown.DryRun)
	}
}

// TestInvalidParts has a workload whose only annotation is invalid and replaces the default of the Namespace. list and
// explain show the workload, because the operator emits a Warning event about it.
func TestInvalidParts(t *testing.T) {
	d := stopped(schedule.Record{}, map[string]string{v1beta1.TimeZoneAnnotation: "Berlin"})
	w := newWorkload(d, defaults{annotations: map[string]string{v1beta1.StopScheduleAnnotation: "20:00"}})
	var out strings.Builder
	explain(&out, w, now)
	const mistake = `useless.container.training/time-zone "Berlin": it is not in the time zone database; ` +
		`use for example "Europe/Berlin" or "UTC"`
	const want = "Workload:   deployment/web in namespace dev\nState:      invalid\nMistake:    " + mistake +
		"\nSource:     its own annotations, which replace the default schedule of Namespace dev\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("explain (-want +got):\n%s", diff)
	}
	if got := newRow(w, now); got.State != "invalid" || got.Message != mistake {
		t.Errorf("list shows the state %q with the message %q, want the mistake", got.State, got.Message)
	}
}

// TestUnknownAnnotation shows an annotation that the operator ignores, beside a valid and beside an invalid schedule.
func TestUnknownAnnotation(t *testing.T) {
	for _, stop := range []string{"20:00", "25:00"} {
		d := stopped(schedule.Record{}, map[string]string{v1beta1.StopScheduleAnnotation: stop, prefix + "start-shedule": "07:00"})
		var out strings.Builder
		explain(&out, newWorkload(d, defaults{}), now)
		const want = "\nMistake:    the annotation " + prefix + "start-shedule is unknown: do you mean " + prefix + "start-schedule?\n"
		if !strings.Contains(out.String(), want) {
			t.Errorf("with the stop at %s, want %q in:\n%s", stop, want, out.String())
		}
	}
}

// TestUnknownDefault requires that explain does not recommend a schedule that would replace a default.
func TestUnknownDefault(t *testing.T) {
	d := stopped(schedule.Record{}, map[string]string{})
	err := noSchedule(newWorkload(d, defaults{unknown: errors.New("forbidden")}))
	const want = "deployment/web has no schedule of its own, and its Namespace may have a default schedule: " +
		"ask for the permission to get the Namespace dev"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// TestImportAddsUTC imports schedules without a time zone for an operator with another default time zone.
func TestImportAddsUTC(t *testing.T) {
	const sleepInfo = "apiVersion: kube-green.com/v1alpha1\nkind: SleepInfo\nmetadata: {name: night, namespace: dev}\n" +
		"spec: {weekdays: '*', sleepAt: '20:00', suspendCronJobs: true"
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: dev, annotations: " +
		"{downscaler/uptime: 'Mon-Fri 08:00-20:00'}}"
	for manifest, want := range map[string]string{
		sleepInfo + "}":                        "'" + v1beta1.TimeZoneAnnotation + "=UTC'",
		sleepInfo + ", timeZone: Europe/Rome}": "'" + v1beta1.TimeZoneAnnotation + "=Europe/Rome'",
		deployment:                             "'" + v1beta1.TimeZoneAnnotation + "=UTC'",
	} {
		file := filepath.Join(t.TempDir(), "old.yaml")
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, _, err := run("", "schedule", "import", "-f", file, "--default-time-zone", "Europe/Berlin")
		if err != nil || !strings.HasSuffix(stdout, want+"\n") {
			t.Errorf("error %v, want %s at the end of\n%s", err, want, stdout)
		}
	}
}

// TestInvalidDefault requires that the error names the object with the mistake.
func TestInvalidDefault(t *testing.T) {
	for _, c := range []struct{ reason, own, defaults, want string }{
		{"the default is invalid", "", "25:00", "the default schedule of Namespace dev"},
		{"the workload's own suspend-until is invalid", "soon", "20:00", "the schedule of deployment/web"},
	} {
		d := stopped(schedule.Record{}, map[string]string{})
		if c.own != "" {
			d.Annotations[v1beta1.SuspendUntilAnnotation] = c.own
		}
		ofNamespace := map[string]string{v1beta1.StopScheduleAnnotation: c.defaults}
		w := newWorkload(d, defaults{annotations: ofNamespace})
		if err := w.invalid(); err == nil || !strings.HasPrefix(err.Error(), c.want+" is invalid: ") {
			t.Errorf("%s: got %v, want %s", c.reason, err, c.want)
		}
	}
}

// TestNoSchedule requires that the error about a workload without a schedule names what to change.
func TestNoSchedule(t *testing.T) {
	for _, c := range []struct{ reason, key, value, want string }{
		{"no annotation", "example.com/a", "b", "deployment/web has no schedule: add one, for example with\n" +
			"  kubectl annotate -n dev deployment/web \"useless.container.training/start-schedule=Mon-Fri 07:00\" " +
			"\"useless.container.training/stop-schedule=Mon-Fri 20:00\"\nThe operator executes the last start or stop of a " +
			"new schedule at once. With useless.container.training/dry-run=true, it only emits an event."},
		{"excluded from the default of the Namespace", v1beta1.ScheduleAnnotation, "none",
			"deployment/web is excluded from schedules: remove the annotation with\n" +
				"  kubectl annotate -n dev deployment/web useless.container.training/schedule-"},
		{"a misspelled annotation", prefix + "stop-shedule", "20:00", "deployment/web has no schedule: the annotation " +
			"useless.container.training/stop-shedule is unknown: do you mean useless.container.training/stop-schedule?"},
		{"a misspelled prefix", "useless.container.traning/stop-schedule", "20:00", "deployment/web has no schedule: the annotation " +
			"useless.container.traning/stop-schedule is unknown: do you mean useless.container.training/stop-schedule?"},
		{"an annotation in upper case", prefix + "Stop-Schedule", "20:00", "deployment/web has no schedule: the annotation " +
			"useless.container.training/Stop-Schedule is unknown: do you mean useless.container.training/stop-schedule?"},
		{"stop-replicas without a schedule", v1beta1.StopReplicasAnnotation, "1", "deployment/web has no schedule: " +
			"useless.container.training/stop-replicas \"1\": there is no start-schedule, stop-schedule or stop-after; " +
			"use for example stop-schedule \"Mon-Fri 20:00\" in addition"},
	} {
		d := stopped(schedule.Record{}, map[string]string{c.key: c.value})
		w := newWorkload(d, defaults{})
		if got := noSchedule(w).Error(); got != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
		}
	}
}

// TestAddSchedule requires that the suggested schedule is valid for each kind.
func TestAddSchedule(t *testing.T) {
	quoted := regexp.MustCompile(`"?(useless\.container\.training/[a-z-]+)=([^"\n]*[^" \n])"?`)
	for _, k := range kinds {
		annotations := map[string]string{}
		command, _, _ := strings.Cut(k.addSchedule("-n dev "+k.singular+" web"), "\n")
		for _, match := range quoted.FindAllStringSubmatch(command, -1) {
			annotations[match[1]] = match[2]
		}
		o := controller.NewObject(k.plural)
		o.SetAnnotations(annotations)
		s, problems := controller.NewWorkload(k.plural, o, nil, time.UTC, now).Parse()
		if s == nil || s.Start == nil || s.Stop == nil {
			t.Errorf("%s: %v\n%s", k.plural, problems, command)
		}
	}
}

// TestSavedHours describes a Deployment of 3 replicas at 10:05. Each replica requests 1 core and 1 GiB. Its schedule
// starts it at 07:00 and stops it at 20:00.
func TestSavedHours(t *testing.T) {
	for _, c := range []struct {
		reason   string
		replicas int32
		record   schedule.Record
		list     string // core hours
		explain  string
	}{
		{"the last stop was executed", 0, schedule.Record{Last: now.Add(-14*time.Hour - 5*time.Minute),
			State: v1beta1.ScheduleStopped, Original: 3}, "42.2", "42.2 core hours, 42.2 GiB hours since the last stop was due"},
		{"stop-after has stopped it", 0, schedule.Record{Last: now.Add(-time.Hour), State: v1beta1.ScheduleStopped,
			Original: 3}, "3.0", "3.0 core hours, 3.0 GiB hours since the last stop was due"},
		{"the start after the stop was suspended", 0, schedule.Record{Last: now.Add(-3*time.Hour - 5*time.Minute),
			State: v1beta1.ScheduleStopped, Original: 3}, "-", "not known, because the operator has recorded a start after the stop"},
		{"a user has stopped a new workload", 0, schedule.Record{Original: 3}, "-",
			"not known, because the operator has recorded no stop"},
		{"it runs", 3, schedule.Record{Last: now.Add(-3*time.Hour - 5*time.Minute), State: v1beta1.ScheduleStarted}, "0.0",
			"0.0 core hours, 0.0 GiB hours since the last stop was due"},
	} {
		d := stopped(c.record, map[string]string{
			v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", v1beta1.StopScheduleAnnotation: "Mon-Fri 20:00",
		})
		*d.Spec.Replicas = c.replicas
		one := resource.MustParse("1")
		d.Spec.Template.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: one, corev1.ResourceMemory: resource.MustParse("1Gi")},
		}}}
		w := newWorkload(d, defaults{})
		if got := known(newRow(w, now).CoreHours); got != c.list {
			t.Errorf("%s: the list shows %s core hours, want %s", c.reason, got, c.list)
		}
		var out strings.Builder
		if explain(&out, w, now); !strings.Contains(out.String(), "Saved:      "+c.explain+"\n") {
			t.Errorf("%s: want %q in:\n%s", c.reason, c.explain, out.String())
		}
	}
}

// TestIgnoredBecause checks the cause for which the operator ignores a workload, and the advice for the user.
func TestIgnoredBecause(t *testing.T) {
	const missed = "\nThe operator then executes the last start or stop, if it has missed one."
	for _, c := range []struct {
		reason string
		kind   string
		change func(o client.Object)
		want   string
	}{
		{"paused by the annotation", "deployments", func(o client.Object) {
			o.SetAnnotations(map[string]string{v1beta1.PausedAnnotation: "true"})
		}, "it has the annotation useless.container.training/paused: remove the annotation with\n" +
			"  kubectl annotate -n dev deployment/web useless.container.training/paused-" + missed},
		{"being deleted", "deployments", func(o client.Object) { o.SetDeletionTimestamp(new(metav1.NewTime(now))) },
			"it is being deleted: choose another workload"},
		{"controlled by another object", "statefulsets", func(o client.Object) {
			o.SetOwnerReferences([]metav1.OwnerReference{{Kind: "Shop", Name: "blue", Controller: new(true)}})
		}, "Shop blue controls it: change that object"},
		{"a paused rollout", "deployments", func(o client.Object) { o.(*appsv1.Deployment).Spec.Paused = true },
			"it is paused: resume it with\n  kubectl rollout resume -n dev deployment/web" + missed},
		{"paused by KEDA", "scaledobjects", func(o client.Object) {
			o.SetAnnotations(map[string]string{"autoscaling.keda.sh/paused": "true"})
		}, "it is paused: resume it with\n  kubectl annotate -n dev scaledobject/web autoscaling.keda.sh/paused-" + missed},
	} {
		k, err := kindNamed(c.kind)
		if err != nil {
			t.Fatal(err)
		}
		o := controller.NewObject(c.kind)
		o.SetNamespace("dev")
		o.SetName("web")
		c.change(o)
		w := workload{controller.NewWorkload(c.kind, o, nil, time.UTC, now), k, o, nil, defaults{}}
		if got := w.ignoredBecause(); !w.IsIgnored() || got != c.want {
			t.Errorf("%s: ignored: %t, got %q, want %q", c.reason, w.IsIgnored(), got, c.want)
		}
	}
}

// TestExplainInvalidDefault explains a workload of a Namespace whose default is invalid. On a workload, the same
// annotations would be valid.
func TestExplainInvalidDefault(t *testing.T) {
	ofNamespace := map[string]string{v1beta1.StopScheduleAnnotation: "20:00", v1beta1.StartUntilAnnotation: "3h"}
	d := stopped(schedule.Record{}, map[string]string{})
	w := newWorkload(d, defaults{annotations: ofNamespace})
	var out strings.Builder
	explain(&out, w, now)
	const want = `Workload:   deployment/web in namespace dev
State:      invalid
Mistake:    useless.container.training/start-until "3h": on a Namespace, it must be a time; use for example "2026-11-23T20:00:00+01:00"
Source:     Namespace dev
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestOutputFormats prints a list of one workload in each format.
func TestOutputFormats(t *testing.T) {
	at := metav1.NewTime(now.Add(-2 * time.Hour))
	rows := []row{{Kind: "Deployment", Namespace: "dev", Name: "web", State: "stopped", Last: &at, LastEvent: "stop",
		Source: "own", Cores: "1500m", Memory: "768Mi", CoreHours: new(3.0), GiBHours: new(1.5), TimeZone: "Europe/Berlin"}}
	const table = "KIND         NAME   STATE     LAST            NEXT   SOURCE   CORES   MEMORY   CORE HOURS   GIB HOURS"
	for format, want := range map[string]string{
		"":   table + "\nDeployment   web    stopped   stop 120m ago   -      own      1500m   768Mi    3.0          1.5\n",
		wide: table + "   TIME ZONE\nDeployment   web    stopped   stop 120m ago   -      own      1500m   768Mi    3.0          1.5         Europe/Berlin\n",
		yamlFormat: `apiVersion: plugin.useless.container.training/v1
items:
- kind: Deployment
  lastEvent: stop
  lastTime: "2026-10-22T08:05:00Z"
  name: web
  namespace: dev
  savedCoreHours: 3
  savedCores: 1500m
  savedGiBHours: 1.5
  savedMemory: 768Mi
  source: own
  state: stopped
  timeZone: Europe/Berlin
kind: ScheduleReport
`,
	} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		if err := (&options{IOStreams: streams}).print(rows, now, format, false); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("-o %s (-want +got):\n%s", format, diff)
		}
	}
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	const header, cells = "NAMESPACE   KIND         NAME", "\ndev         Deployment   web"
	if err := (&options{IOStreams: streams}).print(rows, now, "", true); err != nil ||
		!strings.HasPrefix(out.String(), header) || !strings.Contains(out.String(), cells) {
		t.Errorf("for all namespaces: error %v, want the namespace in\n%s", err, out)
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
		{"a value that is not a string is a mistake", object("Deployment", "stop-after: 4h\n"+
			"    useless.container.training/stop-replicas: 1"),
			`-:6: useless.container.training/stop-replicas must be a string: write "1", with the quotes`, true},
		{"quotes do not make an invalid value valid", object("Deployment", "stop-after: 5"),
			"-:5: useless.container.training/stop-after \"5\": it is not a duration from 1m to 30d; " +
				"use for example \"4h\", \"90m\" or \"7d\"\n", true},
		{"a schedule in the Pod template is a mistake", "kind: Deployment\nmetadata: {name: web}\nspec:\n  template:\n    metadata:\n" +
			"      annotations:\n        useless.container.training/stop-schedule: '20:00'\n",
			"-:7: useless.container.training/stop-schedule has no effect here: write it under metadata.annotations of the Deployment\n", true},
		{"a schedule without annotations: is a mistake", "kind: Namespace\nmetadata:\n  useless.container.training/stop-after: 4h\n",
			"-:3: useless.container.training/stop-after has no effect here: write it under metadata.annotations of the Namespace\n", true},
		{"a misspelled annotation is a mistake", object("Deployment", "stop-shedule: 20:00"),
			"-:5: useless.container.training/stop-shedule is unknown: do you mean useless.container.training/stop-schedule?", true},
		{"a misspelled prefix is a mistake", "kind: Deployment\nmetadata:\n  name: web\n  annotations:\n" +
			"    kubernetes.io/change-cause: stop-schedule\n    use: it\n    useless.container.traning/stop-schedule: '20:00'\n",
			"-:7: useless.container.traning/stop-schedule is unknown: do you mean useless.container.training/stop-schedule?\n", true},
		{"a kind without schedules is a mistake", object("Job", `stop-after: 4h`),
			`-:5: schedules do not apply here: unknown kind "Job"`, true},
		{"an autoscaler needs stop-replicas", object("HorizontalPodAutoscaler", "stop-after: 4h"),
			`-:5: useless.container.training/stop-replicas ""`, true},
		{"a workload may have the schedule of its Namespace", object("CronJob", `suspend: "true"`), "", false},
		{"a document without annotations is ignored", "kind: Pod\n---\n---\nkind: Job\n", "", false},
		{"stop-after has no fixed times", object("CronJob", "stop-after: 4h"), "  stop   4h after each start\n", false},
		{"the operator ignores a paused workload", object("CronJob", "stop-after: 4h\n    useless.container.training/paused: 'true'"),
			"cronjob/web (-:5), ignored while it is paused, time zone UTC:\n", false},
		{"a Namespace cannot have a duration in start-until", object("Namespace", "stop-after: 4h\n"+
			"    useless.container.training/start-until: 3h"), "on a Namespace, it must be a time", true},
		{"the default of a Namespace applies to its workloads", namespaceWithDefault("20:00") + inDev("CronJob", `{suspend: "false"}`),
			"cronjob/web (-:9), default of Namespace dev, time zone UTC:\n  stop   Thu 2026-10-22 20:00 UTC", false},
		{"the default applies to a workload without annotations", namespaceWithDefault("20:00") + inDev("Deployment", "{}"),
			"deployment/web (-:8), default of Namespace dev", false},
		{"an invalid default is one mistake", namespaceWithDefault("25:00") + inDev("Deployment", "{}"),
			"-:4: useless.container.training/stop-schedule", true},
		{"a Namespace without a default in the files means that its workloads have no default", "kind: Namespace\nmetadata: {name: dev}\n---\n" +
			inDev("Deployment", `{suspend: "true"}`), "there is no start-schedule", true},
		{"schedule: none excludes a workload from the default", namespaceWithDefault("20:00") + inDev("Deployment", `{schedule: none}`),
			"deployment/web (-:9): no schedule, because of schedule: none\n", false},
		{"an own schedule replaces the default", namespaceWithDefault("20:00") + inDev("Deployment", `{stop-after: 4h}`),
			"deployment/web (-:9), time zone UTC:\n  stop   4h after each start", false},
		{"an autoscaler has no default", namespaceWithDefault("20:00") + inDev("HorizontalPodAutoscaler", `{suspend: "true"}`),
			"there is no start-schedule", true},
		{"a kind of another API group is a mistake", "apiVersion: kubevirt.io/v1\n" + object("VirtualMachine", "stop-after: 4h"),
			`-:6: schedules do not apply here: unknown kind "VirtualMachine.kubevirt.io": use a VirtualMachine of cloudnative.tw/v1alpha1`, true},
		{"a kind in a wrong API group is a mistake", "apiVersion: apps/v1\n" + object("CronJob", "stop-after: 4h"),
			`-:6: schedules do not apply here: unknown kind "CronJob.apps": use a CronJob of batch/v1`, true},
		{"a kind of another API group has no default", namespaceWithDefault("20:00") + "apiVersion: kubevirt.io/v1\n" +
			inDev("VirtualMachine", "{}"), "", false},
		{"a Namespace of another API group has no default", "apiVersion: example.com/v1\n" + namespaceWithDefault("20:00") +
			inDev("Deployment", "{}"), "-:5: schedules do not apply here", true},
		{"an alias has the value of its anchor", object("Deployment", "start-schedule: &at 25:00\n"+
			"    useless.container.training/stop-schedule: *at"),
			`-:6: useless.container.training/stop-schedule "25:00": 25:00 is not a time`, true},
		{"a merge key adds annotations", "x: &x\n  useless.container.training/stop-schedule: '25:00'\n" +
			"kind: Deployment\nmetadata:\n  name: web\n  annotations:\n    <<: *x\n",
			`-:2: useless.container.training/stop-schedule "25:00": 25:00 is not a time`, true},
		{"a list may contain aliases, but not itself", "x: &x {kind: Deployment}\nitems: &l\n- *x\n- kind: List\n  items: *l\n" + "---\n" +
			object("CronJob", "stop-after: 4h"), "cronjob/web", false},
		{"a merge key adds a kind", "x: &x {kind: Deployment}\n<<: *x\nmetadata: {name: web, annotations: {useless.container.training/" +
			"stop-schedule: '20:00'}}\n", "deployment/web (-:3), time zone UTC", false},
		{"kube-system cannot have a default", strings.ReplaceAll(namespaceWithDefault("20:00"), "dev", "kube-system"),
			"-:4: Namespace kube-system cannot have a default schedule", true},
	} {
		t.Run(c.reason, func(t *testing.T) {
			stdout, _, err := run(c.manifest, "schedule", "check", "-f", "-")
			if !strings.Contains(stdout, c.want) || c.want == "" && strings.Contains(stdout, "/web") {
				t.Errorf("got %s, want %s", stdout, c.want)
			}
			if errors.Is(err, errInvalid) != c.invalid {
				t.Errorf("error %v, want one: %t", err, c.invalid)
			}
		})
	}
}

// TestCheckNeedsDefault requires a note about a workload that has no schedule without the default of its Namespace.
func TestCheckNeedsDefault(t *testing.T) {
	for _, c := range []struct {
		reason, manifest string
		want             bool
	}{
		{"the Namespace is not in the files", inDev("Deployment", `{suspend: "true"}`), true},
		{"the Namespace is in the files", namespaceWithDefault("20:00") + inDev("Deployment", `{suspend: "true"}`), false},
		{"the workload has times", inDev("Deployment", `{stop-after: 4h}`), false},
		{"the workload is excluded from the default", inDev("Deployment", `{schedule: none}`), false},
		{"the workload has no annotations", inDev("Deployment", `{}`), false},
	} {
		want := ""
		if c.want {
			want = "note: deployment/web (-:2) needs the default schedule of its Namespace: the Namespace is not in these files\n"
		}
		_, stderr, err := run(c.manifest, "schedule", "check", "-f", "-")
		if diff := cmp.Diff(want, strings.TrimPrefix(stderr, "No manifest has annotations of a schedule.\n")); err != nil || diff != "" {
			t.Errorf("%s: error %v, stderr (-want +got):\n%s", c.reason, err, diff)
		}
	}
}

// TestCheckOfInvalidYAML checks manifests whose YAML is not a valid Kubernetes object.
func TestCheckOfInvalidYAML(t *testing.T) {
	for reason, manifest := range map[string]string{
		"an anchor must not contain itself":     "kind: Deployment\nmetadata: &m\n  <<: *m\n",
		"annotations must be a mapping":         "kind: Deployment\nmetadata: {annotations: text}\n",
		"a manifest must be a mapping":          "kind Deployment\n",
		"an annotation must not be given twice": "kind: Deployment\nmetadata: {annotations: {a: b, a: c}}\n",
	} {
		t.Run(reason, func(t *testing.T) {
			_, _, err := run(manifest, "schedule", "check", "-f", "-")
			if err == nil || !strings.Contains(err.Error(), "use -f with manifests in YAML or JSON") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// namespaceWithDefault returns a Namespace of 7 lines with a stop-schedule.
func namespaceWithDefault(stop string) string {
	return "kind: Namespace\nmetadata:\n  annotations:\n    useless.container.training/stop-schedule: '" + stop +
		"'\n  name: dev\n\n---\n"
}

// inDev returns a workload in the namespace dev. It adds the prefix to the first key of the annotations.
func inDev(kind, annotations string) string {
	annotations = strings.Replace(annotations, "{s", "{useless.container.training/s", 1)
	return "kind: " + kind + "\nmetadata: {name: web, namespace: dev, annotations: " + annotations + "}\n"
}

// TestCheckOfSeveralFiles checks a Namespace in one file, and a workload without metadata.namespace in another file.
func TestCheckOfSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	namespace, web := filepath.Join(dir, "namespace.yaml"), filepath.Join(dir, "web.yaml")
	for file, manifest := range map[string]string{
		namespace: namespaceWithDefault("20:00"), web: "kind: Deployment\nmetadata: {name: web}\n",
	} {
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"schedule", "check", "-f", web, "-f", namespace}
	if stdout, _, err := run("", append(args, "-n", "dev")...); err != nil || !strings.Contains(stdout, "default of Namespace dev") {
		t.Errorf("with -n dev: error %v, got %s", err, stdout)
	}
	if stdout, _, err := run("", args...); err != nil || strings.Contains(stdout, "deployment/web") {
		t.Errorf("the namespace is not known: error %v, got %s", err, stdout)
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
		{"schedule start", `unknown command "start": do you mean kubectl useless wake?`},
		{"schedule list -o xml", "use json, yaml or wide"},
		{"schedule list --default-time-zone Berlin", "use for example Europe/Berlin"},
		{"schedule list web", "use kubectl useless schedule explain KIND/NAME"},
		{"check -f web.yaml", `unknown command "check": do you mean kubectl useless schedule check?`},
		{"-f web.yaml", "unknown shorthand flag: 'f' in -f: kubectl useless --help shows the flags"},
		{"lst", "do you mean kubectl useless schedule list?"},
		{"expl deploy/web", "do you mean kubectl useless schedule explain?"},
		{"start deploy/web", "do you mean kubectl useless wake?"},
		{"schedule stop", "do you mean kubectl useless sleep?"},
		{"schedule lits", "do you mean kubectl useless schedule list?"},
		{"frobnicate", "use one of: completion flip help schedule sleep wake"},
		{"schedule explain deploy/web deploy/api", `unexpected argument "deploy/api": write only one workload`},
		{"sleep deploy/web 2h", `unexpected argument "2h": write only one workload`},
		{"wake deploy web api --for 2h", `unexpected argument "api": write only one workload`},
		{"schedule check -f .", ". is a folder: name a file in it, for example -f web.yaml"},
		{"wake deploy/web --fro 2h", "kubectl useless wake --help shows the flags"},
		{"wake deploy/ --for 2h", "write KIND/NAME"},
		{"schedule explain", "the workload is missing: write KIND/NAME, for example deployment/web"},
		{"schedule explain web", "write KIND/NAME"},
		{"schedule explain pod/web", "use one of deployment (deploy)"},
		{"schedule check", "-f is missing"},
		{"schedule check -f no-such-file.yaml", "use -f with an existing file"},
		{"schedule check web.yaml", "use -f web.yaml"},
		{"schedule import --apply -f old.yaml", "omit -f"},
		{"schedule import -f no-such-file.yaml", "use -f with manifests"},
		{"schedule import old.yaml", "use -f old.yaml"},
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
		{"flip deployment/web", "write the name of one Machine"},
		{"flip machine.cluster.x-k8s.io/a", "write the name of one Machine"},
		{"flip machine/a/b", "write the name of one Machine"},
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

// TestStartCommand checks the command that wake suggests for a workload that a user has stopped, for each kind.
func TestStartCommand(t *testing.T) {
	commands := map[string]string{
		"deployments":     "scale -n dev deployment/web --replicas=1",
		"statefulsets":    "scale -n dev statefulset/web --replicas=1",
		"cronjobs":        `patch -n dev cronjob/web --type=merge -p '{"spec":{"suspend":false}}'`,
		"virtualmachines": `patch -n dev virtualmachine/web --type=merge -p '{"spec":{"action":"active"}}'`,
		"horizontalpodautoscalers": `patch -n dev horizontalpodautoscaler/web --type=merge ` +
			`-p '{"spec":{"maxReplicas":2}}'`,
		"scaledobjects": `patch -n dev scaledobject/web --type=merge ` +
			`-p '{"metadata":{"annotations":{"autoscaling.keda.sh/paused-replicas":null}}}'`,
	}
	for _, k := range kinds {
		t.Run(k.plural, func(t *testing.T) {
			w := stoppedByUser(t, k)
			err := cannotStart(w)
			if want := ", for example with\n  kubectl " + commands[k.plural] + "\nand run wake again"; !strings.Contains(err.Error(), want) {
				t.Errorf("got %q, want %q", err, want)
			}
		})
	}
}

// stoppedByUser returns a workload of a kind that a user has stopped.
func stoppedByUser(t *testing.T, k kind) workload {
	t.Helper()
	o := controller.NewObject(k.plural)
	o.SetNamespace("dev")
	o.SetName("web")
	o.SetAnnotations(map[string]string{v1beta1.StopScheduleAnnotation: "20:00"})
	if k.title == "HorizontalPodAutoscaler" {
		o.GetAnnotations()[v1beta1.StopReplicasAnnotation] = "1"
	}
	w := workload{controller.NewWorkload(k.plural, o, nil, time.UTC, now), k, o, nil, defaults{}}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestStopPatch stops a running workload of each kind, and applies the patch to a copy of it. The copy must be stopped.
func TestStopPatch(t *testing.T) {
	const annotations = `"metadata": {"resourceVersion": "7", "annotations": {
		"useless.container.training/stop-schedule": "20:00", "useless.container.training/stop-replicas": "1"}}`
	manifests := map[string]string{ // of kinds that do not run with an empty spec
		"horizontalpodautoscalers": `{"spec": {"minReplicas": 2, "maxReplicas": 3}, ` + annotations + `}`,
	}
	for _, k := range kinds {
		o := controller.NewObject(k.plural)
		manifest := manifests[k.plural]
		if manifest == "" {
			manifest = "{" + strings.Replace(annotations, `, "useless.container.training/stop-replicas": "1"`, "", 1) + "}"
		}
		if err := json.Unmarshal([]byte(manifest), o); err != nil {
			t.Fatal(err)
		}
		before, patched := o.DeepCopyObject().(client.Object), o.DeepCopyObject().(client.Object)
		w := controller.NewWorkload(k.plural, o, nil, time.UTC, now)
		s, problems := w.Parse()
		if s == nil || !w.Running(s) {
			t.Errorf("%s: the workload does not run before the stop: %v", k.plural, problems)
			continue
		}
		if err := w.Stop(); err != nil {
			t.Errorf("%s: %v", k.plural, err)
		}
		patch, err := stopPatch(before, o)
		if err == nil {
			err = json.Unmarshal(patch, patched)
		}
		if diff := cmp.Diff(o, patched); err != nil || diff != "" || !strings.Contains(string(patch), `"resourceVersion":"7"`) {
			t.Errorf("%s: error %v, patch %s (-stopped +patched):\n%s", k.plural, err, patch, diff)
		}
		if controller.NewWorkload(k.plural, patched, nil, time.UTC, now).Running(s) {
			t.Errorf("%s: the workload runs after the patch %s", k.plural, patch)
		}
	}
}

// TestStopOfAutoscaler stops an autoscaler without stop-replicas, which is valid because its schedule has only starts.
// Stop must return an error, and must not change the autoscaler.
func TestStopOfAutoscaler(t *testing.T) {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 9}}
	hpa.SetAnnotations(map[string]string{v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00"})
	err := controller.NewWorkload("horizontalpodautoscalers", hpa, nil, time.UTC, now).Stop()
	if err == nil || !strings.Contains(err.Error(), `stop-replicas to "1" or more`) || hpa.Spec.MaxReplicas != 9 {
		t.Errorf("error %v, maxReplicas is %d", err, hpa.Spec.MaxReplicas)
	}
}

// importFile runs schedule import with a manifest.
func importFile(t *testing.T, manifest string) (stdout string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "old.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, _, err := run("", "schedule", "import", "-f", file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(stdout, "useless.container.training/", "")
}

func TestImport(t *testing.T) {
	const workloads = `
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: dev, labels: {tier: front}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: dev}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: report, namespace: dev}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: other}}
---
`
	const annotate = "kubectl annotate --overwrite "
	sleepInfo := func(name, spec string) string {
		return "apiVersion: kube-green.com/v1alpha1\nkind: SleepInfo\nmetadata: {name: " + name + ", namespace: dev}\n" +
			"spec: {weekdays: '*', sleepAt: '20:00', " + spec + "}\n---\n"
	}
	const web = "includeRef: [{apiVersion: apps/v1, kind: Deployment, name: web}]"
	const others = "# namespace/dev: kube-green does not stop all workloads of the Namespace: if some workloads " +
		"that it does not stop are not in these files, first annotate them with schedule=none\n"
	const dropped = "# namespace/dev: the schedule of SleepInfo b is not translated: a Namespace has one schedule; annotate the " +
		"workloads instead\n"
	const replaces = "it already has another schedule of this operator: run the command only to replace this schedule\n"
	for _, c := range []struct{ reason, manifest, want string }{
		{"a workload repeats the schedule of its Namespace", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: Mon-Fri 08:00-20:00 Europe/Berlin}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dev, annotations: {downscaler/downtime-replicas: "1", downscaler/grace-period: "900"}}
`, "# deployment/web: grace-period is not translated: set start-until, for example 15m, on a new workload\n" +
			annotate + "deployment/web -n dev 'start-schedule=Mon-Fri 08:00' 'stop-replicas=1' " +
			"'stop-schedule=Mon-Fri 20:00' 'time-zone=Europe/Berlin'\n" +
			"# namespace/dev: the schedule would apply to deployment/web: first annotate this workload with a schedule or with schedule=none\n" +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00' 'time-zone=Europe/Berlin'\n"},
		{"a workload in the file may belong to the Namespace", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, annotations: {downscaler/exclude: "sometimes"}}
`, "# deployment/web: exclude is not translated: it is neither true nor false\n" +
			"# namespace/dev: the schedule would apply to deployment/web: first annotate this workload with a schedule or with schedule=none\n" +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00'\n"},
		{"a default must not stop a workload whose times are not translated", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: Mon-Fri 08:00-20:00 UTC}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: dev
  annotations: {downscaler/uptime: Mon-Fre 08:00-23:00, downscaler/exclude-until: "2026-12-01T07:00:00Z"}
`, "# deployment/web: uptime is not translated: \"Mon-Fre 08:00-23:00\" has a day of the week that does not exist; use for example Mon-Fri\n" +
			"# deployment/web: the operator reports an invalid schedule until namespace/dev has its schedule\n" +
			annotate + "deployment/web -n dev 'start-until=2026-12-01T07:00:00Z'\n" +
			"# namespace/dev: the schedule would apply to deployment/web: first annotate this workload with a schedule or with schedule=none\n" +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00' 'time-zone=UTC'\n"},
		{"a kind without schedules", `
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: dev, annotations: {downscaler/exclude: "true"}}
`, "# job/once: nothing is translated: unknown kind \"Job.batch\": use one of deployment (deploy), statefulset (sts), " +
			"cronjob (cj), virtualmachine (vm), horizontalpodautoscaler (hpa), scaledobject (so)\n"},
		{"a kind of another API group", `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm, namespace: dev, annotations: {downscaler/exclude: "true"}}
`, "# virtualmachine/vm: nothing is translated: unknown kind \"VirtualMachine.kubevirt.io\": " +
			"use a VirtualMachine of cloudnative.tw/v1alpha1\n"},
		{"a SleepInfo does not exclude kinds of another API group", sleepInfo("night", "suspendCronJobs: true") +
			"{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: vm, namespace: dev}}\n",
			others + annotate + "namespace/dev 'stop-schedule=0 20 * * *'\n"},
		{"a SleepInfo is the default of its Namespace", sleepInfo("night", "suspendCronJobs: true") + workloads,
			others + annotate + "namespace/dev 'stop-schedule=0 20 * * *'\n"},
		{"excludeRef and CronJobs are excluded", sleepInfo("night", "excludeRef: [{matchLabels: {tier: front}}]") + workloads,
			annotate + "deployment/web -n dev 'schedule=none'\n" + annotate + "cronjob/report -n dev 'schedule=none'\n" +
				others + annotate + "namespace/dev 'stop-schedule=0 20 * * *'\n"},
		{"includeRef is not for the Namespace",
			sleepInfo("night", "includeRef: [{apiVersion: apps/v1, kind: StatefulSet, name: db}]") + workloads,
			annotate + "statefulset/db -n dev 'stop-schedule=0 20 * * *'\n" +
				"# sleepinfo/night: includeRef may select workloads that are not in these files: annotate them, too\n"},
		{"includeRef without a workload",
			sleepInfo("night", "includeRef: [{apiVersion: apps/v1, kind: StatefulSet, name: none}]") + workloads,
			"# sleepinfo/night: includeRef selects no workload here: annotate the workloads with the schedule, and not the Namespace\n"},
		{"a Namespace has one schedule", sleepInfo("a", "suspendCronJobs: true") + sleepInfo("b", "suspendCronJobs: true"),
			others + dropped + annotate + "namespace/dev 'stop-schedule=0 20 * * *'\n"},
		{"a SleepInfo without a schedule excludes nothing", sleepInfo("a", "suspendCronJobs: true") + sleepInfo("b", "") + workloads,
			others + dropped + annotate + "namespace/dev 'stop-schedule=0 20 * * *'\n"},
		{"the annotations of the Namespace come before its SleepInfos", sleepInfo("b", "") + workloads + `
{apiVersion: v1, kind: Namespace, metadata: {name: dev, annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00"}}}
`, dropped + "# namespace/dev: the schedule also stops statefulset/db, cronjob/report: first annotate the workloads " +
			"that must not stop with schedule=none\n" +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00'\n"},
		{"a workload in a file without its Namespace may be in any Namespace", `
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: dev, annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00"}}}
`, "# namespace/dev: the schedule also stops statefulset/db: first annotate the workloads that must not stop with " +
			"schedule=none\n" + annotate + "namespace/dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00'\n"},
		{"other objects can have names that no workload can have", `
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "system:web"}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: dev, annotations: {downscaler/exclude: "true"}}}
`, annotate + "deployment/web -n dev 'schedule=none'\n"},
		{"a SleepInfo excludes a workload, and another SleepInfo includes it",
			sleepInfo("all", "suspendCronJobs: true, "+strings.Replace(web, "include", "exclude", 1)) +
				strings.Replace(sleepInfo("web-only", web), "20:00", "22:00", 1) + workloads,
			annotate + "deployment/web -n dev 'stop-schedule=0 22 * * *'\n" +
				"# sleepinfo/web-only: includeRef may select workloads that are not in these files: annotate them, too\n" +
				others + annotate + "namespace/dev 'stop-schedule=0 20 * * *'\n"},
		{"two SleepInfos include a workload", sleepInfo("a", web) + strings.Replace(sleepInfo("b", web), "20:00", "22:00", 1) + workloads,
			"# deployment/web: nothing is translated: two schedules differ, 'stop-schedule=0 20 * * *' and " +
				"'stop-schedule=0 22 * * *': annotate the workload with one of them\n" +
				"# sleepinfo/a: includeRef may select workloads that are not in these files: annotate them, too\n" +
				"# sleepinfo/b: includeRef may select workloads that are not in these files: annotate them, too\n"},
		{"two SleepInfos include a workload with the same schedule", sleepInfo("a", web) + sleepInfo("b", web) + workloads,
			annotate + "deployment/web -n dev 'stop-schedule=0 20 * * *'\n" +
				"# sleepinfo/a: includeRef may select workloads that are not in these files: annotate them, too\n" +
				"# sleepinfo/b: includeRef may select workloads that are not in these files: annotate them, too\n"},
		{"a SleepInfo for all workloads, and another one for a workload", strings.Replace(sleepInfo("a", web), "20:00", "22:00", 1) +
			sleepInfo("b", "suspendCronJobs: true") + workloads,
			"# deployment/web: nothing is translated: two schedules differ, 'stop-schedule=0 22 * * *' and " +
				"'stop-schedule=0 20 * * *': annotate the workload with one of them\n" +
				"# sleepinfo/a: includeRef may select workloads that are not in these files: annotate them, too\n" + others +
				"# namespace/dev: the schedule would apply to deployment/web: first annotate this workload with a schedule or with schedule=none\n" +
				annotate + "namespace/dev 'stop-schedule=0 20 * * *'\n"},
		{"the default of a Namespace must not stop a workload whose own times are not translated", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: "Mon-Fri 09:00-12:00 UTC"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: blog, namespace: dev, annotations: {downscaler/exclude: "sometimes"}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: blog, namespace: dev, annotations: {downscaler/exclude: "sometimes"}}
`, "# deployment/blog: exclude is not translated: it is neither true nor false\n" +
			"# horizontalpodautoscaler/blog: exclude is not translated: it is neither true nor false\n" +
			"# namespace/dev: the schedule would apply to deployment/blog: first annotate this workload with a schedule or with schedule=none\n" +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 09:00' 'stop-schedule=Mon-Fri 12:00' 'time-zone=UTC'\n"},
		{"the default of a Namespace does not apply to a workload that already has a schedule", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: "Mon-Fri 09:00-12:00 UTC"}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: blog
  namespace: dev
  annotations: {downscaler/exclude: "sometimes", useless.container.training/stop-schedule: "22:00"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: wiki, namespace: dev, annotations: {downscaler/exclude: "never", useless.container.training/schedule: none}}
`, "# deployment/blog: exclude is not translated: it is neither true nor false\n" +
			"# deployment/wiki: exclude is not translated: it is neither true nor false\n" +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 09:00' 'stop-schedule=Mon-Fri 12:00' 'time-zone=UTC'\n"},
		{"an exclusion for a time does not contradict a SleepInfo", sleepInfo("a", web) + `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: dev, annotations: {downscaler/exclude-until: "2026-11-23"}}}
`, annotate + "deployment/web -n dev 'start-until=2026-11-23T00:00:00Z' 'stop-schedule=0 20 * * *'\n" +
			"# sleepinfo/a: includeRef may select workloads that are not in these files: annotate them, too\n"},
		{"a workload already has another schedule", `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: dev
  annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00", useless.container.training/stop-schedule: "22:00"}
`, "# deployment/web: " + replaces + annotate + "deployment/web -n dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00'\n"},
		{"a workload already has other settings of a schedule", `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: dev
  annotations:
    downscaler/uptime: "Mon-Fri 08:00-20:00"
    useless.container.training/stop-after: 8h
    useless.container.training/stop-replicas: "1"
    useless.container.training/suspend: "true"
`, "# deployment/web: " + replaces + annotate + "deployment/web -n dev 'start-schedule=Mon-Fri 08:00' " +
			"'stop-schedule=Mon-Fri 20:00' 'stop-after-' 'stop-replicas-'\n"},
		{"a workload with an old schedule is excluded", `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: dev
  annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00", useless.container.training/schedule: none}
`, "# deployment/web: it is excluded with schedule=none: run the command only to end this exclusion\n" +
			annotate + "deployment/web -n dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00' 'schedule-'\n"},
		{"comments about two namespaces name them", `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dev, annotations: {downscaler/exclude: "sometimes"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: test, annotations: {downscaler/exclude: "sometimes"}}
`, "# deployment/web in namespace dev: exclude is not translated: it is neither true nor false\n" +
			"# deployment/web in namespace test: exclude is not translated: it is neither true nor false\n"},
		{"a workload with its own replicas gets the exclusion of its Namespace, too", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00", downscaler/exclude: "true"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dev, annotations: {downscaler/downtime-replicas: "1"}}
`, annotate + "deployment/web -n dev 'start-schedule=Mon-Fri 08:00' 'stop-replicas=1' 'stop-schedule=Mon-Fri 20:00' 'suspend=true'\n" +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00' 'suspend=true'\n"},
		{"without a schedule, there is nothing to skip", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/exclude: "true"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dev, annotations: {downscaler/exclude-until: "2026-12-01T07:00:00Z"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: prod, annotations: {downscaler/exclude-until: "2026-12-01T07:00:00Z"}}
`, "# deployment/web in namespace dev: 'start-until=2026-12-01T07:00:00Z' is not set: neither the workload nor its Namespace has a schedule\n" +
			annotate + "deployment/api -n prod 'start-until=2026-12-01T07:00:00Z'\n" +
			"# namespace/dev: 'suspend=true' is not set: the Namespace has no schedule\n"},
		{"a workload needs a default that the user must check first", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00", downscaler/force-uptime: "true"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dev, annotations: {downscaler/exclude-until: "2026-12-01T07:00:00Z"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: dev, annotations: {downscaler/exclude: "true"}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: excluded
  namespace: dev
  annotations: {downscaler/exclude-until: "2026-12-01T07:00:00Z", useless.container.training/schedule: none}
`, "# deployment/web: the operator reports an invalid schedule until namespace/dev has its schedule\n" +
			annotate + "deployment/web -n dev 'start-until=2026-12-01T07:00:00Z'\n" +
			annotate + "deployment/api -n dev 'schedule=none'\n" +
			annotate + "deployment/excluded -n dev 'start-until=2026-12-01T07:00:00Z'\n" +
			"# namespace/dev: force-uptime is not translated: on a Namespace, set start-until to a time\n" +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00'\n"},
		{"a workload needs a default that it already has", `
apiVersion: v1
kind: Namespace
metadata: {name: dev, annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00", useless.container.training/stop-schedule: "22:00"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dev, annotations: {downscaler/exclude-until: "2026-12-01T07:00:00Z"}}
`, annotate + "deployment/web -n dev 'start-until=2026-12-01T07:00:00Z'\n# namespace/dev: " + replaces +
			annotate + "namespace/dev 'start-schedule=Mon-Fri 08:00' 'stop-schedule=Mon-Fri 20:00'\n"},
		{"a SleepInfo cannot set a default for kube-system", strings.ReplaceAll(sleepInfo("night", "suspendCronJobs: true"), "dev", "kube-system") + `
apiVersion: v1
kind: Namespace
metadata: {name: kube-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: kube-system, annotations: {downscaler/exclude-until: "2026-12-01T07:00:00Z"}}
`, "# deployment/web: 'start-until=2026-12-01T07:00:00Z' is not set: neither the workload nor its Namespace has a schedule\n" +
			strings.ReplaceAll(others, "/dev", "/kube-system") +
			"# namespace/kube-system: nothing is translated: this Namespace cannot have a default schedule; annotate its workloads\n"},
		{"kube-system cannot have a default schedule", `
apiVersion: v1
kind: Namespace
metadata: {name: kube-system, annotations: {downscaler/uptime: "Mon-Fri 08:00-20:00"}}
`, "# namespace/kube-system: nothing is translated: this Namespace cannot have a default schedule; annotate its workloads\n"},
		{"an excluded workload already has a schedule", `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: dev, annotations: {downscaler/exclude: "true", useless.container.training/stop-after: 8h}}
`, "# deployment/web: " + replaces + annotate + "deployment/web -n dev 'schedule=none'\n"},
		{"a workload already has the same schedule, and another number of replicas", `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: dev
  annotations:
    downscaler/downscale-period: Mon-Sun 20:00-21:00
    useless.container.training/stop-schedule: "20:00"
    useless.container.training/start-replicas: "3"
`, annotate + "deployment/web -n dev 'stop-schedule=20:00'\n"},
		{"the Namespace of a SleepInfo already has another schedule", sleepInfo("night", "suspendCronJobs: true") +
			namespaceWithDefault("22:00"), others + "# namespace/dev: " + replaces + annotate + "namespace/dev 'stop-schedule=0 20 * * *'\n"},
		{"a SleepInfo needs a namespace", strings.Replace(sleepInfo("night", ""), ", namespace: dev", "", 1),
			"# sleepinfo/night: nothing is translated: add its namespace to metadata.namespace in the file\n"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			if diff := cmp.Diff(c.want, importFile(t, c.manifest)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestAdvice checks the errors of the plugin if it cannot reach a cluster, or cannot use the kubeconfig.
func TestAdvice(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	const unreachable = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n" +
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(unreachable), 0o600); err != nil {
		t.Fatal(err)
	}
	notAConfig := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(notAConfig, []byte("buy milk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"schedule list", "select another one with --context"},
		{"schedule import", "select another one with --context"},
		{"schedule explain deploy/web", "select another one with --context"},
		{"wake deploy/web --for 2h", "select another one with --context"},
		{"sleep deploy/web", "select another one with --context"},
		{"flip machine-1", "select another one with --context"},
		{"flip machine-1 --context=none", "kubectl config get-contexts lists the contexts"},
		{"flip machine-1 --kubeconfig=/no/such/file", "use --kubeconfig with an existing file"},
		{"flip machine-1 --kubeconfig=" + filepath.Dir(notAConfig), "use --kubeconfig with a"},
		{"flip machine-1 --kubeconfig=" + notAConfig, "use --kubeconfig with a valid file"},
		{"flip machine-1 --user=guest", "kubectl config get-users lists the users"},
	} {
		t.Run(c.args, func(t *testing.T) {
			args := append([]string{"--cache-dir", t.TempDir(), "--kubeconfig", kubeconfig}, strings.Fields(c.args)...)
			if _, _, err := run("", args...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
}

// TestCompletionOfKinds needs no cluster.
func TestCompletionOfKinds(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"wake s", "statefulset/ scaledobject/ :6"},
		{"sleep dep", "deployment/ :6"},
		{"schedule explain deploy web x", ":4"},
		{"schedule list -o y", "json yaml wide :4"},
		{"flip a b", ":4"},
	} {
		args := append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Fields(c.args)...)
		stdout, _, err := run("", args...)
		if got := strings.Join(strings.Fields(stdout), " "); err != nil || got != c.want {
			t.Errorf("%s: error %v, got %q, want %q", c.args, err, got, c.want)
		}
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
)

func TestDefaultsOfNamespaces(t *testing.T) {
	office := map[string]string{v1beta1.StopScheduleAnnotation: "20:00"}
	n := &Namespaces{
		client: &fakeClient{defaults: office}, zone: time.UTC, system: Options{OwnNamespace: "useless-system"}.system(),
	}
	none := map[string]string{}
	for name, want := range map[string]map[string]string{
		"dev": office, "useless-system": none, "kube-system": none, "kube-public": none, "kube-node-lease": none,
	} {
		got, err := n.defaults(t.Context(), name)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Namespace %s: error %v, defaults (-want +got):\n%s", name, err, diff)
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: office}}
		if warning := n.decide(namespace); (warning.reason == v1beta1.EventScheduleIgnored) != (len(want) == 0) {
			t.Errorf("Namespace %s: got warning %q", name, warning)
		}
	}
}

// TestDefaultOfKinds decides about a workload of each kind without annotations. A stop of the Namespace's default
// schedule is due.
func TestDefaultOfKinds(t *testing.T) {
	want := map[string]bool{"deployments": true, "statefulsets": true, "cronjobs": true, "virtualmachines": true,
		"horizontalpodautoscalers": false, "scaledobjects": false}
	got := map[string]bool{}
	for _, k := range kinds {
		o := newWorkload(k, 1)
		o.SetAnnotations(nil)
		defaults := map[string]string{v1beta1.StopScheduleAnnotation: "20:00"}
		p := k.decide(input{object: o, defaults: defaults, zone: time.UTC, now: now})
		got[k.name] = p.transition == stop && p.outcome == scaled
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds that a default stops (-want +got):\n%s", diff)
	}
}

// TestRemovalIsConfirmed simulates a cache of Namespaces that is older than the data of the API server. The operator
// must not start a workload if its Namespace has a default schedule that the cache does not have yet.
func TestRemovalIsConfirmed(t *testing.T) {
	office := map[string]string{v1beta1.StopScheduleAnnotation: "20:00"}
	for _, c := range []struct {
		reason           string
		name             string
		cached, stored   map[string]string
		mustNotBeRemoved bool
	}{
		{"the schedule is gone", "dev", nil, nil, false},
		{"the cache does not have the default yet", "dev", nil, office, true},
		{"the workload has opted out of the default", "dev", office, office, false},
		{"kube-system cannot have a default", "kube-system", nil, office, false},
	} {
		n := &Namespaces{api: &fakeClient{defaults: c.stored}, system: systemNamespaces}
		if err := n.confirm(t.Context(), c.name, c.cached); (err != nil) != c.mustNotBeRemoved {
			t.Errorf("%s: got error %v", c.reason, err)
		}
	}
}

// withoutNamespaces is a fakeClient whose cache does not have the Namespaces yet.
type withoutNamespaces struct{ *fakeClient }

func (c withoutNamespaces) Get(
	ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption,
) error {
	if _, ok := into.(*corev1.Namespace); ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, key.Name)
	}
	return c.fakeClient.Get(ctx, key, into, options...)
}

// TestUnknownNamespace requires that the operator does not stop a workload before it knows whether its Namespace has a
// dry run.
func TestUnknownNamespace(t *testing.T) {
	api := &fakeClient{}
	api.store(newDeployment(3))
	api.cached = api.stored
	controller, _, _ := newController(deployments, withoutNamespaces{api}, prometheus.NewRegistry())
	_, err := controller.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(api.stored)})
	if !apierrors.IsNotFound(err) || api.writes > 0 {
		t.Errorf("got error %v and %d writes, want an error that the Namespace is not found and no write", err, api.writes)
	}
}

// TestStartUntilIsExecutedOnce sets start-until to a duration, and to times with and without fractions of a second. The
// operator records no fractions. The start must be executed only once.
func TestStartUntilIsExecutedOnce(t *testing.T) {
	for _, until := range []string{
		"3h", "2026-11-20T22:00:00Z", "2026-11-20T22:00:00.5Z", "2026-11-20T22:00:00.123456+01:00",
	} {
		d := newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 07:00"),
			with(v1beta1.StartUntilAnnotation, until))
		p := decideAt(deployments, d, nil, now)
		if deployments.apply(d, p); *d.Spec.Replicas != 3 {
			t.Errorf("start-until %s: got %d replicas, want 3", until, *d.Spec.Replicas)
		}
		*d.Spec.Replicas = 1 // a user
		if again := decideAt(deployments, d, nil, now.Add(time.Minute)); again.outcome != nothing {
			t.Errorf("start-until %s is executed again: %+v", until, summarize(again))
		}
	}
	d := newDeployment(3, with(v1beta1.StartUntilAnnotation, "9999-12-31T23:59:59-01:00"))
	if p := decideAt(deployments, d, nil, now); p.warning.reason != v1beta1.EventInvalidSchedule {
		t.Errorf("a time that cannot be recorded must be invalid, got %+v", p)
	}
}

// TestDryRunDecision checks whether a due stop is executed, announced in a dry run, or only recorded after a dry run.
func TestDryRunDecision(t *testing.T) {
	after := at("2026-11-20 21:00")
	stopped := summary{Transition: stop, Outcome: scaled, Original: 3, Due: "Fri 20:00", State: v1beta1.ScheduleStopped}
	recorded := summary{Transition: stop, Outcome: noted, Replicas: 3, Due: "Fri 20:00"}
	for _, c := range []struct {
		reason   string
		in       input
		value    string // of the annotation dry-run
		isDryRun bool
		want     summary
	}{
		{"without a dry run, the stop is executed", input{}, "", false, stopped},
		{"false means no dry run", input{}, "false", false, stopped},
		{"a dry run by annotation", input{}, "true", true, stopped},
		{"a dry run by flag", input{dryRun: true}, "", true, stopped},
		{"a dry run by the annotation of the Namespace",
			input{defaults: map[string]string{v1beta1.DryRunAnnotation: "true"}}, "", true, stopped},
		{"a stop that was due during a dry run is only recorded", input{lastDryRun: dryRunMemory{end: at("2026-11-20 20:30")}}, "", false, recorded},
		{"a stop that was due during a dry run by flag is only recorded", input{dryRunEnd: at("2026-11-20 20:30")}, "", false, recorded},
		{"a stop that was due after the dry run is executed", input{lastDryRun: dryRunMemory{end: at("2026-11-20 19:30")}}, "", false, stopped},
		{"a stop that was due after the dry run by flag is executed", input{dryRunEnd: at("2026-11-20 19:30")}, "", false, stopped},
	} {
		c.in.object, c.in.zone, c.in.now = newDeployment(3, with(v1beta1.DryRunAnnotation, c.value)), time.UTC, after
		p := deployments.decide(c.in)
		if diff := cmp.Diff(c.want, summarize(p)); diff != "" || p.isDryRun != c.isDryRun {
			t.Errorf("%s: dry run %t, want %t; plan (-want +got):\n%s", c.reason, p.isDryRun, c.isDryRun, diff)
		}
	}
	created := func(at time.Time) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.CreationTimestamp = metav1.NewTime(at) }
	}
	end := at("2026-11-20 20:30")
	later := input{object: newDeployment(3, created(end.Add(time.Second))), zone: time.UTC, now: after, dryRunEnd: end}
	if diff := cmp.Diff(stopped, summarize(deployments.decide(later))); diff != "" {
		t.Errorf("a workload that was created after the dry run (-want +got):\n%s", diff)
	}
	uptime := input{object: newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"),
		with(v1beta1.StartUntilAnnotation, "2026-11-20T23:00:00Z")), zone: time.UTC, now: after, dryRunEnd: after}
	if p := deployments.decide(uptime); p.transition != start || p.outcome != scaled {
		t.Errorf("an uptime on demand in the seconds after a dry run by flag: got %+v, want a start", p)
	}
	invalid := input{object: newDeployment(3, with(v1beta1.DryRunAnnotation, "yes")), zone: time.UTC, now: after}
	if p := deployments.decide(invalid); p.outcome != nothing || p.warning.reason != v1beta1.EventInvalidSchedule {
		t.Errorf("an invalid value must cause only a warning, got %+v", p)
	}
}

// TestDryRunIsAnnounced reconciles Deployments every hour for two days in a dry run. The operator must count and announce
// each stop and each start once, as if it had executed the earlier ones. It must not write.
func TestDryRunIsAnnounced(t *testing.T) {
	const stops, starts = `Normal WouldStop Dry run: Scaled in from 3 to 0 replicas (stop-schedule "Mon-Fri 20:00", due `,
		`Normal WouldStart Dry run: Scaled out from 0 to 3 replicas (start-schedule "Mon-Fri 07:00", due `
	const stopsAfter, uptimes = `Normal WouldStop Dry run: Scaled in from 3 to 0 replicas (stop-after "4h", due `,
		`Normal WouldStart Dry run: Scaled out from 0 to 3 replicas (start-until "2026-11-18T06:00:00Z", until `
	for _, c := range []struct {
		reason     string
		deployment *appsv1.Deployment
		want       []string // the events
		transition string
	}{
		{"a start follows each stop of a running workload", newDeployment(3, observed(v1beta1.ScheduleStarted, "2026-11-17 07:00")),
			[]string{stops + "2026-11-17T20:00:00Z)", starts + "2026-11-18T07:00:00Z)", stops + "2026-11-18T20:00:00Z)",
				starts + "2026-11-19T07:00:00Z)"},
			"start deployments dry-run 2 stop deployments dry-run 2"},
		{"a stop follows each start of a stopped workload",
			newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-16 20:00")),
			[]string{starts + "2026-11-17T07:00:00Z)", stops + "2026-11-17T20:00:00Z)", starts + "2026-11-18T07:00:00Z)",
				stops + "2026-11-18T20:00:00Z)", starts + "2026-11-19T07:00:00Z)"},
			"start deployments dry-run 3 stop deployments dry-run 2"},
		{"a second stop without a start changes nothing", newDeployment(3, with(v1beta1.StartScheduleAnnotation, "Mon 07:00"),
			observed(v1beta1.ScheduleStarted, "2026-11-17 07:00")), []string{stops + "2026-11-17T20:00:00Z)"},
			"stop deployments dry-run 1"},
		{"stop-after counts from the announced start", newDeployment(3, with(v1beta1.StopScheduleAnnotation, ""),
			with(v1beta1.StopAfterAnnotation, "4h"), observed(v1beta1.ScheduleStarted, "2026-11-17 07:00"),
			with(v1beta1.RunningSinceAnnotation, "2026-11-17T07:00:00Z"), with(v1beta1.ExpiresAtAnnotation, "2026-11-17T11:00:00Z")),
			[]string{stopsAfter + "2026-11-17T11:00:00Z)", starts + "2026-11-18T07:00:00Z)", stopsAfter + "2026-11-18T11:00:00Z)",
				starts + "2026-11-19T07:00:00Z)", stopsAfter + "2026-11-19T11:00:00Z)"},
			"start deployments dry-run 2 stop deployments dry-run 3"},
		{"the last regular stop follows an uptime on demand", newDeployment(3, with(v1beta1.StartUntilAnnotation, "2026-11-17T22:00:00Z"),
			observed(v1beta1.ScheduleStarted, "2026-11-17 07:00")),
			[]string{stops + "2026-11-17T20:00:00Z)", starts + "2026-11-18T07:00:00Z)", stops + "2026-11-18T20:00:00Z)",
				starts + "2026-11-19T07:00:00Z)"},
			"start deployments dry-run 2 stop deployments dry-run 2"},
		{"a stop and a start follow an uptime on demand of a stopped workload", newDeployment(0, original(3), with(v1beta1.StartUntilAnnotation, "2026-11-18T06:00:00Z"),
			observed(v1beta1.ScheduleStopped, "2026-11-16 20:00")),
			[]string{uptimes + "2026-11-18T06:00:00Z)", stops + "2026-11-17T20:00:00Z)", starts + "2026-11-18T07:00:00Z)",
				stops + "2026-11-18T20:00:00Z)", starts + "2026-11-19T07:00:00Z)"},
			"start deployments dry-run 3 stop deployments dry-run 2"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			with(v1beta1.DryRunAnnotation, "true")(c.deployment)
			api, registry := &fakeClient{}, prometheus.NewRegistry()
			api.store(c.deployment)
			api.cached = api.stored
			var times []time.Time
			for hour := range 48 {
				times = append(times, at("2026-11-17 12:00").Add(time.Duration(hour)*time.Hour))
			}
			got := eventsAt(t, deployments, api, c.deployment, nil, registry, times...)
			if diff := cmp.Diff(c.want, got); diff != "" || api.writes > 0 {
				t.Errorf("%d writes, events (-want +got):\n%s", api.writes, diff)
			}
			if diff := cmp.Diff(c.transition, transitionsIn(t, registry)); diff != "" {
				t.Errorf("counted transitions (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDryRunOfEditedSchedule edits a Deployment in a dry run. A stop that is due again must be announced again.
func TestDryRunOfEditedSchedule(t *testing.T) {
	const stopped = `Normal WouldStop Dry run: Scaled in from 3 to 0 replicas (stop-schedule "Mon-Fri 20:00", due 2026-11-20T20:00:00Z)`
	const started = `Normal WouldStart Dry run: Scaled out from 0 to 3 replicas (start-schedule "Mon-Fri 22:30", due 2026-11-20T22:30:00Z)`
	const unknown = `Warning UnknownTimeZone useless.container.training/time-zone "Mars": it is not in the time zone database; use for example "Europe/Berlin" or "UTC"`
	const useless = `Warning InvalidSchedule useless.container.training/exclude-dates "2026-12-25": it needs a start-schedule; use for example start-schedule "Mon-Fri 07:00" in addition`
	const removed = `Normal WouldStart Dry run: Scaled out from 0 to 3 replicas (the schedule is gone)`
	scheduled := func(start, stop string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			with(v1beta1.StartScheduleAnnotation, start)(d)
			with(v1beta1.StopScheduleAnnotation, stop)(d)
		}
	}
	scaled := func(replicas int32) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Spec.Replicas = &replicas }
	}
	for _, c := range []struct {
		reason     string
		deployment *appsv1.Deployment
		edits      []func(*appsv1.Deployment) // before the reconciles at 21:00, 22:00 and so on
		want       []string
	}{
		{"a user starts a stopped workload, and edits its schedule later",
			newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")),
			[]func(*appsv1.Deployment){scaled(0), scaled(3), scheduled("08:00", "Mon-Fri 20:00")}, []string{stopped}},
		{"kubectl useless sleep records the level before the stop",
			newDeployment(3, scheduled("Mon-Fri 22:30", "Mon-Fri 06:00"), observed(v1beta1.ScheduleStopped, "2026-11-20 06:00")),
			[]func(*appsv1.Deployment){scaled(3), func(d *appsv1.Deployment) {
				scaled(0)(d)
				original(3)(d)
			}, scaled(0)}, []string{started}},
		{"a user removes the schedule and adds it again", newDeployment(3),
			[]func(*appsv1.Deployment){scaled(3), scheduled("", ""), scheduled("Mon-Fri 07:00", "Mon-Fri 20:00")},
			[]string{stopped, removed, stopped}},
		{"a user starts a workload after an announced stop, and edits its schedule later", newDeployment(3),
			[]func(*appsv1.Deployment){scaled(3), scaled(0), scaled(3), scheduled("08:00", "Mon-Fri 20:00")},
			[]string{stopped, stopped}},
		{"a user corrects a time zone that is not valid", newDeployment(3), []func(*appsv1.Deployment){scaled(3),
			with(v1beta1.TimeZoneAnnotation, "Mars"), with(v1beta1.TimeZoneAnnotation, "")}, []string{stopped, unknown}},
		{"a user removes one annotation after the other", newDeployment(3, with(v1beta1.ExcludeDatesAnnotation, "2026-12-25")),
			[]func(*appsv1.Deployment){scaled(3), scheduled("", "Mon-Fri 20:00"), scheduled("", ""),
				with(v1beta1.ExcludeDatesAnnotation, "")}, []string{stopped, useless, removed}},
	} {
		with(v1beta1.DryRunAnnotation, "true")(c.deployment)
		api, events := reconcileEdits(t, c.deployment, c.edits)
		if diff := cmp.Diff(c.want, events); diff != "" || api.writes > 0 {
			t.Errorf("%s: %d writes, events (-want +got):\n%s", c.reason, api.writes, diff)
		}
	}
}

// reconcileEdits reconciles a Deployment after each edit, at 21:00, 22:00 and so on, and at the alarms between them. It
// returns the API server and the events.
func reconcileEdits(t *testing.T, d *appsv1.Deployment, edits []func(*appsv1.Deployment)) (*fakeClient, []string) {
	t.Helper()
	api := &fakeClient{}
	controller, clock, recorder := newController(deployments, api, prometheus.NewRegistry())
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d)}
	reconcileAt := func(at time.Time) {
		clock.SetTime(at)
		api.cached = api.stored
		if _, err := controller.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	api.store(d)
	for i, edit := range edits {
		edited := api.stored.DeepCopyObject().(*appsv1.Deployment)
		edit(edited)
		api.store(edited)
		next := at("2026-11-20 21:00").Add(time.Duration(i) * time.Hour)
		for end := next.Add(time.Hour); next.After(clock.Now()) && next.Before(end); next = controller.alarms.Next(request) {
			reconcileAt(next)
		}
	}
	return api, eventsIn(recorder)
}

// TestEditAfterDryRun ends a dry run, and edits the schedule before, at or after its end. The Deployment must be
// stopped, unless a stop that was due in the dry run is not recorded yet.
func TestEditAfterDryRun(t *testing.T) {
	edit := func(annotations ...string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			for i := 0; i < len(annotations); i += 2 {
				with(annotations[i], annotations[i+1])(d)
			}
		}
	}
	nothing, end := edit(), edit(v1beta1.DryRunAnnotation, "")
	for _, c := range []struct {
		reason string
		last   string // the last start or stop before the dry run
		edits  []func(*appsv1.Deployment)
		want   int32
	}{
		{"nothing was due in the dry run", "2026-11-20 20:00",
			[]func(*appsv1.Deployment){nothing, end, edit(v1beta1.StartScheduleAnnotation, "08:00")}, 0},
		{"a stop was due in the dry run, and is recorded at its end", "2026-11-20 07:00",
			[]func(*appsv1.Deployment){nothing, end, edit(v1beta1.StartScheduleAnnotation, "08:00")}, 0},
		{"a stop was due in the dry run while the schedule was not valid", "2026-11-20 20:00", []func(*appsv1.Deployment){
			edit(v1beta1.StopScheduleAnnotation, "22:30"), edit(v1beta1.TimeZoneAnnotation, "Mars"), end,
			edit(v1beta1.TimeZoneAnnotation, "")}, 3},
		{"a stop was due in the dry run while the workload was excluded", "2026-11-20 20:00", []func(*appsv1.Deployment){
			edit(v1beta1.StopScheduleAnnotation, "22:30"), edit(v1beta1.ScheduleAnnotation, "none"),
			edit(v1beta1.ScheduleAnnotation, "", v1beta1.DryRunAnnotation, "")}, 3},
		{"at the end of the dry run, a user adds a stop that was due a minute before", "2026-11-20 20:00",
			[]func(*appsv1.Deployment){nothing, edit(v1beta1.DryRunAnnotation, "", v1beta1.StopScheduleAnnotation, "21:59")}, 3},
		{"the schedule is edited at the end of the dry run", "2026-11-20 20:00",
			[]func(*appsv1.Deployment){nothing, edit(v1beta1.DryRunAnnotation, "", v1beta1.StartScheduleAnnotation, "08:00")}, 3},
		{"the schedule is not valid at the end of the dry run", "2026-11-20 07:00",
			[]func(*appsv1.Deployment){nothing, edit(v1beta1.DryRunAnnotation, "", v1beta1.TimeZoneAnnotation, "Mars"),
				edit(v1beta1.TimeZoneAnnotation, "")}, 3},
		{"the schedule is removed at the end of the dry run, and added again", "",
			[]func(*appsv1.Deployment){nothing, edit(v1beta1.DryRunAnnotation, "", v1beta1.StartScheduleAnnotation, "",
				v1beta1.StopScheduleAnnotation, ""), edit(v1beta1.StopScheduleAnnotation, "Mon-Fri 20:00")}, 0},
		{"only the time zone remains at the end of the dry run, and the schedule is added again", "",
			[]func(*appsv1.Deployment){nothing, edit(v1beta1.DryRunAnnotation, "", v1beta1.StartScheduleAnnotation, "",
				v1beta1.StopScheduleAnnotation, "", v1beta1.TimeZoneAnnotation, "Europe/Berlin"),
				edit(v1beta1.StopScheduleAnnotation, "Mon-Fri 20:00")}, 0},
	} {
		d := newDeployment(3, with(v1beta1.DryRunAnnotation, "true"))
		if c.last != "" {
			observed(v1beta1.ScheduleStarted, c.last)(d)
		}
		if api, _ := reconcileEdits(t, d, c.edits); deployments.level(api.stored) != c.want {
			t.Errorf("%s: got %d replicas, want %d", c.reason, deployments.level(api.stored), c.want)
		}
	}
}

// TestLevelInDryRun checks the level from which a dry run continues. The level after a stop is 0.
func TestLevelInDryRun(t *testing.T) {
	for _, c := range []struct {
		reason          string
		actual, assumed int32 // the level of the workload, and the level that the last plan assumed
		level           int32 // the present level of the workload
		want            int32
	}{
		{"the dry run has announced a stop", 3, 0, 3, 0},
		{"an autoscaler scales a workload after an announced stop", 3, 0, 4, 0},
		{"a user stops a workload after an announced stop", 3, 0, 0, 0},
		{"a user starts a workload after its stop", 0, 0, 3, 3},
		{"the dry run has announced a start", 0, 3, 0, 3},
		{"a user starts a workload after an announced start", 0, 3, 2, 2},
		{"the dry run has announced a start with more replicas", 3, 5, 3, 5},
		{"a user scales a workload after an announced start", 3, 5, 4, 4},
		{"a user stops a running workload", 3, 3, 0, 0},
	} {
		in := input{object: newDeployment(c.level), dryRun: true}
		in.lastDryRun.simulated = simulated{is: true, actual: c.actual, level: c.assumed}
		if got, _ := in.current(deployments, 0); got != c.want {
			t.Errorf("%s: got %d, want %d", c.reason, got, c.want)
		}
	}
}

// TestTwoCaches ends a dry run of a workload that has the default schedule of its Namespace. Before the end, a user has
// edited the default, but the cache has this edit only a second after the end. The operator must not stop the workload.
func TestTwoCaches(t *testing.T) {
	d := newDeployment(3, with(v1beta1.StartScheduleAnnotation, ""), with(v1beta1.StopScheduleAnnotation, ""),
		with(v1beta1.DryRunAnnotation, "true"))
	defaults := func(stop string) map[string]string {
		return map[string]string{v1beta1.StartScheduleAnnotation: "07:00", v1beta1.StopScheduleAnnotation: stop}
	}
	api := &fakeClient{}
	controller, clock, _ := newController(deployments, api, prometheus.NewRegistry())
	api.store(d)
	for _, step := range []struct {
		at     string
		stop   string
		dryRun string
	}{{"2026-11-20 21:00:00", "23:00", "true"}, {"2026-11-20 21:10:00", "23:00", ""}, {"2026-11-20 21:10:01", "20:00", ""}} {
		edited := api.stored.DeepCopyObject().(*appsv1.Deployment)
		with(v1beta1.DryRunAnnotation, step.dryRun)(edited)
		api.store(edited)
		now, err := time.Parse(time.DateTime, step.at)
		if err != nil {
			t.Fatal(err)
		}
		clock.SetTime(now)
		api.cached, api.defaults = api.stored, defaults(step.stop)
		if _, err := controller.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := deployments.level(api.stored); got != 3 || api.writes != 2 {
		t.Errorf("got %d replicas after %d writes, want 3 after 2", got, api.writes)
	}
}

// TestScheduleRemovedWhilePaused removes the schedule of a paused workload during a dry run. The operator must
// reconcile the workload after the pause, to end the dry run. Otherwise, it would skip the first event of a later
// schedule.
func TestScheduleRemovedWhilePaused(t *testing.T) {
	paused := newDeployment(3, with(v1beta1.StartScheduleAnnotation, ""), with(v1beta1.StopScheduleAnnotation, ""))
	controller, _, _ := newController(deployments, &fakeClient{}, prometheus.NewRegistry())
	resumed := event.UpdateEvent{ObjectOld: paused, ObjectNew: paused.DeepCopy()}
	if controller.scheduled().Update(resumed) {
		t.Error("an event of a workload without a schedule is not dropped")
	}
	controller.memory.Update(paused, func(r *remembered) { r.dryRun.isRunning = true })
	if !controller.scheduled().Update(resumed) {
		t.Error("an event of a workload without a schedule is dropped, although a dry run is remembered")
	}
}

// TestDryRunMemory checks whether the controller forgets a dry run that has ended at 21:00.
func TestDryRunMemory(t *testing.T) {
	end := at("2026-11-20 21:00")
	for _, c := range []struct {
		reason string
		after  time.Duration // after the end
		plan   plan
		want   bool
	}{
		{"the cache may not have all edits yet", time.Second, plan{transition: stop}, false},
		{"nothing is due", 2 * time.Second, plan{transition: stop}, true},
		{"there is no schedule", 2 * time.Second, plan{}, true},
		{"a record must be written first", 2 * time.Second, plan{transition: stop, outcome: noted}, false},
		{"the schedule is invalid, so the due event is not known", 2 * time.Second, plan{isInvalid: true}, false},
	} {
		ended := dryRunMemory{isRunning: true, event: "e", simulated: simulated{is: true}}.after(plan{outcome: noted}, end)
		if diff := cmp.Diff(dryRunMemory{end: end}, ended, cmp.AllowUnexported(dryRunMemory{}, simulated{})); diff != "" {
			t.Errorf("after the first plan (-want +got):\n%s", diff)
		}
		now := end.Add(c.after)
		if got := ended.after(c.plan, now) == (dryRunMemory{}); got != c.want {
			t.Errorf("%s: the dry run is forgotten: %t, want %t", c.reason, got, c.want)
		}
	}
	if got := (dryRunMemory{isRunning: true}).forgottenAt(end); !got.Equal(end.Add(2 * time.Second)) {
		t.Errorf("got the next reconcile at %s, want it two seconds after the end", got)
	}
}

// TestEndOfDryRun ends a dry run during which a stop was due or the schedule was removed. Only a replica of the
// operator that was the leader in the dry run remembers the dry run.
func TestEndOfDryRun(t *testing.T) {
	for _, c := range []struct {
		reason     string
		deployment *appsv1.Deployment
		remembered bool
		want       int32
	}{
		{"the leader does not execute the stop", newDeployment(3, with(v1beta1.StopScheduleAnnotation, "11:00")), true, 3},
		{"a leader that does not remember the dry run executes the stop",
			newDeployment(3, with(v1beta1.StopScheduleAnnotation, "11:00")), false, 0},
		{"if the schedule of a stopped workload was removed, the workload starts", newDeployment(0, original(3),
			observed(v1beta1.ScheduleStopped, "2026-11-20 07:00"), with(v1beta1.StartScheduleAnnotation, ""),
			with(v1beta1.StopScheduleAnnotation, "")), true, 3},
	} {
		t.Run(c.reason, func(t *testing.T) {
			with(v1beta1.DryRunAnnotation, "true")(c.deployment)
			in := input{object: c.deployment, zone: time.UTC, now: now}
			if p := deployments.decide(in); !p.isDryRun {
				t.Errorf("got plan %+v, want a dry run", p)
			}
			if c.remembered {
				in.lastDryRun.isRunning = true
			}
			with(v1beta1.DryRunAnnotation, "")(c.deployment)
			in.now = now.Add(time.Minute)
			deployments.apply(c.deployment, deployments.decide(in))
			if got := deployments.level(c.deployment); got != c.want {
				t.Errorf("got %d replicas, want %d", got, c.want)
			}
		})
	}
}

// transitionsIn returns the labels and values of useless_schedule_transitions_total that are not 0.
func transitionsIn(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var counted []string
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			value := metric.GetCounter().GetValue()
			if family.GetName() != "useless_schedule_transitions_total" || value == 0 {
				continue
			}
			for _, label := range metric.GetLabel() {
				counted = append(counted, label.GetValue())
			}
			counted = append(counted, fmt.Sprint(value))
		}
	}
	return strings.Join(counted, " ")
}

func TestLastManager(t *testing.T) {
	const replicas, image = `{"f:spec":{"f:replicas":{}}}`, `{"f:spec":{"f:template":{}}}`
	entry := func(manager, fields string, minute int) metav1.ManagedFieldsEntry {
		e := metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(fields)}
		if minute >= 0 {
			e.Time = &metav1.Time{Time: now.Add(time.Duration(minute) * time.Minute)}
		}
		return e
	}
	for _, c := range []struct {
		reason  string
		entries []metav1.ManagedFieldsEntry
		want    string // empty for none
	}{
		{"a manager of other fields is ignored", []metav1.ManagedFieldsEntry{entry("argocd", image, 2)}, ""},
		{"the result is the last of several managers", []metav1.ManagedFieldsEntry{
			entry("helm", replicas, 1), entry("argocd", replicas, 3), entry("flux", replicas, 2), entry("kubectl", image, 4),
		}, "argocd"},
		{"an entry of the subresource scale has no time, and is the last one", []metav1.ManagedFieldsEntry{
			entry("kubectl", replicas, -1), entry("argocd", replicas, 1),
		}, "kubectl"},
		{"entries with invalid fields are ignored", []metav1.ManagedFieldsEntry{entry("odd", `{`, 1), {Manager: "none"}}, ""},
	} {
		got := ""
		if last := lastManager(c.entries, deployments.field); last != nil {
			got = last.Manager
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
		}
	}
}

// TestManagerOfEachKind requires that the managed fields of each kind show which client has changed its level.
func TestManagerOfEachKind(t *testing.T) {
	fields := map[string]string{
		"deployments": `{"f:spec":{"f:replicas":{}}}`, "statefulsets": `{"f:spec":{"f:replicas":{}}}`,
		"cronjobs": `{"f:spec":{"f:suspend":{}}}`, "virtualmachines": `{"f:spec":{"f:action":{}}}`,
		"horizontalpodautoscalers": `{"f:spec":{"f:maxReplicas":{}}}`,
		"scaledobjects":            `{"f:metadata":{"f:annotations":{".":{},"f:autoscaling.keda.sh/paused-replicas":{}}}}`,
	}
	for _, k := range kinds {
		entries := []metav1.ManagedFieldsEntry{{Manager: "flux", FieldsV1: metav1.NewFieldsV1(fields[k.name])}}
		if last := lastManager(entries, k.field); last == nil || last.Manager != "flux" {
			t.Errorf("%s: got %v, want flux", k.name, last)
		}
	}
}

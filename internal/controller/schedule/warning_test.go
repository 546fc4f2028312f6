// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientevents "k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/events"
	"container.training/useless/internal/queue"
	"container.training/useless/internal/schedule"
)

// rejectingClient is a fakeClient whose API server rejects writes while err is not nil.
type rejectingClient struct {
	fakeClient
	err error
}

func (c *rejectingClient) Patch(
	ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption,
) error {
	if c.err != nil {
		return c.err
	}
	return c.fakeClient.Patch(ctx, o, p, options...)
}

// keptEvents is a recorder.Provider that keeps the Kubernetes events for the test.
type keptEvents struct {
	recorder.Provider
	*clientevents.FakeRecorder
}

func (e keptEvents) GetEventRecorder(string) recorder.EventRecorder { return e.FakeRecorder }

// TestWarnings requires one warning for each problem, even if the workload is reconciled several times.
func TestWarnings(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "d", errors.New("policy"))
	stopped := []func(*appsv1.Deployment){original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 07:00"),
		with(v1beta1.StartScheduleAnnotation, ""), with(v1beta1.StopScheduleAnnotation, "")}
	yearly := []func(*appsv1.Deployment){with(v1beta1.StopScheduleAnnotation, ""),
		with(v1beta1.StartScheduleAnnotation, "0 0 1 1 *"),
		with(v1beta1.ExcludeDatesAnnotation, "2000-01-01/2026-12-31")}
	for _, c := range []struct {
		reason     string
		deployment *appsv1.Deployment
		err        error
		want       string // the beginning of the only event; empty for none
	}{
		{"a start is rejected", newDeployment(0, with(v1beta1.StartReplicasAnnotation, "3")), forbidden,
			`Warning ScaleFailed Could not start (start-schedule "Mon-Fri 07:00", due 2026-11-20T07:00:00Z): `},
		{"the removal of a record is rejected", newDeployment(0, stopped...), forbidden,
			`Warning ScaleFailed Could not start (the schedule is gone): `},
		{"the removal of a record without a change of the replicas is rejected", newDeployment(3, stopped...),
			forbidden, `Warning ScaleFailed Could not remove the annotations of the removed schedule: `},
		{"the first record is rejected", newDeployment(3, yearly...), forbidden,
			`Warning ScaleFailed Could not record when the next start or stop is due: `},
		{"a conflict causes no event, because a user cannot solve it", newDeployment(0, with(v1beta1.StartReplicasAnnotation, "3")),
			apierrors.NewConflict(schema.GroupResource{}, "d", errors.New("old")), ""},
		{"the schedule is invalid", newDeployment(3, with(v1beta1.StopScheduleAnnotation, "25:00")), nil,
			`Warning InvalidSchedule useless.container.training/stop-schedule "25:00": `},
		{"the workload stops soon", newDeployment(3, with(v1beta1.StopAfterAnnotation, "5h10m"),
			with(v1beta1.RunningSinceAnnotation, "2026-11-20T07:00:00Z"),
			with(v1beta1.ExpiresAtAnnotation, "2026-11-20T12:10:00Z"),
			observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")), nil,
			`Warning StopsSoon The workload stops at 2026-11-20T12:10:00Z: `},
	} {
		t.Run(c.reason, func(t *testing.T) {
			api := &rejectingClient{err: c.err}
			api.store(c.deployment)
			api.cached = api.stored
			got := eventsAfterReconciles(t, deployments, api, c.deployment, c.err, prometheus.NewRegistry())
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
				t.Errorf("got events %q, want %q", got, c.want)
			}
		})
	}
}

// TestStopsSoonIsEmittedOnce reconciles a workload twice a minute, from 12:00 to 13:14. A running workload stops at
// 12:10, unless a user changes this time. There must be one warning for each announced time of a stop.
func TestStopsSoonIsEmittedOnce(t *testing.T) {
	const until, since = v1beta1.StartUntilAnnotation, "2026-11-20T07:00:00Z"
	timer := []func(*appsv1.Deployment){with(v1beta1.StopAfterAnnotation, "5h10m"),
		with(v1beta1.RunningSinceAnnotation, since), with(v1beta1.ExpiresAtAnnotation, "2026-11-20T12:10:00Z"),
		observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")}
	for _, c := range []struct {
		reason   string
		changes  []func(*appsv1.Deployment)
		key      string // an annotation that a user changes at 12:05; empty for none
		value    string
		warnings []string // the times in the warnings
	}{
		{"nothing else happens", timer, "", "", []string{"12:10"}},
		{"a start is executed at 12:05", append(slices.Clone(timer), with(v1beta1.StartScheduleAnnotation, "5 7,12 * * *"),
			observed(v1beta1.ScheduleStarted, "2026-11-20 07:05")), "", "", []string{"12:10"}},
		{"a user edits the schedule", timer, v1beta1.StartScheduleAnnotation, "Mon-Fri 06:00", []string{"12:10"}},
		{"a user extends stop-after by a minute", timer, v1beta1.StopAfterAnnotation, "5h11m", []string{"12:10", "12:11"}},
		{"a user extends stop-after by an hour", timer, v1beta1.StopAfterAnnotation, "6h10m", []string{"12:10", "13:10"}},
		{"a user starts it for 10 minutes", append(slices.Clone(timer), with(v1beta1.StopScheduleAnnotation, "Mon-Fri 11:00"),
			with(v1beta1.StopAfterAnnotation, ""), with(v1beta1.RunningSinceAnnotation, ""),
			with(v1beta1.ExpiresAtAnnotation, ""), original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 11:00")),
			until, "10m", []string{"12:15"}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			d, api := newDeployment(3, c.changes...), &fakeClient{}
			if schedule.ReadRecord(d.Annotations).Original > 0 {
				*d.Spec.Replicas = 0
			}
			api.store(d)
			controller, clock, recorder := newController(deployments, api, prometheus.NewRegistry())
			for minute := range 75 {
				if minute == 5 && c.key != "" {
					changed := api.stored.DeepCopyObject().(*appsv1.Deployment)
					with(c.key, c.value)(changed)
					api.store(changed)
				}
				clock.SetTime(now.Add(time.Duration(minute) * time.Minute))
				for range 2 { // the second reconcile is caused by a write of the first one
					api.cached = api.stored
					if _, err := controller.Reconcile(t.Context(), reconcile.Request{
						NamespacedName: client.ObjectKeyFromObject(d),
					}); err != nil {
						t.Fatal(err)
					}
				}
			}
			var got []string
			for _, event := range eventsIn(recorder) {
				if _, at, found := strings.Cut(event, "StopsSoon The workload stops at 2026-11-20T"); found {
					got = append(got, at[:len("12:10")])
				}
			}
			if diff := cmp.Diff(c.warnings, got); diff != "" {
				t.Errorf("times in the warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOverriddenWorkloadStopsSoon reconciles a workload that a user has started after its stop. StopAfter stops the
// workload soon. The operator must emit both warnings.
func TestOverriddenWorkloadStopsSoon(t *testing.T) {
	d := newDeployment(3, with(v1beta1.StopScheduleAnnotation, "Mon-Fri 11:00"),
		with(v1beta1.StopAfterAnnotation, "1h5m"), with(v1beta1.RunningSinceAnnotation, "2026-11-20T11:05:00Z"),
		with(v1beta1.ExpiresAtAnnotation, "2026-11-20T12:10:00Z"), observed(v1beta1.ScheduleStopped, "2026-11-20 11:00"))
	api := &fakeClient{}
	api.store(d)
	api.cached = api.stored
	got := eventsAfterReconciles(t, deployments, api, d, nil, prometheus.NewRegistry())
	want := []string{
		"Warning ScheduleOverridden The workload runs, although its schedule has stopped it",
		"Warning StopsSoon The workload stops at 2026-11-20T12:10:00Z: ",
	}
	if len(got) != 2 || !strings.HasPrefix(got[0], want[0]) || !strings.HasPrefix(got[1], want[1]) {
		t.Errorf("got events %q, want %q", got, want)
	}
}

// TestNoNotice decides about workloads whose StopAfter ends in ten minutes. In a dry run, or if an autoscaler would
// undo the stop, there must be no notice.
func TestNoNotice(t *testing.T) {
	timer := []func(*appsv1.Deployment){with(v1beta1.StopAfterAnnotation, "5h10m"),
		with(v1beta1.RunningSinceAnnotation, "2026-11-20T07:00:00Z"),
		with(v1beta1.ExpiresAtAnnotation, "2026-11-20T12:10:00Z"), observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")}
	if got := decideAt(deployments, newDeployment(3, timer...), nil, now); got.notice.reason != v1beta1.EventStopsSoon {
		t.Fatalf("got the notice %+v, want %s", got.notice, v1beta1.EventStopsSoon)
	}
	dryRun := newDeployment(3, append(timer, with(v1beta1.DryRunAnnotation, "true"))...)
	if got := decideAt(deployments, dryRun, nil, now); got.notice != (warning{}) {
		t.Errorf("in a dry run, got the notice %+v", got.notice)
	}
	conflicting := newDeployment(3, append(timer, with(v1beta1.StopReplicasAnnotation, "1"))...)
	autoscalers := []autoscalingv2.HorizontalPodAutoscaler{*newAutoscaler()}
	got := decideAt(deployments, conflicting, autoscalers, now)
	if got.notice != (warning{}) || got.warning.reason != v1beta1.EventAutoscalerConflict {
		t.Errorf("with an autoscaler, got the notice %+v and the warning %+v", got.notice, got.warning)
	}
}

// eventsAfterReconciles reconciles a workload three times, and its Namespace as well. It returns the emitted events.
func eventsAfterReconciles(
	t *testing.T, k *kind, api client.Client, o client.Object, wantErr error, registry *prometheus.Registry,
) (got []string) {
	t.Helper()
	return eventsAt(t, k, api, o, wantErr, registry, now, now, now)
}

// eventsAt reconciles a workload and its Namespace at each of the times. It returns the emitted events.
func eventsAt(t *testing.T, k *kind, api client.Client, o client.Object, wantErr error, registry *prometheus.Registry,
	times ...time.Time) (got []string) {
	t.Helper()
	controller, clock, recorder := newController(k, api, registry)
	for _, at := range times {
		clock.SetTime(at)
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}
		if _, err := controller.Reconcile(t.Context(), request); !errors.Is(err, wantErr) {
			t.Errorf("got error %v, want %v", err, wantErr)
		}
		request.NamespacedName = client.ObjectKey{Name: o.GetNamespace()}
		if _, err := controller.namespaces.Reconcile(t.Context(), request); err != nil {
			t.Error(err)
		}
	}
	return eventsIn(recorder)
}

// newController returns a controller for a kind, with its clock and its events.
func newController(k *kind, api client.Client, registry *prometheus.Registry) (
	*Controller, *clocktesting.FakePassiveClock, *clientevents.FakeRecorder,
) {
	clock, recorder := clocktesting.NewFakePassiveClock(now), clientevents.NewFakeRecorder(100)
	recorded := events.NewRecorder(keptEvents{FakeRecorder: recorder})
	return &Controller{
		kind: k, client: api, api: api, clock: clock, zone: time.UTC, alarms: queue.NewAlarms(clock), events: recorded,
		metrics: newMetrics(registry, collector{}), dryRunEnd: &dryRunEnd{},
		namespaces: &Namespaces{client: api, api: api, zone: time.UTC, events: recorded},
	}, clock, recorder
}

// eventsIn returns the events in a recorder, which must not be used again.
func eventsIn(recorder *clientevents.FakeRecorder) (events []string) {
	close(recorder.Events)
	for event := range recorder.Events {
		events = append(events, event)
	}
	return events
}

// badValues has invalid values of each annotation that users set. It also has invalid values of the operator's
// annotations running-since and expires-at, which the operator does not ignore.
var badValues = map[string][]string{
	v1beta1.StartScheduleAnnotation: {"", "25:00", "Mon-Fri", "@every 1h", "TZ=UTC 0 7 * * *", "0 0 31 2 *"},
	v1beta1.StopScheduleAnnotation:  {"", "24:00", "Monday 20:00", "@reboot", "CRON_TZ=UTC", "60 20 * * *"},
	v1beta1.TimeZoneAnnotation:      {"", "Mars/Olympus", "Local", "+01:00"},
	v1beta1.StopReplicasAnnotation:  {"", "none", "-1", "1.5", "2147483648"},
	v1beta1.StartReplicasAnnotation: {"", "0", "-1", "all"},
	v1beta1.ExcludeDatesAnnotation:  {"", "25.12.2026", "2026-02-29", "2026-12-26/2026-12-25"},
	v1beta1.StopAfterAnnotation:     {"", "4", "30s", "31d", "-1h"},
	v1beta1.SuspendAnnotation:       {"", "yes", "2026-11-23"},
	v1beta1.SuspendUntilAnnotation:  {"", "tomorrow", "2026-11-23", "2026-11-23T07:00:00"},
	v1beta1.StartUntilAnnotation:    {"", "tomorrow", "2026-11-23", "31d", "59s"},
	v1beta1.DryRunAnnotation:        {"", "yes", "on"},
	v1beta1.ScheduleAnnotation:      {"", "None", "off"},
	v1beta1.RunningSinceAnnotation:  {"", "yesterday", "2026-11-20", "2026-11-20T07:00:00"},
	v1beta1.ExpiresAtAnnotation:     {"", "3h", "2026-11-20", "10000-01-01T00:00:00Z"},
}

// ignoredRecords returns the keys of the operator's annotations whose invalid values the operator ignores.
func ignoredRecords() []string {
	return slices.DeleteFunc(recordKeys(), func(key string) bool {
		return key == v1beta1.RunningSinceAnnotation || key == v1beta1.ExpiresAtAnnotation
	})
}

// TestBadInput reconciles stopped workloads of each kind. Their start is due, but their schedule has an invalid value.
// The value is in their own annotation or in the default of the Namespace. One event must contain the value, and an
// example of a valid value or the advice to remove it. The operator must not write, so that the saved state is not
// lost.
func TestBadInput(t *testing.T) {
	for _, key := range schedule.Keys() {
		if values := badValues[key]; len(values) < 3 && !slices.Contains(ignoredRecords(), key) {
			t.Errorf("there are %d invalid values of %s, want at least 3", len(values), key)
		}
	}
	for _, k := range kinds {
		for key, values := range badValues {
			for _, value := range values {
				checkBadInput(t, k, key, value, false)
				isIgnored := k.onOff && isReplicas(key) // a kind without replicas ignores these defaults
				if k.takesDefaults && !isIgnored {
					checkBadInput(t, k, key, value, true)
				}
			}
		}
	}
}

func isReplicas(key string) bool {
	return key == v1beta1.StopReplicasAnnotation || key == v1beta1.StartReplicasAnnotation
}

// checkBadInput sets an annotation of a stopped workload, or of its Namespace, to an invalid value.
func checkBadInput(t *testing.T, k *kind, key, value string, isDefault bool) {
	t.Helper()
	level := int32(3)
	if k.onOff {
		level = 1
	}
	o, api := newWorkload(k, level), &fakeClient{}
	k.apply(o, decideAt(k, o, nil, at("2026-11-19 20:00")))
	annotations := o.GetAnnotations()
	if isDefault {
		api.defaults = schedule.OfNamespace(annotations)
		maps.DeleteFunc(annotations, func(key, _ string) bool { return !slices.Contains(recordKeys(), key) })
		if !slices.Contains(recordKeys(), key) {
			annotations = api.defaults
		}
	}
	annotations[key] = value
	api.store(o)
	api.cached = api.stored
	events := eventsAfterReconciles(t, k, api, o, nil, prometheus.NewRegistry())
	named := fmt.Sprintf("%s %q: ", key, value)
	if len(events) != 1 || !strings.HasPrefix(events[0], "Warning ") || !strings.Contains(events[0], named) ||
		!strings.Contains(events[0], "; use for example ") && !strings.Contains(events[0], "; remove it") {
		t.Errorf("%s, default %t: got events %q, want one warning with %s and an example", k.name, isDefault, events, named)
	}
	if api.writes > 0 || k.level(o) >= level || schedule.ReadRecord(o.GetAnnotations()).Original != level {
		t.Errorf("%s %s %q: %d writes to %v", k.name, key, value, api.writes, o)
	}
}

// TestDefaultIsNamed requires that each event about a default schedule names the Namespace. An event about the
// workload's own schedule must not name it.
func TestDefaultIsNamed(t *testing.T) {
	started := observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")
	stopped := []func(*appsv1.Deployment){original(3), observed(v1beta1.ScheduleStopped, "2026-11-19 20:00")}
	timer := with(v1beta1.StopAfterAnnotation, "5h10m")
	since := with(v1beta1.RunningSinceAnnotation, "2026-11-20T07:00:00Z")
	expires := with(v1beta1.ExpiresAtAnnotation, "2026-11-20T12:10:00Z")
	for _, c := range []struct {
		reason     string
		deployment *appsv1.Deployment
	}{
		{v1beta1.EventScheduledStop, newDeployment(3, with(v1beta1.StopScheduleAnnotation, "11:00"))},
		{v1beta1.EventScheduledStart, newDeployment(0, stopped...)},
		{v1beta1.EventScheduleOverridden, newDeployment(0, started)},
		{v1beta1.EventStopsSoon, newDeployment(3, timer, since, expires, started)},
		{v1beta1.EventAutoscalerConflict, newDeployment(3, with(v1beta1.StopScheduleAnnotation, "11:00"))},
	} {
		var autoscalers []autoscalingv2.HorizontalPodAutoscaler
		if c.reason == v1beta1.EventAutoscalerConflict {
			autoscalers = append(autoscalers, *newAutoscaler(atLeast(0)))
		}
		for _, isDefault := range []bool{false, true} {
			d, defaults := c.deployment.DeepCopy(), map[string]string{}
			if isDefault {
				defaults = schedule.OfNamespace(d.Annotations)
				maps.DeleteFunc(d.Annotations, func(key, _ string) bool { return defaults[key] != "" })
			}
			p := deployments.decide(input{object: d, defaults: defaults, autoscalers: autoscalers, zone: time.UTC, now: now})
			var text string
			w := p.warning
			if p.notice != (warning{}) {
				w = p.notice
			}
			switch {
			case c.reason == v1beta1.EventScheduledStart || c.reason == v1beta1.EventScheduledStop:
				text = cause(d, p, 0)
			case w.reason != c.reason:
				t.Errorf("got warning %+v, want %s", w, c.reason)
			default:
				text = w.note
			}
			if strings.Contains(text, "Namespace default") != isDefault {
				t.Errorf("%s: is the default: %t, but the event is %q", c.reason, isDefault, text)
			}
		}
	}
}

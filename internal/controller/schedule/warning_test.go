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

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
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
			`Warning ScaleFailed Could not start: `},
		{"the removal of a record is rejected", newDeployment(0, stopped...), forbidden,
			`Warning ScaleFailed Could not start: `},
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

// eventsAfterReconciles reconciles a workload three times, and its Namespace as well. It returns the emitted events.
func eventsAfterReconciles(
	t *testing.T, k *kind, api client.Client, o client.Object, wantErr error, registry *prometheus.Registry,
) (got []string) {
	t.Helper()
	clock, recorder := clocktesting.NewFakePassiveClock(now), clientevents.NewFakeRecorder(10)
	recorded := events.NewRecorder(keptEvents{FakeRecorder: recorder})
	namespaces := &Namespaces{client: api, api: api, zone: time.UTC, events: recorded}
	controller := &Controller{
		kind: k, client: api, clock: clock, zone: time.UTC, alarms: queue.NewAlarms(clock), events: recorded,
		metrics: newMetrics(registry, collector{}), namespaces: namespaces, dryRunEnd: &dryRunEnd{},
	}
	for range 3 {
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}
		if _, err := controller.Reconcile(t.Context(), request); !errors.Is(err, wantErr) {
			t.Errorf("got error %v, want %v", err, wantErr)
		}
		request.NamespacedName = client.ObjectKey{Name: o.GetNamespace()}
		if _, err := namespaces.Reconcile(t.Context(), request); err != nil {
			t.Error(err)
		}
	}
	close(recorder.Events)
	for note := range recorder.Events {
		got = append(got, note)
	}
	return got
}

// badValues has invalid values of each annotation of users.
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
}

// TestBadInput reconciles stopped workloads of each kind. Their start is due, but their schedule has an invalid value. The
// value is in their own annotation or in the default of the Namespace. One event must contain the value and an example
// of a valid value. The operator must not write, so that the saved state is not lost.
func TestBadInput(t *testing.T) {
	for _, key := range schedule.Keys() {
		if values, isOfUser := badValues[key]; isOfUser == slices.Contains(recordKeys(), key) || isOfUser && len(values) < 3 {
			t.Errorf("there are %d invalid values of %s, want at least 3", len(values), key)
		}
	}
	for _, k := range kinds {
		for key, values := range badValues {
			for _, value := range values {
				checkBadInput(t, k, key, value, false)
				isIgnored := k.onOff && isReplicas(key) // a default with replicas does not apply to a kind without them
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
		annotations = api.defaults
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

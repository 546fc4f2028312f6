// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"
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

// TestWarnings requires one warning for each problem, no matter how often the workload is reconciled.
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
		{"a conflict is not the user's problem", newDeployment(0, with(v1beta1.StartReplicasAnnotation, "3")),
			apierrors.NewConflict(schema.GroupResource{}, "d", errors.New("old")), ""},
		{"the schedule is invalid", newDeployment(3, with(v1beta1.StopScheduleAnnotation, "25:00")), nil,
			`Warning InvalidSchedule useless.container.training/stop-schedule "25:00": `},
	} {
		t.Run(c.reason, func(t *testing.T) {
			api := &rejectingClient{err: c.err}
			api.store(c.deployment)
			api.cached = api.stored
			clock, recorder := clocktesting.NewFakePassiveClock(now), clientevents.NewFakeRecorder(10)
			controller := &Controller{
				kind: deployments, client: api, clock: clock, zone: time.UTC, alarms: queue.NewAlarms(clock),
				events:     events.NewRecorder(keptEvents{FakeRecorder: recorder}),
				metrics:    newMetrics(prometheus.NewRegistry(), collector{}),
				namespaces: &Namespaces{client: api, api: api}, dryRunEnd: &dryRunEnd{},
			}
			for range 3 {
				_, err := controller.Reconcile(t.Context(),
					reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.deployment)})
				if !errors.Is(err, c.err) {
					t.Errorf("got error %v, want %v", err, c.err)
				}
			}
			close(recorder.Events)
			var got []string
			for note := range recorder.Events {
				got = append(got, note)
			}
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
				t.Errorf("got events %q, want %q", got, c.want)
			}
		})
	}
}

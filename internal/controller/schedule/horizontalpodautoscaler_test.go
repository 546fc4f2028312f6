// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/internal/schedule"
)

func newAutoscaler(changes ...func(*autoscalingv2.HorizontalPodAutoscaler)) *autoscalingv2.HorizontalPodAutoscaler {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hpa"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
				Name: "d"},
			MaxReplicas: 5,
		},
	}
	for _, change := range changes {
		change(hpa)
	}
	return hpa
}

func atLeast(n int32) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(hpa *autoscalingv2.HorizontalPodAutoscaler) { hpa.Spec.MinReplicas = &n }
}

func controlledBy(apiVersion string) func(*autoscalingv2.HorizontalPodAutoscaler) {
	return func(hpa *autoscalingv2.HorizontalPodAutoscaler) {
		hpa.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: "ScaledObject", Name: "events",
			Controller: new(true)}}
	}
}

// TestConflict checks the warning about an autoscaler that conflicts with a schedule. The cache must keep all fields
// that the function conflict reads. A change that starts or ends a conflict must also cause a reconcile of the
// Deployment.
func TestConflict(t *testing.T) {
	for name, c := range map[string]struct {
		reason       string
		stopReplicas int32
		autoscaler   *autoscalingv2.HorizontalPodAutoscaler
		want         string
		wakes        bool // a change from the default autoscaler to this one, or back, causes a reconcile
	}{
		"AtZero": {"0 replicas disable the autoscaler", 0, newAutoscaler(), "", false},
		"AtZeroOfOne": {"0 replicas disable an autoscaler with minReplicas 1", 0, newAutoscaler(atLeast(1)), "",
			false},
		"AtOne": {"1 replica does not disable the autoscaler", 1, newAutoscaler(),
			`stop-replicas "1": HorizontalPodAutoscaler hpa would undo a stop`, false},
		"ScalesToZero": {"0 replicas do not disable an autoscaler with minReplicas 0", 0, newAutoscaler(atLeast(0)),
			"set its minReplicas to at least 1", true},
		"ToZeroAndAtOne": {"the warning is about minReplicas, because stop-replicas 0 would not solve the conflict", 1,
			newAutoscaler(atLeast(0)), "set its minReplicas to at least 1", true},
		"KEDA": {"KEDA enables its autoscaler after a stop", 0, newAutoscaler(controlledBy("keda.sh/v1alpha1")),
			"ScaledObject events would undo a stop", true},
		"Controlled": {"an autoscaler that a controller other than KEDA manages stays disabled after a stop", 0,
			newAutoscaler(controlledBy("example.com/v1")), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			trimmed, err := horizontalPodAutoscalers.transform(c.autoscaler)
			if err != nil {
				t.Fatal(err)
			}
			hpa := trimmed.(*autoscalingv2.HorizontalPodAutoscaler)
			s := &schedule.Schedule{Stop: &schedule.Recurrence{}, StopReplicas: c.stopReplicas}
			got := conflict(s, []autoscalingv2.HorizontalPodAutoscaler{*hpa})
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
			timer := &schedule.Schedule{StopAfter: time.Hour, StopReplicas: c.stopReplicas}
			if also := conflict(timer, []autoscalingv2.HorizontalPodAutoscaler{*hpa}); also != got {
				t.Errorf("%s: with stop-after, got %q, want %q", c.reason, also, got)
			}
			for _, change := range []event.UpdateEvent{{ObjectOld: newAutoscaler(), ObjectNew: hpa},
				{ObjectOld: hpa, ObjectNew: newAutoscaler()}} {
				if wakes := retargeted.Update(change); wakes != c.wakes {
					t.Errorf("a change causes a reconcile of the Deployment: %t, want %t", wakes, c.wakes)
				}
			}
		})
	}
}

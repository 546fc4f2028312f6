// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/events"
)

// newStatus returns the status of a Machine, computed from the objects that the reconcile has read. It starts from the
// existing status, so that conditions keep their transition times.
func newStatus(m *v1beta1.Machine, p plan, done outcome, now time.Time) v1beta1.MachineStatus {
	status := *m.Status.DeepCopy()
	status.ObservedGeneration = m.Generation
	if p.invalid != nil { // without a valid selector, the plan has no Switches
		message := events.Truncate(p.invalid.Error())
		set := conditionSetter(&status, now)
		set(v1beta1.ConditionScaled, metav1.ConditionFalse, v1beta1.ReasonInvalidSelector, message)
		set(v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonInvalidSelector, message)
		return status
	}
	status.Selector = p.selector.String()
	status.Switches, status.Positions = count(p.mine)
	status.SeenAt = keepEqual(status.SeenAt, oldestSeen(p.mine, now))
	if m.Spec.Position != v1beta1.PositionUp || p.raising && done.raised {
		status.Position = m.Spec.Position
	}
	status.LastFlipTime = keepEqual(status.LastFlipTime, microTime(p.lastFlip))
	setConditions(&status, wanted(m), done, now)
	return status
}

func count(mine []*v1beta1.Switch) (counts v1beta1.SwitchCounts, positions string) {
	var letters strings.Builder
	letters.Grow(len(mine))
	for _, sw := range mine {
		counts.Total++
		if isUp(sw) {
			counts.Up++
			letters.WriteByte('u')
		} else {
			counts.Down++
			letters.WriteByte('d')
		}
	}
	return counts, letters.String()
}

func oldestSeen(mine []*v1beta1.Switch, now time.Time) *metav1.MicroTime {
	var oldest *metav1.MicroTime
	for _, sw := range mine {
		if isUp(sw) && noticed(sw, now) && (oldest == nil || sw.Status.SeenAt.Before(oldest)) {
			oldest = sw.Status.SeenAt
		}
	}
	return oldest
}

// keepEqual returns the old value if both values are the same instant, and the updated value otherwise. So another time
// zone does not change the status.
func keepEqual(old, updated *metav1.MicroTime) *metav1.MicroTime {
	if old.Equal(updated) {
		return old
	}
	return updated
}

func setConditions(status *v1beta1.MachineStatus, wanted int32, done outcome, now time.Time) {
	set := conditionSetter(status, now)
	counts, scaling := status.Switches, done.scaling

	scaled, reason := metav1.ConditionTrue, v1beta1.ReasonCountReached
	message := fmt.Sprintf("%d of %d switches", counts.Total, wanted)
	switch {
	case apierror.IsQuotaExceeded(scaling):
		scaled, reason = metav1.ConditionFalse, v1beta1.ReasonQuotaExceeded
		message += ": a ResourceQuota rejects further switches"
	case scaling != nil && !apierrors.IsConflict(scaling) && !apierrors.IsAlreadyExists(scaling):
		scaled, reason = metav1.ConditionFalse, v1beta1.ReasonScalingFailed
		message = sameFailure(status, message, scaling)
	case counts.Total != wanted:
		scaled, reason = metav1.ConditionFalse, v1beta1.ReasonScaling
		before := failure(status)
		if before != nil && done.urgent && strings.HasPrefix(before.Message, message) { // the next plan tries again
			reason, message = before.Reason, before.Message
		}
	}
	set(v1beta1.ConditionScaled, scaled, reason, message)

	if counts.Up == 0 {
		set(v1beta1.ConditionResting, metav1.ConditionTrue, v1beta1.ReasonAllDown, "All switches are down")
	} else {
		set(v1beta1.ConditionResting, metav1.ConditionFalse, v1beta1.ReasonSwitchesUp,
			fmt.Sprintf("%d of %d switches are up", counts.Up, counts.Total))
	}

	switch {
	case scaled != metav1.ConditionTrue:
		set(v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonNotScaled, message)
	case counts.Up > 0:
		set(v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonSwitchesUp, "Switches are up")
	default:
		set(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonUseless, "All switches exist and are down")
	}
}

// sameFailure returns the counts with the message of the first failure. The messages of later failures can differ in
// details, such as a port number. A different message would change the status, and each status change would cause an
// immediate retry.
func sameFailure(status *v1beta1.MachineStatus, counts string, scaling error) string {
	before := failure(status)
	if before != nil && before.Reason == v1beta1.ReasonScalingFailed && strings.HasPrefix(before.Message, counts+": ") {
		return before.Message
	}
	return counts + ": " + events.Truncate(scaling.Error())
}

// failure returns the condition Scaled if an error prevented the last change of the number of Switches, and if the spec
// has not changed since then. Otherwise, it returns nil.
func failure(status *v1beta1.MachineStatus) *metav1.Condition {
	scaled := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionScaled)
	if scaled != nil && scaled.ObservedGeneration == status.ObservedGeneration &&
		(scaled.Reason == v1beta1.ReasonScalingFailed || scaled.Reason == v1beta1.ReasonQuotaExceeded) {
		return scaled
	}
	return nil
}

func scaledReason(m *v1beta1.Machine) string {
	if condition := meta.FindStatusCondition(m.Status.Conditions, v1beta1.ConditionScaled); condition != nil {
		return condition.Reason
	}
	return ""
}

func conditionSetter(
	status *v1beta1.MachineStatus, now time.Time,
) func(conditionType string, value metav1.ConditionStatus, reason, message string) {
	return func(conditionType string, value metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: conditionType, Status: value, Reason: reason, Message: message,
			ObservedGeneration: status.ObservedGeneration, LastTransitionTime: metav1.NewTime(now),
		})
	}
}

// microTime rounds a time up to the next microsecond, the precision of the API. If it rounded down, a delay from that
// time would end too early. The zero time becomes nil.
func microTime(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	return new(metav1.NewMicroTime(t.Add(time.Microsecond - time.Nanosecond).Truncate(time.Microsecond)))
}

type metrics struct {
	flips    prometheus.Counter
	lateness prometheus.Histogram
	dropped  prometheus.Counter
}

// newMetrics registers the controller's metrics. Each scrape counts the Machines in the store, so that the numbers
// cannot drift.
func newMetrics(registerer prometheus.Registerer, machines toolscache.Store) *metrics {
	factory := promauto.With(registerer)
	registerer.MustRegister(prometheus.CollectorFunc(func(collected chan<- prometheus.Metric) {
		countMachines(machines, collected)
	}))
	return &metrics{
		flips: factory.NewCounter(prometheus.CounterOpts{
			Name: "useless_flips_total",
			Help: "Number of switches that were turned down.",
		}),
		lateness: factory.NewHistogram(prometheus.HistogramOpts{
			Name:    "useless_flip_lateness_seconds",
			Help:    "Time from the instant at which a switch was due until it was turned down.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		dropped: factory.NewCounter(prometheus.CounterOpts{
			Name: "useless_events_dropped_total",
			Help: "Number of events about Machines that were dropped because of their rate limit.",
		}),
	}
}

var machinesDesc = prometheus.NewDesc("useless_machines", "Number of Machines by condition and its status.",
	[]string{"condition", "status"}, nil)

// countMachines counts the Machines of a store by condition.
func countMachines(machines toolscache.Store, collected chan<- prometheus.Metric) {
	type key struct{ condition, status string }
	counts := map[key]int{}
	for _, condition := range []string{v1beta1.ConditionScaled, v1beta1.ConditionResting, v1beta1.ConditionReady} {
		// Both series begin at 0, so that Prometheus sees the first increase.
		counts[key{condition, "True"}], counts[key{condition, "False"}] = 0, 0
	}
	for _, object := range machines.List() {
		for _, condition := range object.(*v1beta1.Machine).Status.Conditions {
			counts[key{condition.Type, string(condition.Status)}]++
		}
	}
	for key, n := range counts {
		collected <- prometheus.MustNewConstMetric(
			machinesDesc, prometheus.GaugeValue, float64(n), key.condition, key.status)
	}
}

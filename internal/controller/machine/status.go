// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/object"
)

// An outcome is what became of a plan.
type outcome struct {
	unfinished bool      // only what was urgent was done, and its event brings the Machine back for the rest
	scaling    error     // why switches could not be created, deleted, adopted or released
	carriedOut bool      // the Machine's position is carried out
	lastFlip   time.Time // when the last flip was certainly done, whether by this plan or before; zero for never
}

// newStatus describes a Machine that has these switches, in the order of their names, after an outcome. It starts from the status there is, so that
// conditions keep their transition times and nothing known is forgotten.
func newStatus(
	m *v1beta1.Machine, selector string, mine []*v1beta1.Switch, done outcome, now time.Time,
) v1beta1.MachineStatus {
	status := m.Status
	status.Conditions = slices.Clone(m.Status.Conditions)
	status.ObservedGeneration = m.Generation
	status.Selector = selector
	status.Switches, status.Positions = count(mine)
	status.SeenAt = keepEqual(status.SeenAt, oldestSeen(mine, now))
	if done.carriedOut {
		status.Position = m.Spec.Position
	}
	status.LastFlipTime = keepEqual(status.LastFlipTime, instant(done.lastFlip))
	setConditions(&status, wanted(m), done.scaling, now)
	return status
}

// invalidSelectorStatus describes a Machine whose selector does not parse: nothing can be said of its switches.
func invalidSelectorStatus(m *v1beta1.Machine, err error, now time.Time) v1beta1.MachineStatus {
	status := *m.Status.DeepCopy()
	status.ObservedGeneration = m.Generation
	set := conditionSetter(&status, now)
	message := object.Brief(err.Error())
	set(v1beta1.ConditionScaled, metav1.ConditionFalse, v1beta1.ReasonInvalidSelector, message)
	set(v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonInvalidSelector, message)
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

// keepEqual returns the old instant where the new one is the same, in whatever zone it is written.
func keepEqual(old, updated *metav1.MicroTime) *metav1.MicroTime {
	if old.Equal(updated) {
		return old
	}
	return updated
}

func setConditions(status *v1beta1.MachineStatus, wanted int32, scaling error, now time.Time) {
	set := conditionSetter(status, now)
	counts := status.Switches

	scaled, reason, message := metav1.ConditionTrue, v1beta1.ReasonCountReached, fmt.Sprintf("%d of %d switches", counts.Total, wanted)
	switch {
	case object.QuotaExceeded(scaling):
		scaled, reason, message = metav1.ConditionFalse, v1beta1.ReasonQuotaExceeded, message+": a ResourceQuota refuses more"
	case scaling != nil && !apierrors.IsConflict(scaling):
		scaled, reason = metav1.ConditionFalse, v1beta1.ReasonScalingFailed
		message = firstRefusal(status, message, scaling)
	case counts.Total != wanted:
		scaled, reason = metav1.ConditionFalse, v1beta1.ReasonScaling
	}
	set(v1beta1.ConditionScaled, scaled, reason, message)

	resting := metav1.ConditionTrue
	if counts.Up == 0 {
		set(v1beta1.ConditionResting, resting, v1beta1.ReasonAllDown, "All switches are down")
	} else {
		resting = metav1.ConditionFalse
		set(v1beta1.ConditionResting, resting, v1beta1.ReasonSwitchesUp, fmt.Sprintf("%d of %d switches are up", counts.Up, counts.Total))
	}

	switch {
	case scaled != metav1.ConditionTrue:
		set(v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonNotScaled, message)
	case resting != metav1.ConditionTrue:
		set(v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonSwitchesUp, "Switches are up")
	default:
		set(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonUseless, "All switches are there, and down")
	}
}

// firstRefusal is the counts with the reason for which scaling failed first. Errors have ports and numbers in them that
// differ every time: each would be a new status, and each new status a new try at once.
func firstRefusal(status *v1beta1.MachineStatus, counts string, scaling error) string {
	before := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionScaled)
	if before != nil && before.Reason == v1beta1.ReasonScalingFailed &&
		before.ObservedGeneration == status.ObservedGeneration && strings.HasPrefix(before.Message, counts+": ") {
		return before.Message
	}
	return counts + ": " + object.Brief(scaling.Error())
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

// instant rounds up to the resolution of the wire: rounding down would make what follows from it a little early. The
// zero time is none.
func instant(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	return new(metav1.NewMicroTime(t.Add(time.Microsecond - time.Nanosecond).Truncate(time.Microsecond)))
}

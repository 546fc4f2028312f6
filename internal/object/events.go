// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
)

// Reporter is the name under which events are written.
const Reporter = "useless-operator"

// Events tell people what the operator did to their objects.
type Events struct {
	recorder events.EventRecorder
	budget   flowcontrol.PassiveRateLimiter // nil for no end of them
	dropped  prometheus.Counter
}

// maxNote is how many bytes the API server takes of a note.
const maxNote = 1024

// NewEvents returns Events that are written by a manager, as those of Reporter.
func NewEvents(mgr recorder.Provider) *Events {
	return &Events{recorder: mgr.GetEventRecorder(Reporter)}
}

// Within returns Events that a budget bounds, for what can happen to thousands of objects at once: each event costs a
// request, and nothing else holds the recorder back. Of what was done, what comes beyond the budget is not told but
// counted; it is in the objects' status all the same. Warnings are always told, and cost nothing of the budget.
func (e *Events) Within(budget flowcontrol.PassiveRateLimiter, dropped prometheus.Counter) *Events {
	return &Events{recorder: e.recorder, budget: budget, dropped: dropped}
}

// Tell emits an event about something that was done, with the object that it was done to where that is another one.
func (e *Events) Tell(about, related client.Object, reason, action, note string, args ...any) {
	if e.budget != nil && !e.budget.TryAccept() {
		e.dropped.Inc()
		return
	}
	var object runtime.Object // nil, where related is
	if related != nil {
		object = related
	}
	e.recorder.Eventf(about, object, corev1.EventTypeNormal, reason, action, "%s", write(note, args))
}

// Warn emits an event about something that could not be done.
func (e *Events) Warn(about client.Object, reason, action, note string, args ...any) {
	e.recorder.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", write(note, args))
}

// write returns a note, cut off where it would be too long: an event with more of it would be lost.
func write(note string, args []any) string {
	text := fmt.Sprintf(note, args...)
	if len(text) <= maxNote {
		return text
	}
	const end = "…"
	return strings.ToValidUTF8(text[:maxNote-len(end)], "") + end
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/demo/page"
	"container.training/useless/internal/events"
)

// view is the state that the demo shows: machines sorted by namespace and name, the objects of the other controllers,
// and events sorted by time.
type view struct {
	machines []v1beta1.Machine
	others   []other
	events   []eventsv1.Event
}

// newView sorts the machines and events, and leaves out the events of other components, such as kubelets.
func newView(machines []v1beta1.Machine, others []other, list []eventsv1.Event) view {
	list = slices.DeleteFunc(list, func(e eventsv1.Event) bool { return e.ReportingController != events.Reporter })
	slices.SortFunc(machines, func(a, b v1beta1.Machine) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(list, func(a, b eventsv1.Event) int {
		return cmp.Or(page.EventTime(&a).Compare(page.EventTime(&b)), strings.Compare(a.Name, b.Name))
	})
	return view{machines: machines, others: others, events: list}
}

// The column formats for a screen with 80 columns. On a wider screen, only an event's note gets more space. The note
// begins at noteColumn.
const (
	machineColumns = "%-20s  %8s  %-20s  %-5s  %s"
	otherColumns   = "%-20s  %-14s  %-30s  %s"
	eventColumns   = "%s  %-13s  %-14s  %s"
	noteColumn     = 41
)

// screen returns the view as text for a terminal. It does not use the last line.
func screen(v view, url, kubeconfig string, now time.Time, width, height int) string {
	top := []string{
		bold("Useless machines") + ": the operator turns every switch down. Ctrl-C ends the demo.",
		"In a browser: " + url,
		bold(fmt.Sprintf(machineColumns, "MACHINE", "SWITCHES", "POSITIONS", "READY", "NEXT")),
	}
	bottom := []string{
		"",
		bold("In a second terminal:"),
		"  export KUBECONFIG=" + kubeconfig,
		"  .local/kubectl patch machine machine-2 --type merge -p 'spec: {position: up}'",
		"  .local/kubectl patch vm test-vm --type merge -p 'spec: {action: inactive}'",
	}
	space := height - 1 - len(top) - len(bottom)
	limit := max(1, space/3)
	middle := limitLines(v.machines, limit, func(m v1beta1.Machine) string { return machineLine(m, now) })
	if len(v.others) > 0 {
		middle = append(middle, "", bold(fmt.Sprintf(otherColumns, "OTHER", "CONTROLLER", "STATE", "NEXT")))
		middle = append(middle, limitLines(v.others, limit, func(o other) string { return otherLine(o, now) })...)
	}
	middle = append(middle, "", bold("EVENTS"))
	for _, e := range v.events[max(0, len(v.events)-max(0, space-len(middle))):] {
		middle = append(middle, eventLine(e, width))
	}
	for len(middle) < space {
		middle = append(middle, "")
	}
	return strings.Join(slices.Concat(top, middle, bottom), "\n")
}

// limitLines returns one line for each item. If there are more items than limit, it leaves the last items out, and the
// last line shows their number.
func limitLines[T any](items []T, limit int, write func(T) string) (lines []string) {
	for i, item := range items {
		if len(lines) == limit-1 && i+1 < len(items) {
			return append(lines, fmt.Sprintf("… and %d more", len(items)-i))
		}
		lines = append(lines, write(item))
	}
	return lines
}

func machineLine(m v1beta1.Machine, now time.Time) string {
	positions := fmt.Sprintf("%-20s", cut(m.Status.Positions, 20))
	return strings.TrimRight(fmt.Sprintf(machineColumns,
		cut(name(m.Namespace, m.Name), 20),
		fmt.Sprintf("%d/%d", m.Status.Switches.Total, m.Spec.Switches.Count),
		strings.ReplaceAll(positions, "u", highlight("u")),
		ready(m),
		next(m, now),
	), " ")
}

func otherLine(o other, now time.Time) string {
	next := ""
	if !o.due.IsZero() {
		next = until(o.due, now)
	}
	return strings.TrimRight(fmt.Sprintf(otherColumns, cut(o.name, 20), o.controller, cut(o.state, 30), next), " ")
}

func eventLine(e eventsv1.Event, width int) string {
	return fmt.Sprintf(eventColumns, page.EventTime(&e).Local().Format(time.TimeOnly),
		cut(name(e.Namespace, e.Regarding.Name), 13),
		cut(e.Reason, 14), cut(e.Note, width-noteColumn))
}

// next returns when the operator turns the machine's next switch down, or "" if no switch is up.
func next(m v1beta1.Machine, now time.Time) string {
	due := page.NextFlip(&m)
	if due.IsZero() {
		return ""
	}
	return "down " + until(due, now)
}

// until returns the time until due, such as "in 5s". It rounds fractions of a second up.
func until(due, now time.Time) string {
	return "in " + duration.HumanDuration(max(0, due.Sub(now)+time.Second-1).Truncate(time.Second))
}

func ready(m v1beta1.Machine) string {
	if c := meta.FindStatusCondition(m.Status.Conditions, v1beta1.ConditionReady); c != nil {
		return string(c.Status)
	}
	return ""
}

// line is a log line about one object. If the text changes, the demo prints the line again.
type line struct{ about, text string }

func lines(v view) (lines []line) {
	for _, m := range v.machines {
		about := name(m.Namespace, m.Name)
		lines = append(lines, line{about, fmt.Sprintf("machine %s: %d of %d switches, positions %q, ready %q",
			about, m.Status.Switches.Total, m.Spec.Switches.Count, m.Status.Positions, ready(m))})
	}
	for _, o := range v.others {
		lines = append(lines, line{o.controller + " " + o.name, fmt.Sprintf("%s %s: %s", o.controller, o.name, o.state)})
	}
	for _, e := range v.events {
		lines = append(lines, line{string(e.UID), fmt.Sprintf("%s %s: %s: %s",
			page.EventTime(&e).Local().Format(time.TimeOnly), name(e.Namespace, e.Regarding.Name), e.Reason, e.Note)})
	}
	return lines
}

// turnedUp returns the names of the machines that the samples turn up. A sample Machine with the position up turns up
// itself. A sample Switch with the position up turns up the machine in its label.
func turnedUp(samples []*unstructured.Unstructured) map[string]bool {
	names := map[string]bool{}
	for _, sample := range samples {
		position, _, _ := unstructured.NestedString(sample.Object, "spec", "position")
		oldPosition, _, _ := unstructured.NestedString(sample.Object, "spec", "switchPosition")
		switch {
		case cmp.Or(oldPosition, position) != string(v1beta1.PositionUp):
		case sample.GetKind() == "Machine":
			names[sample.GetName()] = true
		case sample.GetKind() == "Switch":
			names[sample.GetLabels()[v1beta1.MachineLabel]] = true
		}
	}
	return names
}

// notAtRest returns the objects for which the operator still has work to do, with the reasons. A machine in turnedUp is
// at rest only after the operator has flipped one of its switches.
func notAtRest(v view, turnedUp map[string]bool) (pending []string) {
	for _, m := range v.machines {
		if why := pendingReason(m, turnedUp[m.Name]); why != "" {
			pending = append(pending, fmt.Sprintf("%s (%s)", name(m.Namespace, m.Name), why))
		}
	}
	for _, o := range v.others {
		if why := o.pendingReason(); why != "" {
			pending = append(pending, fmt.Sprintf("%s (%s)", o.name, why))
		}
	}
	return pending
}

// pendingReason returns why a machine is not at rest, or "".
func pendingReason(m v1beta1.Machine, turnedUp bool) string {
	condition := meta.FindStatusCondition(m.Status.Conditions, v1beta1.ConditionReady)
	switch {
	case condition == nil:
		return "the operator has not reconciled it"
	case condition.Status != metav1.ConditionTrue:
		return cmp.Or(condition.Message, "it is not ready")
	case m.Status.ObservedGeneration != m.Generation || m.Status.Switches.Up > 0 || m.Spec.Position != m.Status.Position:
		return "its last change is not applied"
	case turnedUp && m.Status.LastFlipTime == nil:
		return "its switch was not turned down"
	}
	return ""
}

func name(namespace, name string) string {
	if namespace == metav1.NamespaceDefault {
		return name
	}
	return namespace + "/" + name
}

// cut shortens a text to at most length characters. A length below 1 means 1.
func cut(text string, length int) string {
	if runes := []rune(text); len(runes) > length {
		return string(runes[:max(0, length-1)]) + "…"
	}
	return text
}

func bold(text string) string      { return "\x1b[1m" + text + "\x1b[0m" }
func highlight(text string) string { return "\x1b[1;33m" + text + "\x1b[0m" }

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/events"
)

var now = time.Date(2026, 11, 20, 9, 0, 0, 0, time.Local)

// machine returns a Machine with these positions in its status. It is Ready if all switches are down.
func machine(name, positions string, change ...func(*v1beta1.Machine)) v1beta1.Machine {
	up := int32(strings.Count(positions, "u"))
	m := v1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1},
		Spec: v1beta1.MachineSpec{Position: v1beta1.PositionDown,
			Switches: v1beta1.SwitchesSpec{Count: int32(len(positions))}},
		Status: v1beta1.MachineStatus{
			ObservedGeneration: 1,
			Positions:          positions,
			Position:           v1beta1.PositionDown,
			Switches:           v1beta1.SwitchCounts{Total: int32(len(positions)), Up: up, Down: int32(len(positions)) - up},
			Conditions:         []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue}},
		},
	}
	if up > 0 {
		m.Status.SeenAt = at(0)
		m.Status.Conditions[0].Status = metav1.ConditionFalse
	}
	for _, c := range change {
		c(&m)
	}
	return m
}

func at(seconds int) *metav1.MicroTime {
	return &metav1.MicroTime{Time: now.Add(time.Duration(seconds) * time.Second)}
}

func event(seconds int, about, reason, note string) eventsv1.Event {
	return eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: "default"},
		EventTime:           *at(seconds),
		ReportingController: events.Reporter,
		Regarding:           corev1.ObjectReference{Name: about},
		Reason:              reason,
		Note:                note,
	}
}

func TestScreen(t *testing.T) {
	for _, test := range []struct {
		reason   string
		golden   string
		machines []v1beta1.Machine
		others   []other
		events   []eventsv1.Event
	}{{
		reason: "a machine without a status",
		golden: "new.txt",
		machines: []v1beta1.Machine{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "machine-1"},
			Spec:       v1beta1.MachineSpec{Switches: v1beta1.SwitchesSpec{Count: 3}},
		}},
	}, {
		reason: "flips that wait for the delay, wait for the interval, and are late",
		golden: "busy.txt",
		machines: []v1beta1.Machine{
			machine("machine-2", "dduud", func(m *v1beta1.Machine) { m.Status.LastFlipTime = at(2) }),
			machine("machine-1", "u"),
			machine("machine-3", "ddd"),
			machine("late", "u", func(m *v1beta1.Machine) { m.Status.SeenAt = at(-60) }),
			machine("quick", "u", func(m *v1beta1.Machine) { m.Spec.Flip.DelaySeconds = new(int32(1)) }),
		},
		others: []other{
			{controller: "virtualmachine", name: "test-vm", state: "Active, cpu 2, memory 4G", done: true},
			{controller: "schedule", name: "blinker", state: "Stopped, 0 of 0 replicas", done: true, due: at(34).Time},
			{controller: "ingress", name: "front-door", state: "foo=bar", done: true},
		},
		events: []eventsv1.Event{
			event(2, "machine-2", "Flipped", "Turned switch machine-2-0 down"),
			event(1, "machine-1", "Scaled", "Created 1 switch"),
			{ReportingController: "deployment-controller", Note: "not from the operator"},
		},
	}, {
		reason:   "long names and many objects fit into 80 columns and 24 lines",
		golden:   "crowded.txt",
		machines: manyMachines(),
		others:   manyOthers(),
		events:   manyEvents(),
	}} {
		t.Run(test.reason, func(t *testing.T) {
			got := screen(newView(test.machines, test.others, test.events), "http://127.0.0.1:40123", "/src/.local/kubeconfig", now, 80, 24)
			got = strings.NewReplacer(highlight("u"), "U", "\x1b[1m", "", "\x1b[0m", "").Replace(got)
			want, err := os.ReadFile(filepath.Join("testdata", test.golden))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSuffix(string(want), "\n"), got); diff != "" {
				t.Errorf("screen differs from %s (-want +got):\n%s\n%s", test.golden, diff, got)
			}
			lines := strings.Split(got, "\n")
			if len(lines) > 23 {
				t.Errorf("got %d lines, want at most 23", len(lines))
			}
			for _, l := range lines {
				if len([]rune(l)) > 80 {
					t.Errorf("line is longer than 80 characters: %q", l)
				}
			}
		})
	}
}

func manyMachines() (machines []v1beta1.Machine) {
	for i := range 12 {
		machines = append(machines, machine(fmt.Sprintf("machine-%02d", i), strings.Repeat("du", 1+i*4)))
	}
	machines[1].Namespace = "a-namespace-with-a-long-name"
	return machines
}

func manyOthers() (others []other) {
	for i := range 12 {
		others = append(others, other{
			controller: "virtualmachine", name: fmt.Sprintf("vm-%02d-with-a-long-name", i), due: at(86400).Time,
			state: "Terminating, cpu 128, memory 1234567Mi",
		})
	}
	return others
}

func manyEvents() (events []eventsv1.Event) {
	for i := range 40 {
		events = append(events, event(i, "machine-with-a-long-name", "QuotaExceededALot",
			"A note that says very much about very little, as notes do"))
	}
	return events
}

func TestNotAtRest(t *testing.T) {
	samples := []*unstructured.Unstructured{
		{Object: map[string]any{"kind": "Machine",
			"metadata": map[string]any{"name": "old"}, "spec": map[string]any{"switchPosition": "up"}}},
		{Object: map[string]any{"kind": "Machine",
			"metadata": map[string]any{"name": "new"}, "spec": map[string]any{"position": "up"}}},
		{Object: map[string]any{"kind": "Machine", "metadata": map[string]any{"name": "lazy"}}},
		{Object: map[string]any{
			"kind":     "Switch",
			"metadata": map[string]any{"labels": map[string]any{"machine": "switched"}}, "spec": map[string]any{"position": "up"},
		}},
	}
	turned := turnedUp(samples)
	if diff := cmp.Diff(map[string]bool{"old": true, "new": true, "switched": true}, turned); diff != "" {
		t.Error(diff)
	}
	flipped := func(m *v1beta1.Machine) { m.Status.LastFlipTime = at(0) }
	for _, test := range []struct {
		reason  string
		machine v1beta1.Machine
		atRest  bool
	}{
		{"a machine that was never turned up is at rest", machine("lazy", "ddd"), true},
		{"a machine that was turned up is not at rest before a flip", machine("old", "ddd"), false},
		{"a machine that has flipped is at rest", machine("old", "ddd", flipped), true},
		{"a machine with a switch up is not at rest", machine("old", "ddu", flipped), false},
		{
			"a machine with an outdated status is not at rest",
			machine("old", "ddd", flipped, func(m *v1beta1.Machine) { m.Generation = 2 }), false,
		},
		{
			"a machine whose position is not applied is not at rest",
			machine("old", "ddd", flipped, func(m *v1beta1.Machine) { m.Spec.Position = "up" }), false,
		},
		{"a machine without a status is not at rest", v1beta1.Machine{}, false},
	} {
		t.Run(test.reason, func(t *testing.T) {
			if names := notAtRest(view{machines: []v1beta1.Machine{test.machine}}, turned); (len(names) == 0) != test.atRest {
				t.Errorf("not at rest: %q, want at rest: %t", names, test.atRest)
			}
		})
	}
}

func TestOthersNotAtRest(t *testing.T) {
	v := view{others: []other{{controller: "podcount", name: "a", done: true}, {controller: "schedule", name: "b"}}}
	if diff := cmp.Diff([]string{"b (the controller schedule has not finished)"}, notAtRest(v, nil)); diff != "" {
		t.Errorf("not at rest (-want +got):\n%s", diff)
	}
}

func TestOthers(t *testing.T) {
	annotations := func(pairs map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: "it", Annotations: pairs}
	}
	size := cloudnativev1alpha1.ResourceSpec{CPU: resource.MustParse("2"), Memory: resource.MustParse("4G")}
	spec := cloudnativev1alpha1.VirtualMachineSpec{Resource: size}
	for _, test := range []struct {
		reason    string
		got, want other
	}{{
		reason: "a VirtualMachine without a status",
		got:    virtualMachine(cloudnativev1alpha1.VirtualMachine{ObjectMeta: annotations(nil), Spec: spec}),
		want:   other{controller: "virtualmachine", name: "it", state: "new, cpu 2, memory 4G"},
	}, {
		reason: "an active VirtualMachine",
		got: virtualMachine(cloudnativev1alpha1.VirtualMachine{
			ObjectMeta: annotations(nil), Spec: spec,
			Status: cloudnativev1alpha1.VirtualMachineStatus{Phase: cloudnativev1alpha1.PhaseActive},
		}),
		want: other{controller: "virtualmachine", name: "it", state: "Active, cpu 2, memory 4G", done: true},
	}, {
		reason: "a Deployment with missing replicas",
		got: deployment(appsv1.Deployment{
			ObjectMeta: annotations(map[string]string{
				v1beta1.ScheduleStateAnnotation: "Started", v1beta1.NextScheduleTimeAnnotation: now.UTC().Format(time.RFC3339),
			}),
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(3))}, Status: appsv1.DeploymentStatus{Replicas: 2},
		}),
		want: other{controller: "schedule", name: "it", state: "Started, 2 of 3 replicas", due: now.UTC()},
	}, {
		reason: "a ReplicaSet without the label",
		got:    replicaSet(appsv1.ReplicaSet{ObjectMeta: annotations(nil)}),
		want:   other{controller: "podcount", name: "it", state: "pod-count="},
	}, {
		reason: "an Ingress with the required annotation and another one",
		got:    annotated(networkingv1.Ingress{ObjectMeta: annotations(map[string]string{"foo": "bar", "a": "b"})}),
		want:   other{controller: "ingress", name: "it", state: "a=b, foo=bar", done: true},
	}} {
		t.Run(test.reason, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.got, cmp.AllowUnexported(other{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

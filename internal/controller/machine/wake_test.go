// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
)

// TestPriorities passes events to a real queue. It checks the priority of the request that each event adds.
func TestPriorities(t *testing.T) {
	// A change of the spec increments the generation. Changes of labels and of the status do not.
	turned := func(sw *v1beta1.Switch) { up(sw); sw.Generation++ }
	down := func(sw *v1beta1.Switch) { sw.Generation += 2 }
	unlabelled := func(sw *v1beta1.Switch) { sw.Labels = nil }
	noticed := func(sw *v1beta1.Switch) { seen(0)(sw); sw.Generation++ }
	for _, c := range []struct {
		reason        string
		before, after client.Object // before is nil for a new object, and after is nil for a deleted object
		again         bool          // the event is from the initial list or a resync
		want          int
	}{
		{reason: "a Machine of the initial list has a low priority", after: newMachine(1), again: true,
			want: handler.LowPriority},
		{reason: "a switch of the initial list has a low priority", after: newTestSwitch("m-0"), again: true,
			want: handler.LowPriority},
		{reason: "a switch that is up has a user's priority even in the initial list, because its flip may be due",
			after: newTestSwitch("m-0", turned), again: true, want: userPriority},
		{reason: "a new Machine has priority 0, because a user may create thousands", after: newMachine(1)},
		{reason: "a new switch that is down", after: newTestSwitch("m-0")},
		{reason: "a new switch that is up", after: newTestSwitch("m-0", turned), want: userPriority},
		{reason: "a user turns a switch up", before: newTestSwitch("m-0"), after: newTestSwitch("m-0", turned),
			want: userPriority},
		{reason: "a user turns a switch down again", before: newTestSwitch("m-0", noticed),
			after: newTestSwitch("m-0", down), want: userPriority},
		{reason: "the operator turns a switch down", before: newTestSwitch("m-0", noticed),
			after: newTestSwitch("m-0", down, flipped(0))},
		{reason: "the operator sets status.seenAt of a switch", before: newTestSwitch("m-0", turned),
			after: newTestSwitch("m-0", noticed)},
		{reason: "the operator adopts a switch", before: newTestSwitch("m-0", orphan), after: newTestSwitch("m-0")},
		{reason: "a user labels a switch", before: newTestSwitch("m-0", unlabelled), after: newTestSwitch("m-0"),
			want: userPriority},
		{reason: "a user pauses a switch", before: newTestSwitch("m-0"), after: newTestSwitch("m-0", pausedSwitch),
			want: userPriority},
		{reason: "a switch is deleted", before: newTestSwitch("m-0")},
		{reason: "a user scales a Machine", before: newMachine(1),
			after: newMachine(2, func(m *v1beta1.Machine) { m.Generation++ }), want: userPriority},
		{reason: "the operator writes the status of a Machine", before: newMachine(1),
			after: newMachine(1, lastFlipped(0))},
		{reason: "the operator changes the finalizers of a Machine", before: newMachine(1),
			after: newMachine(1, func(m *v1beta1.Machine) { m.Finalizers = []string{v1beta1.MachineFinalizer} })},
		{reason: "a resync without a change", before: newMachine(1), after: newMachine(1), again: true,
			want: handler.LowPriority},
	} {
		t.Run(c.reason, func(t *testing.T) {
			q := priorityqueue.New[reconcile.Request]("test")
			defer q.ShutDown()
			handle(t, q, c.before, c.after, c.again)
			got, priority, _ := q.GetWithPriority()
			want := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "m"}}
			if got != want || priority != c.want || q.Len() > 0 {
				t.Errorf("got request %s with priority %d, and %d other requests; want only request %s with priority %d", got, priority, q.Len(), want, c.want)
			}
		})
	}
}

func TestMachinesOf(t *testing.T) {
	selecting := func(namespace, name string, selector *v1beta1.LabelSelector) *v1beta1.Machine {
		return newMachine(1, func(m *v1beta1.Machine) {
			m.Namespace, m.Name, m.Spec.Switches.Selector = namespace, name,
				selector
		})
	}
	exists := v1beta1.LabelSelector{MatchExpressions: []v1beta1.LabelSelectorRequirement{{Key: "room",
		Operator: metav1.LabelSelectorOpExists}}}
	machines := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc,
		toolscache.Indexers{machinesSelecting: indexSelecting})
	for _, m := range []*v1beta1.Machine{
		selecting("default", "lab", labelled("room", "lab")),
		selecting("default", "red-lab", labelled("room", "lab", "colour", "red")),
		selecting("default", "kitchen", labelled("room", "kitchen")),
		selecting("default", "anywhere", &exists),
		selecting("elsewhere", "other", labelled("room", "lab")),
		selecting("default", "plain", nil),
	} {
		if err := machines.Add(m); err != nil {
			t.Fatal(err)
		}
	}
	c := &Controller{machines: machines}
	for _, tt := range []struct {
		reason string
		labels map[string]string
		want   []string
	}{
		{"the switch m-0 without labels: m is in its name, and m is its owner", nil, []string{"m", "m"}},
		{"a label that satisfies two selectors, and a part of a third one", map[string]string{"room": "lab"},
			[]string{"anywhere", "lab", "m", "m"}},
		{"labels that satisfy the selectors of lab, red-lab and anywhere", map[string]string{"room": "lab", "colour": "red"},
			[]string{"anywhere", "lab", "m", "m", "red-lab"}},
		{"the label machine has the name of a Machine without a selector", map[string]string{"machine": "plain"},
			[]string{"m", "m", "plain"}},
	} {
		sw := newTestSwitch("m-0", func(sw *v1beta1.Switch) { sw.Labels = tt.labels })
		got := c.machinesOf(sw)
		slices.Sort(got)
		if diff := gocmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
		}
	}
}

// TestMachinesOfMany checks that the cost of a switch event does not depend on the number of Machines with selectors.
func TestMachinesOfMany(t *testing.T) {
	cost := func(n int) float64 {
		machines := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc,
			toolscache.Indexers{machinesSelecting: indexSelecting})
		for i := range n {
			name := fmt.Sprintf("m%d", i)
			m := newMachine(1, func(m *v1beta1.Machine) {
				m.Name, m.Spec.Switches.Selector = name, labelled(v1beta1.MachineLabel, name)
			})
			if err := machines.Add(m); err != nil {
				t.Fatal(err)
			}
		}
		c, sw := &Controller{machines: machines},
			newTestSwitch("m7-0", func(sw *v1beta1.Switch) { sw.Labels[v1beta1.MachineLabel] = "m7" })
		return testing.AllocsPerRun(10, func() { c.machinesOf(sw) })
	}
	// A scan of 1000 Machines would need hundreds of times as many allocations. The race detector sometimes adds an
	// allocation.
	if few, many := cost(10), cost(1000); many > 1.5*few {
		t.Errorf("an event of a switch costs %.0f allocations with 1000 Machines with selectors, and %.0f with 10",
			many, few)
	}
}

func labelled(pairs ...string) *v1beta1.LabelSelector {
	selector := &v1beta1.LabelSelector{MatchLabels: map[string]v1beta1.LabelValue{}}
	for pair := range slices.Chunk(pairs, 2) {
		selector.MatchLabels[pair[0]] = v1beta1.LabelValue(pair[1])
	}
	return selector
}

// handle passes an event to the event handler. If before is nil, it is a create event. If after is nil, it is a delete
// event.
func handle(t *testing.T, q workQueue, before, after client.Object, again bool) {
	t.Helper()
	c := &Controller{machines: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc,
		toolscache.Indexers{machinesSelecting: indexSelecting})}
	wakes := c.waking(itself)
	if _, ok := cmp.Or(after, before).(*v1beta1.Switch); ok {
		wakes = c.waking(c.machinesOf)
	}
	switch {
	case before == nil:
		wakes.Create(t.Context(), event.CreateEvent{Object: after, IsInInitialList: again}, q)
	case after == nil:
		wakes.Delete(t.Context(), event.DeleteEvent{Object: before}, q)
	default:
		before.SetResourceVersion("1")
		after.SetResourceVersion("1")
		if !again {
			after.SetResourceVersion("2")
		}
		wakes.Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
	}
}

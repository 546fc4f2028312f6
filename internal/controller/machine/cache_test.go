// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// TestCacheKeeps checks that the cache keeps every field that the operator reads. It must also keep the lists that the
// operator's patches replace as a whole.
func TestCacheKeeps(t *testing.T) {
	metadata := metav1.ObjectMeta{
		Namespace: "default", Name: "object", UID: "uid", ResourceVersion: "7", Generation: 2,
		CreationTimestamp: metav1.Unix(1, 0),
		DeletionTimestamp: new(metav1.Unix(2, 0)), Labels: map[string]string{"machine": "m"},
		Annotations: map[string]string{v1beta1.PausedAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Machine", Name: "m", UID: "m", Controller: new(true)},
			{Kind: "Cabinet", Name: "c", UID: "c"}},
		Finalizers: []string{v1beta1.MachineFinalizer, "example.com/finalizer"},
	}
	seen := new(metav1.NewMicroTime(time.Unix(3, 4000)))
	transform := newTransform()
	for _, want := range []client.Object{
		&v1beta1.Machine{
			ObjectMeta: metadata,
			Spec:       v1beta1.MachineSpec{Switches: v1beta1.SwitchesSpec{Count: 3}, Position: v1beta1.PositionUp},
			Status:     v1beta1.MachineStatus{Positions: "uud", LastFlipTime: seen},
		},
		&v1beta1.Switch{
			ObjectMeta: metadata,
			Spec:       v1beta1.SwitchSpec{Position: v1beta1.PositionUp},
			Status:     v1beta1.SwitchStatus{ObservedGeneration: 2, SeenAt: seen},
		},
	} {
		t.Run(reflect.TypeOf(want).Elem().Name(), func(t *testing.T) {
			object := want.DeepCopyObject().(client.Object)
			object.GetObjectKind().SetGroupVersionKind(v1beta1.GroupVersion.WithKind("Kind"))
			object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "manager"}})
			object.GetAnnotations()[corev1.LastAppliedConfigAnnotation] = "{}"
			for _, time := range []string{"once", "twice"} { // client-go may transform an object twice
				if cached, err := transform(object); err != nil || cached != any(object) {
					t.Fatalf("%s: %v, %v", time, cached, err)
				}
				if diff := cmp.Diff(want, object); diff != "" {
					t.Errorf("cached %s (-want +got):\n%s", time, diff)
				}
			}
			tombstone := toolscache.DeletedFinalStateUnknown{Key: "default/object", Obj: object}
			if cached, err := transform(tombstone); err != nil || cached != any(tombstone) {
				t.Errorf("the transform changed a tombstone: %v, %v", cached, err)
			}
		})
	}
}

// TestSwitchesShareMetadata checks that consecutive switches of a Machine share equal labels and owner references in
// memory.
func TestSwitchesShareMetadata(t *testing.T) {
	transform := newTransform()
	cached := func(uid, label string) *v1beta1.Switch {
		sw := newTestSwitch("m-0")
		sw.OwnerReferences[0].UID, sw.Labels["room"] = "m", label
		if uid == "" {
			sw.OwnerReferences = nil
		} else if uid != "m" {
			sw.OwnerReferences[0].UID = "other"
		}
		if _, err := transform(sw); err != nil {
			t.Fatal(err)
		}
		return sw
	}
	before := cached("m", "lab")
	for _, c := range []struct {
		reason, owner, label string
		labels, owners       bool
	}{
		{"a switch of the same Machine shares both", "m", "lab", true, true},
		{"a switch with a changed label shares the owner references", "m", "shed", false, true},
		{"the next switch with that label shares both", "m", "shed", true, true},
		{"a switch of another Machine shares nothing", "other", "shed", false, false},
		{"a switch without an owner shares nothing", "", "shed", false, false},
	} {
		sw := cached(c.owner, c.label)
		if sw.Labels["room"] != c.label || metav1.GetControllerOf(sw) == nil != (c.owner == "") {
			t.Errorf("%s: the switch has changed: %+v", c.reason, sw)
		}
		if got := reflect.ValueOf(sw.Labels).Pointer() == reflect.ValueOf(before.Labels).Pointer(); got != c.labels {
			t.Errorf("%s: labels are shared: %t", c.reason, got)
		}
		if got := len(sw.OwnerReferences) > 0 && &sw.OwnerReferences[0] == &before.OwnerReferences[0]; got != c.owners {
			t.Errorf("%s: owner references are shared: %t", c.reason, got)
		}
		before = sw
	}
}

func TestOwnersAreOfOneNamespace(t *testing.T) {
	elsewhere := newTestSwitch("m-0", func(sw *v1beta1.Switch) { sw.Namespace = "elsewhere" })
	here, err := indexByOwner(newTestSwitch("m-0"))
	if err != nil {
		t.Fatal(err)
	}
	there, err := indexByOwner(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(here, there) {
		t.Errorf("Switches in two namespaces have the same index key %v", there)
	}
}

// TestOrphansOfSelector checks the index of orphans, which are Switches without a controller. A Machine must read only
// the orphans with the index key of its selector.
func TestOrphansOfSelector(t *testing.T) {
	labels := func(pairs ...string) func(*v1beta1.Switch) {
		return func(sw *v1beta1.Switch) {
			sw.OwnerReferences, sw.Labels = nil, map[string]string{}
			for pair := range slices.Chunk(pairs, 2) {
				sw.Labels[pair[0]] = pair[1]
			}
		}
	}
	selecting := func(selector *v1beta1.LabelSelector) *v1beta1.Machine {
		return newMachine(1, func(m *v1beta1.Machine) { m.Spec.Switches.Selector = selector })
	}
	exists := &v1beta1.LabelSelector{MatchExpressions: []v1beta1.LabelSelectorRequirement{{Key: "a",
		Operator: metav1.LabelSelectorOpExists}}}
	for _, tt := range []struct {
		reason  string
		machine *v1beta1.Machine
		orphan  *v1beta1.Switch
		want    bool
	}{
		{"the label with the Machine's name", newMachine(1), newTestSwitch("s", labels("machine", "m")), true},
		{"the label with another Machine's name", newMachine(1), newTestSwitch("s", labels("machine", "other")), false},
		{"no label", newMachine(1), newTestSwitch("s", labels()), false},
		{"a controller", newMachine(1), newTestSwitch("s"), false},
		{"another namespace", newMachine(1), newTestSwitch("s", labels("machine", "m"),
			func(sw *v1beta1.Switch) { sw.Namespace = "elsewhere" }), false},
		{"the first label of a selector", selecting(labelled("b", "2", "a", "1")),
			newTestSwitch("s", labels("a", "1", "b", "2")), true},
		{"only the second label of a selector", selecting(labelled("b", "2", "a", "1")),
			newTestSwitch("s", labels("b", "2")), false},
		{"a selector without matchLabels", selecting(exists), newTestSwitch("s", labels("c", "3")), true},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			switches := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, switchIndexers)
			if err := switches.Add(tt.orphan); err != nil {
				t.Fatal(err)
			}
			found, err := switches.ByIndex(orphansByLabel, selectorKey(tt.machine))
			if err != nil {
				t.Fatal(err)
			}
			if got := len(found) > 0; got != tt.want {
				t.Errorf("the Machine reads the Switch: %t", got)
			}
		})
	}
}

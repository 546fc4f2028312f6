// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/test/sim"
)

// misdeeds are what must not have happened to what test/history does not judge:
//   - the operator changes a ReplicaSet but for its label, an Ingress but for its annotation, or a VirtualMachine but for its
//     finalizers and its status;
//   - there are two Pods of a VirtualMachine;
//   - the operator makes a Pod for no VirtualMachine, deletes one that is none's, or one that was to stay ever since it was made.
func misdeeds(changes []sim.Change) (faults []error) {
	servers := map[types.UID]*vmHistory{}
	for _, change := range changes {
		var problem string
		switch change.Kind.Kind {
		case "ReplicaSet":
			problem = meddling(change, []string{"metadata", "labels", podcount.DefaultLabel})
		case "Ingress":
			problem = meddling(change, []string{"metadata", "annotations", sim.IngressAnnotation}, []string{"metadata", "managedFields"})
		case "VirtualMachine":
			problem = meddling(change, []string{"metadata", "finalizers"}, []string{"status"})
			seeVM(servers, change)
		case "Pod":
			problem = seePod(servers, change)
		}
		if problem != "" {
			faults = append(faults, fmt.Errorf("revision %d: %s %s: %s", change.Revision, change.Kind.Kind, change.Object.GetName(), problem))
		}
	}
	return faults
}

func byOperator(change sim.Change) bool { return slices.Contains(operators, change.By) }

// meddling tells of what the operator has changed beside what it may.
func meddling(change sim.Change, may ...[]string) string {
	if !byOperator(change) {
		return ""
	}
	if change.Before == nil {
		return "it is made by the operator"
	}
	before, after := change.Before.DeepCopy(), change.Object.DeepCopy()
	for _, object := range []*unstructured.Unstructured{before, after} {
		for _, path := range append(may, []string{"metadata", "resourceVersion"}) {
			unstructured.RemoveNestedField(object.Object, path...)
		}
		for _, name := range []string{"labels", "annotations"} { // the first one makes them, the last one takes them away
			if all, ok, _ := unstructured.NestedMap(object.Object, "metadata", name); ok && len(all) == 0 {
				unstructured.RemoveNestedField(object.Object, "metadata", name)
			}
		}
	}
	if !reflect.DeepEqual(before, after) {
		return fmt.Sprintf("the operator makes %v of %v", after.Object, before.Object)
	}
	return ""
}

// vmHistory is what there is to know of a VirtualMachine.
type vmHistory struct {
	idle     bool      // it is to have no server
	unwanted int64     // the last revision until which it was to have none
	pod      types.UID // that is there
	made     int64     // the revision at which it was
}

func seeVM(servers map[types.UID]*vmHistory, change sim.Change) {
	vm := change.Object
	if change.Type == watch.Deleted {
		delete(servers, vm.GetUID())
		return
	}
	known := servers[vm.GetUID()]
	if known == nil {
		known = &vmHistory{}
		servers[vm.GetUID()] = known
	}
	if known.idle {
		known.unwanted = change.Revision
	}
	known.idle = inactive(vm)
}

// inactive reports whether a VirtualMachine is to have no server.
func inactive(vm *unstructured.Unstructured) bool {
	action, _, _ := unstructured.NestedString(vm.Object, "spec", "action")
	return action == "inactive" || vm.GetDeletionTimestamp() != nil
}

// seePod judges what becomes of a Pod.
func seePod(servers map[types.UID]*vmHistory, change sim.Change) string {
	owner := metav1.GetControllerOf(change.Object)
	if owner == nil {
		for _, vm := range servers {
			if vm.pod == change.Object.GetUID() {
				vm.pod = "" // somebody took it away
			}
		}
	}
	if owner == nil || owner.Kind != "VirtualMachine" || servers[owner.UID] == nil {
		if byOperator(change) {
			return "the operator writes it, and it is no VirtualMachine's"
		}
		return ""
	}
	vm := servers[owner.UID]
	switch {
	case change.Type == watch.Added && vm.pod != "":
		return "it is the second one of its VirtualMachine"
	case change.Type == watch.Added:
		vm.pod, vm.made = change.Object.GetUID(), change.Revision
	case change.Type == watch.Deleted:
		vm.pod = ""
	}
	return vm.unjust(change)
}

// unjust tells of a deletion by the operator for which there was no reason since the Pod was made: that the VirtualMachine is
// to have no server, that the Pod has ended, or that it has lost its label.
func (vm *vmHistory) unjust(change sim.Change) string {
	deleted := change.Type == watch.Deleted || change.Object.GetDeletionTimestamp() != nil
	if !byOperator(change) || !deleted || change.Before.GetDeletionTimestamp() != nil {
		return ""
	}
	phase, _, _ := unstructured.NestedString(change.Object.Object, "status", "phase")
	_, labelled := change.Object.GetLabels()[cloudnativev1alpha1.VirtualMachineLabel]
	if phase == "Failed" || phase == "Succeeded" || !labelled || vm.idle || vm.unwanted >= vm.made {
		return ""
	}
	return "the operator deletes it for no reason"
}

// TestMisdeeds does what the operator must not do, and what it may.
func TestMisdeeds(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(ctx context.Context, user, operator client.Client) error
		want string // a part of what is said; nothing is if it is empty
	}{
		{"a count", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(replicaSet())(ctx, user), patch(replicaSet(), `{"metadata":{"labels":{"pod-count":"0"}}}`)(ctx, operator))
		}, ""},
		{"another label of a ReplicaSet", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(replicaSet())(ctx, user), patch(replicaSet(), `{"metadata":{"labels":{"app":"0"}}}`)(ctx, operator))
		}, "the operator makes"},
		{"a ReplicaSet", func(ctx context.Context, _, operator client.Client) error {
			return create(replicaSet())(ctx, operator)
		}, "it is made by the operator"},
		{"its annotation", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(ingress())(ctx, user), annotate(sim.IngressAnnotation, `"yes"`)(ctx, operator))
		}, ""},
		{"another annotation of an Ingress", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(ingress())(ctx, user), annotate("example.com/other", `"yes"`)(ctx, operator))
		}, "the operator makes"},
		{"the spec of a VirtualMachine", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), patch(vm(), `{"spec":{"action":"inactive"}}`)(ctx, operator))
		}, "the operator makes"},
		{"a server, and its end", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), serve(server)(ctx, operator),
				patch(vm(), `{"spec":{"action":"inactive"}}`)(ctx, user), remove(server)(ctx, operator))
		}, ""},
		{"two servers", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), serve(server)(ctx, operator), serve(pod("another"))(ctx, operator))
		}, "it is the second one"},
		{"a Pod of nobody", func(ctx context.Context, _, operator client.Client) error {
			return create(server)(ctx, operator)
		}, "it is no VirtualMachine's"},
		{"the end of a server that is to be", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), serve(server)(ctx, operator), remove(server)(ctx, operator))
		}, "for no reason"},
		{"the end of a server that was made after it was not to be", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), patch(vm(), `{"spec":{"action":"inactive"}}`)(ctx, user),
				patch(vm(), `{"spec":{"action":"active"}}`)(ctx, user), serve(server)(ctx, operator), remove(server)(ctx, operator))
		}, "for no reason"},
		{"the end of a server that has failed", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), serve(server)(ctx, operator),
				patchStatus(server, `{"status":{"phase":"Failed"}}`)(ctx, user), remove(server)(ctx, operator))
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, err := sim.NewWorld(kinds...)
			if err != nil {
				t.Fatal(err)
			}
			operator, err := client.New(w.Connect(operators[0]).Config(), client.Options{Mapper: w.Mapper(), Scheme: w.Admin.Scheme()})
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.do(t.Context(), w.Admin, operator); err != nil {
				t.Fatal(err)
			}
			if got := errors.Join(misdeeds(w.History())...); (got != nil) != (tt.want != "") || got != nil && !strings.Contains(got.Error(), tt.want) {
				t.Errorf("got %v, want %q", got, tt.want)
			}
		})
	}
}

// serve makes a Pod for the VirtualMachine.
func serve(pod *corev1.Pod) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		owner := vm()
		if err := c.Get(ctx, client.ObjectKeyFromObject(owner), owner); err != nil {
			return err
		}
		pod := pod.DeepCopy()
		pod.Labels = map[string]string{cloudnativev1alpha1.VirtualMachineLabel: owner.Name}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, cloudnativev1alpha1.GroupVersion.WithKind("VirtualMachine"))}
		return c.Create(ctx, pod)
	}
}

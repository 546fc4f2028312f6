// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"cmp"
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
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/test/sim"
)

// violations reports violations of rules that test/internal/invariants does not check:
//   - In a ReplicaSet, the operator changes only the label pod-count.
//   - In an Ingress, the operator changes only its annotation and the saved values. It sets the annotation to its
//     configured value, or restores the last value that another client set.
//   - In a VirtualMachine, the operator changes only the finalizers and the status.
//   - A VirtualMachine has at most one Pod.
//   - The operator writes a Pod only if a VirtualMachine owns the Pod.
//   - The operator deletes a Pod only for a valid reason, see unjustifiedDeletion.
func violations(changes []sim.Change) (found []error) {
	vms, theirs := map[types.UID]*vmHistory{}, map[types.UID]string{}
	for _, change := range changes {
		var problem string
		switch change.Kind.Kind {
		case "ReplicaSet":
			problem = forbiddenChange(change, []string{"metadata", "labels", podcount.DefaultLabel})
		case "Ingress":
			problem = cmp.Or(forbiddenChange(change, []string{"metadata", "annotations", sim.IngressAnnotation},
				[]string{"metadata", "annotations", v1beta1.OriginalAnnotationsAnnotation},
				[]string{"metadata", "managedFields"}), observeIngress(theirs, change))
		case "VirtualMachine":
			problem = forbiddenChange(change, []string{"metadata", "finalizers"}, []string{"status"})
			observeVM(vms, change)
		case "Pod":
			problem = observePod(vms, change)
		}
		if problem != "" {
			found = append(found,
				fmt.Errorf("revision %d: %s %s: %s", change.Revision, change.Kind.Kind, change.Object.GetName(),
					problem))
		}
	}
	return found
}

func byOperator(change sim.Change) bool { return slices.Contains(operators, change.By) }

// forbiddenChange describes a change by the operator to a field that is not in allowed. It returns "" if there is none.
func forbiddenChange(change sim.Change, allowed ...[]string) string {
	if !byOperator(change) {
		return ""
	}
	if change.Before == nil {
		return "the operator created it"
	}
	before, after := change.Before.DeepCopy(), change.Object.DeepCopy()
	for _, object := range []*unstructured.Unstructured{before, after} {
		for _, path := range append(allowed, []string{"metadata", "resourceVersion"}) {
			unstructured.RemoveNestedField(object.Object, path...)
		}
		for _, name := range []string{"labels", "annotations"} { // the operator may add or remove the whole map
			if all, ok, _ := unstructured.NestedMap(object.Object, "metadata", name); ok && len(all) == 0 {
				unstructured.RemoveNestedField(object.Object, "metadata", name)
			}
		}
	}
	if !reflect.DeepEqual(before, after) {
		return fmt.Sprintf("the operator changed %v to %v", before.Object, after.Object)
	}
	return ""
}

// observeIngress checks the value that the operator sets in its annotation. theirs has the last value that other
// clients set in each Ingress. An empty value means that the annotation is absent.
func observeIngress(theirs map[types.UID]string, change sim.Change) string {
	before, after := "", change.Object.GetAnnotations()[sim.IngressAnnotation]
	if change.Before != nil {
		before = change.Before.GetAnnotations()[sim.IngressAnnotation]
	}
	uid := change.Object.GetUID()
	want := theirs[uid]
	switch {
	case before == after:
	case !byOperator(change):
		theirs[uid] = after
	case after != "yes" && after != want:
		return fmt.Sprintf("the operator changed the annotation to %q, but the last value of other clients is %q", after, want)
	}
	return ""
}

// vmHistory is the relevant history of a VirtualMachine.
type vmHistory struct {
	idle     bool      // the VirtualMachine needs no Pod
	unwanted int64     // the last revision at which it needed no Pod
	pod      types.UID // the UID of its Pod, or empty
	made     int64     // the revision at which its Pod was created
}

func observeVM(vms map[types.UID]*vmHistory, change sim.Change) {
	vm := change.Object
	if change.Type == watch.Deleted {
		delete(vms, vm.GetUID())
		return
	}
	known := vms[vm.GetUID()]
	if known == nil {
		known = &vmHistory{}
		vms[vm.GetUID()] = known
	}
	if known.idle {
		known.unwanted = change.Revision
	}
	known.idle = inactive(vm)
}

// inactive reports whether a VirtualMachine needs no Pod.
func inactive(vm *unstructured.Unstructured) bool {
	action, _, _ := unstructured.NestedString(vm.Object, "spec", "action")
	return action == "inactive" || vm.GetDeletionTimestamp() != nil
}

// observePod records a change of a Pod. It returns a violation, or an empty string.
func observePod(vms map[types.UID]*vmHistory, change sim.Change) string {
	owner := metav1.GetControllerOf(change.Object)
	if owner == nil {
		for _, vm := range vms {
			if vm.pod == change.Object.GetUID() {
				vm.pod = "" // a user orphaned it
			}
		}
	}
	if owner == nil || owner.Kind != "VirtualMachine" || vms[owner.UID] == nil {
		if byOperator(change) {
			return "the operator wrote it, but no VirtualMachine owns it"
		}
		return ""
	}
	vm := vms[owner.UID]
	switch {
	case change.Type == watch.Added && vm.pod != "":
		return "it is the second Pod of its VirtualMachine"
	case change.Type == watch.Added:
		vm.pod, vm.made = change.Object.GetUID(), change.Revision
	case change.Type == watch.Deleted:
		vm.pod = ""
	}
	return vm.unjustifiedDeletion(change)
}

// unjustifiedDeletion describes a deletion by the operator without a valid reason. There are three valid reasons:
//   - The VirtualMachine needed no Pod at some time since the creation of the Pod.
//   - The Pod has ended.
//   - The Pod has lost its label.
func (vm *vmHistory) unjustifiedDeletion(change sim.Change) string {
	deleted := change.Type == watch.Deleted || change.Object.GetDeletionTimestamp() != nil
	if !byOperator(change) || !deleted || change.Before.GetDeletionTimestamp() != nil {
		return ""
	}
	phase, _, _ := unstructured.NestedString(change.Object.Object, "status", "phase")
	_, labelled := change.Object.GetLabels()[cloudnativev1alpha1.VirtualMachineLabel]
	if phase == "Failed" || phase == "Succeeded" || !labelled || vm.idle || vm.unwanted >= vm.made {
		return ""
	}
	return "the operator deleted it without a valid reason"
}

// TestViolations makes forbidden and allowed changes as the operator.
func TestViolations(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(ctx context.Context, user, operator client.Client) error
		want string // a part of the violation; empty if there is none
	}{
		{"the pod count label", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(replicaSet())(ctx, user),
				patch(replicaSet(), `{"metadata":{"labels":{"pod-count":"0"}}}`)(ctx, operator))
		}, ""},
		{"another label of a ReplicaSet", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(replicaSet())(ctx, user),
				patch(replicaSet(), `{"metadata":{"labels":{"app":"0"}}}`)(ctx, operator))
		}, "the operator changed"},
		{"creation of a ReplicaSet", func(ctx context.Context, _, operator client.Client) error {
			return create(replicaSet())(ctx, operator)
		}, "the operator created it"},
		{"the ensured annotation", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(ingress())(ctx, user), annotate(sim.IngressAnnotation, `"yes"`)(ctx, operator))
		}, ""},
		{"an annotation of an Ingress that is restored", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(ingress())(ctx, user), annotate(sim.IngressAnnotation, `"no"`)(ctx, user),
				annotate(sim.IngressAnnotation, `"yes"`)(ctx, operator), annotate(sim.IngressAnnotation, `"no"`)(ctx, operator))
		}, ""},
		{"an annotation of an Ingress that is not restored", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(ingress())(ctx, user), annotate(sim.IngressAnnotation, `"no"`)(ctx, user),
				annotate(sim.IngressAnnotation, `"yes"`)(ctx, operator), annotate(sim.IngressAnnotation, `null`)(ctx, operator))
		}, `the last value of other clients is "no"`},
		{"another annotation of an Ingress", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(ingress())(ctx, user), annotate("example.com/other", `"yes"`)(ctx, operator))
		}, "the operator changed"},
		{"the spec of a VirtualMachine", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), patch(vm(), `{"spec":{"action":"inactive"}}`)(ctx, operator))
		}, "the operator changed"},
		{"creation and deletion of a Pod", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), createPodOf(vmPod)(ctx, operator),
				patch(vm(), `{"spec":{"action":"inactive"}}`)(ctx, user), remove(vmPod)(ctx, operator))
		}, ""},
		{"two Pods", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), createPodOf(vmPod)(ctx, operator),
				createPodOf(pod("another"))(ctx, operator))
		}, "it is the second Pod"},
		{"a Pod without a VirtualMachine", func(ctx context.Context, _, operator client.Client) error {
			return create(vmPod)(ctx, operator)
		}, "no VirtualMachine owns it"},
		{"deletion of a wanted Pod", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), createPodOf(vmPod)(ctx, operator), remove(vmPod)(ctx, operator))
		}, "without a valid reason"},
		{"deletion of a Pod that was created after the VirtualMachine was started again",
			func(ctx context.Context, user, operator client.Client) error {
				return errors.Join(create(vm())(ctx, user), patch(vm(), `{"spec":{"action":"inactive"}}`)(ctx, user),
					patch(vm(), `{"spec":{"action":"active"}}`)(ctx, user), createPodOf(vmPod)(ctx, operator),
					remove(vmPod)(ctx, operator))
			}, "without a valid reason"},
		{"deletion of a failed Pod", func(ctx context.Context, user, operator client.Client) error {
			return errors.Join(create(vm())(ctx, user), createPodOf(vmPod)(ctx, operator),
				patchStatus(vmPod, `{"status":{"phase":"Failed"}}`)(ctx, user), remove(vmPod)(ctx, operator))
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, err := sim.NewWorld(kinds...)
			if err != nil {
				t.Fatal(err)
			}
			operator, err := client.New(w.Connect(operators[0]).Config(),
				client.Options{Mapper: w.Mapper(), Scheme: w.Admin.Scheme()})
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.do(t.Context(), w.Admin, operator); err != nil {
				t.Fatal(err)
			}
			if got := errors.Join(violations(w.History())...); (got != nil) != (tt.want != "") || got != nil &&
				!strings.Contains(got.Error(), tt.want) {
				t.Errorf("got %v, want %q", got, tt.want)
			}
		})
	}
}

// createPodOf creates a Pod that the VirtualMachine controls.
func createPodOf(pod *corev1.Pod) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		owner := vm()
		if err := c.Get(ctx, client.ObjectKeyFromObject(owner), owner); err != nil {
			return err
		}
		pod := pod.DeepCopy()
		pod.Labels = map[string]string{cloudnativev1alpha1.VirtualMachineLabel: owner.Name}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner,
			cloudnativev1alpha1.GroupVersion.WithKind("VirtualMachine"))}
		return c.Create(ctx, pod)
	}
}

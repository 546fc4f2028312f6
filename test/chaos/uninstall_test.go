// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
)

// endsWithin is the longest time that a deletion may take. If a deletion is blocked, it must report its reason within
// this time.
const endsWithin = time.Minute

// A step is one step of uninstalling.
type step struct {
	name string
	do   func(*removal, context.Context) error
	// left returns the remaining objects, and their reason for waiting. Both are empty if no objects remain. left is
	// nil if the deletion is immediate.
	left func(*removal, context.Context) (left, why string, err error)
}

var steps = []step{
	{"objects", (*removal).deleteObjects, (*removal).leftObjects},
	{"operator", (*removal).stopOperator, nil},
	{"webhooks", (*removal).deleteWebhooks, nil},
	{"CRDs", (*removal).deleteCRDs, (*removal).leftCRDs},
	{"namespace", (*removal).deleteNamespace, (*removal).leftNamespace},
}

// TestUninstall uninstalls everything in several orders. With -times, it tests all 120 orders. Otherwise, it tests four
// orders. The first order is the documented one. The second order begins with the operator and ends with its objects.
// The third order begins with the CRDs, and the fourth with the namespace.
func TestUninstall(t *testing.T) {
	if testing.Short() {
		t.Skip("each order reinstalls everything; make test-all runs some orders, make chaos all of them")
	}
	t.Parallel()
	orders := [][]int{{0, 1, 2, 3, 4}, {1, 2, 4, 3, 0}, {3, 1, 0, 4, 2}, {4, 1, 2, 3, 0}}
	worlds := 1
	if *times > 0 {
		orders, worlds = permutations(len(steps)), 2
	}
	for i := range worlds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for j := i; j < len(orders) && !t.Failed(); j += worlds {
				w.uninstall(t, j, orders[j])
			}
		})
	}
}

// permutations returns all orders of the numbers below n.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, shorter := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(shorter), i, n-1))
		}
	}
	return all
}

// A removal is one run of uninstalling the operator and its objects.
type removal struct {
	*world
	t         *testing.T
	namespace string
	operator  *replica // nil after stopOperator
}

// uninstall installs everything, and then runs the steps in an order.
func (w *world) uninstall(t *testing.T, number int, order []int) {
	t.Helper()
	ctx := t.Context()
	if err := cluster.Install(ctx, w.plane.Config, w.manifests, w.server); err != nil {
		t.Fatal(err)
	}
	r := &removal{world: w, t: t, namespace: fmt.Sprintf("uninstall-%d", number)}
	if err := r.prepare(ctx); err != nil {
		t.Fatal(err)
	}
	var names, took []string
	var stuck []step
	for _, i := range order {
		s, began := steps[i], time.Now()
		names = append(names, s.name)
		if err := s.do(r, ctx); client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
			t.Fatalf("%v: %v", names, err)
		}
		if s.left != nil && !r.gone(names, s) {
			stuck = append(stuck, s)
		}
		if time.Since(began) > endsWithin {
			t.Errorf("%v: took %s", names, time.Since(began))
		}
		took = append(took, fmt.Sprintf("%s %.1fs", s.name, time.Since(began).Seconds()))
	}
	t.Logf("%s; steps that finalizers block: %d", strings.Join(took, ", "), len(stuck))
	if len(stuck) > 0 {
		r.release(names, stuck)
	}
}

// release removes the finalizers, as the documentation describes for an uninstalled operator. After that, no objects
// may remain.
func (r *removal) release(names []string, stuck []step) {
	r.t.Helper()
	if err := r.dropFinalizers(r.t.Context()); err != nil {
		r.t.Fatalf("%v: %v", names, err)
	}
	for _, s := range stuck {
		if !r.gone(names, s) {
			r.t.Fatalf("%v: %s remain without finalizers", names, s.name)
		}
	}
}

// finalizers are the operator's finalizers by kind.
var finalizers = map[string]string{
	"Machine":        v1beta1.MachineFinalizer,
	"VirtualMachine": cloudnativev1alpha1.VirtualMachineFinalizer,
}

// prepare starts the operator. It creates a Machine with switches down, a Machine with switches up, and a
// VirtualMachine with a Pod.
func (r *removal) prepare(ctx context.Context) (err error) {
	r.replicas = nil
	if r.operator, err = r.addReplica(); err != nil {
		return err
	}
	if err := r.operator.awaitReady(ctx); err != nil {
		return err
	}
	if err := r.admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}}); err != nil {
		return err
	}
	for _, position := range []v1beta1.Position{v1beta1.PositionDown, v1beta1.PositionUp} {
		m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "m-" + string(position)}}
		m.Spec.Switches.Count, m.Spec.Position, m.Spec.Flip.DelaySeconds = 2, position, new(int32(3600))
		if err := r.admin.Create(ctx, m); err != nil {
			return err
		}
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
			err := r.admin.Get(ctx, client.ObjectKeyFromObject(m), m)
			return m.Status.Switches.Total == 2 && m.Status.Position == position && (m.Status.Switches.Up == 2) == (position == v1beta1.PositionUp), err
		})
		if err != nil {
			return fmt.Errorf("%s: %w: %+v", m.Name, err, m.Status)
		}
	}
	return r.prepareVirtualMachine(ctx)
}

// prepareVirtualMachine creates a VirtualMachine and waits until it has a Pod.
func (r *removal) prepareVirtualMachine(ctx context.Context) error {
	vm := &cloudnativev1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "vm"}}
	vm.Spec.Resource = cloudnativev1alpha1.ResourceSpec{CPU: resource.MustParse("2"), Memory: resource.MustParse("4G")}
	if err := r.admin.Create(ctx, vm); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := r.admin.Get(ctx, client.ObjectKeyFromObject(vm), vm)
		return vm.Status.Server != nil, err
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %+v", vm.Name, err, vm.Status)
	}
	return nil
}

// gone waits until no objects of a step remain, and then returns true. If the operator is stopped, finalizers may block
// the deletion. If the objects report the finalizers as the reason, gone returns false.
func (r *removal) gone(names []string, s step) bool {
	r.t.Helper()
	objects, _, err := r.leftObjects(r.t.Context())
	if err != nil {
		r.t.Fatalf("%v: %v", names, err)
	}
	stays := r.operator == nil && objects != ""
	var left, why string
	err = wait.PollUntilContextTimeout(r.t.Context(), 50*time.Millisecond, endsWithin, true, func(ctx context.Context) (bool, error) {
		var err error
		left, why, err = s.left(r, ctx)
		return left == "" || stays && why != "", err
	})
	if err != nil {
		r.t.Fatalf("%v: %v: %s remains and reports %q", names, err, left, why)
	}
	if left != "" {
		r.t.Logf("%s: %s", left, why)
	}
	return left == ""
}

func (r *removal) deleteObjects(ctx context.Context) (err error) {
	for _, object := range []client.Object{&v1beta1.Machine{}, &v1beta1.Switch{}, &cloudnativev1alpha1.VirtualMachine{}} {
		err = errors.Join(err, client.IgnoreNotFound(r.admin.DeleteAllOf(ctx, object, client.InNamespace(r.namespace))))
	}
	return err
}

// owners returns all objects that can have one of the operator's finalizers.
func (r *removal) owners(ctx context.Context) (all []client.Object, err error) {
	machines, vms := &v1beta1.MachineList{}, &cloudnativev1alpha1.VirtualMachineList{}
	for _, list := range []client.ObjectList{machines, vms} {
		if err := r.admin.List(ctx, list, client.InNamespace(r.namespace)); err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			return nil, err
		}
	}
	for i := range machines.Items {
		all = append(all, &machines.Items[i])
	}
	for i := range vms.Items {
		all = append(all, &vms.Items[i])
	}
	return all, nil
}

func (r *removal) leftObjects(ctx context.Context) (left, why string, err error) {
	all, err := r.owners(ctx)
	for _, object := range all {
		gvk, err := r.admin.GroupVersionKindFor(object)
		if err != nil {
			return "", "", err
		}
		left += " " + gvk.Kind + " " + object.GetName()
		if !object.GetDeletionTimestamp().IsZero() && slices.Contains(object.GetFinalizers(), finalizers[gvk.Kind]) {
			why = "metadata.finalizers: " + strings.Join(object.GetFinalizers(), ", ")
		}
	}
	return left, why, err
}

func (r *removal) stopOperator(context.Context) error {
	r.operator.Stop(patience)
	err := r.operator.Err()
	r.operator = nil
	return err
}

func (r *removal) deleteWebhooks(ctx context.Context) error {
	return r.admin.Delete(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "useless-validating-webhook-configuration"},
	})
}

// theCRDs returns the operator's CustomResourceDefinitions.
func theCRDs() (all []*apiextensionsv1.CustomResourceDefinition) {
	for _, name := range []string{"machines." + v1beta1.GroupVersion.Group, "switches." + v1beta1.GroupVersion.Group, "virtualmachines.cloudnative.tw"} {
		all = append(all, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return all
}

func (r *removal) deleteCRDs(ctx context.Context) (err error) {
	for _, crd := range theCRDs() {
		err = errors.Join(err, r.admin.Delete(ctx, crd))
	}
	return err
}

func (r *removal) leftCRDs(ctx context.Context) (left, why string, err error) {
	for _, crd := range theCRDs() {
		err := r.admin.Get(ctx, client.ObjectKeyFromObject(crd), crd)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", "", err
		}
		left += " CustomResourceDefinition " + crd.Name
		for _, condition := range crd.Status.Conditions {
			if condition.Type == apiextensionsv1.Terminating && condition.Status == apiextensionsv1.ConditionTrue {
				why = fmt.Sprintf("condition Terminating: %s: %s", condition.Reason, condition.Message)
			}
		}
	}
	return left, why, nil
}

func (r *removal) deleteNamespace(ctx context.Context) error {
	return r.admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.namespace}})
}

func (r *removal) leftNamespace(ctx context.Context) (left, why string, err error) {
	namespace := &corev1.Namespace{}
	if err := r.admin.Get(ctx, client.ObjectKey{Name: r.namespace}, namespace); err != nil {
		return "", "", client.IgnoreNotFound(err)
	}
	for _, condition := range namespace.Status.Conditions {
		if condition.Type == corev1.NamespaceFinalizersRemaining && condition.Status == corev1.ConditionTrue && namesFinalizers(condition.Message) {
			why = fmt.Sprintf("condition %s: %s", condition.Type, condition.Message)
		}
	}
	return "Namespace " + r.namespace, why, nil
}

// namesFinalizers reports whether a text contains all finalizers.
func namesFinalizers(text string) bool {
	for _, finalizer := range finalizers {
		if !strings.Contains(text, finalizer) {
			return false
		}
	}
	return true
}

// dropFinalizers removes all finalizers of the remaining objects.
func (r *removal) dropFinalizers(ctx context.Context) error {
	all, err := r.owners(ctx)
	if err != nil {
		return err
	}
	for _, object := range all {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		if err := client.IgnoreNotFound(r.admin.Patch(ctx, object, patch)); err != nil {
			return err
		}
	}
	return nil
}

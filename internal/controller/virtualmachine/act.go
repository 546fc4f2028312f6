// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
)

// outcome has the errors of a plan that the status shows.
type outcome struct {
	creating, resizing error
}

// errNameConflict means that the Pod with the server's name does not belong to the VirtualMachine.
var errNameConflict = errors.New("is not this virtual machine's: delete or rename one of the two")

// cachedPod returns the VirtualMachine's Pod from the cache, or nil.
func (c *Controller) cachedPod(vm *v1alpha1.VirtualMachine) *corev1.Pod {
	cached, exists, err := c.podStore.GetByKey(podKey(vm).String())
	if err != nil || !exists {
		return nil
	}
	if pod := cached.(*corev1.Pod); metav1.IsControlledBy(pod, vm) {
		return pod
	}
	return nil
}

// server returns the VirtualMachine's Pod, or nil. It asks the API server if there may be a Pod that the cache does not have:
// the cache never has a Pod that has lost its label.
func (c *Controller) server(ctx context.Context, vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := c.pods.Get(ctx, podKey(vm), pod, client.UnsafeDisableDeepCopy)
	switch {
	case err == nil && metav1.IsControlledBy(pod, vm):
		return pod, nil
	case client.IgnoreNotFound(err) != nil || !mayHaveServer(vm):
		return nil, client.IgnoreNotFound(err)
	}
	pod, err = c.currentPod(ctx, vm)
	if errors.Is(err, errNameConflict) {
		return nil, nil // it matters only if a Pod has to be created
	}
	return pod, err
}

// currentPod returns the VirtualMachine's Pod from the API server, or nil, or errNameConflict.
func (c *Controller) currentPod(ctx context.Context, vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := c.reader.Get(ctx, podKey(vm), pod); err != nil {
		return nil, apierror.IgnoreGone(err)
	}
	if !metav1.IsControlledBy(pod, vm) {
		return nil, fmt.Errorf("pod %s %w", pod.Name, errNameConflict)
	}
	return pod, nil
}

// isUnchanged reads the VirtualMachine from the API server before the controller creates or stops a server. The cache of
// VirtualMachines can be behind the cache of Pods. A server that the garbage collector deletes must not be replaced, and a
// server that its user has just activated again must not be stopped: its data would be lost.
func (c *Controller) isUnchanged(ctx context.Context, vm *v1alpha1.VirtualMachine) (bool, error) {
	current := &v1alpha1.VirtualMachine{}
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(vm), current); err != nil {
		return false, apierror.IgnoreGone(err)
	}
	return current.UID == vm.UID && current.DeletionTimestamp.IsZero() && isActive(current) == isActive(vm), nil
}

// act carries out a plan and returns the VirtualMachine's Pod as it is then. A refusal of the API server is in the outcome
// only, because a retry cannot help. Other errors that prevent the creation of a server are in both.
func (c *Controller) act(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, p plan) (*corev1.Pod, outcome, error) {
	if p.confirm {
		if unchanged, err := c.isUnchanged(ctx, vm); !unchanged || err != nil {
			return pod, outcome{}, err
		}
	}
	var refused outcome
	var err error
	switch {
	case p.create:
		pod, err = c.create(ctx, vm)
		if !apierrors.IsConflict(err) {
			refused.creating = err
		}
		_, err = refusal(err)
	case p.delete != "":
		pod, err = c.delete(ctx, vm, pod, p.delete)
	case p.resize:
		pod, err = c.resize(ctx, vm, pod)
		refused.resizing, err = refusal(err)
	}
	if reason := cmp.Or(refused.creating, refused.resizing); reason != nil && err == nil {
		log.FromContext(ctx).Info("The API server refuses the server of a virtual machine", "reason", reason.Error())
	}
	return pod, refused, err
}

// refusal sorts an error: refused if an immediate retry cannot help, failed otherwise.
func refusal(err error) (refused, failed error) {
	if apierror.IsRefused(err) || errors.Is(err, errNameConflict) || errors.Is(err, errNotLabelled) || errors.Is(err, errNotResized) {
		return err, nil
	}
	return nil, err
}

// create creates the server. A Pod that exists already, and that the cache does not have yet, is as good.
func (c *Controller) create(ctx context.Context, vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
	pod := newPod(vm, c.image)
	err := c.pods.Create(ctx, pod)
	switch {
	case apierrors.IsAlreadyExists(err):
		return c.currentPod(ctx, vm)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil // nothing can be created there
	case err != nil:
		return nil, err
	}
	if !isLabelled(pod) {
		return nil, cmp.Or(apierror.IgnoreGone(c.deletePod(ctx, pod, client.Preconditions{UID: &pod.UID})), errNotLabelled)
	}
	c.events.Normal(vm, pod, v1alpha1.EventCreated, creating, "Created server %s with %s", pod.Name, describe(resourcesOf(vm)))
	return pod, nil
}

// errNotLabelled means that the cache would never have the Pod. The controller deletes such a Pod.
var errNotLabelled = errors.New("admission takes the label " + v1alpha1.VirtualMachineLabel + " away from the server")

// delete deletes the Pod and returns it as one that is being deleted. Its end wakes the VirtualMachine.
func (c *Controller) delete(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, why string) (*corev1.Pod, error) {
	// A user may just have taken the Pod from the VirtualMachine.
	err := c.deletePod(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	if apierror.IgnoreGone(err) != nil {
		return pod, err
	}
	if err == nil {
		c.events.Normal(vm, pod, v1alpha1.EventDeleted, "Delete", "Deleted server %s: %s", pod.Name, why)
	}
	going := pod.DeepCopy()
	going.DeletionTimestamp = new(metav1.NewTime(c.clock.Now()))
	return going, nil
}

// deletePod deletes a Pod. No read waits for the end of a Pod without the label, because the cache does not have it.
func (c *Controller) deletePod(ctx context.Context, pod *corev1.Pod, unchanged client.Preconditions) error {
	options := []client.DeleteOption{unchanged}
	if !isLabelled(pod) {
		options = append(options, client.DisableReadYourWritesConsistency)
	}
	return c.pods.Delete(ctx, pod, options...)
}

// errNotResized means that the Pod does not have the resources that were asked for after a resize.
var errNotResized = errors.New("admission changes the resources")

// resize changes the Pod's resources in place, unless the Pod has changed. The server keeps running.
func (c *Controller) resize(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod) (*corev1.Pod, error) {
	changed := pod.DeepCopy()
	setResources(changed, vm)
	// A strategic merge patch changes this one container. A merge patch would replace the list.
	err := c.pods.SubResource("resize").Patch(ctx, changed, client.StrategicMergeFrom(pod, client.MergeFromWithOptimisticLock{}))
	switch {
	case cannotResize(err):
		return pod, fmt.Errorf("%w: the cluster cannot resize Pods, which takes Kubernetes 1.33", errNotResized)
	case err != nil:
		return pod, apierror.IgnoreGone(err)
	}
	if !hasResources(changed, vm) {
		return changed, errNotResized
	}
	applied := resourcesOf(vm)
	delete(applied, corev1.ResourceEphemeralStorage)
	c.events.Normal(vm, pod, v1alpha1.EventResized, "Resize", "Resized server %s to %s", pod.Name, describe(applied))
	return changed, nil
}

// cannotResize reports whether the error says that the API server has no pods/resize. It is NotFound, as for a Pod that
// does not exist. But it names no object, or it is no answer of the API itself.
func cannotResize(err error) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answer) {
		return false
	}
	details := answer.Status().Details
	return details == nil || details.Name == "" || apierrors.IsUnexpectedServerError(err)
}

// finalize deletes the server of a deleted VirtualMachine, waits until it is gone, and then removes the finalizer.
func (c *Controller) finalize(ctx context.Context, request reconcile.Request, vm *v1alpha1.VirtualMachine) error {
	if !c.finalizer.Holds(vm) {
		return nil
	}
	// The server of a paused VirtualMachine is left to the garbage collector. Orphaned dependents keep running.
	if pause.IsPaused(vm) || controllerutil.ContainsFinalizer(vm, metav1.FinalizerOrphanDependents) {
		return patch.RemoveFinalizer(ctx, c.client, vm, c.finalizer)
	}
	pod, err := c.server(ctx, vm)
	switch {
	case err != nil:
		return err
	case pod == nil:
		return patch.RemoveFinalizer(ctx, c.client, vm, c.finalizer)
	case pod.DeletionTimestamp.IsZero():
		pod, err = c.delete(ctx, vm, pod, "the virtual machine is being deleted")
	}
	status := newStatus(vm, pod, outcome{}, c.usage.of(vm, pod), c.clock.Now())
	if err = errors.Join(err, c.writeStatus(ctx, vm, pod, status)); err != nil {
		return err
	}
	c.wakeUp(request, time.Time{}, c.cachedPod(vm) == nil)
	return nil
}

// describe returns resources as text.
func describe(resources corev1.ResourceList) string {
	words := make([]string, 0, len(resources))
	for name, quantity := range resources {
		words = append(words, fmt.Sprintf("%s %s", name, quantity.String()))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

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
	"container.training/useless/internal/object"
)

// An outcome is what of a plan was not done for reasons that users should know of.
type outcome struct {
	creating, resizing error
}

// errNameConflict says that a Pod has the server's name that is not the VirtualMachine's.
var errNameConflict = errors.New("is not this virtual machine's: delete or rename one of the two")

// cachedPod returns the VirtualMachine's Pod as the cache has it, or nil.
func (c *Controller) cachedPod(vm *v1alpha1.VirtualMachine) *corev1.Pod {
	cached, exists, err := c.pods.GetByKey(podKey(vm).String())
	if err != nil || !exists {
		return nil // the store knows every key, and so no error
	}
	if pod := cached.(*corev1.Pod); metav1.IsControlledBy(pod, vm) {
		return pod
	}
	return nil
}

// server returns the VirtualMachine's Pod or nil: as the cache has it, or as this process left it if that is later, or as
// the API server has it if there may be one that neither knows.
func (c *Controller) server(ctx context.Context, vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
	seen := c.pods.LastStoreSyncResourceVersion() // before the cache is read, which may go on meanwhile
	if pod := c.recent.latestPod(vm, c.cachedPod(vm), seen); pod != nil || !mayHaveServer(vm) {
		return pod, nil
	}
	pod, err := c.currentPod(ctx, vm)
	if errors.Is(err, errNameConflict) {
		return nil, nil // somebody else's; that is in the way of a new one only
	}
	return pod, err
}

// currentPod returns the VirtualMachine's Pod as the API server has it, or nil, or errNameConflict.
func (c *Controller) currentPod(ctx context.Context, vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := c.reader.Get(ctx, podKey(vm), pod); err != nil {
		return nil, object.IgnoreGone(err)
	}
	if !metav1.IsControlledBy(pod, vm) {
		return nil, fmt.Errorf("pod %s %w", pod.Name, errNameConflict)
	}
	return pod, nil
}

// act carries out a plan and returns the VirtualMachine's Pod as it is then. What the API server refuses is in the outcome
// alone, as only users can mend that. Whatever else keeps a server from being created is there as well as in the error.
func (c *Controller) act(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, p plan) (*corev1.Pod, outcome, error) {
	var refused outcome
	var err error
	switch {
	case p.create:
		pod, err = c.create(ctx, vm)
		if !apierrors.IsConflict(err) {
			refused.creating = err
		}
		_, err = refusal(err)
	case p.delete != "" && !isActive(vm):
		pod, err = c.stop(ctx, vm, pod, p.delete)
	case p.delete != "":
		pod, err = c.delete(ctx, vm, pod, p.delete)
	case p.resize:
		pod, err = c.resize(ctx, vm, pod)
		refused.resizing, err = refusal(err)
	}
	if because := cmp.Or(refused.creating, refused.resizing); because != nil && err == nil {
		// The status keeps the first reason, as long as there is one.
		log.FromContext(ctx).Info("What the virtual machine asks for is refused", "reason", because.Error())
	}
	return pod, refused, err
}

// refusal tells errors apart that say why a request cannot be granted from those that are worth another try at once.
func refusal(err error) (refused, failed error) {
	if object.Refused(err) || errors.Is(err, errNameConflict) || errors.Is(err, errNotLabelled) || errors.Is(err, errNotResized) {
		return err, nil
	}
	return nil, err
}

// create makes the server. One that is there already, and that the cache has not heard of, is as good.
func (c *Controller) create(ctx context.Context, vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
	// Where there was one, the garbage collector may have taken it, because the VirtualMachine is being deleted in the
	// foreground, or its user, who has made it inactive. That could come to the cache later than the end of the Pod.
	if vm.Status.Server != nil || c.recent.madeFor(vm) {
		if stands, err := c.stands(ctx, vm); !stands || err != nil {
			return nil, err
		}
	}
	pod := newPod(vm, c.options.Image)
	err := c.client.Create(ctx, pod)
	switch {
	case apierrors.IsAlreadyExists(err):
		return c.currentPod(ctx, vm)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil // nothing can be created there, nor need it be
	case err != nil:
		return nil, err
	}
	if !isLabelled(pod) {
		return nil, cmp.Or(object.IgnoreGone(c.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})), errNotLabelled)
	}
	c.recent.made(vm, pod)
	c.events.Tell(vm, pod, v1alpha1.EventCreated, creating, "Created server %s with %s", pod.Name, describe(resourcesOf(vm)))
	return pod, nil
}

// errNotLabelled says that nothing would be heard of a Pod, which is better not there.
var errNotLabelled = errors.New("admission takes the label " + v1alpha1.VirtualMachineLabel + " away from the server")

// stands asks the API server whether a VirtualMachine is still there, and active or not as the cache has it, which may be old.
func (c *Controller) stands(ctx context.Context, vm *v1alpha1.VirtualMachine) (bool, error) {
	current := &v1alpha1.VirtualMachine{}
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(vm), current); err != nil {
		return false, object.IgnoreGone(err)
	}
	return current.UID == vm.UID && current.DeletionTimestamp.IsZero() && isActive(current) == isActive(vm), nil
}

// stop deletes the server of a VirtualMachine that is inactive, and still so: what a server had is lost.
func (c *Controller) stop(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, why string) (*corev1.Pod, error) {
	if stands, err := c.stands(ctx, vm); !stands || err != nil {
		return pod, err
	}
	return c.delete(ctx, vm, pod, why)
}

// delete deletes this very Pod, unless it has changed: somebody may have taken it away from the VirtualMachine. It returns it as
// one that is going. That it is gone wakes us.
func (c *Controller) delete(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, why string) (*corev1.Pod, error) {
	err := c.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	switch {
	case apierrors.IsConflict(err):
		return c.lookAtServer(ctx, vm, pod, err)
	case object.IgnoreGone(err) != nil:
		return pod, err
	}
	going := pod.DeepCopy()
	going.DeletionTimestamp = new(metav1.NewTime(c.clock.Now()))
	c.recent.wrotePod(vm, going)
	if err == nil {
		c.events.Tell(vm, pod, v1alpha1.EventDeleted, "Delete", "Deleted server %s: %s", pod.Name, why)
	}
	return going, nil
}

// lookAtServer returns the VirtualMachine's Pod as the API server has it, or nil, where a write to it was refused because it has
// changed. That is an error only if there is still something to write: the garbage collector deletes servers, too, and whoever
// has taken one away may keep it.
func (c *Controller) lookAtServer(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, refused error) (*corev1.Pod, error) {
	current, err := c.currentPod(ctx, vm)
	switch {
	case errors.Is(err, errNameConflict):
		return nil, nil
	case err != nil:
		return pod, errors.Join(refused, err)
	case current == nil:
		return nil, nil
	}
	c.recent.wrotePod(vm, current)
	if current.DeletionTimestamp.IsZero() {
		return current, refused
	}
	return current, nil
}

// errNotResized says that the API server took a resize and did something else.
var errNotResized = errors.New("admission changes the resources")

// resize asks for other resources in place, unless the Pod has changed: the server goes on running.
func (c *Controller) resize(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod) (*corev1.Pod, error) {
	changed := pod.DeepCopy()
	setResources(changed, vm)
	// A strategic merge patch has this one container, where a merge patch would have the list as it was read.
	err := c.client.SubResource("resize").Patch(ctx, changed, client.StrategicMergeFrom(pod, client.MergeFromWithOptimisticLock{}))
	switch {
	case cannotResize(err):
		return pod, fmt.Errorf("%w: the cluster cannot resize Pods, which takes Kubernetes 1.33", errNotResized)
	case apierrors.IsConflict(err):
		return c.lookAtServer(ctx, vm, pod, err)
	case err != nil:
		return pod, object.IgnoreGone(err)
	}
	c.recent.wrotePod(vm, changed)
	if !hasResources(changed, vm) {
		return changed, errNotResized
	}
	applied := resourcesOf(vm)
	delete(applied, corev1.ResourceEphemeralStorage)
	c.events.Tell(vm, pod, v1alpha1.EventResized, "Resize", "Resized server %s to %s", pod.Name, describe(applied))
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

// finalize deletes the server of a VirtualMachine that is being deleted, waits until it is gone and then lets go.
func (c *Controller) finalize(ctx context.Context, request reconcile.Request, vm *v1alpha1.VirtualMachine) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(vm, v1alpha1.VirtualMachineFinalizer) {
		return reconcile.Result{}, nil
	}
	// A paused one's server is left to the garbage collector. One whose dependents are to be kept keeps its server.
	if object.Paused(vm) || controllerutil.ContainsFinalizer(vm, metav1.FinalizerOrphanDependents) {
		return reconcile.Result{}, c.letGo(ctx, vm)
	}
	pod, err := c.server(ctx, vm)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case pod == nil:
		return reconcile.Result{}, c.letGo(ctx, vm)
	case pod.DeletionTimestamp.IsZero():
		pod, err = c.delete(ctx, vm, pod, "the virtual machine is being deleted")
	}
	written := c.writeStatus(ctx, vm, pod, newStatus(vm, pod, outcome{}, c.usage.of(vm, pod), c.clock.Now()))
	if err = errors.Join(err, written); err != nil {
		return reconcile.Result{}, err
	}
	return c.again(request, time.Time{}, c.cachedPod(vm) == nil), nil
}

func (c *Controller) letGo(ctx context.Context, vm *v1alpha1.VirtualMachine) error {
	written, err := object.RemoveFinalizer(ctx, c.client, vm, v1alpha1.VirtualMachineFinalizer)
	if err != nil {
		return object.IgnoreGone(err)
	}
	c.recent.wrote(written)
	return nil
}

// describe puts resources in words.
func describe(resources corev1.ResourceList) string {
	words := make([]string, 0, len(resources))
	for name, quantity := range resources {
		words = append(words, fmt.Sprintf("%s %s", name, quantity.String()))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

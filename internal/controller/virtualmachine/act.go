// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/apierror"
)

// outcome has the errors of act that newStatus writes into the status.
type outcome struct {
	createErr, resizeErr error
}

// finalError is an error that an immediate retry cannot fix.
type finalError string

// Error implements error.
func (e finalError) Error() string { return string(e) }

const (
	// errNameConflict means that the VirtualMachine does not control the Pod that has the required name.
	errNameConflict finalError = "is not controlled by this VirtualMachine: delete or rename one of them"

	// errNotLabelled means that the created Pod lacks the label, so the cache would never contain it. The controller
	// deletes such a Pod.
	errNotLabelled finalError = "an admission webhook or policy removes the label " + v1alpha1.VirtualMachineLabel

	// errNotResized means that the Pod does not have the resources of the spec after a resize.
	errNotResized finalError = "an admission webhook or policy changes the resources"

	// errCannotResize means that the API server does not serve pods/resize.
	errCannotResize finalError = "resizing Pods in place requires Kubernetes 1.33 or later"
)

// isRejected reports whether an immediate retry cannot help after this error.
func isRejected(err error) bool {
	_, final := errors.AsType[finalError](err)
	return final || apierror.IsRefused(err)
}

// act executes a plan and returns the resulting Pod. A rejected creation or resize is only in the outcome, because an
// immediate retry cannot help. Other errors of a creation, except conflicts, are in the outcome and in the error. All
// other errors are only in the error.
func (c *Controller) act(
	ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, p plan,
) (*corev1.Pod, outcome, error) {
	if p.confirm {
		if unchanged, err := c.isUnchanged(ctx, vm); !unchanged || err != nil {
			return pod, outcome{}, err
		}
	}
	var done outcome
	var err error
	switch {
	case p.delete != "":
		pod, err = c.delete(ctx, vm, pod, p.delete)
		return pod, outcome{}, err
	case p.create:
		if pod, err = c.create(ctx, vm); !apierrors.IsConflict(err) {
			done.createErr = err
		}
	case p.resize:
		if pod, err = c.resize(ctx, vm, pod); isRejected(err) {
			done.resizeErr = err
		}
	}
	if isRejected(err) {
		log.FromContext(ctx).Info("The Pod of a VirtualMachine cannot be created or resized", "error", err.Error())
		err = nil
	}
	return pod, done, err
}

// create creates the Pod, or returns a Pod that already exists and is not in the cache yet.
func (c *Controller) create(ctx context.Context, vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
	pod := newPod(vm, c.image)
	err := c.pods.Create(ctx, pod)
	switch {
	case apierrors.IsAlreadyExists(err):
		// If the Pod belongs to this VirtualMachine, the cache does not have it: the answer to its creation was lost,
		// its watch event is late, or its label was removed. If the VirtualMachine does not control the Pod, currentPod
		// returns errNameConflict.
		return c.currentPod(ctx, vm)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil // nothing can be created in this namespace
	case err != nil:
		return nil, err
	}
	if !isLabelled(pod) {
		c.unlabelled.Add(podKey(vm), nil)
		if err = c.deletePod(ctx, pod, client.Preconditions{UID: &pod.UID}); apierror.IgnoreGone(err) != nil {
			return nil, err
		}
		return nil, errNotLabelled
	}
	c.unlabelled.Remove(podKey(vm))
	c.events.Normal(vm, pod, v1alpha1.EventCreated, createAction,
		"Created Pod %s with %s", pod.Name, describe(resourcesOf(vm)))
	return pod, nil
}

// delete deletes the Pod and returns it with a deletion timestamp.
func (c *Controller) delete(
	ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, cause string,
) (*corev1.Pod, error) {
	// With the resourceVersion, the API server rejects the deletion if a user has just removed the owner reference.
	err := c.deletePod(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	if apierror.IgnoreGone(err) != nil {
		return pod, err
	}
	if err == nil {
		c.events.Normal(vm, pod, v1alpha1.EventDeleted, "Delete", "Deleted Pod %s: %s", pod.Name, cause)
	}
	terminating := pod.DeepCopy()
	terminating.DeletionTimestamp = new(metav1.NewTime(c.clock.Now()))
	return terminating, nil
}

// deletePod deletes a Pod. For a Pod without the label, later reads do not wait for the deletion, because the cache
// does not have the Pod.
func (c *Controller) deletePod(ctx context.Context, pod *corev1.Pod, unchanged client.Preconditions) error {
	options := []client.DeleteOption{unchanged}
	if !isLabelled(pod) {
		options = append(options, client.DisableReadYourWritesConsistency)
	}
	return c.pods.Delete(ctx, pod, options...)
}

// resize changes the Pod's resources in place. The container is not restarted.
func (c *Controller) resize(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod) (*corev1.Pod, error) {
	changed := pod.DeepCopy()
	setResources(changed, vm)
	// A strategic merge patch changes only this container. A merge patch would replace the list of containers.
	change := client.StrategicMergeFrom(pod, client.MergeFromWithOptimisticLock{})
	err := c.pods.SubResource("resize").Patch(ctx, changed, change)
	switch {
	case cannotResize(err):
		return pod, errCannotResize
	case err != nil:
		return pod, apierror.IgnoreGone(err)
	}
	if !hasResources(changed, vm) {
		return changed, errNotResized
	}
	applied := resourcesOf(vm)
	delete(applied, corev1.ResourceEphemeralStorage)
	c.events.Normal(vm, pod, v1alpha1.EventResized, "Resize", "Resized Pod %s to %s", pod.Name, describe(applied))
	return changed, nil
}

// cannotResize reports whether the API server does not serve pods/resize. The error is NotFound, as for a Pod that
// does not exist. But it names no object, or it does not come from the API itself.
func cannotResize(err error) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answer) {
		return false
	}
	details := answer.Status().Details
	return details == nil || details.Name == "" || apierrors.IsUnexpectedServerError(err)
}

// describe returns resources as text, such as "cpu 2, memory 4G".
func describe(resources corev1.ResourceList) string {
	words := make([]string, 0, len(resources))
	for name, quantity := range resources {
		words = append(words, fmt.Sprintf("%s %s", name, quantity.String()))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package standin simulates the scheduler and the kubelet for a control plane without nodes. It binds every Pod to one
// node, and sets the Pod's status as if all containers were ready. It applies resizes, and removes deleted Pods. Tests
// can also simulate failures of a Pod.
package standin

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// NodeName is the name of the node to which every Pod is bound.
const NodeName = "stand-in"

// workers is the number of Pods that are reconciled at the same time.
const workers = 16

// A Fate is the simulated behaviour of a Pod. If the Fate is zero, the Pod runs.
type Fate struct {
	// Unschedulable is the message of the condition PodScheduled=False. If it is empty, the Pod is scheduled.
	Unschedulable string
	// Waiting is the reason why the containers wait, such as ImagePullBackOff. If it is empty, they run.
	Waiting string
	// Evicted is the message of a Pod that was evicted. If it is empty, the Pod is not evicted.
	Evicted string
	// NoResize is the reason why a resize stays pending: Deferred or Infeasible. If it is empty, resizes are applied.
	NoResize string
	// Lingering keeps a deleted Pod in the state Terminating.
	Lingering bool
}

// A Node simulates a node: it writes the status of Pods to the API server, and runs no containers.
type Node struct {
	client client.Client
	wake   chan event.TypedGenericEvent[client.ObjectKey]
	done   chan struct{}

	mu    sync.Mutex
	fates map[client.ObjectKey]Fate
}

// Start starts a simulated node. It runs until the context ends.
func Start(ctx context.Context, restConfig *rest.Config) (*Node, error) {
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Logger:     logr.New(log.NullLogSink{}),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("start the simulated node: %w", err)
	}
	n := &Node{
		client: mgr.GetClient(),
		wake:   make(chan event.TypedGenericEvent[client.ObjectKey]),
		done:   make(chan struct{}),
		fates:  map[client.ObjectKey]Fate{},
	}
	request := func(_ context.Context, pod client.ObjectKey) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: pod}}
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("stand-in").
		For(&corev1.Pod{}).
		WatchesRawSource(source.Channel(n.wake, handler.TypedEnqueueRequestsFromMapFunc(request))).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(n)
	if err != nil {
		return nil, fmt.Errorf("start the simulated node: %w", err)
	}
	// The API server reads the node when it admits a resize.
	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10k"),
		corev1.ResourceMemory: resource.MustParse("1Pi")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if err := n.client.Create(ctx, node); client.IgnoreAlreadyExists(err) != nil {
		return nil, fmt.Errorf("start the simulated node: %w", err)
	}
	go func() {
		defer close(n.done)
		_ = mgr.Start(ctx) // a failure is visible: the status of Pods stops changing
	}()
	return n, nil
}

// Wait returns when the node has stopped.
func (n *Node) Wait() { <-n.done }

// Set sets the behaviour of a Pod. The Pod may be created later.
func (n *Node) Set(pod client.ObjectKey, fate Fate) {
	n.mu.Lock()
	n.fates[pod] = fate
	n.mu.Unlock()
	select {
	case n.wake <- event.TypedGenericEvent[client.ObjectKey]{Object: pod}:
	case <-n.done:
	}
}

func (n *Node) fate(pod client.ObjectKey) Fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fates[pod]
}

// Reconcile changes a Pod according to its Fate.
func (n *Node) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := n.client.Get(ctx, request.NamespacedName, pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	fate := n.fate(request.NamespacedName)
	switch {
	case !pod.DeletionTimestamp.IsZero() && fate.Lingering:
		return reconcile.Result{}, nil
	case !pod.DeletionTimestamp.IsZero():
		err := n.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
		return reconcile.Result{}, ignoreStale(err)
	case pod.Spec.NodeName == "" && fate.Unschedulable == "":
		// The binding changes the Pod. That change triggers the next Reconcile.
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: NodeName}}
		return reconcile.Result{}, ignoreStale(n.client.SubResource("binding").Create(ctx, pod, binding))
	}
	changed := pod.DeepCopy()
	changed.Status = status(pod, fate)
	if equality.Semantic.DeepEqual(pod.Status, changed.Status) {
		return reconcile.Result{}, nil
	}
	patch := client.MergeFromWithOptions(pod, client.MergeFromWithOptimisticLock{})
	return reconcile.Result{}, ignoreStale(n.client.Status().Patch(ctx, changed, patch))
}

// ignoreStale ignores the errors of a write that was based on an old version of a Pod. The new version triggers
// another Reconcile.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

// status returns the status that a kubelet or a scheduler would set.
func status(pod *corev1.Pod, fate Fate) corev1.PodStatus {
	status := *pod.Status.DeepCopy()
	if status.Phase == corev1.PodFailed {
		return status // a failed Pod stays failed
	}
	if pod.Spec.NodeName == "" {
		setCondition(&status, corev1.PodScheduled, false, corev1.PodReasonUnschedulable, fate.Unschedulable)
		return status
	}
	if fate.Evicted != "" {
		status.Phase, status.Reason, status.Message = corev1.PodFailed, "Evicted", fate.Evicted
		status.ContainerStatuses = nil
		setCondition(&status, corev1.PodReady, false, "PodFailed", "")
		return status
	}
	runs := fate.Waiting == ""
	status.Phase = corev1.PodRunning
	if status.StartTime == nil {
		status.StartTime = new(metav1.Now())
	}
	setCondition(&status, corev1.PodInitialized, true, "", "")
	setCondition(&status, corev1.ContainersReady, runs, "", "")
	setCondition(&status, corev1.PodReady, runs, "", "")
	before := status.ContainerStatuses
	status.ContainerStatuses = make([]corev1.ContainerStatus, len(pod.Spec.Containers))
	for i, container := range pod.Spec.Containers {
		if i < len(before) {
			status.ContainerStatuses[i] = before[i]
		}
		setContainer(&status.ContainerStatuses[i], container, fate)
	}
	resize(pod, &status, before, fate)
	return status
}

func setContainer(status *corev1.ContainerStatus, container corev1.Container, fate Fate) {
	runs := fate.Waiting == ""
	status.Name, status.Image = container.Name, container.Image
	status.Ready, status.Started = runs, &runs
	switch {
	case !runs:
		if status.State.Running != nil {
			status.RestartCount++
		}
		waiting := &corev1.ContainerStateWaiting{Reason: fate.Waiting, Message: "simulated by the test"}
		status.State = corev1.ContainerState{Waiting: waiting}
	case status.State.Running == nil:
		status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	}
}

// resize applies changed resources, or sets the condition PodResizePending.
func resize(pod *corev1.Pod, status *corev1.PodStatus, before []corev1.ContainerStatus, fate Fate) {
	pending := false
	for i, container := range pod.Spec.Containers {
		if fate.NoResize != "" && i < len(before) {
			pending = pending || !equal(before[i].Resources, container.Resources)
			continue
		}
		if !equal(status.ContainerStatuses[i].Resources, container.Resources) {
			status.ContainerStatuses[i].Resources = container.Resources.DeepCopy()
		}
		status.ContainerStatuses[i].AllocatedResources = container.Resources.Requests
	}
	if pending {
		setCondition(status, corev1.PodResizePending, true, fate.NoResize, "simulated by the test")
		return
	}
	status.Conditions = without(status.Conditions, corev1.PodResizePending)
}

// equal reports whether the limits are applied. It does not compare requests.
func equal(applied *corev1.ResourceRequirements, wanted corev1.ResourceRequirements) bool {
	if applied == nil {
		return false
	}
	for name, quantity := range wanted.Limits {
		if quantity.Cmp(applied.Limits[name]) != 0 {
			return false
		}
	}
	return true
}

func setCondition(status *corev1.PodStatus, conditionType corev1.PodConditionType, holds bool, reason, message string) {
	value := corev1.ConditionFalse
	if holds {
		value = corev1.ConditionTrue
	}
	condition := corev1.PodCondition{
		Type: conditionType, Status: value, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	}
	for i, known := range status.Conditions {
		if known.Type == conditionType {
			if known.Status == value {
				condition.LastTransitionTime = known.LastTransitionTime
			}
			status.Conditions[i] = condition
			return
		}
	}
	status.Conditions = append(status.Conditions, condition)
}

func without(conditions []corev1.PodCondition, conditionType corev1.PodConditionType) []corev1.PodCondition {
	var kept []corev1.PodCondition
	for _, condition := range conditions {
		if condition.Type != conditionType {
			kept = append(kept, condition)
		}
	}
	return kept
}

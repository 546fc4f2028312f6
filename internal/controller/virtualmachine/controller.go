// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package virtualmachine runs one Pod, with the CPU and memory of the spec, for each active VirtualMachine.
//
// The functions decide and newStatus have no side effects. decide computes a plan from the VirtualMachine, its Pod and
// the time. newStatus also uses the errors of act and the usage. The new phase never depends on the previous phase.
// act.go executes the plan, and usage.go reads the usage of the Pods from the metrics API.
package virtualmachine

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/events"
	"container.training/useless/internal/informer"
	"container.training/useless/internal/memory"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
	"container.training/useless/internal/queue"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "virtualmachine"

	// DefaultImage is the default container image. Its program only waits until it is stopped.
	DefaultImage = "registry.k8s.io/pause:3.10.1"

	// DefaultUsageInterval is the default time between two requests to the metrics API.
	DefaultUsageInterval = 30 * time.Second

	workers = 16

	// maxUnlabelled is the maximum number of keys in Controller.unlabelled (LRU). If an unlabelled Pod has no key,
	// a read of this Pod may block until the timeout.
	maxUnlabelled = 4096

	// firstRetry is the delay before the first retry of a rejected request. The delay doubles with each rejection.
	firstRetry = time.Second

	// createAction is the action of the events about the creation of a Pod.
	createAction = "Create"

	// crashLoop is the kubelet's reason for waiting before it restarts a crashed container.
	crashLoop = "CrashLoopBackOff"
)

// Options configure the controller.
type Options struct {
	// Image is the container image. It must run as a numeric user other than root. Empty means DefaultImage.
	Image string
	// UsageInterval is the time between two requests to the metrics API, at least 1 s. Zero means DefaultUsageInterval.
	UsageInterval time.Duration
}

// AddFlags adds the controller's flags.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.Image, "vm-image", DefaultImage,
		"the container image of VirtualMachines; it must run as a numeric user other than root")
	flags.DurationVar(&o.UsageInterval, "vm-usage-interval", DefaultUsageInterval,
		"the time between two requests for the usage of VirtualMachines, at least 1s")
}

// Validate returns an error for an interval that would overload the metrics API.
func (o Options) Validate() error {
	if o.UsageInterval != 0 && o.UsageInterval < time.Second {
		return fmt.Errorf("invalid value %s for flag --vm-usage-interval: must be at least 1s, such as 30s",
			o.UsageInterval)
	}
	return nil
}

// CacheOptions returns nil. VirtualMachines need no options, and the Pods have a separate cache.
func (Options) CacheOptions() map[client.Object]cache.ByObject { return nil }

// Controller reconciles VirtualMachines.
type Controller struct {
	client    client.Client
	pods      client.Client // its cache has only the Pods of VirtualMachines
	reader    client.Reader // reads from the API server
	image     string
	clock     clock.PassiveClock
	events    *events.Recorder
	metrics   *metrics
	usage     *poller
	finalizer *patch.Finalizer
	retries   workqueue.TypedRateLimiter[reconcile.Request] // the delays of wakeUp
	alarms    *queue.Alarms
	crashing  memory.Memory[types.UID] // the UID of the Pod with the last CrashLoop event

	// unlabelled has the keys of Pods that were created without the label, because an admission webhook removed it. The
	// cache never shows such a Pod, so a read must not wait for it. A key stays when its VirtualMachine is deleted,
	// because a new VirtualMachine of the same name has the same Pod key.
	unlabelled *lru.Cache
}

// Setup adds the controller to a manager, and registers its metrics.
func (o Options) Setup(
	ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	pods, podErr := newPodCluster(mgr)
	machines, storeErr := informer.Store(ctx, mgr.GetCache(), &v1alpha1.VirtualMachine{}, nil)
	if err := errors.Join(podErr, storeErr); err != nil {
		return err
	}
	metrics := newMetrics(registerer, machines)
	usage, err := newPoller(ctx, mgr, pods.GetCache(), cmp.Or(o.UsageInterval, DefaultUsageInterval), clock, metrics)
	if err != nil {
		return err
	}
	c := &Controller{
		client:     mgr.GetClient(),
		pods:       pods.GetClient(),
		reader:     mgr.GetAPIReader(),
		image:      cmp.Or(o.Image, DefaultImage),
		clock:      clock,
		events:     events.NewRecorder(mgr),
		metrics:    metrics,
		usage:      usage,
		finalizer:  &patch.Finalizer{Name: v1alpha1.VirtualMachineFinalizer},
		retries:    queue.NewRateLimiter(firstRetry),
		alarms:     queue.NewAlarms(clock),
		unlabelled: lru.New(maxUnlabelled),
	}
	wake := handler.TypedEnqueueRequestsFromMapFunc(requestOf)
	return errors.Join(mgr.Add(pods), mgr.Add(usage), ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&v1alpha1.VirtualMachine{}, builder.WithPredicates(pause.Predicate())).
		WatchesRawSource(source.Kind(pods.GetCache(), &corev1.Pod{}, wake)).
		WatchesRawSource(source.Channel(usage.wake, wake)).
		WatchesRawSource(c.alarms.Source()).
		WithOptions(queue.Options(workers)).
		Complete(c))
}

// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups=metrics.k8s.io,resources=pods,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings a VirtualMachine and its Pod one step closer to the spec.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	cached := &v1alpha1.VirtualMachine{}
	if err := c.client.Get(ctx, request.NamespacedName, cached, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(request)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	vm, err := c.prepare(ctx, cached)
	if vm == nil || err != nil {
		return reconcile.Result{}, apierror.IgnoreGone(err)
	}
	pod, err := c.podOf(ctx, vm)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := decide(vm, pod, c.clock.Now(), vm != cached) // after a write, vm is the API server's answer
	if p.removeFinalizer {
		return reconcile.Result{}, patch.RemoveFinalizer(ctx, c.client, vm, c.finalizer)
	}
	pod, done, actErr := c.act(ctx, vm, pod, p)
	if actErr != nil && done.createErr == nil && vm.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, actErr // the request failed, so the state of the Pod is not known
	}
	status := newStatus(vm, pod, done, c.usage.of(pod), c.clock.Now())
	if err := errors.Join(actErr, c.writeStatus(ctx, vm, pod, status)); err != nil {
		return reconcile.Result{}, err
	}
	// Reconcile again later if the API server rejected a request, or if the cache lacks the Pod. There is no watch
	// event when the API server would accept the request, or when a Pod outside the cache changes.
	c.wakeUp(request, p.next, done != (outcome{}) || c.isUncached(ctx, vm, pod))
	return reconcile.Result{}, nil
}

// prepare adds or removes the finalizer. It returns the resulting VirtualMachine, or nil if nothing is left to do.
func (c *Controller) prepare(
	ctx context.Context, vm *v1alpha1.VirtualMachine,
) (*v1alpha1.VirtualMachine, error) {
	switch deleted, paused := !vm.DeletionTimestamp.IsZero(), pause.IsPaused(vm); {
	case !deleted && !paused:
		return patch.AddFinalizer(ctx, c.client, vm, c.finalizer)
	case !deleted || !c.finalizer.Holds(vm):
		return nil, nil
	case paused || controllerutil.ContainsFinalizer(vm, metav1.FinalizerOrphanDependents):
		// The VirtualMachine is deleted. If it is paused, the garbage collector deletes its Pod. With the deletion
		// policy Orphan, the Pod keeps running.
		return nil, patch.RemoveFinalizer(ctx, c.client, vm, c.finalizer)
	}
	return vm, nil
}

// podOf returns the VirtualMachine's Pod, or nil. If there may be a Pod outside the cache, it reads from the API
// server.
func (c *Controller) podOf(ctx context.Context, vm *v1alpha1.VirtualMachine) (*corev1.Pod, error) {
	pod, options := &corev1.Pod{}, []client.GetOption{client.UnsafeDisableDeepCopy}
	if _, unlabelled := c.unlabelled.Get(podKey(vm)); unlabelled {
		options = append(options, client.DisableReadYourWritesConsistency)
	}
	err := c.pods.Get(ctx, podKey(vm), pod, options...)
	switch {
	case err == nil && metav1.IsControlledBy(pod, vm):
		return pod, nil
	case client.IgnoreNotFound(err) != nil || !mayHavePod(vm):
		return nil, client.IgnoreNotFound(err)
	}
	pod, err = c.currentPod(ctx, vm)
	if errors.Is(err, errNameConflict) {
		return nil, nil // create reports the conflict
	}
	return pod, err
}

// currentPod reads the VirtualMachine's Pod from the API server. It returns nil if there is no Pod, and errNameConflict
// if the VirtualMachine does not control the Pod.
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

// isUnchanged reads the VirtualMachine from the API server. It returns false if the VirtualMachine is deleted or has
// another action. The controller calls it before it creates or stops a Pod, because the cache of VirtualMachines can be
// older than the cache of Pods. The controller must not replace a Pod that the garbage collector deletes. If a user has
// just activated the VirtualMachine again, the controller must not delete the Pod, because its data would be lost.
func (c *Controller) isUnchanged(ctx context.Context, vm *v1alpha1.VirtualMachine) (bool, error) {
	current := &v1alpha1.VirtualMachine{}
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(vm), current); err != nil {
		return false, apierror.IgnoreGone(err)
	}
	return current.UID == vm.UID && current.DeletionTimestamp.IsZero() && isActive(current) == isActive(vm), nil
}

// isUncached reports whether the cache lacks the Pod. It returns false if pod is nil.
func (c *Controller) isUncached(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	cached := &corev1.Pod{}
	err := c.pods.Get(ctx, podKey(vm), cached, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	return err != nil || !metav1.IsControlledBy(cached, vm)
}

// wakeUp schedules the next reconcile: after an increasing delay if poll is true, and otherwise at the time next. The
// zero time schedules no reconcile.
func (c *Controller) wakeUp(request reconcile.Request, next time.Time, poll bool) {
	if poll {
		next = c.clock.Now().Add(c.retries.When(request))
	} else {
		c.retries.Forget(request)
	}
	c.alarms.Set(request, next)
}

// forget drops the data about a VirtualMachine that does not exist any more.
func (c *Controller) forget(request reconcile.Request) {
	c.crashing.Forget(request.NamespacedName)
	c.finalizer.Forget(request.NamespacedName)
	c.wakeUp(request, time.Time{}, false)
}

// writeStatus writes the status if it has changed, and emits the events about the change.
func (c *Controller) writeStatus(
	ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, status v1alpha1.VirtualMachineStatus,
) error {
	if reflect.DeepEqual(vm.Status, status) {
		return nil
	}
	status.LastUpdateTime = new(metav1.NewTime(c.clock.Now()))
	field := func(vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachineStatus { return &vm.Status }
	written, err := patch.Status(ctx, c.client, vm, field, &status)
	if err != nil {
		return apierror.IgnoreGone(err)
	}
	c.announce(written, pod, vm.Status)
	return nil
}

// announce emits the events for the difference between two statuses.
func (c *Controller) announce(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, before v1alpha1.VirtualMachineStatus) {
	if is, was := vm.Status.Server, before.Server; is != nil && is.StartTime != nil &&
		(was == nil || was.ID != is.ID || was.StartTime == nil) {
		c.metrics.creation.Observe(c.clock.Since(pod.CreationTimestamp.Time).Seconds())
		c.events.Normal(vm, pod, v1alpha1.EventStarted, "Start", "Started Pod %s on node %s", is.Name, is.Node)
	}
	if vm.Status.Phase == v1alpha1.PhaseStopped && before.Server != nil {
		c.events.Normal(vm, nil, v1alpha1.EventStopped, "Stop", "Stopped Pod %s", before.Server.Name)
	}
	if vm.Status.Reason == before.Reason || c.knownToCrash(vm, before) {
		return
	}
	warnings := map[string]struct{ event, action string }{
		v1alpha1.ReasonQuotaExceeded: {v1alpha1.EventCreateFailed, createAction},
		v1alpha1.ReasonCreateFailed:  {v1alpha1.EventCreateFailed, createAction},
		v1alpha1.ReasonNameConflict:  {v1alpha1.EventNameConflict, createAction},
		v1alpha1.ReasonUnschedulable: {v1alpha1.EventUnschedulable, "Schedule"},
		crashLoop:                    {v1alpha1.EventCrashLoop, "Start"},
	}
	if warning, ok := warnings[vm.Status.Reason]; ok {
		c.events.Warning(vm, warning.event, warning.action, "%s", vm.Status.Message)
	}
}

// knownToCrash reports whether there already is an event about the crashes of a Pod. A crashing Pod runs for a while
// between two crashes, so its reason changes after each crash. These changes must not cause more events.
func (c *Controller) knownToCrash(vm *v1alpha1.VirtualMachine, before v1alpha1.VirtualMachineStatus) bool {
	if ready := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady); ready != nil &&
		ready.Status == metav1.ConditionTrue && c.clock.Since(ready.LastTransitionTime.Time) >= stableAfter {
		c.crashing.Keep(vm, "")
	}
	if vm.Status.Reason != crashLoop || vm.Status.Server == nil {
		return false
	}
	known := c.crashing.Of(vm) == vm.Status.Server.ID
	c.crashing.Keep(vm, vm.Status.Server.ID)
	return known
}

// newPodCluster returns a cache of the Pods of VirtualMachines, with a client that reads from it. The manager's cache
// cannot be used, because other controllers read other Pods.
//
// The cache uses DefaultLabelSelector, which applies to all kinds. This is correct, because the cache has only Pods.
func newPodCluster(mgr ctrl.Manager) (cluster.Cluster, error) {
	labelled, err := labels.Parse(v1alpha1.VirtualMachineLabel)
	if err != nil {
		return nil, err
	}
	return cluster.New(mgr.GetConfig(), func(o *cluster.Options) {
		o.HTTPClient, o.Scheme = mgr.GetHTTPClient(), mgr.GetScheme()
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mgr.GetRESTMapper(), nil }
		o.Cache.NewInformer, o.Cache.DefaultLabelSelector = informer.New, labelled
		o.Cache.DefaultTransform = cache.TransformStripManagedFields()
		o.Client.Cache = &client.CacheOptions{EnableReadYourWritesConsistency: new(true)}
	})
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package virtualmachine keeps a server for every VirtualMachine that is active: a Pod with the CPU and memory that it
// asks for.
//
// What to do follows from the VirtualMachine, its Pod and the time alone (decide.go); doing it (act.go) and describing
// the result (status.go) are separate, as is asking what the servers use (usage.go). What a VirtualMachine is follows
// from its Pod every time, never from what it was.
package virtualmachine

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/object"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "virtualmachine"

	// DefaultImage is the image of servers if the operator is not told another: a container that does nothing.
	DefaultImage = "registry.k8s.io/pause:3.10.1"

	// DefaultUsageInterval is the time between two requests for the servers' usage, if the operator is not told another.
	DefaultUsageInterval = 30 * time.Second

	workers = 16

	// firstRefusal is the delay before the API server is asked again for what it has refused. It doubles each time.
	firstRefusal = time.Second

	// creating is the action of the events about it.
	creating = "Create"

	// crashLoop is the kubelet's reason for not starting a container at once that ends again and again.
	crashLoop = "CrashLoopBackOff"
)

// A Controller reconciles VirtualMachines.
type Controller struct {
	client   client.Client
	reader   client.Reader // reads from the API server, where the cache may be too old
	machines toolscache.Store
	pods     toolscache.Store
	options  Options
	clock    clock.PassiveClock
	events   *object.Events
	metrics  *metrics
	usage    *poller
	recent   recent
	refusals workqueue.TypedRateLimiter[reconcile.Request]
	crashing sync.Map // the server's UID by the client.ObjectKey of its VirtualMachine, whose users know
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
	podCache, err := newPodCache(mgr)
	if err != nil {
		return err
	}
	machines, err := object.Store(ctx, mgr.GetCache(), &v1alpha1.VirtualMachine{}, nil)
	if err != nil {
		return err
	}
	pods, err := object.Store(ctx, podCache, &corev1.Pod{}, nil)
	if err != nil {
		return err
	}
	metrics, err := newMetrics(registerer, machines)
	if err != nil {
		return err
	}
	list, err := usageLister(mgr)
	if err != nil {
		return err
	}
	usage := &poller{
		list:     list,
		synced:   podCache.WaitForCacheSync,
		pods:     pods,
		interval: options.UsageInterval,
		clock:    clock,
		log:      mgr.GetLogger().WithName(Name),
		metrics:  metrics,
		wake:     make(chan event.TypedGenericEvent[client.ObjectKey]),
	}
	c := &Controller{
		client:   mgr.GetClient(),
		reader:   mgr.GetAPIReader(),
		machines: machines,
		pods:     pods,
		options:  options,
		clock:    clock,
		events:   object.NewEvents(mgr),
		metrics:  metrics,
		usage:    usage,
		refusals: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRefusal, object.LastRetry),
	}
	if err := errors.Join(mgr.Add(podCache), mgr.Add(usage)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&v1alpha1.VirtualMachine{}, builder.WithPredicates(object.NotPaused())).
		WatchesRawSource(source.Kind(podCache, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(machinesOf))).
		WatchesRawSource(source.Channel(usage.wake, handler.TypedEnqueueRequestsFromMapFunc(machine))).
		WithOptions(object.Options(workers)).
		Complete(c)
}

// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups=metrics.k8s.io,resources=pods,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings a VirtualMachine and its server one step closer to what it asks for. An error means that something was
// not done; it is tried again with growing delays.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	cached, exists, err := c.machines.GetByKey(request.String())
	if err != nil || !exists {
		c.refusals.Forget(request)
		c.recent.forget(request.NamespacedName)
		c.crashing.Delete(request.NamespacedName)
		return reconcile.Result{}, err
	}
	vm := cached.(*v1alpha1.VirtualMachine)
	if c.recent.outdates(vm) {
		return reconcile.Result{}, nil
	}
	if !vm.DeletionTimestamp.IsZero() {
		return c.finalize(ctx, request, vm)
	}
	if object.Paused(vm) {
		return reconcile.Result{}, nil
	}
	if vm, err = c.ensureFinalizer(ctx, vm); err != nil {
		return reconcile.Result{}, object.IgnoreGone(err)
	}
	return c.keep(ctx, request, vm)
}

// keep sees to the server of a VirtualMachine that stays.
func (c *Controller) keep(ctx context.Context, request reconcile.Request, vm *v1alpha1.VirtualMachine) (reconcile.Result, error) {
	pod, err := c.server(ctx, vm)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := decide(vm, pod, c.clock.Now())
	pod, refused, actErr := c.act(ctx, vm, pod, p)
	if actErr != nil && refused.creating == nil {
		return reconcile.Result{}, actErr // what there is now is not known
	}
	err = c.writeStatus(ctx, vm, pod, newStatus(vm, pod, refused, c.usage.of(vm, pod), c.clock.Now()))
	if err = errors.Join(actErr, err); err != nil {
		return reconcile.Result{}, err
	}
	// Nobody tells us of what the API server would take by now, nor of a Pod that the cache may never have.
	untold := refused != (outcome{}) || pod != nil && c.cachedPod(vm) == nil
	return c.again(request, p.next, untold), nil
}

// again asks for the next reconcile: when it is due, or when it is time to look for what we are not told of.
func (c *Controller) again(request reconcile.Request, next time.Time, untold bool) reconcile.Result {
	if untold {
		return reconcile.Result{RequeueAfter: c.refusals.When(request)}
	}
	c.refusals.Forget(request)
	if next.IsZero() {
		return reconcile.Result{}
	}
	// At least a nanosecond: zero would mean never.
	return reconcile.Result{RequeueAfter: max(next.Sub(c.clock.Now()), 1)}
}

// ensureFinalizer puts the finalizer on before there is anything to finalize. It returns the VirtualMachine as it is then.
func (c *Controller) ensureFinalizer(ctx context.Context, vm *v1alpha1.VirtualMachine) (*v1alpha1.VirtualMachine, error) {
	written, err := object.EnsureFinalizer(ctx, c.client, vm, v1alpha1.VirtualMachineFinalizer)
	if err == nil && written != vm {
		c.recent.wrote(written)
	}
	return written, err
}

// writeStatus writes the status if it says anything new, and the events that the change is worth.
func (c *Controller) writeStatus(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, status v1alpha1.VirtualMachineStatus) error {
	if reflect.DeepEqual(vm.Status, status) {
		return nil
	}
	status.LastUpdateTime = new(metav1.NewTime(c.clock.Now()))
	of := func(vm *v1alpha1.VirtualMachine) *v1alpha1.VirtualMachineStatus { return &vm.Status }
	written, err := object.PatchStatus(ctx, c.client, vm, of, &status)
	if err != nil {
		return object.IgnoreGone(err)
	}
	c.recent.wrote(written)
	c.announce(written, pod, vm.Status)
	return nil
}

// announce tells of what a status says that the one before did not.
func (c *Controller) announce(vm *v1alpha1.VirtualMachine, pod *corev1.Pod, before v1alpha1.VirtualMachineStatus) {
	if server, known := vm.Status.Server, before.Server; server != nil && server.StartTime != nil &&
		(known == nil || known.ID != server.ID || known.StartTime == nil) {
		c.metrics.creation.Observe(c.clock.Since(pod.CreationTimestamp.Time).Seconds())
		c.events.Tell(vm, pod, v1alpha1.EventStarted, "Start", "Started server %s on node %s", server.Name, server.Node)
	}
	if vm.Status.Phase == v1alpha1.PhaseStopped && before.Server != nil {
		c.events.Tell(vm, nil, v1alpha1.EventStopped, "Stop", "Stopped server %s", before.Server.Name)
	}
	if vm.Status.Reason == before.Reason || c.knownToCrash(vm, before) {
		return
	}
	warnings := map[string]struct{ event, action string }{
		v1alpha1.ReasonQuotaExceeded: {v1alpha1.EventCreateFailed, creating},
		v1alpha1.ReasonCreateFailed:  {v1alpha1.EventCreateFailed, creating},
		v1alpha1.ReasonNameConflict:  {v1alpha1.EventNameConflict, creating},
		v1alpha1.ReasonUnschedulable: {v1alpha1.EventUnschedulable, "Schedule"},
		crashLoop:                    {v1alpha1.EventCrashLoop, "Start"},
	}
	if warning, ok := warnings[vm.Status.Reason]; ok {
		c.events.Warn(vm, warning.event, warning.action, "%s", vm.Status.Message)
	}
}

// knownToCrash reports whether a server crashes of which people know that it does. In a loop it runs again and again in
// between, for a while that is not worth another event.
func (c *Controller) knownToCrash(vm *v1alpha1.VirtualMachine, before v1alpha1.VirtualMachineStatus) bool {
	key := client.ObjectKeyFromObject(vm)
	if ready := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady); ready != nil &&
		ready.Status == metav1.ConditionTrue && c.clock.Since(ready.LastTransitionTime.Time) >= forgiving {
		c.crashing.Delete(key)
	}
	if vm.Status.Reason != crashLoop || vm.Status.Server == nil {
		return false
	}
	known, ok := c.crashing.Swap(key, vm.Status.Server.ID)
	return ok && known == vm.Status.Server.ID
}

// machinesOf returns the VirtualMachine whose server a Pod is, or is in the way of.
func machinesOf(ctx context.Context, pod *corev1.Pod) []reconcile.Request {
	if vm, ok := ownerOfName(pod); ok {
		return machine(ctx, vm)
	}
	return nil
}

func machine(_ context.Context, vm client.ObjectKey) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: vm}}
}

// newPodCache makes a cache that has no Pods but those of VirtualMachines. It is not the manager's, because other
// controllers look at other Pods. Its selector is the default one, and not one by object: controller-runtime would start a
// cache of that kind on the leader alone, while the controller waits for it on each replica.
func newPodCache(mgr ctrl.Manager) (cache.Cache, error) {
	labelled, err := labels.NewRequirement(v1alpha1.VirtualMachineLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	return cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:       mgr.GetHTTPClient(),
		Scheme:           mgr.GetScheme(),
		NewInformer:      object.NewInformer,
		Mapper:           mgr.GetRESTMapper(),
		DefaultTransform: cache.TransformStripManagedFields(),

		DefaultLabelSelector: labels.NewSelector().Add(*labelled),
	})
}

// usageLister returns a function that asks the metrics API for what all servers use.
func usageLister(mgr ctrl.Manager) (func(context.Context) (*metricsv1beta1.PodMetricsList, error), error) {
	clients, err := metricsclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*metricsv1beta1.PodMetricsList, error) {
		return clients.MetricsV1beta1().PodMetricses(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.VirtualMachineLabel})
	}, nil
}

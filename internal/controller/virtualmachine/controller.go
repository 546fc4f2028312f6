// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package virtualmachine keeps a server for each active VirtualMachine: a Pod with the CPU and memory of its spec.
//
// decide.go and status.go are pure: they compute what to do, and the status, from the VirtualMachine, its Pod and the time.
// act.go carries it out, usage.go reads the servers' usage from the metrics API. The phase follows from the Pod each time,
// never from the previous phase.
package virtualmachine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/events"
	"container.training/useless/internal/informer"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
	"container.training/useless/internal/queue"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "virtualmachine"

	// DefaultImage is the default image of servers: a container that does nothing.
	DefaultImage = "registry.k8s.io/pause:3.10.1"

	// DefaultUsageInterval is the default time between two requests for the servers' usage.
	DefaultUsageInterval = 30 * time.Second

	workers = 16

	// firstRefusal is the delay before a refused request is tried again. It doubles each time.
	firstRefusal = time.Second

	// creating is the action of the events about the creation of a server.
	creating = "Create"

	// crashLoop is the kubelet's reason for the delay of a container that has ended several times.
	crashLoop = "CrashLoopBackOff"
)

// Options configure the controller.
type Options struct {
	// Image is the image of servers. It has to name a user that is not root by its number. Empty means DefaultImage.
	Image string
	// UsageInterval is the time between two requests for the servers' usage, at least 1 s. Zero means DefaultUsageInterval.
	UsageInterval time.Duration
}

// Validate returns an error for an interval that would overload the metrics API.
func (o Options) Validate() error {
	if o.UsageInterval != 0 && o.UsageInterval < time.Second {
		return fmt.Errorf("invalid value %s for flag --vm-usage-interval: must be at least 1s, such as 30s", o.UsageInterval)
	}
	return nil
}

// CacheOptions returns none: the controller has a cache of its own.
func (Options) CacheOptions() map[client.Object]cache.ByObject { return nil }

// Controller reconciles VirtualMachines.
type Controller struct {
	client    client.Client
	pods      client.Client // its cache has the Pods of VirtualMachines only
	podStore  toolscache.Store
	reader    client.Reader // reads from the API server
	image     string
	clock     clock.PassiveClock
	events    *events.Recorder
	metrics   *metrics
	usage     *poller
	finalizer *patch.Finalizer
	refusals  workqueue.TypedRateLimiter[reconcile.Request]
	crashing  sync.Map // by client.ObjectKey of a VirtualMachine, the UID of a server whose crashes have an event
	alarms    *queue.Alarms
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func (o Options) Setup(
	ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	podCache, pods, err := newPodCache(mgr)
	if err != nil {
		return err
	}
	machines, err := informer.Store(ctx, mgr.GetCache(), &v1alpha1.VirtualMachine{}, nil)
	if err != nil {
		return err
	}
	podStore, err := informer.Store(ctx, podCache, &corev1.Pod{}, nil)
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
		pods:     podStore,
		interval: cmp.Or(o.UsageInterval, DefaultUsageInterval),
		clock:    clock,
		log:      mgr.GetLogger().WithName(Name),
		metrics:  metrics,
		wake:     make(chan event.TypedGenericEvent[client.ObjectKey]),
	}
	c := &Controller{
		client:    mgr.GetClient(),
		pods:      pods,
		podStore:  podStore,
		reader:    mgr.GetAPIReader(),
		image:     cmp.Or(o.Image, DefaultImage),
		clock:     clock,
		events:    events.NewRecorder(mgr),
		metrics:   metrics,
		usage:     usage,
		finalizer: patch.NewFinalizer(v1alpha1.VirtualMachineFinalizer),
		refusals:  queue.NewRateLimiter(firstRefusal),
		alarms:    queue.NewAlarms(clock),
	}
	if err := errors.Join(mgr.Add(podCache), mgr.Add(usage)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&v1alpha1.VirtualMachine{}, builder.WithPredicates(pause.Predicate())).
		WatchesRawSource(source.Kind(podCache, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(machinesOf))).
		WatchesRawSource(source.Channel(usage.wake, handler.TypedEnqueueRequestsFromMapFunc(machine))).
		WatchesRawSource(c.alarms.Source()).
		WithOptions(queue.Options(workers)).
		Complete(c)
}

// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups=metrics.k8s.io,resources=pods,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings a VirtualMachine and its server one step closer to the spec.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	vm := &v1alpha1.VirtualMachine{}
	err := c.client.Get(ctx, request.NamespacedName, vm, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		c.forget(request)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case !vm.DeletionTimestamp.IsZero():
		return reconcile.Result{}, c.finalize(ctx, request, vm)
	case pause.IsPaused(vm):
		return reconcile.Result{}, nil
	}
	cached := vm
	if vm, err = patch.AddFinalizer(ctx, c.client, cached, c.finalizer); err != nil {
		return reconcile.Result{}, apierror.IgnoreGone(err)
	}
	pod, err := c.server(ctx, vm)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := decide(vm, pod, c.clock.Now())
	p.confirm = p.confirm && vm == cached // the answer to a write is up to date
	pod, refused, actErr := c.act(ctx, vm, pod, p)
	if actErr != nil && refused.creating == nil {
		return reconcile.Result{}, actErr // the state is not known
	}
	status := newStatus(vm, pod, refused, c.usage.of(vm, pod), c.clock.Now())
	if err := errors.Join(actErr, c.writeStatus(ctx, vm, pod, status)); err != nil {
		return reconcile.Result{}, err
	}
	// No event says that the API server would accept a refused request by now, or that a Pod changes which the cache never has.
	poll := refused != (outcome{}) || pod != nil && c.cachedPod(vm) == nil
	c.wakeUp(request, p.next, poll)
	return reconcile.Result{}, nil
}

// wakeUp sets the time of the next reconcile: when something is due, or with growing delays while the controller has to poll.
func (c *Controller) wakeUp(request reconcile.Request, next time.Time, poll bool) {
	if poll {
		c.alarms.Set(request, c.clock.Now().Add(c.refusals.When(request)))
		return
	}
	c.refusals.Forget(request)
	c.alarms.Set(request, next)
}

// forget drops what is known about a VirtualMachine that is gone.
func (c *Controller) forget(request reconcile.Request) {
	c.refusals.Forget(request)
	c.alarms.Set(request, time.Time{})
	c.crashing.Delete(request.NamespacedName)
}

// writeStatus writes the status if it has changed, and the events that belong to the change.
func (c *Controller) writeStatus(ctx context.Context, vm *v1alpha1.VirtualMachine, pod *corev1.Pod, status v1alpha1.VirtualMachineStatus) error {
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
	if server, known := vm.Status.Server, before.Server; server != nil && server.StartTime != nil &&
		(known == nil || known.ID != server.ID || known.StartTime == nil) {
		c.metrics.creation.Observe(c.clock.Since(pod.CreationTimestamp.Time).Seconds())
		c.events.Normal(vm, pod, v1alpha1.EventStarted, "Start", "Started server %s on node %s", server.Name, server.Node)
	}
	if vm.Status.Phase == v1alpha1.PhaseStopped && before.Server != nil {
		c.events.Normal(vm, nil, v1alpha1.EventStopped, "Stop", "Stopped server %s", before.Server.Name)
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
		c.events.Warning(vm, warning.event, warning.action, "%s", vm.Status.Message)
	}
}

// knownToCrash reports whether there is an event already about the crashes of a server. In a loop, the server runs for a while
// between two crashes, which is not worth another event.
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

// machinesOf returns the VirtualMachine whose server has the name of a Pod.
func machinesOf(ctx context.Context, pod *corev1.Pod) []reconcile.Request {
	if vm, ok := ownerOfName(pod); ok {
		return machine(ctx, vm)
	}
	return nil
}

func machine(_ context.Context, vm client.ObjectKey) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: vm}}
}

// newPodCache returns a cache that has only the Pods of VirtualMachines, and a client that reads from it. It is not the
// manager's cache, because other controllers read other Pods. The selector is the default one of the cache: with a selector
// by object, controller-runtime would start the cache on the leader only, but the controller waits for it on each replica.
func newPodCache(mgr ctrl.Manager) (cache.Cache, client.Client, error) {
	labelled, err := labels.NewRequirement(v1alpha1.VirtualMachineLabel, selection.Exists, nil)
	if err != nil {
		return nil, nil, err
	}
	podCache, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:       mgr.GetHTTPClient(),
		Scheme:           mgr.GetScheme(),
		NewInformer:      informer.New,
		Mapper:           mgr.GetRESTMapper(),
		DefaultTransform: cache.TransformStripManagedFields(),

		DefaultLabelSelector: labels.NewSelector().Add(*labelled),
	})
	if err != nil {
		return nil, nil, err
	}
	pods, err := client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(),
		Scheme:     mgr.GetScheme(),
		Mapper:     mgr.GetRESTMapper(),
		Cache:      &client.CacheOptions{Reader: podCache, EnableReadYourWritesConsistency: new(true)},
	})
	return podCache, pods, err
}

// usageLister returns a function that reads the usage of all servers from the metrics API.
func usageLister(mgr ctrl.Manager) (func(context.Context) (*metricsv1beta1.PodMetricsList, error), error) {
	clients, err := metricsclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*metricsv1beta1.PodMetricsList, error) {
		return clients.MetricsV1beta1().PodMetricses(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.VirtualMachineLabel})
	}, nil
}

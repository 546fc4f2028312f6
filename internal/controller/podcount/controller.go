// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podcount sets a label with the number of Pods on every ReplicaSet.
//
// Many Pods of a ReplicaSet are often created or deleted in a burst. The controller waits for the end of the burst, so
// that it does not write the ReplicaSet once for each Pod. The cache has only a part of the metadata of ReplicaSets and
// Pods.
package podcount

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/apierror"
	"container.training/useless/internal/informer"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/pause"
	"container.training/useless/internal/queue"
)

const (
	// Name is the controller's name, in --controllers, logs and metrics.
	Name = "podcount"

	workers = 4

	// silence is the time without events that ends a burst. kube-controller-manager creates the Pods of a new
	// ReplicaSet in batches, with pauses of 300 ms when it is busy.
	silence = 500 * time.Millisecond

	// patience is the longest time for which a burst delays the label.
	patience = 10 * time.Second

	// fieldManager is the field manager of the label.
	fieldManager = client.FieldOwner("useless-operator-podcount")

	// podsByController is the index of Pods by the namespace and the UID of their ReplicaSet.
	podsByController = "useless/controller"
)

var replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// DefaultLabel is the default key of the label.
const DefaultLabel = "pod-count"

// Options configure the controller.
type Options struct {
	// Label is the key of the label. Empty means DefaultLabel.
	Label string
}

// AddFlags adds the controller's flags.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.Label, "pod-count-label", DefaultLabel,
		"the label that the controller podcount sets on ReplicaSets")
}

// Validate returns an error if the label's key is invalid.
func (o Options) Validate() error {
	if problems := validation.IsQualifiedName(cmp.Or(o.Label, DefaultLabel)); len(problems) > 0 {
		return fmt.Errorf("invalid value %q for flag --pod-count-label: %s; for example, %s or example.com/%[3]s",
			o.Label, strings.Join(problems, "; "), DefaultLabel)
	}
	return nil
}

// CacheOptions returns options that drop large fields that the controller does not read. For example, they keep the
// name, the owners and the deletion timestamp of a Pod, but drop its labels and annotations.
func (Options) CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&appsv1.ReplicaSet{}: {Transform: trim(func(meta *metav1.ObjectMeta) {
			meta.OwnerReferences = nil
			maps.DeleteFunc(meta.Annotations, func(key, _ string) bool { return key != v1beta1.PausedAnnotation })
		})},
		&corev1.Pod{}: {Transform: trim(func(meta *metav1.ObjectMeta) {
			meta.Labels, meta.Annotations = nil, nil
		})},
	}
}

// trim returns a transform for objects that are cached as metadata only. The function "more" removes further fields.
func trim(more func(*metav1.ObjectMeta)) func(any) (any, error) {
	managedFields := cache.TransformStripManagedFields()
	return func(cached any) (any, error) {
		if object, ok := cached.(*metav1.PartialObjectMetadata); ok {
			object.GenerateName, object.Finalizers = "", nil
			more(&object.ObjectMeta)
		}
		return managedFields(cached)
	}
}

// Controller reconciles ReplicaSets.
type Controller struct {
	client  client.Client
	pods    toolscache.Indexer
	label   string
	clock   clock.PassiveClock
	patches patch.Counter
	bursts  sync.Map // types.NamespacedName to the time.Time of the first event since the last reconcile
	alarms  *queue.Alarms
}

// Setup adds the controller to a manager. Its metrics go to the registerer.
func (o Options) Setup(
	ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	pods, err := informer.Store(ctx, mgr.GetCache(), partial(corev1.SchemeGroupVersion.WithKind("Pod")),
		toolscache.Indexers{podsByController: indexByController})
	if err != nil {
		return err
	}
	c := &Controller{
		client: mgr.GetClient(),
		pods:   pods,
		label:  cmp.Or(o.Label, DefaultLabel),
		clock:  clock,
		patches: patch.NewCounter(registerer, "useless_podcount_patches_total",
			"Number of writes of a ReplicaSet's label, by result (success or error)."),
		alarms: queue.NewAlarms(clock),
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		WatchesMetadata(&appsv1.ReplicaSet{}, c.waking(itself), builder.WithPredicates(c.matters(), pause.Predicate())).
		WatchesMetadata(&corev1.Pod{}, c.waking(owner), builder.WithPredicates(moved)).
		WatchesRawSource(c.alarms.Source()).
		WithOptions(queue.Options(workers)).
		Complete(c)
}

// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch

// Reconcile writes the label of a ReplicaSet if it is wrong.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	c.bursts.Delete(request.NamespacedName) // before the caches are read, so that a later event starts another burst
	rs := partial(replicaSetKind)
	err := c.client.Get(ctx, request.NamespacedName, rs)
	if err != nil || !rs.DeletionTimestamp.IsZero() || pause.IsPaused(rs) {
		return reconcile.Result{}, apierror.IgnoreGone(err)
	}
	pods, err := c.pods.IndexKeys(podsByController, indexKey(rs.Namespace, rs.UID))
	if err != nil {
		return reconcile.Result{}, err
	}
	value, wrong := decide(rs, c.label, len(pods))
	if !wrong {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, c.act(ctx, rs, value)
}

// decide returns the correct value of the label for a ReplicaSet with a number of Pods. It also reports whether the
// current value is wrong.
func decide(rs client.Object, label string, pods int) (value string, wrong bool) {
	value = strconv.Itoa(pods)
	return value, rs.GetLabels()[label] != value
}

// act changes only the label, so it never conflicts with other writers. The UID is a precondition: a new ReplicaSet of
// the same name must not get the count of the old one.
func (c *Controller) act(ctx context.Context, rs *metav1.PartialObjectMetadata, value string) error {
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:%q}}}`, rs.UID, c.label, value)
	err := c.client.Patch(ctx, rs, client.RawPatch(types.MergePatchType, body), fieldManager)
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.patches.Count(err)
	return err
}

// matters keeps the events of ReplicaSets after which the controller must check the label. For example, it drops
// deletions and changes of the status.
func (c *Controller) matters() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
				e.ObjectOld.GetLabels()[c.label] != e.ObjectNew.GetLabels()[c.label] ||
				pause.IsPaused(e.ObjectOld) != pause.IsPaused(e.ObjectNew)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// moved drops the updates of Pods that do not change the number of Pods of a ReplicaSet.
var moved = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return owner(e.ObjectOld) != owner(e.ObjectNew) },
}

// waking returns an event handler that calls wake for the ReplicaSet of an object. The handler adds no request to the
// queue. The alarm does that later.
func (c *Controller) waking(concerned func(client.Object) replicaSet) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, object client.Object) []reconcile.Request {
		if rs := concerned(object); rs.UID != "" {
			c.wake(rs.NamespacedName)
		}
		return nil
	})
}

// itself returns the name and UID of a ReplicaSet.
func itself(rs client.Object) replicaSet {
	return replicaSet{client.ObjectKeyFromObject(rs), rs.GetUID()}
}

// wake sets an alarm that reconciles a ReplicaSet at the end of a burst of events. The burst ends when no event has
// arrived for the duration "silence". At the latest, it ends when the duration "patience" has passed since its first
// event.
func (c *Controller) wake(rs types.NamespacedName) {
	now := c.clock.Now()
	first, _ := c.bursts.LoadOrStore(rs, now)
	at, latest := now.Add(silence), first.(time.Time).Add(patience)
	if latest.Before(at) {
		at = latest
	}
	c.alarms.Set(reconcile.Request{NamespacedName: rs}, at)
}

// indexByController indexes Pods by the namespace and the UID of their ReplicaSet.
func indexByController(pod any) ([]string, error) {
	if rs := owner(pod.(client.Object)); rs.UID != "" {
		return []string{indexKey(rs.Namespace, rs.UID)}, nil
	}
	return nil, nil
}

func indexKey(namespace string, uid types.UID) string { return namespace + "/" + string(uid) }

// replicaSet identifies a ReplicaSet.
type replicaSet struct {
	types.NamespacedName
	types.UID
}

// owner returns the ReplicaSet that controls a Pod. The UID is empty if there is none, and if the Pod is being deleted.
func owner(pod client.Object) (rs replicaSet) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if !pod.GetDeletionTimestamp().IsZero() || controller == nil || controller.Kind != replicaSetKind.Kind ||
		!strings.HasPrefix(controller.APIVersion, replicaSetKind.Group+"/") {
		return rs
	}
	// An owner must be in the same namespace.
	return replicaSet{types.NamespacedName{Namespace: pod.GetNamespace(), Name: controller.Name}, controller.UID}
}

func partial(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/controller/virtualmachine"
	"container.training/useless/internal/informer"
)

// Kinds returns the operator's kinds, read from config/crd/bases of the repository, and the built-in kinds that the
// operator uses.
func Kinds(repository string) ([]*Kind, error) {
	ingresses, err := BuiltinWithApply(networkingv1.SchemeGroupVersion.WithKind("Ingress"), "ingresses")
	if err != nil {
		return nil, err
	}
	kinds := []*Kind{
		ingresses,
		Builtin(corev1.SchemeGroupVersion.WithKind("Namespace"), "namespaces"),
		Builtin(corev1.SchemeGroupVersion.WithKind("Pod"), "pods"),
		Builtin(corev1.SchemeGroupVersion.WithKind("ResourceQuota"), "resourcequotas"),
		Builtin(appsv1.SchemeGroupVersion.WithKind("Deployment"), "deployments"),
		Builtin(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), "replicasets"),
		Builtin(appsv1.SchemeGroupVersion.WithKind("StatefulSet"), "statefulsets"),
		Builtin(batchv1.SchemeGroupVersion.WithKind("CronJob"), "cronjobs"),
		Builtin(autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"), "horizontalpodautoscalers"),
		Builtin(eventsv1.SchemeGroupVersion.WithKind("Event"), "events"),
		AccessReview(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"),
			"selfsubjectaccessreviews"),
	}
	for _, name := range []string{"useless.container.training_machines", "useless.container.training_switches",
		"cloudnative.tw_virtualmachines"} {
		kind, err := ReadCRD(filepath.Join(repository, "config", "crd", "bases", name+".yaml"))
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// IngressAnnotation is the annotation that the operator sets on every Ingress, with the value yes.
const IngressAnnotation = "example.com/ensured"

// scheme has the Go types of all kinds.
var scheme = newScheme()

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme,
		cloudnativev1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

// Mapper returns the REST mapper of the server's kinds.
func (s *Server) Mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range s.kinds {
		scope := meta.RESTScopeNamespace
		if k.review {
			scope = meta.RESTScopeRoot
		}
		mapper.AddSpecific(k.GroupVersionKind, k.GroupVersion().WithResource(k.Resource),
			k.GroupVersion().WithResource(k.Resource), scope)
	}
	return mapper
}

// A World is a server with its users and operators, in a bubble of testing/synctest. Choose selects the order in which
// requests are served, one at a time. Between two requests, all goroutines run until they block.
type World struct {
	*Server
	Admin client.Client // its requests are served immediately

	// Choose selects the next pending call and its outcome. The calls are sorted by their text, so goroutine scheduling
	// does not affect their order. If Choose is nil, the first call is served. Requests for Event objects are always
	// served immediately.
	Choose func(calls []Call) (int, Outcome)

	// Latency is the duration of each call.
	Latency time.Duration

	Operators  []*Operator        // running processes
	Reconciles atomic.Int64       // by all operators so far
	Ends       map[string][]int64 // by operator: the server's revision at the end of each of its processes

	mu      sync.Mutex
	pending []pending
	wakeup  chan struct{}
}

// pending is a call that waits to be served.
type pending struct {
	Call
	operator *Operator
	outcome  chan Outcome
}

// NewWorld returns a world without operators. It has only the Namespace default.
func NewWorld(kinds ...*Kind) (*World, error) {
	w := &World{Server: NewServer(kinds...), wakeup: make(chan struct{}, 1), Ends: map[string][]int64{}}
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(metav1.NamespaceDefault)
	w.addInitial(namespace, corev1.Resource("namespaces"))
	var err error
	w.Admin, err = client.New(w.Connect("user").Config(), client.Options{Scheme: scheme, Mapper: w.Mapper()})
	return w, err
}

// enqueue waits until Choose selects the call, and returns the call's outcome.
func (w *World) enqueue(o *Operator, call Call) Outcome {
	if call.Kind.Resource == "events" {
		return Outcome{}
	}
	outcome := make(chan Outcome)
	w.mu.Lock()
	w.pending = append(w.pending, pending{call, o, outcome})
	w.mu.Unlock()
	select {
	case w.wakeup <- struct{}{}:
	default:
	}
	return <-outcome
}

// step serves one call. It returns false if no call was pending.
func (w *World) step() (bool, error) {
	synctest.Wait()
	w.mu.Lock()
	if len(w.pending) == 0 {
		w.mu.Unlock()
		return false, nil
	}
	slices.SortStableFunc(w.pending, func(a, b pending) int { return cmp.Compare(a.String(), b.String()) })
	chosen, outcome := 0, Outcome{}
	if w.Choose != nil {
		calls := make([]Call, 0, len(w.pending))
		for _, p := range w.pending {
			calls = append(calls, p.Call)
		}
		chosen, outcome = w.Choose(calls)
	}
	p := w.pending[chosen]
	w.pending = slices.Delete(w.pending, chosen, chosen+1)
	w.mu.Unlock()
	time.Sleep(w.Latency)
	p.outcome <- outcome
	if !outcome.Crash {
		return true, nil
	}
	if err := w.Stop(p.operator); err != nil {
		return true, err
	}
	o, err := w.StartWithView(p.operator.View, p.operator.name, p.operator.controllers...)
	if err == nil {
		o.SkipEvents(p.operator.misses)
	}
	return true, err
}

// Serve serves at most this number of calls. It then waits until all goroutines are blocked.
func (w *World) Serve(calls int) error {
	defer synctest.Wait()
	for range calls {
		if served, err := w.step(); err != nil || !served {
			return err
		}
	}
	return nil
}

// maxCalls is the limit of calls that Settle serves at one instant.
const maxCalls = 1_000

// Settle serves all pending calls and collects all garbage, until nothing is left to do at this instant.
func (w *World) Settle() error {
	for calls := 0; ; calls++ {
		if calls > maxCalls {
			return errors.New("the controllers do not come to rest")
		}
		served, err := w.step()
		if err == nil && !served {
			served, err = w.CollectGarbage()
		}
		if err != nil || !served {
			return err
		}
	}
}

// Pass advances the clock by d and serves all calls meanwhile.
func (w *World) Pass(d time.Duration) error {
	end := time.After(d)
	for {
		if err := w.Settle(); err != nil {
			return err
		}
		select {
		case <-w.wakeup:
		case <-end:
			return w.Settle()
		}
	}
}

// An Operator is one process of the operator.
type Operator struct {
	*Client
	controllers []string
	started     <-chan struct{}
	cancel      context.CancelFunc
	ended       chan error
}

// Process returns the running process with this name, or nil.
func (w *World) Process(name string) *Operator {
	i := slices.IndexFunc(w.Operators, func(o *Operator) bool { return o.name == name })
	if i < 0 {
		return nil
	}
	return w.Operators[i]
}

// Start starts a process of the operator with these controllers.
func (w *World) Start(name string, controllers ...string) (*Operator, error) {
	return w.StartWithView(nil, name, controllers...)
}

// requiredKinds returns the kinds of workload that every cluster with the operator has. The simulated API server has no
// other kinds. With other kinds, the operator would check every 10 s whether they exist.
func requiredKinds() (names []string) {
	for _, k := range schedule.Describe() {
		if !k.IsOptional {
			names = append(names, k.Name)
		}
	}
	return names
}

// StartWithView starts a process of the operator whose caches see at most the revision that view returns.
func (w *World) StartWithView(view func(*Kind, int64) int64, name string, controllers ...string) (*Operator, error) {
	o := &Operator{Client: w.Connect(name), controllers: controllers, ended: make(chan error, 1)}
	o.View = view
	o.Gate = func(call Call) Outcome { return w.enqueue(o, call) }
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(context.Background())
	options := controller.Options{
		Selection:      controllers,
		Machine:        machine.Options{ConcurrentSyncs: 2},
		VirtualMachine: virtualmachine.Options{UsageInterval: time.Minute},
		Ingress:        ingress.Options{Annotations: ingress.Annotations{IngressAnnotation: "yes"}},
		Schedule:       schedule.Options{Kinds: requiredKinds()},
	}
	caches, err := options.CacheOptions(scheme)
	if err != nil {
		return nil, err
	}
	caches.SyncPeriod = new(time.Duration(0)) // client-go jitters resyncs at random, so a seed would not reproduce them
	mgr, err := ctrl.NewManager(o.Config(), ctrl.Options{
		Scheme:                 scheme,
		MapperProvider:         func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return w.Mapper(), nil },
		NewCache:               informer.NewCache,
		Cache:                  caches,
		Client:                 controller.ClientOptions(),
		Controller:             config.Controller{SkipNameValidation: new(true)},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return nil, err
	}
	if err := options.Setup(ctx, quietManager{mgr, &w.Reconciles}, clock.RealClock{},
		prometheus.NewRegistry()); err != nil {
		return nil, err
	}
	o.started = mgr.Elected()
	go func() { o.ended <- mgr.Start(ctx) }()
	w.Operators = append(w.Operators, o)
	return o, nil
}

// awaitStart serves calls until a process has started. A manager that is stopped before runs a busy loop, and the clock
// does not advance. Meanwhile, the process cannot crash, because only writes crash a process, and it sends none.
func (w *World) awaitStart(o *Operator) error {
	for {
		select {
		case <-o.started:
			return nil
		default:
		}
		if served, err := w.step(); err != nil {
			return err
		} else if served {
			continue
		}
		select {
		case <-o.started:
		case <-w.wakeup:
		}
	}
}

// Stop ends a process as a crash does: its pending calls have no effect.
func (w *World) Stop(o *Operator) error {
	w.Operators = slices.DeleteFunc(w.Operators, func(other *Operator) bool { return other == o })
	if err := w.awaitStart(o); err != nil {
		return err
	}
	synctest.Wait() // deliver pending events first: otherwise the metadata cache blocks forever
	o.cancel()
	for {
		w.mu.Lock()
		var lost []pending
		w.pending = slices.DeleteFunc(w.pending, func(p pending) bool {
			if p.operator == o {
				lost = append(lost, p)
			}
			return p.operator == o
		})
		w.mu.Unlock()
		for _, p := range lost {
			p.outcome <- Outcome{DropRequest: true}
		}
		select {
		case err := <-o.ended:
			w.Ends[o.name] = append(w.Ends[o.name], w.Revision())
			return err
		case <-w.wakeup:
		}
	}
}

// End stops all processes of the operator.
func (w *World) End() (err error) {
	for len(w.Operators) > 0 {
		err = errors.Join(err, w.Stop(w.Operators[0]))
	}
	return err
}

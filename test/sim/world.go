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
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	"container.training/useless/internal/controller/virtualmachine"
)

// Kinds are those of the operator, as its manifests in the folder config/crd/bases of the repository describe them, and
// those of Kubernetes that it works with.
func Kinds(repository string) ([]*Kind, error) {
	ingresses, err := Applied(networkingv1.SchemeGroupVersion.WithKind("Ingress"), "ingresses")
	if err != nil {
		return nil, err
	}
	kinds := []*Kind{
		ingresses,
		Builtin(corev1.SchemeGroupVersion.WithKind("Pod"), "pods"),
		Builtin(corev1.SchemeGroupVersion.WithKind("ResourceQuota"), "resourcequotas"),
		Builtin(appsv1.SchemeGroupVersion.WithKind("Deployment"), "deployments"),
		Builtin(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), "replicasets"),
		Builtin(autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"), "horizontalpodautoscalers"),
		Builtin(eventsv1.SchemeGroupVersion.WithKind("Event"), "events"),
		Question(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), "selfsubjectaccessreviews"),
	}
	for _, name := range []string{"useless.container.training_machines", "useless.container.training_switches", "cloudnative.tw_virtualmachines"} {
		kind, err := ReadCRD(filepath.Join(repository, "config", "crd", "bases", name+".yaml"))
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// IngressAnnotation is what the operator ensures on every Ingress, with the value yes.
const IngressAnnotation = "example.com/ensured"

// scheme has the types of all kinds.
var scheme = newScheme()

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme, cloudnativev1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

// Mapper knows the resources of the server's kinds.
func (s *Server) Mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range s.kinds {
		scope := meta.RESTScopeNamespace
		if k.question {
			scope = meta.RESTScopeRoot
		}
		mapper.AddSpecific(k.GroupVersionKind, k.GroupVersion().WithResource(k.Resource), k.GroupVersion().WithResource(k.Resource), scope)
	}
	return mapper
}

// A World is a server and who uses it, in a bubble of testing/synctest. Requests are served one by one, as the world's owner
// wants them to be: between two of them, everybody does all that there is to do without another one.
type World struct {
	*Server
	Admin client.Client // may do everything, and is served at once

	// Choose picks the next one of the calls that wait, and what becomes of it. They are in the order of their text, whatever
	// goroutine was faster. The first one is served if it is nil. Events are always served at once.
	Choose func(calls []Call) (int, Fate)

	// Latency is how long each call takes.
	Latency time.Duration

	Operators  []*Operator        // that run
	Reconciles atomic.Int64       // of all operators so far
	Ends       map[string][]int64 // the revisions that were the last ones when an operator of a name ended

	mu     sync.Mutex
	parked []parked
	woken  chan struct{}
}

// parked is a call that waits.
type parked struct {
	Call
	operator *Operator
	fate     chan Fate
}

// NewWorld is a world without operators.
func NewWorld(kinds ...*Kind) (*World, error) {
	w := &World{Server: NewServer(kinds...), woken: make(chan struct{}, 1), Ends: map[string][]int64{}}
	var err error
	w.Admin, err = client.New(w.Connect("user").Config(), client.Options{Scheme: scheme, Mapper: w.Mapper()})
	return w, err
}

// park has a call wait until it is chosen.
func (w *World) park(o *Operator, call Call) Fate {
	if call.Kind.Resource == "events" {
		return Fate{}
	}
	fate := make(chan Fate)
	w.mu.Lock()
	w.parked = append(w.parked, parked{call, o, fate})
	w.mu.Unlock()
	select {
	case w.woken <- struct{}{}:
	default:
	}
	return <-fate
}

// step serves a call, and reports whether there was one.
func (w *World) step() (bool, error) {
	synctest.Wait()
	w.mu.Lock()
	if len(w.parked) == 0 {
		w.mu.Unlock()
		return false, nil
	}
	slices.SortStableFunc(w.parked, func(a, b parked) int { return cmp.Compare(a.String(), b.String()) })
	chosen, fate := 0, Fate{}
	if w.Choose != nil {
		calls := make([]Call, 0, len(w.parked))
		for _, p := range w.parked {
			calls = append(calls, p.Call)
		}
		chosen, fate = w.Choose(calls)
	}
	p := w.parked[chosen]
	w.parked = slices.Delete(w.parked, chosen, chosen+1)
	w.mu.Unlock()
	time.Sleep(w.Latency)
	p.fate <- fate
	if !fate.Crash {
		return true, nil
	}
	if err := w.Stop(p.operator); err != nil {
		return true, err
	}
	o, err := w.StartSeeing(p.operator.View, p.operator.name, p.operator.controllers...)
	if err == nil {
		o.Miss(p.operator.misses)
	}
	return true, err
}

// Serve serves so many calls, or as many as there are, and waits until what they bring about is done.
func (w *World) Serve(calls int) error {
	defer synctest.Wait()
	for range calls {
		if served, err := w.step(); err != nil || !served {
			return err
		}
	}
	return nil
}

// endless is how many calls one after the other are too many.
const endless = 1_000

// Settle serves all calls and collects all garbage, until nobody has anything to do at this instant.
func (w *World) Settle() error {
	for calls := 0; ; calls++ {
		if calls > endless {
			return errors.New("there is no end to what is done")
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

// Pass lets time pass.
func (w *World) Pass(d time.Duration) error {
	end := time.After(d)
	for {
		if err := w.Settle(); err != nil {
			return err
		}
		select {
		case <-w.woken:
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

// Start starts an operator that runs these controllers.
func (w *World) Start(name string, controllers ...string) (*Operator, error) {
	return w.StartSeeing(nil, name, controllers...)
}

// StartSeeing starts an operator whose caches see no more than that of each kind, until its View changes.
func (w *World) StartSeeing(view func(*Kind, int64) int64, name string, controllers ...string) (*Operator, error) {
	o := &Operator{Client: w.Connect(name), controllers: controllers, ended: make(chan error, 1)}
	o.View = view
	o.Gate = func(call Call) Fate { return w.park(o, call) }
	var ctx context.Context
	ctx, o.cancel = context.WithCancel(context.Background())
	options := controller.Options{
		Selection:      controllers,
		Machine:        machine.Options{ConcurrentSyncs: 2},
		VirtualMachine: virtualmachine.Options{UsageInterval: time.Minute},
		Ingress:        ingress.Options{Annotations: ingress.Annotations{IngressAnnotation: "yes"}},
	}
	caches, err := options.CacheOptions()
	if err != nil {
		return nil, err
	}
	caches.SyncPeriod = new(time.Duration(0)) // resyncs come when client-go's own dice say, which no seed repeats
	mgr, err := ctrl.NewManager(o.Config(), ctrl.Options{
		Scheme:                 scheme,
		MapperProvider:         func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return w.Mapper(), nil },
		Cache:                  caches,
		Client:                 controller.ClientOptions(),
		Controller:             config.Controller{SkipNameValidation: new(true)},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return nil, err
	}
	if err := options.Setup(ctx, quiet{mgr, &w.Reconciles}, clock.RealClock{}, prometheus.NewRegistry()); err != nil {
		return nil, err
	}
	o.started = mgr.Elected()
	go func() { o.ended <- mgr.Start(ctx) }()
	w.Operators = append(w.Operators, o)
	return o, nil
}

// Stop ends an operator as a crash does: of its calls that wait, none has any effect.
func (w *World) Stop(o *Operator) error {
	w.Operators = slices.DeleteFunc(w.Operators, func(other *Operator) bool { return other == o })
	<-o.started     // a manager that is to stop before that spins until then, and no time passes
	synctest.Wait() // for events to arrive: what hands on those of metadata waits for ever for who is no more
	o.cancel()
	for {
		w.mu.Lock()
		var lost []parked
		w.parked = slices.DeleteFunc(w.parked, func(p parked) bool {
			if p.operator == o {
				lost = append(lost, p)
			}
			return p.operator == o
		})
		w.mu.Unlock()
		for _, p := range lost {
			p.fate <- Fate{Lose: true}
		}
		select {
		case err := <-o.ended:
			w.Ends[o.name] = append(w.Ends[o.name], w.Revision())
			return err
		case <-w.woken:
		}
	}
}

// End stops all operators that run.
func (w *World) End() (err error) {
	for len(w.Operators) > 0 {
		err = errors.Join(err, w.Stop(w.Operators[0]))
	}
	return err
}

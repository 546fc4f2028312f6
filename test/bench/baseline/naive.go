// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
)

// flipEvery is the tutorial's time between two flips of a Machine.
const flipEvery = 5 * time.Second

// Tutorial is the controller that a reader of the tutorial writes: it lists a Machine's switches by their label, makes
// missing ones with generated names, and updates the status at every reconcile. It has one worker, as is the default.
type Tutorial struct {
	client.Client
}

// Run runs the controller until the context ends.
func (t Tutorial) Run(ctx context.Context, config *rest.Config) error { return run(ctx, config, t.Add) }

// Add adds the controller to a manager.
func (Tutorial) Add(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1beta1.Machine{}).
		Watches(&v1beta1.Switch{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, sw client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: sw.GetNamespace(), Name: sw.GetLabels()[v1beta1.MachineLabel]}}}
		})).
		Complete(Tutorial{mgr.GetClient()})
}

// Reconcile implements reconcile.Reconciler.
func (t Tutorial) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	m := &v1beta1.Machine{}
	if err := t.Get(ctx, request.NamespacedName, m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	switches := &v1beta1.SwitchList{}
	if err := t.List(ctx, switches, client.InNamespace(m.Namespace), client.MatchingLabels{v1beta1.MachineLabel: m.Name}); err != nil {
		return reconcile.Result{}, err
	}
	for range int(m.Spec.Switches.Count) - len(switches.Items) {
		sw := v1beta1.Switch{
			ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, GenerateName: "switch-", Labels: map[string]string{v1beta1.MachineLabel: m.Name}},
			Spec:       v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
		}
		if err := t.Create(ctx, &sw); err != nil {
			return reconcile.Result{}, err
		}
		switches.Items = append(switches.Items, sw)
	}
	flipped, err := t.flipOne(ctx, switches.Items)
	if err != nil {
		return reconcile.Result{}, err
	}
	m.Status.Positions = ""
	for _, sw := range switches.Items {
		m.Status.Positions += string(sw.Spec.Position[0])
	}
	m.Status.Switches.Total = int32(len(switches.Items))
	if err := t.Status().Update(ctx, m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if flipped {
		return reconcile.Result{RequeueAfter: flipEvery}, nil
	}
	return reconcile.Result{}, nil
}

// flipOne turns down the first switch that is up.
func (t Tutorial) flipOne(ctx context.Context, switches []v1beta1.Switch) (flipped bool, err error) {
	for i := range switches {
		if switches[i].Spec.Position != v1beta1.PositionDown {
			switches[i].Spec.Position = v1beta1.PositionDown
			return true, t.Update(ctx, &switches[i])
		}
	}
	return false, nil
}

// Sample has the habits of operator-sdk's sample for memcached, applied to Machines: it says Unknown before anything
// else, updates whole objects, makes one switch in each reconcile and then waits to be woken, and updates the status at
// the end, whatever it says.
type Sample struct {
	client.Client
}

// Run runs the controller until the context ends.
func (s Sample) Run(ctx context.Context, config *rest.Config) error { return run(ctx, config, s.Add) }

// Add adds the controller to a manager.
func (Sample) Add(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).For(&v1beta1.Machine{}).Owns(&v1beta1.Switch{}).Complete(Sample{mgr.GetClient()})
}

// Reconcile implements reconcile.Reconciler.
func (s Sample) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	m := &v1beta1.Machine{}
	if err := s.Get(ctx, request.NamespacedName, m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if len(m.Status.Conditions) == 0 {
		if err := s.say(ctx, m, metav1.ConditionUnknown, "Starting reconciliation"); err != nil {
			return reconcile.Result{}, err
		}
		if err := s.Get(ctx, request.NamespacedName, m); err != nil {
			return reconcile.Result{}, err
		}
	}
	if controllerutil.AddFinalizer(m, v1beta1.MachineFinalizer) {
		if err := s.Update(ctx, m); err != nil {
			return reconcile.Result{}, err
		}
	}
	for i := range m.Spec.Switches.Count {
		sw := NewSwitch(m, fmt.Sprintf("%s-%d", m.Name, i))
		if err := s.Get(ctx, client.ObjectKeyFromObject(sw), &v1beta1.Switch{}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		} else if err != nil {
			return reconcile.Result{RequeueAfter: time.Minute}, s.Create(ctx, sw)
		}
	}
	m.Status.Switches.Total = m.Spec.Switches.Count
	return reconcile.Result{}, s.say(ctx, m, metav1.ConditionTrue, fmt.Sprintf("%d switches created", m.Spec.Switches.Count))
}

func (s Sample) say(ctx context.Context, m *v1beta1.Machine, scaled metav1.ConditionStatus, message string) error {
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: v1beta1.ConditionScaled, Status: scaled, Reason: "Reconciling", Message: message})
	return s.Status().Update(ctx, m)
}

// run runs a controller in a manager of its own until the context ends.
func run(ctx context.Context, config *rest.Config, add func(ctrl.Manager) error) error {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	if err := add(mgr); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
)

// interval is the time from a flip to the next reconcile that Tutorial schedules.
const interval = 5 * time.Second

// Tutorial is a simple controller, as in the tutorial about useless machines. It lists a Machine's Switches by their
// label, and creates missing Switches with generated names. It writes the status in every reconcile. It has one worker,
// which is the default.
type Tutorial struct {
	client.Client
}

// Add adds the controller to a manager.
func (Tutorial) Add(mgr ctrl.Manager) error {
	toMachine := func(_ context.Context, sw client.Object) []reconcile.Request {
		key := types.NamespacedName{Namespace: sw.GetNamespace(), Name: sw.GetLabels()[v1beta1.MachineLabel]}
		return []reconcile.Request{{NamespacedName: key}}
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1beta1.Machine{}).
		Watches(&v1beta1.Switch{}, handler.EnqueueRequestsFromMapFunc(toMachine)).
		Complete(Tutorial{mgr.GetClient()})
}

// Reconcile implements reconcile.Reconciler.
func (t Tutorial) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	m := &v1beta1.Machine{}
	if err := t.Get(ctx, request.NamespacedName, m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	switches := &v1beta1.SwitchList{}
	labels := client.MatchingLabels{v1beta1.MachineLabel: m.Name}
	if err := t.List(ctx, switches, client.InNamespace(m.Namespace), labels); err != nil {
		return reconcile.Result{}, err
	}
	for range int(m.Spec.Switches.Count) - len(switches.Items) {
		sw := v1beta1.Switch{
			ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, GenerateName: "switch-", Labels: labels},
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
		return reconcile.Result{RequeueAfter: interval}, nil
	}
	return reconcile.Result{}, nil
}

// flipOne turns down the first Switch that is up. It returns false if all Switches are down.
func (t Tutorial) flipOne(ctx context.Context, switches []v1beta1.Switch) (flipped bool, err error) {
	for i := range switches {
		if switches[i].Spec.Position != v1beta1.PositionDown {
			switches[i].Spec.Position = v1beta1.PositionDown
			return true, t.Update(ctx, &switches[i])
		}
	}
	return false, nil
}

// Sample works like operator-sdk's memcached sample. It first sets a condition to Unknown. Each reconcile creates at
// most one Switch and updates whole objects. When all Switches exist, each reconcile writes the status.
type Sample struct {
	client.Client
}

// Add adds the controller to a manager.
func (Sample) Add(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1beta1.Machine{}).
		Owns(&v1beta1.Switch{}).
		Complete(Sample{mgr.GetClient()})
}

// Reconcile implements reconcile.Reconciler.
func (s Sample) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	m := &v1beta1.Machine{}
	if err := s.Get(ctx, request.NamespacedName, m); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if len(m.Status.Conditions) == 0 {
		if err := s.setScaled(ctx, m, metav1.ConditionUnknown, "Starting reconciliation"); err != nil {
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
		sw := newSwitch(m, fmt.Sprintf("%s-%d", m.Name, i))
		if err := s.Get(ctx, client.ObjectKeyFromObject(sw), &v1beta1.Switch{}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		} else if err != nil {
			return reconcile.Result{RequeueAfter: time.Minute}, s.Create(ctx, sw)
		}
	}
	m.Status.Switches.Total = m.Spec.Switches.Count
	message := fmt.Sprintf("%d switches created", m.Spec.Switches.Count)
	return reconcile.Result{}, s.setScaled(ctx, m, metav1.ConditionTrue, message)
}

// setScaled writes the condition Scaled.
func (s Sample) setScaled(
	ctx context.Context, m *v1beta1.Machine, status metav1.ConditionStatus, message string,
) error {
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: v1beta1.ConditionScaled, Status: status, Reason: "Reconciling", Message: message,
	})
	return s.Status().Update(ctx, m)
}

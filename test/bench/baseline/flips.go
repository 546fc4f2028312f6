// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"encoding/json"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"container.training/useless/api/useless/v1beta1"
	useless "container.training/useless/client/informers/useless/v1beta1"
	typed "container.training/useless/client/versioned/typed/useless/v1beta1"
)

// flipAll turns down each Switch that goes up, until the context ends or a request fails. Each Machine must have one
// Switch. flipAll sends three requests for a flip. It keeps in memory which Switches are due, and retries nothing.
func flipAll(ctx context.Context, clientset typed.UselessV1beta1Interface, kinds useless.Interface) error {
	flips, ctx := errgroup.WithContext(ctx)
	flips.Go(func() error {
		<-ctx.Done() // until then, Wait waits for further flips
		return nil
	})
	handler := cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, updated any) {
		sw := updated.(*v1beta1.Switch)
		if old.(*v1beta1.Switch).Spec.Position == v1beta1.PositionUp || sw.Spec.Position != v1beta1.PositionUp {
			return
		}
		flips.Go(func() error {
			m, err := kinds.Machines().Lister().Machines(sw.Namespace).Get(sw.Labels[v1beta1.MachineLabel])
			if err != nil {
				return err
			}
			return flip(ctx, clientset, m, sw)
		})
	}}
	if _, err := kinds.Switches().Informer().AddEventHandler(handler); err != nil {
		return err
	}
	return flips.Wait()
}

// flip writes that the only Switch of a Machine is up, turns it down after the delay, and writes that it is down.
func flip(ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine, sw *v1beta1.Switch) error {
	due := time.After(time.Duration(*m.Spec.Flip.DelaySeconds) * time.Second)
	if err := writeStatus(ctx, clientset, m, flippingStatus(m, time.Now())); err != nil {
		return err
	}
	select {
	case <-due:
	case <-ctx.Done():
		return nil
	}
	now := time.Now()
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"resourceVersion": sw.ResourceVersion,
			"annotations":     map[string]string{v1beta1.FlippedAtAnnotation: now.UTC().Format(metav1.RFC3339Micro)},
		},
		"spec": v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
	})
	if err != nil {
		return err
	}
	_, err = clientset.Switches(sw.Namespace).Patch(ctx, sw.Name, types.MergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	status := statusOf(m, m.Spec.Switches.Count)
	status.LastFlipTime = new(metav1.NewMicroTime(now))
	return writeStatus(ctx, clientset, m, status)
}

// flippingStatus returns the status of a Machine while its only Switch is up.
func flippingStatus(m *v1beta1.Machine, now time.Time) v1beta1.MachineStatus {
	status := statusOf(m, m.Spec.Switches.Count)
	status.Switches, status.Positions = v1beta1.SwitchCounts{Total: 1, Up: 1}, "u"
	for kind, message := range map[string]string{
		v1beta1.ConditionResting: "1 of 1 switches are up", v1beta1.ConditionReady: "Switches are up",
	} {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonSwitchesUp, Message: message,
			ObservedGeneration: m.Generation, LastTransitionTime: metav1.NewTime(now),
		})
	}
	return status
}

// writeStatus writes the status of a Machine.
func writeStatus(
	ctx context.Context, clientset typed.UselessV1beta1Interface, m *v1beta1.Machine, status v1beta1.MachineStatus,
) error {
	data, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	machines := clientset.Machines(m.Namespace)
	_, err = machines.Patch(ctx, m.Name, types.MergePatchType, data, metav1.PatchOptions{}, "status")
	return err
}

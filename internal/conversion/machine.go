// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conversion translates between the served versions of the API.
//
// Conversion is total: it never fails, whatever the API server sends, which includes objects without spec or without
// metadata (it converts such objects when it merges managed fields). Absent stays absent, so defaults are left to the
// schemas, which agree. Converters make no calls, take no clock and do not log.
//
// The API server may use an object after it was converted only through the result: source and result share memory.
package conversion

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

// Machine makes the converter between the versions of Machine. Building it fails if a version of the scheme has none.
var Machine = conversion.NewHubSpokeConverter(&v1beta1.Machine{},
	conversion.NewSpokeConverter(&v1alpha1.Machine{}, machineToV1alpha1, machineFromV1alpha1))

func machineToV1alpha1(_ context.Context, src *v1beta1.Machine, dst *v1alpha1.Machine) error {
	dst.ObjectMeta = src.ObjectMeta
	dst.Spec = v1alpha1.MachineSpec{
		Switches:            src.Spec.Switches.Count,
		SwitchPosition:      src.Spec.Position,
		Selector:            src.Spec.Switches.Selector,
		Template:            src.Spec.Switches.Template,
		FlipDelaySeconds:    src.Spec.Flip.DelaySeconds,
		FlipIntervalSeconds: src.Spec.Flip.IntervalSeconds,
	}
	dst.Status = src.Status
	return nil
}

func machineFromV1alpha1(_ context.Context, src *v1alpha1.Machine, dst *v1beta1.Machine) error {
	dst.ObjectMeta = src.ObjectMeta
	dst.Spec = v1beta1.MachineSpec{
		Switches: v1beta1.SwitchesSpec{
			Count:    src.Spec.Switches,
			Selector: src.Spec.Selector,
			Template: src.Spec.Template,
		},
		Position: src.Spec.SwitchPosition,
		Flip: v1beta1.FlipSpec{
			DelaySeconds:    src.Spec.FlipDelaySeconds,
			IntervalSeconds: src.Spec.FlipIntervalSeconds,
		},
	}
	dst.Status = src.Status
	return nil
}

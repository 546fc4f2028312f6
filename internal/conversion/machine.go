// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conversion translates between the served versions of the API.
//
// Conversion is total: it never fails, whatever the API server sends, which includes objects without spec or without
// metadata (it converts such objects when it merges managed fields). Absent stays absent, so defaults are left to the
// schemas, which agree. Converters make no calls, take no clock and do not log.
//
// Only the spec differs between versions, so the Handler decodes and encodes nothing else: metadata, status and what it
// does not know pass through as they came. It may leave the metadata alone, since the API server takes nothing but
// labels and annotations from a converted object and restores the rest from its own.
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
	dst.ObjectMeta, dst.Status = src.ObjectMeta, src.Status
	dst.Spec = specToV1alpha1(src.Spec)
	return nil
}

func machineFromV1alpha1(_ context.Context, src *v1alpha1.Machine, dst *v1beta1.Machine) error {
	dst.ObjectMeta, dst.Status = src.ObjectMeta, src.Status
	dst.Spec = specFromV1alpha1(src.Spec)
	return nil
}

func specToV1alpha1(src v1beta1.MachineSpec) v1alpha1.MachineSpec {
	return v1alpha1.MachineSpec{
		Switches:            src.Switches.Count,
		SwitchPosition:      src.Position,
		Selector:            src.Switches.Selector,
		Template:            src.Switches.Template,
		FlipDelaySeconds:    src.Flip.DelaySeconds,
		FlipIntervalSeconds: src.Flip.IntervalSeconds,
	}
}

func specFromV1alpha1(src v1alpha1.MachineSpec) v1beta1.MachineSpec {
	return v1beta1.MachineSpec{
		Switches: v1beta1.SwitchesSpec{
			Count:    src.Switches,
			Selector: src.Selector,
			Template: src.Template,
		},
		Position: src.SwitchPosition,
		Flip: v1beta1.FlipSpec{
			DelaySeconds:    src.FlipDelaySeconds,
			IntervalSeconds: src.FlipIntervalSeconds,
		},
	}
}

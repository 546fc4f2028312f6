// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conversion converts Machines between the served versions of the API.
//
// Only the spec differs between versions. The status, and unknown fields outside the spec, pass through unchanged. Of
// the metadata, the answer has only the labels, annotations, name, namespace and UID. The API server compares the last
// three with its own copy, and restores all other metadata from this copy.
//
// A conversion never fails if the JSON has the types of the schema. It sets no defaults: an absent field stays absent.
// The API server adds the defaults from the schema after the conversion. It also sends objects without spec or without
// metadata, when it merges managed fields.
package conversion

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	ctrl "sigs.k8s.io/controller-runtime"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

// Setup adds the conversion webhook to a manager.
func Setup(mgr ctrl.Manager) error {
	handler, err := NewHandler(mgr.GetScheme())
	if err != nil {
		return err
	}
	mgr.GetWebhookServer().Register("/convert", handler)
	return nil
}

// versionPair has the apiVersions before and after a conversion, such as useless.container.training/v1beta1.
type versionPair struct{ from, to string }

// converter converts the JSON of a spec.
type converter func(spec []byte) ([]byte, error)

// converters returns a converter for each pair of versions of Machine in the scheme. It returns an error if a pair has
// no converter.
func converters(scheme *runtime.Scheme) (map[versionPair]converter, error) {
	alpha, beta := v1alpha1.GroupVersion.String(), v1beta1.GroupVersion.String()
	all := map[versionPair]converter{
		{beta, alpha}: typed(SpecToV1alpha1),
		{alpha, beta}: typed(SpecFromV1alpha1),
	}
	versions := scheme.VersionsForGroupKind(schema.GroupKind{Group: v1beta1.GroupVersion.Group, Kind: machineKind})
	for _, from := range versions {
		for _, to := range versions {
			pair := versionPair{from.String(), to.String()}
			if from == to {
				all[pair] = func(spec []byte) ([]byte, error) { return spec, nil }
			} else if all[pair] == nil {
				return nil, fmt.Errorf("no conversion of Machines from %s to %s", from, to)
			}
		}
	}
	return all, nil
}

// typed returns a converter that calls convert.
func typed[From, To any](convert func(From) To) converter {
	return func(raw []byte) ([]byte, error) {
		var spec From
		if err := utiljson.Unmarshal(raw, &spec); err != nil {
			return nil, err
		}
		return json.Marshal(convert(spec))
	}
}

// SpecToV1alpha1 returns the spec in v1alpha1. It shares memory with src.
func SpecToV1alpha1(src v1beta1.MachineSpec) v1alpha1.MachineSpec {
	return v1alpha1.MachineSpec{
		Switches:            src.Switches.Count,
		SwitchPosition:      src.Position,
		Selector:            src.Switches.Selector,
		Template:            src.Switches.Template,
		FlipDelaySeconds:    src.Flip.DelaySeconds,
		FlipIntervalSeconds: src.Flip.IntervalSeconds,
	}
}

// SpecFromV1alpha1 returns the spec in v1beta1. It shares memory with src.
func SpecFromV1alpha1(src v1alpha1.MachineSpec) v1beta1.MachineSpec {
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

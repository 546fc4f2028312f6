// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Switch is one switch of a Machine.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=usw,categories=useless
// +kubebuilder:printcolumn:name=Machine,type=string,JSONPath=`.metadata.ownerReferences[?(@.controller==true)].name`
// +kubebuilder:printcolumn:name=Position,type=string,JSONPath=`.spec.position`
// +kubebuilder:printcolumn:name=Seen,type=date,JSONPath=`.status.seenAt`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type Switch struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +optional
	// +kubebuilder:default={}
	Spec SwitchSpec `json:"spec,omitzero"`

	// status is the state that the operator last observed.
	// +optional
	Status SwitchStatus `json:"status,omitzero"`
}

// SwitchSpec is the desired state of a Switch. All versions of the API use this type.
type SwitchSpec struct {
	// position is up or down. The default is down. A user can set it to up at any time, and the operator sets it back
	// to down.
	// +optional
	// +kubebuilder:default=down
	Position Position `json:"position,omitempty"`
}

// SwitchStatus is the state that the operator last observed. All versions of the API use this type.
type SwitchStatus struct {
	// observedGeneration is the metadata.generation of the switch when the operator last set seenAt. If
	// metadata.generation is different now, the position has changed since then, and seenAt belongs to an earlier
	// position. For example, 2.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// seenAt is the time at which the operator last noticed that the switch is up. It stays when the switch is down
	// again. If the API server refuses to turn the switch down, the operator sets seenAt to a later time. This delays
	// the next attempt. For example, "2026-11-20T09:00:00.123456Z".
	// +optional
	SeenAt *metav1.MicroTime `json:"seenAt,omitempty"`
}

// SwitchList is a list of Switches.
//
// +kubebuilder:object:root=true
type SwitchList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	// items are the Switches.
	Items []Switch `json:"items"`
}

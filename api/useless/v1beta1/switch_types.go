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
// +kubebuilder:resource
// +kubebuilder:printcolumn:name=Machine,type=string,JSONPath=`.metadata.ownerReferences[?(@.controller==true)].name`
// +kubebuilder:printcolumn:name=Position,type=string,JSONPath=`.spec.position`
// +kubebuilder:printcolumn:name=Seen,type=date,JSONPath=`.status.seenAt`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type Switch struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the Switch as people turn it.
	// +optional
	// +kubebuilder:default={}
	Spec SwitchSpec `json:"spec,omitzero"`

	// status is what the operator noticed.
	// +optional
	Status SwitchStatus `json:"status,omitzero"`
}

// SwitchSpec is the Switch as people turn it. It is the same in every version.
type SwitchSpec struct {
	// position is where the switch is. It may be turned up at any time; its Machine turns it down again.
	// +optional
	// +kubebuilder:default=down
	Position Position `json:"position,omitempty"`
}

// SwitchStatus is what the operator noticed. It is the same in every version.
type SwitchStatus struct {
	// observedGeneration is the metadata.generation that seenAt belongs to. A switch that has been turned since then is
	// yet to be noticed, even if it is up again.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// seenAt is when the operator noticed that the switch is up; absent while it is down. Where it may not be turned down,
	// it is the instant that its next turn follows from.
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

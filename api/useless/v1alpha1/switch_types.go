// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
)

// Switch is one switch of a Machine.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:deprecatedversion:warning="useless.container.training/v1alpha1 Switch is deprecated; use useless.container.training/v1beta1 Switch"
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=usw,categories=useless
// +kubebuilder:printcolumn:name=Position,type=string,JSONPath=`.spec.position`
// +kubebuilder:printcolumn:name=Seen,type=date,JSONPath=`.status.seenAt`
type Switch struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +optional
	// +kubebuilder:default={}
	Spec v1beta1.SwitchSpec `json:"spec,omitzero"`

	// status is the state that the operator last observed.
	// +optional
	Status v1beta1.SwitchStatus `json:"status,omitzero"`
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

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
)

// Machine has switches. When someone turns a switch up, the operator turns it back down. The name of a Machine has at
// most 63 characters.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:deprecatedversion:warning="useless.container.training/v1alpha1 Machine is deprecated; use useless.container.training/v1beta1 Machine"
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.switches,statuspath=.status.switches.total,selectorpath=.status.selector
// +kubebuilder:resource:shortName=um,categories=useless
// +kubebuilder:printcolumn:name=Switches,type=integer,JSONPath=`.spec.switches`
// +kubebuilder:printcolumn:name=Positions,type=string,JSONPath=`.status.positions`
// +kubebuilder:validation:XValidation:rule="has(self.spec.selector) || self.spec.?template.?metadata.?labels[?'machine'].orValue(self.metadata.name) == self.metadata.name",fieldPath=".spec.template.metadata.labels",messageExpression="'machine=' + self.spec.template.metadata.labels['machine'] + ' does not satisfy the default selector machine=' + self.metadata.name"
type Machine struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +optional
	// +kubebuilder:default={}
	Spec MachineSpec `json:"spec,omitzero"`

	// status is the state that the operator last observed.
	// +optional
	Status v1beta1.MachineStatus `json:"status,omitzero"`
}

// MachineSpec is the desired state of a Machine.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) == has(oldSelf.selector) && (!has(self.selector) || self.selector == oldSelf.selector)",fieldPath=".selector",message="selector is immutable: create a new Machine instead"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchLabels) && has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchLabels.all(k, !(k in self.template.metadata.labels) || self.template.metadata.labels[k] == self.selector.matchLabels[k])",fieldPath=".template.metadata.labels",messageExpression="[self.selector.matchLabels.filter(k, k in self.template.metadata.labels && self.template.metadata.labels[k] != self.selector.matchLabels[k])[0]].map(k, k + '=' + self.template.metadata.labels[k] + ' does not satisfy matchLabels ' + k + '=' + self.selector.matchLabels[k])[0]"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchExpressions)) || self.selector.matchExpressions.all(e, e.operator in ['NotIn', 'DoesNotExist'] || (has(self.selector.matchLabels) && e.key in self.selector.matchLabels) || (has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels))",fieldPath=".template.metadata.labels",messageExpression="self.selector.matchExpressions.map(e, !(e.operator in ['NotIn', 'DoesNotExist'] || (has(self.selector.matchLabels) && e.key in self.selector.matchLabels) || (has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels)), e.key + ' is missing, but matchExpressions require it')[0]"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchExpressions) && has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchExpressions.all(e, !(e.key in self.template.metadata.labels) || e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.template.metadata.labels[e.key] in e.values)))",fieldPath=".template.metadata.labels",messageExpression="self.selector.matchExpressions.map(e, e.key in self.template.metadata.labels && !(e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.template.metadata.labels[e.key] in e.values))), e.key + '=' + self.template.metadata.labels[e.key] + ' does not satisfy matchExpressions: ' + e.key + ' ' + (has(e.values) ? e.operator + ' (' + e.values.join(', ') + ')' : e.operator))[0]"
type MachineSpec struct {
	// switches is the number of switches, from 1 to 1000. The default is 1. The operator's flag --max-switches sets a
	// lower maximum (default 100). For example, 3.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Switches int32 `json:"switches,omitempty"`

	// switchPosition is down or up. The default is down. If it is up, the operator waits until the requested number of
	// switches exists. Then it turns all switches up once. After that, it turns them down one by one. When all switches
	// are down, it resets this field to down.
	// +optional
	// +kubebuilder:default=down
	SwitchPosition v1beta1.Position `json:"switchPosition,omitempty"`

	// selector selects the Machine's switches in its namespace. It is immutable and must not be empty. If it is absent,
	// the operator selects the switches that have the label machine with the Machine's name as value.
	// +optional
	Selector *v1beta1.LabelSelector `json:"selector,omitempty"`

	// template contains the labels and annotations of new switches. The operator also adds the matchLabels of the
	// selector.
	// +optional
	Template v1beta1.SwitchTemplate `json:"template,omitzero"`

	// flipDelaySeconds is the minimum time in seconds that a switch stays up after the operator noticed it. The range
	// is 0 to 86400 (one day). The default is 5. For example, 30.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	FlipDelaySeconds *int32 `json:"flipDelaySeconds,omitempty"`

	// flipIntervalSeconds is the minimum time in seconds between two flips of the Machine. In a flip, the operator
	// turns one switch down. The range is 0 to 86400 (one day). The default is 5. If it is 0, the operator turns each
	// switch down as soon as its delay has passed. For example, 60.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	FlipIntervalSeconds *int32 `json:"flipIntervalSeconds,omitempty"`
}

// MachineList is a list of Machines.
//
// +kubebuilder:object:root=true
type MachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	// items are the Machines.
	Items []Machine `json:"items"`
}

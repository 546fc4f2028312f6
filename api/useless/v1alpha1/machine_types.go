// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
)

// Machine has switches. Whoever turns one up, the operator turns it down again.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:deprecatedversion:warning="useless.container.training/v1alpha1 Machine is deprecated; use useless.container.training/v1beta1 Machine"
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.switches,statuspath=.status.switches.total,selectorpath=.status.selector
// +kubebuilder:resource
// +kubebuilder:printcolumn:name=Switches,type=integer,JSONPath=`.spec.switches`
// +kubebuilder:printcolumn:name=Positions,type=string,JSONPath=`.status.positions`
// +kubebuilder:validation:XValidation:rule="has(self.spec.selector) || self.spec.?template.?metadata.?labels[?'machine'].orValue(self.metadata.name) == self.metadata.name",fieldPath=".spec.template.metadata.labels",messageExpression="'machine=' + self.spec.template.metadata.labels['machine'] + ' does not satisfy the default selector machine=' + self.metadata.name"
type Machine struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the Machine as its user wants it.
	// +optional
	// +kubebuilder:default={}
	Spec MachineSpec `json:"spec,omitzero"`

	// status is the Machine as the operator last saw it.
	// +optional
	Status v1beta1.MachineStatus `json:"status,omitzero"`
}

// MachineSpec is the Machine as its user wants it.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) == has(oldSelf.selector) && (!has(self.selector) || self.selector == oldSelf.selector)",fieldPath=".selector",message="selector is immutable: create a new Machine instead"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchLabels) && has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchLabels.all(k, !(k in self.template.metadata.labels) || self.template.metadata.labels[k] == self.selector.matchLabels[k])",fieldPath=".template.metadata.labels",messageExpression="[self.selector.matchLabels.filter(k, k in self.template.metadata.labels && self.template.metadata.labels[k] != self.selector.matchLabels[k])[0]].map(k, k + '=' + self.template.metadata.labels[k] + ' does not satisfy matchLabels ' + k + '=' + self.selector.matchLabels[k])[0]"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchExpressions)) || self.selector.matchExpressions.all(e, e.operator in ['NotIn', 'DoesNotExist'] || (has(self.selector.matchLabels) && e.key in self.selector.matchLabels) || (has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels))",fieldPath=".template.metadata.labels",messageExpression="self.selector.matchExpressions.map(e, !(e.operator in ['NotIn', 'DoesNotExist'] || (has(self.selector.matchLabels) && e.key in self.selector.matchLabels) || (has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels)), e.key + ' is missing, which matchExpressions ask for')[0]"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchExpressions) && has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchExpressions.all(e, !(e.key in self.template.metadata.labels) || e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.template.metadata.labels[e.key] in e.values)))",fieldPath=".template.metadata.labels",messageExpression="self.selector.matchExpressions.map(e, e.key in self.template.metadata.labels && !(e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.template.metadata.labels[e.key] in e.values))), e.key + '=' + self.template.metadata.labels[e.key] + ' does not satisfy matchExpressions: ' + e.key + ' ' + (has(e.values) ? e.operator + ' (' + e.values.join(', ') + ')' : e.operator))[0]"
type MachineSpec struct {
	// switches is the number of switches, from 1 to 1000. An operator may allow fewer (its flag --max-switches, 100 by
	// default).
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Switches int32 `json:"switches,omitempty"`

	// switchPosition set to up turns every switch up once, as soon as there are as many as asked for. The operator then
	// turns them down one by one and, when the last one is down, sets this field back to down.
	// +optional
	// +kubebuilder:default=down
	SwitchPosition v1beta1.Position `json:"switchPosition,omitempty"`

	// selector says which switches in the Machine's namespace belong to it. It cannot be changed or emptied; absent
	// means the label machine with the Machine's name.
	// +optional
	Selector *v1beta1.LabelSelector `json:"selector,omitempty"`

	// template is what new switches start from. A new switch has the selector's matchLabels and these labels.
	// +optional
	Template v1beta1.SwitchTemplate `json:"template,omitzero"`

	// flipDelaySeconds is how long a switch may stay up after the operator has noticed it, in seconds, from 0 to 86400
	// (a day).
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	FlipDelaySeconds *int32 `json:"flipDelaySeconds,omitempty"`

	// flipIntervalSeconds is the time in which the Machine turns down at most one switch, in seconds, from 0 to 86400
	// (a day). With 0, every switch whose delay has passed is turned down at once.
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

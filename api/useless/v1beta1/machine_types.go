// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults and bounds of a Machine; the schema's markers repeat them.
const (
	// DefaultSwitchCount is the number of switches of a Machine that names none.
	DefaultSwitchCount int32 = 1
	// DefaultFlipSeconds is the flip delay and the flip interval of a Machine that names none, in seconds.
	DefaultFlipSeconds int32 = 5
	// MaxMachineNameLength is the length of a label value, which a Machine's name becomes.
	MaxMachineNameLength = 63
)

// Position is where a switch is.
// +kubebuilder:validation:Enum=up;down
type Position string

const (
	// PositionUp is where people put switches.
	PositionUp Position = "up"
	// PositionDown is where the operator puts them, and the default.
	PositionDown Position = "down"
)

// Machine has switches. Whoever turns one up, the operator turns it down again.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.switches.count,statuspath=.status.switches.total,selectorpath=.status.selector
// +kubebuilder:storageversion
// +kubebuilder:resource
// +kubebuilder:printcolumn:name=Switches,type=integer,JSONPath=`.spec.switches.count`
// +kubebuilder:printcolumn:name=Positions,type=string,JSONPath=`.status.positions`
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="has(self.spec.switches.selector) || self.spec.switches.?template.?metadata.?labels[?'machine'].orValue(self.metadata.name) == self.metadata.name",fieldPath=".spec.switches.template.metadata.labels",messageExpression="'machine=' + self.spec.switches.template.metadata.labels['machine'] + ' does not satisfy the default selector machine=' + self.metadata.name"
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
	Status MachineStatus `json:"status,omitzero"`
}

// MachineSpec is the Machine as its user wants it.
type MachineSpec struct {
	// switches says how many switches there are and which ones they are.
	// +optional
	// +kubebuilder:default={}
	Switches SwitchesSpec `json:"switches,omitzero"`

	// position set to up turns every switch up once, as soon as there are as many as asked for. The operator then
	// turns them down one by one and, when the last one is down, sets this field back to down.
	// +optional
	// +kubebuilder:default=down
	Position Position `json:"position,omitempty"`

	// flip says when a switch that is up is turned down.
	// +optional
	// +kubebuilder:default={}
	Flip FlipSpec `json:"flip,omitzero"`
}

// SwitchesSpec says how many switches a Machine has and which ones they are.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) == has(oldSelf.selector) && (!has(self.selector) || self.selector == oldSelf.selector)",fieldPath=".selector",message="selector is immutable: create a new Machine instead"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchLabels) && has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchLabels.all(k, !(k in self.template.metadata.labels) || self.template.metadata.labels[k] == self.selector.matchLabels[k])",fieldPath=".template.metadata.labels",messageExpression="[self.selector.matchLabels.filter(k, k in self.template.metadata.labels && self.template.metadata.labels[k] != self.selector.matchLabels[k])[0]].map(k, k + '=' + self.template.metadata.labels[k] + ' does not satisfy matchLabels ' + k + '=' + self.selector.matchLabels[k])[0]"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchExpressions)) || self.selector.matchExpressions.all(e, e.operator in ['NotIn', 'DoesNotExist'] || (has(self.selector.matchLabels) && e.key in self.selector.matchLabels) || (has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels))",fieldPath=".template.metadata.labels",messageExpression="self.selector.matchExpressions.map(e, !(e.operator in ['NotIn', 'DoesNotExist'] || (has(self.selector.matchLabels) && e.key in self.selector.matchLabels) || (has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels)), e.key + ' is missing, which matchExpressions ask for')[0]"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchExpressions) && has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchExpressions.all(e, !(e.key in self.template.metadata.labels) || e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.template.metadata.labels[e.key] in e.values)))",fieldPath=".template.metadata.labels",messageExpression="self.selector.matchExpressions.map(e, e.key in self.template.metadata.labels && !(e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.template.metadata.labels[e.key] in e.values))), e.key + '=' + self.template.metadata.labels[e.key] + ' does not satisfy matchExpressions: ' + e.key + ' ' + (has(e.values) ? e.operator + ' (' + e.values.join(', ') + ')' : e.operator))[0]"
type SwitchesSpec struct {
	// count is the number of switches, from 1 to 1000. An operator may allow fewer (its flag --max-switches, 100 by
	// default).
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Count int32 `json:"count,omitempty"`

	// selector says which switches in the Machine's namespace belong to it. It cannot be changed or emptied; absent
	// means the label machine with the Machine's name.
	// +optional
	Selector *LabelSelector `json:"selector,omitempty"`

	// template is what new switches start from. A new switch has the selector's matchLabels and these labels.
	// +optional
	Template SwitchTemplate `json:"template,omitzero"`
}

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
type LabelValue string

// LabelSelector selects objects by their labels, as metav1.LabelSelector does. Its bounds let the API server
// check it without a webhook.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="size(self.?matchLabels.orValue({})) + size(self.?matchExpressions.orValue([])) > 0",message="selector must not be empty: it would take every Switch in the namespace"
// +kubebuilder:validation:XValidation:rule="!(has(self.matchLabels) && has(self.matchExpressions)) || self.matchExpressions.all(e, !(e.key in self.matchLabels) || e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.matchLabels[e.key] in e.values)))",fieldPath=".matchExpressions",message="selector contradicts itself: matchLabels do not satisfy matchExpressions"
type LabelSelector struct {
	// matchLabels are the labels that an object must have, with exactly these values.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]LabelValue `json:"matchLabels,omitzero"`

	// matchExpressions are further requirements; all of them must hold.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitzero"`
}

// LabelSelectorRequirement is one requirement on one label.
//
// +kubebuilder:validation:XValidation:rule="(self.operator == 'In' || self.operator == 'NotIn') == (size(self.?values.orValue([])) > 0)",fieldPath=".values",messageExpression="self.key + ' ' + self.operator + ': values must be given for In and NotIn, and for no other operator'"
type LabelSelectorRequirement struct {
	// key is the label's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// operator relates the label to the values.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator,omitempty"`

	// values are given for In and NotIn, and for no other operator.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Values []LabelValue `json:"values,omitzero"`
}

// SwitchTemplate is what new switches start from.
type SwitchTemplate struct {
	// metadata is copied to new switches; existing ones keep theirs.
	// +optional
	Metadata TemplateMetadata `json:"metadata,omitzero"`
}

// TemplateMetadata is the part of an object's metadata that a template may set.
type TemplateMetadata struct {
	// labels of new switches, beside those that the selector asks for.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]LabelValue `json:"labels,omitzero"`

	// annotations of new switches.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Annotations map[string]string `json:"annotations,omitzero"`
}

// FlipSpec says when a switch that is up is turned down: as soon as both times have passed, never earlier.
type FlipSpec struct {
	// delaySeconds is how long a switch may stay up after the operator has noticed it, in seconds, from 0 to 86400
	// (a day).
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DelaySeconds *int32 `json:"delaySeconds,omitempty"`

	// intervalSeconds is the time in which the Machine turns down at most one switch, in seconds, from 0 to 86400
	// (a day). With 0, every switch whose delay has passed is turned down at once.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`
}

// MachineStatus is the Machine as the operator last saw it. It is the same in every version.
type MachineStatus struct {
	// conditions are Scaled (there are as many switches as asked for), Resting (all of them are down) and Ready (both).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// switches counts the switches by position.
	// +optional
	Switches SwitchCounts `json:"switches,omitzero"`

	// positions has the first letter of each switch's position, in the order of their names (numbers as numbers).
	// +optional
	Positions string `json:"positions,omitempty"`

	// position is the spec.position that has been carried out.
	// +optional
	Position Position `json:"position,omitempty"`

	// selector is the selector in its text form, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`

	// seenAt is when the operator noticed the switch that has been up for longest; absent while all are down.
	// +optional
	SeenAt *metav1.MicroTime `json:"seenAt,omitempty"`

	// lastFlipTime is when the operator last turned one of the switches down.
	// +optional
	LastFlipTime *metav1.MicroTime `json:"lastFlipTime,omitempty"`
}

// SwitchCounts counts switches by position.
type SwitchCounts struct {
	// total is the number of switches.
	// +required
	Total int32 `json:"total"`

	// up is the number of switches that are up.
	// +required
	Up int32 `json:"up"`

	// down is the number of switches that are down.
	// +required
	Down int32 `json:"down"`
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

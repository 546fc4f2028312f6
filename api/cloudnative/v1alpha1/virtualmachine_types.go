// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Action is what a VirtualMachine is to do.
// +kubebuilder:validation:Enum=active;inactive
type Action string

const (
	// ActionActive keeps a server running. It is the default.
	ActionActive Action = "active"
	// ActionInactive keeps no server; the VirtualMachine stays.
	ActionInactive Action = "inactive"
)

// Phase sums up how a VirtualMachine is. The conditions say more.
// +kubebuilder:validation:Enum=Creating;Active;Failed;Stopped;Terminating
type Phase string

const (
	// PhaseCreating means that the server does not run and is not ready yet.
	PhaseCreating Phase = "Creating"
	// PhaseActive means that the server runs and is ready.
	PhaseActive Phase = "Active"
	// PhaseFailed means that the server has failed. It is tried again.
	PhaseFailed Phase = "Failed"
	// PhaseStopped means that there is no server, because the VirtualMachine is inactive.
	PhaseStopped Phase = "Stopped"
	// PhaseTerminating means that the VirtualMachine is being deleted.
	PhaseTerminating Phase = "Terminating"
)

// ServerState is what a server's container does.
// +kubebuilder:validation:Enum=running;waiting;terminated
type ServerState string

const (
	// ServerRunning means that the container runs.
	ServerRunning ServerState = "running"
	// ServerWaiting means that the container does not run yet, or not again.
	ServerWaiting ServerState = "waiting"
	// ServerTerminated means that the container has ended.
	ServerTerminated ServerState = "terminated"
)

// VirtualMachine is a server with a fixed amount of CPU and memory. The server is a Pod, named as the VirtualMachine with
// "-vm" behind it.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=vm;vms
// +kubebuilder:printcolumn:name=Status,type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name=CPU,type=integer,description="CPU usage in percent of the limit",JSONPath=`.status.server.usage.cpu`
// +kubebuilder:printcolumn:name=Memory,type=integer,description="Memory usage in percent of the limit",JSONPath=`.status.server.usage.memory`
// +kubebuilder:printcolumn:name=Ready,type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Node,type=string,priority=1,JSONPath=`.status.server.node`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 60",fieldPath=".metadata",message="name must have at most 60 characters: with -vm behind it, it becomes the server's host name"
type VirtualMachine struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the VirtualMachine as its user wants it.
	// +required
	Spec VirtualMachineSpec `json:"spec,omitzero"`

	// status is the VirtualMachine as the operator last saw it.
	// +optional
	Status VirtualMachineStatus `json:"status,omitzero"`
}

// VirtualMachineSpec is the VirtualMachine as its user wants it.
type VirtualMachineSpec struct {
	// action is active for a VirtualMachine that has a server, or inactive for one that has none at present. A server
	// that is stopped keeps nothing: the next one starts from the image again.
	// +optional
	// +kubebuilder:default=active
	Action Action `json:"action,omitempty"`

	// resource is what the server has.
	// +required
	Resource ResourceSpec `json:"resource,omitzero"`
}

// ResourceSpec is what a server has: no less, and no more. Its bounds are where Kubernetes can still count with it, which has
// 64 bits for bytes and for thousandths of a CPU, and writes 1000E as 1. Exponents have two digits at most: to compare
// one of ten takes Kubernetes longer than any request may take.
//
// +kubebuilder:validation:XValidation:rule="has(self.rootDisk) == has(oldSelf.rootDisk) && (!has(self.rootDisk) || size(string(self.rootDisk)) <= 64 && !string(self.rootDisk).matches('[eE][+-]?[0-9]{3}') && quantity(string(self.rootDisk)).compareTo(quantity(string(oldSelf.rootDisk))) == 0)",fieldPath=".rootDisk",message="rootDisk is immutable: create a new VirtualMachine instead"
type ResourceSpec struct {
	// cpu is the number of CPUs, more than 0 and at most 1P, such as 2 or 500m (half a CPU). The server gets another number
	// without a restart.
	// +required
	// +kubebuilder:validation:XValidation:rule="size(string(self)) <= 64 && !string(self).matches('[eE][+-]?[0-9]{3}') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1P'))",message="cpu must be more than 0 and at most 1P, such as 2 or 500m"
	CPU resource.Quantity `json:"cpu,omitzero"`

	// memory is the memory in bytes, more than 0 and at most 1E, such as 4G or 512Mi. The server gets another amount without a
	// restart.
	// +required
	// +kubebuilder:validation:XValidation:rule="size(string(self)) <= 64 && !string(self).matches('[eE][+-]?[0-9]{3}') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1E'))",message="memory must be more than 0 bytes and at most 1E, such as 4G or 512Mi"
	Memory resource.Quantity `json:"memory,omitzero"`

	// rootDisk is the ephemeral storage in bytes, more than 0 and at most 1E, such as 40G or 10Gi. It is immutable; absent means
	// what the node has.
	// +optional
	// +kubebuilder:validation:XValidation:rule="size(string(self)) <= 64 && !string(self).matches('[eE][+-]?[0-9]{3}') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1E'))",message="rootDisk must be more than 0 bytes and at most 1E, such as 40G or 10Gi"
	RootDisk *resource.Quantity `json:"rootDisk,omitempty"`
}

// VirtualMachineStatus is the VirtualMachine as the operator last saw it. It follows from the Pod, and of what it said before
// only from failures and retryTime; instants, usage and the message of a refusal stay as long as they hold.
type VirtualMachineStatus struct {
	// conditions are Ready (the server runs and is ready), Scheduled (it has a node), Resizing (it does not have the
	// resources yet that the spec asks for) and UsageAvailable (its usage is known).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase sums up how the VirtualMachine is, for people. Programs had better read the conditions.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// reason says in one word why the phase is what it is. It is the reason of the condition Ready.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message says in a sentence why the phase is what it is. It is the message of the condition Ready.
	// +optional
	Message string `json:"message,omitempty"`

	// server describes the server; absent while there is none.
	// +optional
	Server *ServerStatus `json:"server,omitempty"`

	// failures is how many servers have failed one after the other, since the last one that was ready for five minutes.
	// +optional
	Failures int32 `json:"failures,omitempty"`

	// retryTime is when a server that has failed is replaced: 10 seconds after it has, and twice as long with each
	// failure that follows, up to five minutes.
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`

	// lastUpdateTime is when another field of the status last changed.
	// +optional
	LastUpdateTime *metav1.Time `json:"lastUpdateTime,omitempty"`
}

// ServerStatus describes a server.
type ServerStatus struct {
	// id is the UID of the server's Pod.
	// +optional
	ID types.UID `json:"id,omitempty"`

	// name is the name of the server's Pod.
	// +optional
	Name string `json:"name,omitempty"`

	// state is what the server's container does.
	// +optional
	State ServerState `json:"state,omitempty"`

	// node is the name of the node that the server runs on.
	// +optional
	Node string `json:"node,omitempty"`

	// startTime is when the operator first saw the server ready.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// usage is what the server uses; absent while that is not known.
	// +optional
	Usage *UsageStatus `json:"usage,omitempty"`
}

// UsageStatus is what a server uses.
type UsageStatus struct {
	// cpu is the CPU time that the server uses, in percent of its limit, rounded. It may exceed 100 for a moment.
	// +required
	CPU int32 `json:"cpu"`

	// memory is the memory that the server uses, in percent of its limit, rounded.
	// +required
	Memory int32 `json:"memory"`
}

// VirtualMachineList is a list of VirtualMachines.
//
// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	// items are the VirtualMachines.
	Items []VirtualMachine `json:"items"`
}

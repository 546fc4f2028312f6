// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Action is the desired state of a VirtualMachine.
// +kubebuilder:validation:Enum=active;inactive
type Action string

const (
	// ActionActive keeps a Pod running. It is the default.
	ActionActive Action = "active"
	// ActionInactive deletes the Pod and keeps the VirtualMachine.
	ActionInactive Action = "inactive"
)

// Phase summarizes the state of a VirtualMachine. The conditions have the details.
// +kubebuilder:validation:Enum=Creating;Active;Failed;Stopped;Terminating
type Phase string

const (
	// PhaseCreating means that the Pod does not exist yet, or is not ready yet.
	PhaseCreating Phase = "Creating"
	// PhaseActive means that the Pod is running and ready.
	PhaseActive Phase = "Active"
	// PhaseFailed means that the Pod has failed, or that another Pod has the required name. The kubelet restarts a
	// failed Pod, or the operator replaces it.
	PhaseFailed Phase = "Failed"
	// PhaseStopped means that the VirtualMachine is inactive and has no Pod.
	PhaseStopped Phase = "Stopped"
	// PhaseTerminating means that the VirtualMachine is being deleted.
	PhaseTerminating Phase = "Terminating"
)

// ServerState is the state of the Pod's container.
// +kubebuilder:validation:Enum=running;waiting;terminated
type ServerState string

const (
	// ServerRunning means that the container is running.
	ServerRunning ServerState = "running"
	// ServerWaiting means that the container is waiting to be started or restarted.
	ServerWaiting ServerState = "waiting"
	// ServerTerminated means that the container has exited.
	ServerTerminated ServerState = "terminated"
)

// VirtualMachine runs one Pod with a fixed amount of CPU and memory. The Pod's name is the VirtualMachine's name with
// the suffix "-vm". The name of a VirtualMachine has at most 60 characters.
//
// +genclient
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=vm;vms,categories=useless
// +kubebuilder:printcolumn:name=Status,type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name=CPU,type=integer,description="CPU usage in percent of the limit",JSONPath=`.status.server.usage.cpu`
// +kubebuilder:printcolumn:name=Memory,type=integer,description="Memory usage in percent of the limit",JSONPath=`.status.server.usage.memory`
// +kubebuilder:printcolumn:name=Ready,type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Node,type=string,priority=1,JSONPath=`.status.server.node`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 60",fieldPath=".metadata",message="name must have at most 60 characters, because the Pod's host name is this name with the suffix -vm"
type VirtualMachine struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +required
	Spec VirtualMachineSpec `json:"spec,omitzero"`

	// status is the state that the operator last observed.
	// +optional
	Status VirtualMachineStatus `json:"status,omitzero"`
}

// VirtualMachineSpec is the desired state of a VirtualMachine.
type VirtualMachineSpec struct {
	// action is active (the VirtualMachine has a Pod) or inactive (it has no Pod). The default is active. When the
	// VirtualMachine becomes inactive, the data of its Pod is lost: the next Pod starts from the image.
	// +optional
	// +kubebuilder:default=active
	Action Action `json:"action,omitempty"`

	// resource is the CPU, memory and ephemeral storage of the Pod.
	// +required
	Resource ResourceSpec `json:"resource,omitzero"`
}

// ResourceSpec has the resources of the Pod's container. The requests and the limits are equal. The maximum values
// exist because Kubernetes stores bytes and thousandths of a CPU as 64-bit integers. An exponent can have at most two
// digits. If it had ten digits, the API server could not compare the quantity within the time limit of a request.
//
// +kubebuilder:validation:XValidation:rule="has(self.rootDisk) == has(oldSelf.rootDisk) && (!has(self.rootDisk) || size(string(self.rootDisk)) <= 64 && !string(self.rootDisk).matches('[eE][+-]?[0-9]{3}') && quantity(string(self.rootDisk)).compareTo(quantity(string(oldSelf.rootDisk))) == 0)",fieldPath=".rootDisk",message="rootDisk is immutable: create a new VirtualMachine instead"
type ResourceSpec struct {
	// cpu is the number of CPUs, more than 0 and at most 1P, such as 2 or 500m (half a CPU). A change resizes the Pod
	// without a restart.
	// +required
	// +kubebuilder:validation:XValidation:rule="size(string(self)) <= 64 && !string(self).matches('[eE][+-]?[0-9]{3}') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1P'))",message="cpu must be more than 0 and at most 1P, such as 2 or 500m"
	CPU resource.Quantity `json:"cpu,omitzero"`

	// memory is the memory in bytes, more than 0 and at most 1E, such as 4G or 512Mi. A change resizes the Pod without
	// a restart.
	// +required
	// +kubebuilder:validation:XValidation:rule="size(string(self)) <= 64 && !string(self).matches('[eE][+-]?[0-9]{3}') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1E'))",message="memory must be more than 0 bytes and at most 1E, such as 4G or 512Mi"
	Memory resource.Quantity `json:"memory,omitzero"`

	// rootDisk is the ephemeral storage in bytes, more than 0 and at most 1E, such as 40G or 10Gi. It is immutable. If
	// it is absent, the operator sets no request and no limit for ephemeral storage.
	// +optional
	// +kubebuilder:validation:XValidation:rule="size(string(self)) <= 64 && !string(self).matches('[eE][+-]?[0-9]{3}') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1E'))",message="rootDisk must be more than 0 bytes and at most 1E, such as 40G or 10Gi"
	RootDisk *resource.Quantity `json:"rootDisk,omitempty"`
}

// VirtualMachineStatus is the state that the operator last observed. The operator computes it from the Pod, and from
// the failures and the retryTime of the previous status. It also keeps the times, the usage and the rejection messages
// of the previous status while they are valid.
type VirtualMachineStatus struct {
	// conditions has four types. Ready: the Pod is running and ready. Scheduled: the Pod has a node. Resizing: the Pod
	// does not have the resources of the spec yet. UsageAvailable: status.server.usage is known.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes. For example, 2.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase summarizes the state for people: Creating, Active, Failed, Stopped or Terminating. Programs should read the
	// conditions.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// reason is the reason of the condition Ready: one word that explains the phase. For example, Unschedulable.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message is the message of the condition Ready: a sentence that explains the phase. For example, "0/1 nodes are
	// available: 1 Insufficient cpu."
	// +optional
	Message string `json:"message,omitempty"`

	// server describes the Pod. It is absent if there is no Pod.
	// +optional
	Server *ServerStatus `json:"server,omitempty"`

	// failures is the number of Pods that failed in a row. It is reset to 0 when a Pod has been ready for five minutes,
	// and when the VirtualMachine becomes inactive. For example, 1.
	// +optional
	// +kubebuilder:validation:Maximum=2147483647
	Failures int32 `json:"failures,omitempty"`

	// retryTime is the time at which the operator replaces a failed Pod. The delay is 10 seconds after the first
	// failure. It doubles with each further failure, up to five minutes. For example, "2026-11-20T09:00:10Z".
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`

	// lastUpdateTime is the time at which another field of the status last changed. For example,
	// "2026-11-20T09:00:00Z".
	// +optional
	LastUpdateTime *metav1.Time `json:"lastUpdateTime,omitempty"`
}

// ServerStatus describes the Pod of a VirtualMachine.
type ServerStatus struct {
	// id is the UID of the Pod. For example, 0b0c4a4e-5d0c-4d0e-9f3e-6f1a3a3f7c11.
	// +optional
	ID types.UID `json:"id,omitempty"`

	// name is the name of the Pod. For example, test-vm.
	// +optional
	Name string `json:"name,omitempty"`

	// state is the state of the Pod's container: running, waiting or terminated.
	// +optional
	State ServerState `json:"state,omitempty"`

	// node is the name of the node of the Pod. For example, node-1.
	// +optional
	Node string `json:"node,omitempty"`

	// startTime is the time at which the operator first observed that the Pod is ready. For example,
	// "2026-11-20T09:00:00Z".
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// usage is the measured usage of the Pod. It is absent while the usage is not known.
	// +optional
	Usage *UsageStatus `json:"usage,omitempty"`
}

// UsageStatus is the measured usage of the Pod's container.
type UsageStatus struct {
	// cpu is the CPU usage in percent of the limit, rounded. It can exceed 100 for a moment. For example, 25.
	// +required
	// +kubebuilder:validation:Maximum=2147483647
	CPU int32 `json:"cpu"`

	// memory is the memory usage in percent of the limit, rounded. For example, 60.
	// +required
	// +kubebuilder:validation:Maximum=2147483647
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

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Labels and finalizers that the operator sets.
const (
	// VirtualMachineLabel is on the Pod of every VirtualMachine. Its value is the VirtualMachine's name.
	VirtualMachineLabel = "cloudnative.tw/virtualmachine"

	// VirtualMachineFinalizer is on a VirtualMachine. The operator adds it before it creates the first Pod. When a user
	// deletes the VirtualMachine, the operator removes the finalizer after the Pod is gone. If the VirtualMachine is
	// paused, or its Pod is orphaned, the operator removes the finalizer immediately.
	VirtualMachineFinalizer = "cloudnative.tw/virtualmachine"
)

// Condition types of a VirtualMachine.
const (
	// ConditionReady is True while the Pod is running and ready.
	ConditionReady = "Ready"
	// ConditionScheduled is True while the Pod has a node.
	ConditionScheduled = "Scheduled"
	// ConditionResizing is True while the Pod does not have the resources of the spec yet.
	ConditionResizing = "Resizing"
	// ConditionUsageAvailable is True while status.server.usage is known.
	ConditionUsageAvailable = "UsageAvailable"
)

// Reasons of the condition Ready. The field status.reason has the same value. If a Pod fails, the operator copies the
// Pod's own reason, such as CrashLoopBackOff, ErrImagePull, ImagePullBackOff, CreateContainerConfigError or Evicted.
const (
	// ReasonServerReady means that the Pod is running and ready.
	ReasonServerReady = "ServerReady"
	// ReasonCreating means that the Pod is being created.
	ReasonCreating = "Creating"
	// ReasonUnschedulable means that the Pod fits on no node.
	ReasonUnschedulable = "Unschedulable"
	// ReasonStarting means that the Pod is not running or not ready yet.
	ReasonStarting = "Starting"
	// ReasonReplacing means that the Pod is being deleted, and that a new Pod will replace it.
	ReasonReplacing = "Replacing"
	// ReasonQuotaExceeded means that a ResourceQuota rejects the Pod.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonCreateFailed means that the Pod cannot be created for another reason.
	ReasonCreateFailed = "CreateFailed"
	// ReasonNameConflict means that another Pod, which the VirtualMachine does not control, has the required name.
	ReasonNameConflict = "NameConflict"
	// ReasonServerFailed means that the Pod has failed and gives no reason.
	ReasonServerFailed = "ServerFailed"
	// ReasonStopping means that the VirtualMachine is inactive and its Pod is being deleted.
	ReasonStopping = "Stopping"
	// ReasonStopped means that the VirtualMachine is inactive and has no Pod.
	ReasonStopped = "Stopped"
	// ReasonTerminating means that the VirtualMachine is being deleted.
	ReasonTerminating = "Terminating"
)

// Reasons of the other conditions.
const (
	// ReasonScheduled means that the Pod has a node.
	ReasonScheduled = "Scheduled"
	// ReasonPending means that the scheduler has not assigned a node yet.
	ReasonPending = "Pending"
	// ReasonNoServer means that there is no Pod. In the condition UsageAvailable, it means that no Pod is running.
	ReasonNoServer = "NoServer"
	// ReasonUpToDate means that the Pod has the resources of the spec.
	ReasonUpToDate = "UpToDate"
	// ReasonRequested means that the Pod was not resized or replaced yet, or that the node reports no progress yet.
	ReasonRequested = "Requested"
	// ReasonInProgress means that the node is applying the resize.
	ReasonInProgress = "InProgress"
	// ReasonDeferred means that the node does not have enough free resources at the moment.
	ReasonDeferred = "Deferred"
	// ReasonInfeasible means that the node can never provide the resources.
	ReasonInfeasible = "Infeasible"
	// ReasonResizeRefused means that the API server rejects the resize, or that an admission webhook changes it.
	ReasonResizeRefused = "ResizeRefused"
	// ReasonMeasured means that the usage of the Pod is known.
	ReasonMeasured = "Measured"
	// ReasonNotMeasured means that the usage of the Pod was not measured yet.
	ReasonNotMeasured = "NotMeasured"
	// ReasonMetricsAPIUnavailable means that the API metrics.k8s.io is not available.
	ReasonMetricsAPIUnavailable = "MetricsAPIUnavailable"
)

// Reasons of the events on a VirtualMachine.
const (
	// EventCreated names a created Pod and its resources.
	EventCreated = "Created"
	// EventStarted names a Pod that is running and ready for the first time.
	EventStarted = "Started"
	// EventStopped names a Pod that is gone because the VirtualMachine is inactive.
	EventStopped = "Stopped"
	// EventResized names a resized Pod and its new resources.
	EventResized = "Resized"
	// EventDeleted names a deleted Pod and the cause.
	EventDeleted = "Deleted"
	// EventCreateFailed contains the error that prevents the creation of a Pod.
	EventCreateFailed = "CreateFailed"
	// EventUnschedulable contains the scheduler's message about a Pod that fits on no node.
	EventUnschedulable = "Unschedulable"
	// EventNameConflict names a Pod that has the required name, but is not controlled by the VirtualMachine.
	EventNameConflict = "NameConflict"
	// EventCrashLoop contains the kubelet's message about a Pod that crashes repeatedly.
	EventCrashLoop = "CrashLoop"
)

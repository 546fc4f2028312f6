// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Names that the operator writes on objects.
const (
	// VirtualMachineLabel is on the Pod of every VirtualMachine. Its value is the VirtualMachine's name.
	VirtualMachineLabel = "cloudnative.tw/virtualmachine"

	// VirtualMachineFinalizer is on every VirtualMachine from before its first Pod until the last one is gone.
	VirtualMachineFinalizer = "cloudnative.tw/virtualmachine"
)

// Condition types of a VirtualMachine.
const (
	// ConditionReady is True while the server runs and is ready.
	ConditionReady = "Ready"
	// ConditionScheduled is True while the server has a node.
	ConditionScheduled = "Scheduled"
	// ConditionResizing is True while the server does not have the resources yet that the spec asks for.
	ConditionResizing = "Resizing"
	// ConditionUsageAvailable is True while status.server.usage is known.
	ConditionUsageAvailable = "UsageAvailable"
)

// Reasons of the condition Ready, and of the status. A server that has failed gives the reason that its Pod gives, such
// as CrashLoopBackOff, ErrImagePull, ImagePullBackOff, CreateContainerConfigError or Evicted.
const (
	// ReasonServerReady says that the server runs and is ready.
	ReasonServerReady = "ServerReady"
	// ReasonCreating says that the server is being created.
	ReasonCreating = "Creating"
	// ReasonUnschedulable says that no node can take the server.
	ReasonUnschedulable = "Unschedulable"
	// ReasonStarting says that the server has a node and does not run, or is not ready, yet.
	ReasonStarting = "Starting"
	// ReasonReplacing says that a server is going, which another one will replace.
	ReasonReplacing = "Replacing"
	// ReasonQuotaExceeded says that a ResourceQuota refuses the server.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonCreateFailed says that the API server refuses the server for another reason.
	ReasonCreateFailed = "CreateFailed"
	// ReasonNameConflict says that a Pod has the server's name that is not the VirtualMachine's.
	ReasonNameConflict = "NameConflict"
	// ReasonServerFailed says that the server has ended, for a reason that its Pod does not give.
	ReasonServerFailed = "ServerFailed"
	// ReasonStopping says that the server is going, because the VirtualMachine is inactive.
	ReasonStopping = "Stopping"
	// ReasonStopped says that there is no server, because the VirtualMachine is inactive.
	ReasonStopped = "Stopped"
	// ReasonTerminating says that the VirtualMachine is being deleted.
	ReasonTerminating = "Terminating"
)

// Reasons of the other conditions.
const (
	// ReasonScheduled says that the server has a node.
	ReasonScheduled = "Scheduled"
	// ReasonPending says that the scheduler has not decided yet.
	ReasonPending = "Pending"
	// ReasonNoServer says that there is no server to say anything of.
	ReasonNoServer = "NoServer"
	// ReasonUpToDate says that the server has the resources that the spec asks for.
	ReasonUpToDate = "UpToDate"
	// ReasonRequested says that the server was asked to take on other resources, of which the node has not said anything yet.
	ReasonRequested = "Requested"
	// ReasonInProgress says that the node is applying other resources.
	ReasonInProgress = "InProgress"
	// ReasonDeferred says that the node has no room for the resources at present.
	ReasonDeferred = "Deferred"
	// ReasonInfeasible says that the node can never give the resources.
	ReasonInfeasible = "Infeasible"
	// ReasonResizeRefused says that the API server refuses the resources.
	ReasonResizeRefused = "ResizeRefused"
	// ReasonMeasured says that the server's usage was measured.
	ReasonMeasured = "Measured"
	// ReasonNotMeasured says that the server's usage was not measured yet.
	ReasonNotMeasured = "NotMeasured"
	// ReasonMetricsAPIUnavailable says that the cluster does not serve metrics.k8s.io at present.
	ReasonMetricsAPIUnavailable = "MetricsAPIUnavailable"
)

// Reasons of the events on a VirtualMachine.
const (
	// EventCreated names a server that was created.
	EventCreated = "Created"
	// EventStarted names a server that runs and is ready for the first time.
	EventStarted = "Started"
	// EventStopped says that the server is gone, because the VirtualMachine is inactive.
	EventStopped = "Stopped"
	// EventResized says which resources a server was asked to take on.
	EventResized = "Resized"
	// EventDeleted names a server that was deleted, and says why.
	EventDeleted = "Deleted"
	// EventCreateFailed says why the API server refuses a server.
	EventCreateFailed = "CreateFailed"
	// EventUnschedulable says why no node can take a server.
	EventUnschedulable = "Unschedulable"
	// EventNameConflict names a Pod that has a server's name and is not the VirtualMachine's.
	EventNameConflict = "NameConflict"
	// EventCrashLoop names a server that ends again and again.
	EventCrashLoop = "CrashLoop"
)

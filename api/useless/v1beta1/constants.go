// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

// Names that the operator reads and writes on objects.
const (
	// MachineLabel is the label that ties a Switch to its Machine where the Machine names no selector.
	// Its value is the Machine's name.
	MachineLabel = "machine"

	// MachineFinalizer is on every Machine from before its first Switch until it is powered down.
	MachineFinalizer = "useless.container.training/machine"

	// FlippedAtAnnotation is on a Switch: the instant (RFC 3339, microseconds) at which the operator last turned it
	// down. It is written in the same request as the position, so it survives whatever happens next.
	FlippedAtAnnotation = "useless.container.training/flipped-at"

	// PausedAnnotation keeps the operator from touching an object while its value is true (as strconv.ParseBool
	// reads it), except to let the object be deleted.
	PausedAnnotation = "useless.container.training/paused"
)

// Condition types of a Machine.
const (
	// ConditionScaled is True while the Machine has as many switches as it asks for.
	ConditionScaled = "Scaled"
	// ConditionResting is True while every switch is down.
	ConditionResting = "Resting"
	// ConditionReady is True while the Machine is both Scaled and Resting.
	ConditionReady = "Ready"
)

// Reasons of the conditions.
const (
	// ReasonCountReached says that there are as many switches as asked for.
	ReasonCountReached = "CountReached"
	// ReasonScaling says that switches are being created or deleted.
	ReasonScaling = "Scaling"
	// ReasonQuotaExceeded says that a ResourceQuota refused a switch.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonScalingFailed says that the API server refused to create or delete a switch for another reason.
	ReasonScalingFailed = "ScalingFailed"
	// ReasonInvalidSelector says that the selector cannot be parsed, so no switch is touched.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonAllDown says that every switch is down.
	ReasonAllDown = "AllDown"
	// ReasonSwitchesUp says that at least one switch is up.
	ReasonSwitchesUp = "SwitchesUp"
	// ReasonUseless says that the Machine has what it asked for and does nothing with it.
	ReasonUseless = "Useless"
	// ReasonNotScaled says that the Machine is not Ready because it is not Scaled.
	ReasonNotScaled = "NotScaled"
)

// Reasons of the events on a Machine.
const (
	// EventScaled says how many switches were created or deleted.
	EventScaled = "Scaled"
	// EventRaised says how many switches were turned up because the Machine's position asked for it.
	EventRaised = "Raised"
	// EventFlipped names a switch that was turned down.
	EventFlipped = "Flipped"
	// EventAdopted names a switch that the Machine took as its own.
	EventAdopted = "Adopted"
	// EventReleased names a switch that the Machine let go.
	EventReleased = "Released"
	// EventPoweredDown says how many switches were turned down because the Machine was deleted.
	EventPoweredDown = "PoweredDown"
)

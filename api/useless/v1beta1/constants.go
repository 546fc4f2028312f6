// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import "time"

// MaxClockSkew is the largest clock difference between two nodes that the operator tolerates. The operator records the
// times of past events in annotations and statuses. If a recorded time is more than MaxClockSkew in the future, the
// operator ignores it: a user has written it, or an earlier leader had a wrong clock.
const MaxClockSkew = 10 * time.Second

// Labels, finalizers and annotations that the operator reads or writes.
const (
	// MachineLabel selects the switches of a Machine that has no selector in its spec. The value of the label is the
	// Machine's name.
	MachineLabel = "machine"

	// MachineFinalizer is on a Machine. The operator adds it before it creates the first Switch. When a user deletes
	// the Machine, the operator turns the switches down and then removes the finalizer.
	MachineFinalizer = "useless.container.training/machine"

	// FlippedAtAnnotation is on a Switch. It is the time (RFC 3339, microseconds) when the operator last turned the
	// Switch down. The operator writes it in the same request as the position, so a crash cannot lose it.
	FlippedAtAnnotation = "useless.container.training/flipped-at"

	// PausedAnnotation with the value true (strconv.ParseBool) stops the operator from changing an object. A paused
	// object can still be deleted.
	PausedAnnotation = "useless.container.training/paused"
)

// Condition types of a Machine.
const (
	// ConditionScaled is True while the Machine has the requested number of switches.
	ConditionScaled = "Scaled"
	// ConditionResting is True while every switch is down.
	ConditionResting = "Resting"
	// ConditionReady is True while the Machine is both Scaled and Resting.
	ConditionReady = "Ready"
)

// Reasons of the conditions.
const (
	// ReasonCountReached means that the Machine has the requested number of switches.
	ReasonCountReached = "CountReached"
	// ReasonScaling means that switches are being created or deleted.
	ReasonScaling = "Scaling"
	// ReasonQuotaExceeded means that a ResourceQuota rejected a switch.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonScalingFailed means that the operator could not create, delete, adopt or release a switch, for a reason
	// other than a ResourceQuota.
	ReasonScalingFailed = "ScalingFailed"
	// ReasonInvalidSelector means that the selector is invalid. The operator changes no switch.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonAllDown means that every switch is down.
	ReasonAllDown = "AllDown"
	// ReasonSwitchesUp means that at least one switch is up.
	ReasonSwitchesUp = "SwitchesUp"
	// ReasonUseless means that the Machine is Ready: it has all its switches, and all are down.
	ReasonUseless = "Useless"
	// ReasonNotScaled means that the Machine is not Ready because it is not Scaled.
	ReasonNotScaled = "NotScaled"
)

// Reasons of the events on a Machine.
const (
	// EventScaled contains the number of switches that were created or deleted.
	EventScaled = "Scaled"
	// EventRaised contains the number of switches that were turned up because of spec.position. In a Warning event, it
	// contains the number of switches that the API server refused to turn up.
	EventRaised = "Raised"
	// EventFlipped names a switch that was turned down.
	EventFlipped = "Flipped"
	// EventAdopted names a switch that the Machine adopted.
	EventAdopted = "Adopted"
	// EventReleased names a switch that the Machine released.
	EventReleased = "Released"
	// EventPoweredDown contains the number of switches that were turned down because the Machine was deleted.
	EventPoweredDown = "PoweredDown"
)

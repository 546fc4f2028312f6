// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

const domain = "useless.container.training/"

// Annotations that users set to schedule a workload. At least one of StartScheduleAnnotation, StopScheduleAnnotation
// and StopAfterAnnotation is required. On a Namespace, the annotations in this list are the default for the workloads
// that have no annotation in this list. The default does not apply to HorizontalPodAutoscalers and ScaledObjects.
const (
	// StartScheduleAnnotation has the times at which the operator starts the workload. Its format is the five fields of
	// cron, or HH:MM, or days of the week and HH:MM.
	StartScheduleAnnotation = domain + "start-schedule"
	// StopScheduleAnnotation has the times at which the operator stops the workload. The formats are the same.
	StopScheduleAnnotation = domain + "stop-schedule"
	// TimeZoneAnnotation is the IANA time zone of the schedules. Absent means the operator's --default-time-zone.
	TimeZoneAnnotation = domain + "time-zone"
	// StopReplicasAnnotation is the number of replicas after a stop. Absent means 0.
	StopReplicasAnnotation = domain + "stop-replicas"
	// StartReplicasAnnotation is the number of replicas after a start, at least 1. Absent means the number before the
	// stop.
	StartReplicasAnnotation = domain + "start-replicas"
	// ExcludeDatesAnnotation has local dates and ranges of dates, such as 2026-12-24,2026-12-28/2027-01-03. On these
	// dates, the operator skips the starts of StartScheduleAnnotation.
	ExcludeDatesAnnotation = domain + "exclude-dates"
	// StopAfterAnnotation is a duration from 1m to 30d. The operator stops the workload when this time has passed since
	// its last start. The start can be a start by the operator or by a user.
	StopAfterAnnotation = domain + "stop-after"
)

// Annotations that users can set in addition to a schedule. A workload can combine them with the default schedule of
// its Namespace.
const (
	// SuspendAnnotation makes the operator skip starts and stops while its value is true. The operator does not execute
	// the skipped starts and stops later.
	SuspendAnnotation = domain + "suspend"
	// SuspendUntilAnnotation is a time (RFC 3339). The operator skips the starts and stops before it.
	SuspendUntilAnnotation = domain + "suspend-until"
	// StartUntilAnnotation is a time (RFC 3339). The workload runs until this time. On a workload, the value can also
	// be a duration from 1m to 30d. The operator replaces a duration by a time.
	StartUntilAnnotation = domain + "start-until"
	// While the value of DryRunAnnotation is true, the operator makes a dry run: it emits events and does not change
	// the workload. On a Namespace, it applies to all workloads.
	DryRunAnnotation = domain + "dry-run"
	// ScheduleAnnotation excludes a workload from the default schedule of its Namespace. Its only value is
	// ScheduleNone.
	ScheduleAnnotation = domain + "schedule"
)

// ScheduleNone is the only value of ScheduleAnnotation.
const ScheduleNone = "none"

// Annotations in which the operator records the last start or stop. It writes them in the same request as the replicas.
const (
	// OriginalReplicasAnnotation is the number of replicas before the stop. A start removes the annotation.
	OriginalReplicasAnnotation = domain + "original-replicas"
	// OriginalMinReplicasAnnotation is minReplicas of a HorizontalPodAutoscaler before the stop. For this kind,
	// OriginalReplicasAnnotation is maxReplicas before the stop. A start removes both annotations.
	OriginalMinReplicasAnnotation = domain + "original-min-replicas"
	// OriginalStateAnnotation is OriginalStateActive if the stop changed a workload without replicas: it suspended a
	// CronJob, paused a ScaledObject, or made a VirtualMachine inactive. A start removes the annotation.
	OriginalStateAnnotation = domain + "original-state"
	// LastScheduleTimeAnnotation is the time (RFC 3339) of the last start or stop that was handled.
	LastScheduleTimeAnnotation = domain + "last-schedule-time"
	// NextScheduleTimeAnnotation is the time (RFC 3339) of the next start or stop.
	NextScheduleTimeAnnotation = domain + "next-schedule-time"
	// ScheduleStateAnnotation is ScheduleStarted after a start, and ScheduleStopped after a stop. It is absent after a
	// start that left the workload stopped.
	ScheduleStateAnnotation = domain + "schedule-state"
	// ObservedScheduleAnnotation is a hash of the schedule that the operator last handled. If the current schedule has
	// a different hash, a user has edited it.
	ObservedScheduleAnnotation = domain + "observed-schedule"
	// RunningSinceAnnotation is the time (RFC 3339) from which StopAfterAnnotation counts.
	RunningSinceAnnotation = domain + "running-since"
	// ExpiresAtAnnotation is the time (RFC 3339) at which StartUntilAnnotation or StopAfterAnnotation ends.
	ExpiresAtAnnotation = domain + "expires-at"
)

// OriginalStateActive is the only value of OriginalStateAnnotation.
const OriginalStateActive = "Active"

// Values of ScheduleStateAnnotation.
const (
	ScheduleStarted = "Started"
	ScheduleStopped = "Stopped"
)

// Reasons of the events about a schedule.
const (
	// EventScheduledStop describes the change by a stop, such as the replicas before and after it.
	EventScheduledStop = "ScheduledStop"
	// EventScheduledStart describes the change by a start, such as the replicas before and after it.
	EventScheduledStart = "ScheduledStart"
	// EventScheduleRemoved means that the schedule was removed. If the operator has restored replicas, the event
	// contains their number.
	EventScheduleRemoved = "ScheduleRemoved"
	// EventInvalidSchedule names the invalid annotations. The workload is not scaled until they are fixed.
	EventInvalidSchedule = "InvalidSchedule"
	// EventUnknownTimeZone means that the time zone is the only invalid annotation.
	EventUnknownTimeZone = "UnknownTimeZone"
	// EventAutoscalerConflict names an autoscaler that would undo a stop. The operator does not stop the workload.
	EventAutoscalerConflict = "AutoscalerConflict"
	// EventStopsSoon is emitted at most 15 minutes before StartUntilAnnotation or StopAfterAnnotation stops the
	// workload.
	EventStopsSoon = "StopsSoon"
	// During a dry run, the operator emits EventWouldStop instead of a stop, and EventWouldStart instead of a start.
	EventWouldStop  = "WouldStop"
	EventWouldStart = "WouldStart"
	// EventScheduleOverridden names the field manager that has undone a stop or a start, and the time of its change.
	// The operator does nothing until the next start or stop.
	EventScheduleOverridden = "ScheduleOverridden"
	// EventScheduleIgnored means that the operator ignores the default schedule of a system Namespace, such as
	// kube-system.
	EventScheduleIgnored = "ScheduleIgnored"
	// EventScaleFailed contains the error that the API server returned when it rejected a start or a stop.
	EventScaleFailed = "ScaleFailed"
)

// IngressAnnotationsAnnotation with the value IngressAnnotationsDisabled opts an Ingress out of --ingress-annotation.
// The operator then removes the annotations that it has added, and restores the values that it has overwritten.
const (
	IngressAnnotationsAnnotation = domain + "ingress-annotations"
	IngressAnnotationsDisabled   = "Disabled"
)

// OriginalAnnotationsAnnotation has the original values of the Ingress annotations that the operator has overwritten.
// It is a JSON object with a string or null for each annotation key. Null means that there is no value to restore. The
// operator removes OriginalAnnotationsAnnotation after it has restored all values.
const OriginalAnnotationsAnnotation = domain + "original-annotations"

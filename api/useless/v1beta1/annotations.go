// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

const domain = "useless.container.training/"

// Annotations that users set to schedule a workload. At least one of the first two is required.
const (
	// StartScheduleAnnotation says when to scale up: the five fields of cron, HH:MM, or days of the week and HH:MM.
	StartScheduleAnnotation = domain + "start-schedule"
	// StopScheduleAnnotation says when to scale down, in the same forms.
	StopScheduleAnnotation = domain + "stop-schedule"
	// TimeZoneAnnotation is the IANA time zone of the schedules. Absent means the operator's --default-time-zone.
	TimeZoneAnnotation = domain + "time-zone"
	// StopReplicasAnnotation is the number of replicas after a stop. Absent means 0.
	StopReplicasAnnotation = domain + "stop-replicas"
	// StartReplicasAnnotation is the number of replicas after a start, at least 1. Absent means the number before the
	// stop.
	StartReplicasAnnotation = domain + "start-replicas"
	// SuspendAnnotation makes the operator skip starts and stops while its value is true. The operator does not execute
	// them later.
	SuspendAnnotation = domain + "suspend"
	// SuspendUntilAnnotation skips the starts and stops before a time (RFC 3339).
	SuspendUntilAnnotation = domain + "suspend-until"
	// ExcludeDatesAnnotation has the local dates, and ranges of dates, without a start.
	ExcludeDatesAnnotation = domain + "exclude-dates"
)

// Annotations in which the operator records the last start or stop. It writes them in the same request as the replicas.
const (
	// OriginalReplicasAnnotation is the number of replicas before the stop. A start removes it.
	OriginalReplicasAnnotation = domain + "original-replicas"
	// OriginalMinReplicasAnnotation is minReplicas of a HorizontalPodAutoscaler before the stop. Then
	// OriginalReplicasAnnotation is its maxReplicas. A start removes it.
	OriginalMinReplicasAnnotation = domain + "original-min-replicas"
	// OriginalStateAnnotation is OriginalStateActive if the stop changed a workload without replicas: it suspended a
	// CronJob, or made a VirtualMachine inactive. A start removes it.
	OriginalStateAnnotation = domain + "original-state"
	// LastScheduleTimeAnnotation is the time (RFC 3339) of the last start or stop that was handled.
	LastScheduleTimeAnnotation = domain + "last-schedule-time"
	// NextScheduleTimeAnnotation is the time (RFC 3339) of the next start or stop.
	NextScheduleTimeAnnotation = domain + "next-schedule-time"
	// ScheduleStateAnnotation is ScheduleStarted or ScheduleStopped, after the last start or stop.
	ScheduleStateAnnotation = domain + "schedule-state"
	// ObservedScheduleAnnotation is a hash of the schedule. A different value means that the schedule was edited.
	ObservedScheduleAnnotation = domain + "observed-schedule"
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
	// EventScheduledStop has the replicas before and after a stop.
	EventScheduledStop = "ScheduledStop"
	// EventScheduledStart has the replicas before and after a start.
	EventScheduledStart = "ScheduledStart"
	// EventScheduleRemoved means that the schedule was removed. It has the replicas that were restored, if any.
	EventScheduleRemoved = "ScheduleRemoved"
	// EventInvalidSchedule names the invalid annotations. The workload is not scaled until they are fixed.
	EventInvalidSchedule = "InvalidSchedule"
	// EventUnknownTimeZone means that only the time zone is wrong.
	EventUnknownTimeZone = "UnknownTimeZone"
	// EventAutoscalerConflict names an autoscaler that would undo a stop. Such a workload is not stopped.
	EventAutoscalerConflict = "AutoscalerConflict"
	// EventScaleFailed has the error with which the API server refused a start or a stop.
	EventScaleFailed = "ScaleFailed"
)

// IngressAnnotationsAnnotation with the value IngressAnnotationsDisabled opts an Ingress out of --ingress-annotation.
// The operator removes the annotations that it has set before, or restores the values that it has overwritten.
const (
	IngressAnnotationsAnnotation = domain + "ingress-annotations"
	IngressAnnotationsDisabled   = "Disabled"
)

// OriginalAnnotationsAnnotation has the values that annotations of an Ingress had before the operator overwrote them:
// a JSON object with a string or null for each key. Null means that there is nothing to restore. The operator removes
// it when it has restored all values.
const OriginalAnnotationsAnnotation = domain + "original-annotations"

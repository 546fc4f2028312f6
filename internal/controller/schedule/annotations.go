// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

const prefix = "useless.container.training/"

// Annotations by which people schedule a Deployment. At least one of the first two has to be there.
const (
	// StartScheduleAnnotation says when to scale out: cron's five fields, HH:MM, or HH:MM after days of the week.
	StartScheduleAnnotation = prefix + "start-schedule"
	// StopScheduleAnnotation says when to scale in, in the same forms.
	StopScheduleAnnotation = prefix + "stop-schedule"
	// TimeZoneAnnotation names the IANA time zone of all times without one. The default is the operator's.
	TimeZoneAnnotation = prefix + "time-zone"
	// StopReplicasAnnotation is how many replicas a stop leaves, 0 by default.
	StopReplicasAnnotation = prefix + "stop-replicas"
	// StartReplicasAnnotation is how many replicas a start makes, at least 1; by default as many as before the stop.
	StartReplicasAnnotation = prefix + "start-replicas"
	// SuspendAnnotation, while true, lets starts and stops pass for good.
	SuspendAnnotation = prefix + "suspend"
	// SuspendUntilAnnotation lets starts and stops before an instant (RFC 3339) pass for good.
	SuspendUntilAnnotation = prefix + "suspend-until"
	// ExcludeDatesAnnotation has the local dates, and ranges of dates, on which there is no start.
	ExcludeDatesAnnotation = prefix + "exclude-dates"
)

// Annotations by which the operator remembers what it did. They are written in the same request as the replicas.
const (
	// OriginalReplicasAnnotation is how many replicas there were before the stop. It goes with the start.
	OriginalReplicasAnnotation = prefix + "original-replicas"
	// LastScheduleTimeAnnotation is the instant (RFC 3339) of the last start or stop that was dealt with.
	LastScheduleTimeAnnotation = prefix + "last-schedule-time"
	// NextScheduleTimeAnnotation is the instant (RFC 3339) of the next start or stop.
	NextScheduleTimeAnnotation = prefix + "next-schedule-time"
	// StateAnnotation is StateStarted or StateStopped, by the last start or stop that was carried out.
	StateAnnotation = prefix + "schedule-state"
	// ObservedScheduleAnnotation tells schedules apart: another value means that the schedule was edited.
	ObservedScheduleAnnotation = prefix + "observed-schedule"
)

// Values of StateAnnotation.
const (
	StateStarted = "Started"
	StateStopped = "Stopped"
)

// Reasons of the events on a Deployment.
const (
	// EventScheduledStop says from how many replicas to how many a stop has scaled.
	EventScheduledStop = "ScheduledStop"
	// EventScheduledStart says the same of a start.
	EventScheduledStart = "ScheduledStart"
	// EventScheduleRemoved says that the schedule is gone, and what that has changed.
	EventScheduleRemoved = "ScheduleRemoved"
	// EventInvalidSchedule names what is wrong with the annotations. Nothing is scaled meanwhile.
	EventInvalidSchedule = "InvalidSchedule"
	// EventUnknownTimeZone says that the time zone, and nothing else, is wrong.
	EventUnknownTimeZone = "UnknownTimeZone"
	// EventAutoscalerConflict names an autoscaler that would undo every stop, so that there is none.
	EventAutoscalerConflict = "AutoscalerConflict"
	// EventScaleFailed says why the API server refused a start or a stop.
	EventScaleFailed = "ScaleFailed"
)

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"fmt"
	"strings"

	"container.training/useless/api/useless/v1beta1"
)

// SleepInfo is the part of a SleepInfo of kube-green that is translated.
type SleepInfo struct {
	Spec struct {
		Weekdays            string `json:"weekdays"`
		SleepAt             string `json:"sleepAt"`
		WakeUpAt            string `json:"wakeUpAt"`
		TimeZone            string `json:"timeZone"`
		SuspendCronJobs     bool   `json:"suspendCronJobs"`
		SuspendDeployments  *bool  `json:"suspendDeployments"`
		SuspendStatefulSets *bool  `json:"suspendStatefulSets"`
		ExcludeRef          []any  `json:"excludeRef"`
		IncludeRef          []any  `json:"includeRef"`
		Patches             []any  `json:"patches"`
	} `json:"spec"`
}

// Translate returns the annotations of the Namespace of the SleepInfo.
func (i SleepInfo) Translate() Translation {
	t := Translation{Annotations: map[string]string{}}
	if len(i.Spec.IncludeRef) > 0 {
		t.Annotations = nil
		t.omit("includeRef", "annotate these workloads with the schedule, and not the Namespace")
		return t
	}
	t.set(v1beta1.StopScheduleAnnotation, cron(i.Spec.Weekdays, i.Spec.SleepAt))
	if i.Spec.WakeUpAt != "" {
		t.set(v1beta1.StartScheduleAnnotation, cron(i.Spec.Weekdays, i.Spec.WakeUpAt))
	}
	if i.Spec.TimeZone != "" {
		t.set(v1beta1.TimeZoneAnnotation, i.Spec.TimeZone)
	}
	const none = v1beta1.ScheduleAnnotation + "=" + v1beta1.ScheduleNone
	if len(i.Spec.ExcludeRef) > 0 {
		t.omit("excludeRef", "annotate these workloads with "+none+" before you annotate the Namespace")
	}
	for _, kept := range []struct {
		field, kind string
		is          bool
	}{
		{"suspendCronJobs", "CronJob", !i.Spec.SuspendCronJobs},
		{"suspendDeployments", "Deployment", isFalse(i.Spec.SuspendDeployments)},
		{"suspendStatefulSets", "StatefulSet", isFalse(i.Spec.SuspendStatefulSets)},
	} {
		if kept.is {
			t.omit(kept.field,
				fmt.Sprintf("annotate each %s with %s before you annotate the Namespace", kept.kind, none))
		}
	}
	if len(i.Spec.Patches) > 0 {
		t.omit("patches", "annotate a HorizontalPodAutoscaler with the schedule and stop-replicas; "+
			"others have no equivalent")
	}
	return t.validated()
}

func isFalse(value *bool) bool { return value != nil && !*value }

// cron returns a schedule for days of the week and a time of day, which may have parts in cron's format.
func cron(weekdays, clock string) string {
	hour, minute, _ := strings.Cut(clock, ":")
	return trimZero(minute) + " " + trimZero(hour) + " * * " + weekdays
}

// trimZero makes 08 a number as in cron. The parts */15 and 0 do not change.
func trimZero(part string) string {
	if len(part) == 2 && part[0] == '0' {
		return part[1:]
	}
	return part
}

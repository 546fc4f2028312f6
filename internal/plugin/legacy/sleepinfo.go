// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"container.training/useless/api/useless/v1beta1"
)

// SleepInfo has the fields of kube-green's SleepInfo that Translate and Selects read.
type SleepInfo struct {
	Spec struct {
		Weekdays            string `json:"weekdays"`
		SleepAt             string `json:"sleepAt"`
		WakeUpAt            string `json:"wakeUpAt"`
		TimeZone            string `json:"timeZone"`
		SuspendCronJobs     bool   `json:"suspendCronJobs"`
		SuspendDeployments  *bool  `json:"suspendDeployments"`
		SuspendStatefulSets *bool  `json:"suspendStatefulSets"`
		ExcludeRef          []ref  `json:"excludeRef"`
		IncludeRef          []ref  `json:"includeRef"`
		Patches             []any  `json:"patches"`
	} `json:"spec"`
}

// ref is an element of excludeRef or includeRef: a workload with a name, or all workloads with labels.
type ref struct {
	APIVersion  string            `json:"apiVersion"`
	Kind        string            `json:"kind"`
	Name        string            `json:"name"`
	MatchLabels map[string]string `json:"matchLabels"`
}

// Translate returns the annotations of the schedule. If HasIncludes returns true, they are for the selected workloads,
// and otherwise for the Namespace.
func (i SleepInfo) Translate() Translation {
	t := Translation{Annotations: map[string]string{}}
	if reason := i.invalid(); reason != "" {
		return Translation{Reasons: []string{"nothing is translated: " + reason}}
	}
	t.set(v1beta1.StopScheduleAnnotation, cron(i.Spec.Weekdays, i.Spec.SleepAt))
	if i.Spec.WakeUpAt != "" {
		t.set(v1beta1.StartScheduleAnnotation, cron(i.Spec.Weekdays, i.Spec.WakeUpAt))
	}
	if i.Spec.TimeZone != "" {
		t.set(v1beta1.TimeZoneAnnotation, i.Spec.TimeZone)
	}
	if len(i.Spec.Patches) > 0 {
		t.omit("patches", "annotate a HorizontalPodAutoscaler with the schedule and stop-replicas; "+
			"others have no equivalent")
	}
	return t.validated("", "")
}

// invalid describes the first field with an invalid value; empty for none.
func (i SleepInfo) invalid() string {
	for _, field := range []struct{ name, value, cron, example string }{
		{"weekdays", i.Spec.Weekdays, cron(i.Spec.Weekdays, "00:00"), "1-5"},
		{"sleepAt", i.Spec.SleepAt, cron("*", i.Spec.SleepAt), "20:00"},
		{"wakeUpAt", i.Spec.WakeUpAt, cron("*", i.Spec.WakeUpAt), "08:00"},
	} {
		isOptional := field.name == "wakeUpAt"
		isValid := len(problemsOf("", map[string]string{v1beta1.StopScheduleAnnotation: field.cron})) == 0
		switch {
		case field.value == "" && isOptional || isValid:
		case field.value == "":
			return fmt.Sprintf("spec.%s is missing; use for example %q", field.name, field.example)
		default:
			return fmt.Sprintf("spec.%s %q is invalid; use for example %q", field.name, field.value, field.example)
		}
	}
	return ""
}

// HasIncludes reports whether the schedule is for single workloads, and not the default of the Namespace.
func (i SleepInfo) HasIncludes() bool { return len(i.Spec.IncludeRef) > 0 }

// Selects reports whether the SleepInfo stops a workload of its Namespace. A workload needs to match only one element
// of includeRef.
func (i SleepInfo) Selects(workload metav1.Object, apiVersion, kind string) bool {
	isExcluded := slices.ContainsFunc(i.Spec.ExcludeRef, func(r ref) bool {
		return r.isNameOf(workload, apiVersion, kind) || r.sharesLabel(workload)
	})
	isIncluded := slices.ContainsFunc(i.Spec.IncludeRef, func(r ref) bool {
		return r.matches(workload, apiVersion, kind)
	})
	return i.suspends(kind) && !isExcluded && (isIncluded || !i.HasIncludes())
}

// isNameOf reports whether an element has the name, the kind and the API group of a workload.
func (r ref) isNameOf(workload metav1.Object, apiVersion, kind string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	return r.Name == workload.GetName() && r.Kind == kind && strings.HasPrefix(r.APIVersion, group+"/")
}

// sharesLabel reports whether a workload has one of the labels. For excludeRef, that is enough, as in kube-green.
func (r ref) sharesLabel(workload metav1.Object) bool {
	for key, value := range r.MatchLabels {
		if got, found := workload.GetLabels()[key]; found && got == value {
			return true
		}
	}
	return false
}

// matches reports whether a workload has the name and all labels of an element. An absent name or absent labels match
// every workload, but an element without both matches none.
func (r ref) matches(workload metav1.Object, apiVersion, kind string) bool {
	if r.Name != "" && !r.isNameOf(workload, apiVersion, kind) {
		return false
	}
	selector := labels.SelectorFromSet(r.MatchLabels)
	return (r.Name != "" || !selector.Empty()) && selector.Matches(labels.Set(workload.GetLabels()))
}

// suspends reports whether the SleepInfo stops workloads of a kind. CronJobs are stopped only on request.
func (i SleepInfo) suspends(kind string) bool {
	switch kind {
	case "Deployment":
		return ptr.Deref(i.Spec.SuspendDeployments, true)
	case "StatefulSet":
		return ptr.Deref(i.Spec.SuspendStatefulSets, true)
	case "CronJob":
		return i.Spec.SuspendCronJobs
	default:
		return false
	}
}

// cron returns a schedule for days of the week and a time of day such as 08:30. The hour and the minute can also have
// cron's format, such as */2.
func cron(weekdays, clock string) string {
	hour, minute, _ := strings.Cut(clock, ":")
	return trimZero(minute) + " " + trimZero(hour) + " * * " + weekdays
}

// trimZero removes the leading zero of a number with two digits, such as 08. It does not change other parts, such as
// */15 and 0.
func trimZero(part string) string {
	if len(part) == 2 && part[0] == '0' {
		return part[1:]
	}
	return part
}

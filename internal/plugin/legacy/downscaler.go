// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package legacy translates the annotations of kube-downscaler and GoKubeDownscaler, and the SleepInfo objects of
// kube-green, to annotations of this operator. It sends no requests. docs/migrating.md describes the translation.
package legacy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"container.training/useless/api/useless/v1beta1"
	controller "container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/schedule"
)

// Prefix is the prefix of the annotations of kube-downscaler and GoKubeDownscaler.
const Prefix = "downscaler/"

// downtimeReplicas and downscaleReplicas are two names of the number of replicas after a stop.
const downtimeReplicas, downscaleReplicas = "downtime-replicas", "downscale-replicas"

// Translation has the annotations of this operator that replace a schedule of another tool.
type Translation struct {
	Annotations map[string]string
	// Reasons are texts for users. Each describes a setting that was not translated, or that has another effect now.
	Reasons []string
}

func (t *Translation) set(key, value string) { t.Annotations[key] = value }

func (t *Translation) omit(key, reason string) {
	t.Reasons = append(t.Reasons, key+" is not translated: "+reason)
}

// HasAny reports whether annotations contain an annotation of kube-downscaler or GoKubeDownscaler.
func HasAny(annotations map[string]string) bool {
	for key := range annotations {
		if strings.HasPrefix(key, Prefix) {
			return true
		}
	}
	return false
}

// translators has the function that translates each annotation. Its keys are the annotations without Prefix.
var translators = map[string]func(t *Translation, value string, isNamespace bool){
	"uptime": func(t *Translation, value string, _ bool) {
		t.spans("uptime", value, v1beta1.StartScheduleAnnotation, v1beta1.StopScheduleAnnotation)
	},
	"downtime": func(t *Translation, value string, _ bool) {
		err := t.conflict(v1beta1.StopScheduleAnnotation, v1beta1.StartScheduleAnnotation, "")
		switch {
		case !strings.EqualFold(value, "always"):
			t.spans("downtime", value, v1beta1.StopScheduleAnnotation, v1beta1.StartScheduleAnnotation)
		case err != nil:
			t.omit("downtime", err.Error())
		default:
			t.set(v1beta1.StopAfterAnnotation, "8h")
			t.Reasons = append(t.Reasons, "downtime always: the workload stops 8 hours after each start")
		}
	},
	"upscale-period": func(t *Translation, value string, _ bool) {
		t.spans("upscale-period", value, v1beta1.StartScheduleAnnotation, "")
	},
	"downscale-period": func(t *Translation, value string, _ bool) {
		t.spans("downscale-period", value, v1beta1.StopScheduleAnnotation, "")
	},
	"exclude": func(t *Translation, value string, isNamespace bool) {
		excluded, err := strconv.ParseBool(value)
		switch {
		case err != nil:
			t.omit("exclude", "it is neither true nor false")
		case excluded && isNamespace:
			t.set(v1beta1.SuspendAnnotation, "true")
		case excluded:
			t.set(v1beta1.ScheduleAnnotation, v1beta1.ScheduleNone)
		}
	},
	"exclude-until":   excludeUntil,
	"force-uptime":    forceUptime,
	downtimeReplicas:  replicas(downtimeReplicas),
	downscaleReplicas: replicas(downscaleReplicas),
	"force-downtime": func(t *Translation, _ string, _ bool) {
		t.omit("force-downtime", "scale the workload to 0, or use kubectl useless sleep if it has a schedule; "+
			"for holidays, use exclude-dates")
	},
	"grace-period": func(t *Translation, _ string, _ bool) {
		t.omit("grace-period", "set start-until, for example 15m, on a new workload")
	},
	"original-replicas": func(t *Translation, value string, _ bool) {
		t.omit("original-replicas",
			fmt.Sprintf("start the workload with the old tool, or set start-replicas to %q", value))
	},
}

func excludeUntil(t *Translation, value string, _ bool) {
	if t.has(v1beta1.StartUntilAnnotation) {
		t.omit("exclude-until", "force-uptime already sets start-until; keep only one of them")
		return
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.Parse(layout, value); err == nil {
			t.set(v1beta1.StartUntilAnnotation, at.Format(time.RFC3339))
			return
		}
	}
	t.omit("exclude-until", "it is not a time")
}

func forceUptime(t *Translation, value string, isNamespace bool) {
	forced, err := strconv.ParseBool(value)
	switch {
	case err != nil:
		t.omit("force-uptime", "only true and false have an equivalent")
	case forced && isNamespace:
		t.omit("force-uptime", "on a Namespace, set start-until to a time")
	case forced && t.has(v1beta1.StartUntilAnnotation):
		t.omit("force-uptime", "exclude-until already sets start-until; keep only one of them")
	case forced:
		t.set(v1beta1.StartUntilAnnotation, "3h")
		t.Reasons = append(t.Reasons, "force-uptime: the uptime ends after 3 hours; 30d is the maximum")
	}
}

// replicas returns the translator of an annotation with the number of replicas after a stop.
func replicas(key string) func(*Translation, string, bool) {
	return func(t *Translation, value string, _ bool) {
		_, err := strconv.ParseUint(value, 10, 31)
		switch {
		case err != nil:
			t.omit(key, "only a whole number has an equivalent")
		case t.has(v1beta1.StopReplicasAnnotation) && t.Annotations[v1beta1.StopReplicasAnnotation] != value:
			t.omit(key, "another annotation sets another number; keep only one of them")
		default:
			t.set(v1beta1.StopReplicasAnnotation, value)
		}
	}
}

// Downscaler translates annotations of kube-downscaler or GoKubeDownscaler. The argument defaults has the annotations
// of the Namespace; nil for none. If a workload has its own times or replicas, the operator ignores the default
// schedule of the Namespace. Therefore the translation of such a workload contains the annotations of the Namespace
// that do not contradict its own annotations. The kind is a name in controller.Kinds, or empty for a Namespace.
func Downscaler(own, defaults map[string]string, kind string) Translation {
	t := Translation{Annotations: map[string]string{}}
	_, hasUptime := own[Prefix+"uptime"]
	_, hasDowntime := own[Prefix+"downtime"]
	if hasUptime && hasDowntime {
		own = maps.Clone(own)
		maps.DeleteFunc(own, func(key, _ string) bool { return isTime(key) })
		t.Reasons = append(t.Reasons, "the times are not translated: uptime and downtime set the same times; "+
			"keep only one of them")
	}
	t.add(own, kind == "")
	if hasTimes(own) {
		t.inherit(own, defaults)
	}
	replicasKey := downtimeReplicas
	if _, found := own[Prefix+downscaleReplicas]; found {
		replicasKey = downscaleReplicas
	}
	return t.validated(kind, replicasKey)
}

// inherit translates the annotations of a Namespace for a workload with the annotations own. If the Namespace has
// exclude, the operator keeps the workload in its present state, as it does for the other workloads of the Namespace.
func (t *Translation) inherit(own, defaults map[string]string) {
	before, exclusion, others := len(t.Reasons), map[string]string{}, map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(defaults)) {
		value := defaults[key]
		present, given := own[key]
		switch {
		case given && keepsRunning(key) && present != value:
			t.omit(strings.TrimPrefix(key, Prefix), "the workload has another value; use the same value for both")
		case given:
		case key == Prefix+"exclude":
			exclusion[key] = value
		case isTime(key) || keepsRunning(key):
			others[key] = value
		}
	}
	t.add(others, false)
	t.add(exclusion, true)
	for i, reason := range t.Reasons[before:] {
		t.Reasons[before+i] = "the Namespace's " + reason
	}
}

// add translates annotations. It does not replace the times that an earlier call has set.
func (t *Translation) add(annotations map[string]string, isNamespace bool) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, found := strings.CutPrefix(key, Prefix)
		if !found {
			continue
		}
		if translate, known := translators[name]; known {
			translate(t, annotations[key], isNamespace)
		} else {
			t.omit(name, "it has no equivalent")
		}
	}
}

var times = []string{
	"uptime", "downtime", "upscale-period", "downscale-period", downtimeReplicas, downscaleReplicas,
}

// keepsRunning reports whether an annotation keeps the other tool from stopping the object.
func keepsRunning(key string) bool {
	return slices.Contains([]string{"exclude", "exclude-until", "force-uptime"}, strings.TrimPrefix(key, Prefix))
}

func isTime(key string) bool { return slices.Contains(times, strings.TrimPrefix(key, Prefix)) }

func hasTimes(annotations map[string]string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(annotations)), isTime)
}

// validated drops annotations that the operator would reject for a kind. An empty kind is a Namespace. The argument
// replicasKey is the old annotation with the number of replicas, for reasons.
func (t Translation) validated(kind, replicasKey string) Translation {
	const key = v1beta1.StopReplicasAnnotation
	value, given := t.Annotations[key]
	switch {
	case given && schedule.IsUnscheduled(t.Annotations):
		t.omit(replicasKey, "there is no schedule")
		delete(t.Annotations, key)
	case given && !hasReplicas(kind):
		if value != "0" {
			t.omit(replicasKey, "this kind of workload has no replicas")
		}
		delete(t.Annotations, key)
	}
	if problems := problemsOf(kind, t.Annotations); len(problems) > 0 {
		_, note := schedule.Explain(problems)
		t.Annotations, t.Reasons = nil, append(t.Reasons, "nothing is translated: "+note)
	}
	return t
}

// hasReplicas reports whether a kind accepts stop-replicas.
func hasReplicas(kind string) bool {
	return len(problemsOf(kind, map[string]string{
		v1beta1.StopScheduleAnnotation: "00:00", v1beta1.StopReplicasAnnotation: "1",
	})) == 0
}

// problemsOf returns the problems of annotations for a kind. If the annotations have no times, it assumes that the
// default of the Namespace or the flags of the other tool set the times.
func problemsOf(kind string, annotations map[string]string) []schedule.Problem {
	defaults := map[string]string{v1beta1.StopScheduleAnnotation: "00:00"}
	if o := controller.NewObject(kind); o != nil {
		o.SetAnnotations(annotations)
		_, problems := controller.NewWorkload(kind, o, defaults, time.UTC, time.Time{}).Parse()
		return problems
	}
	if len(annotations) > 0 && schedule.IsUnscheduled(annotations) {
		maps.Copy(defaults, annotations)
		annotations = defaults
	}
	return schedule.ProblemsOfNamespace(annotations, time.UTC)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// Workload evaluates the schedule of a workload in the same way as the controller. It is for programs without a
// controller that show or change schedules, such as kubectl-useless. Its methods send no requests.
type Workload struct {
	kind *kind
	in   input
}

// Kind describes a kind of workload to users of kubectl.
type Kind struct {
	schema.GroupVersionKind
	Name          string // the plural in lower case
	ShortName     string
	TakesDefaults bool // the default schedule of a Namespace applies to the kind
	IsOptional    bool // the kind may be absent from a cluster with the operator
	NeedsReplicas bool // a schedule with stops needs the annotation stop-replicas
}

// Describe returns all kinds, in the order of Kinds.
func Describe() (described []Kind) {
	for _, k := range kinds {
		described = append(described, Kind{
			GroupVersionKind: k.gvk, Name: k.name, ShortName: k.shortName, TakesDefaults: k.takesDefaults,
			IsOptional: k.isOptional, NeedsReplicas: k.least != nil,
		})
	}
	return described
}

// NewObject returns an empty object of a kind in Kinds, or nil.
func NewObject(kind string) client.Object {
	for _, k := range kinds {
		if k.name == kind {
			return k.object.DeepCopyObject().(client.Object)
		}
	}
	return nil
}

// NewWorkload returns a Workload for an object. The name is the name of its kind, which must be in Kinds. The defaults
// are the result of DefaultsOf for its Namespace. The zone applies to schedules without a time zone.
func NewWorkload(
	name string, o client.Object, defaults map[string]string, zone *time.Location, now time.Time,
) Workload {
	index := slices.IndexFunc(kinds, func(k *kind) bool { return k.name == name })
	if o.GetAnnotations() == nil {
		o.SetAnnotations(map[string]string{})
	}
	return Workload{kinds[index], input{object: o, defaults: defaults, zone: zone, now: now}}
}

// DefaultsOf returns the annotations of a Namespace that belong to a schedule and apply to its workloads.
func DefaultsOf(namespace string, annotations map[string]string) map[string]string {
	return defaultsOf(namespace, schedule.OfNamespace(annotations), systemNamespaces)
}

// State returns started, stopped, overridden, suspended or invalid. It is empty if the workload has no schedule, or if
// the operator does not change it.
func (w Workload) State() string {
	return w.kind.state(w.in.object, w.in.defaults, w.in.zone, w.in.now)
}

// Annotations returns the annotations of the schedule that applies, and whether they come from the Namespace. They must
// not be changed.
func (w Workload) Annotations() (annotations map[string]string, isDefault bool) {
	return w.kind.effective(w.in.object.GetAnnotations(), w.in.defaults)
}

// Parse returns the schedule that applies, or all problems.
func (w Workload) Parse() (*schedule.Schedule, []schedule.Problem) {
	annotations, _ := w.Annotations()
	return w.kind.parse(annotations, w.in.object.GetAnnotations(), w.in.zone)
}

// ProblemsOfDefault returns the problems of the default schedule of the Namespace, if this schedule applies.
func (w Workload) ProblemsOfDefault() []schedule.Problem {
	if _, isDefault := w.Annotations(); !isDefault {
		return nil
	}
	return schedule.ProblemsOfNamespace(w.in.defaults, w.in.zone)
}

// IsDryRun reports whether an annotation of the workload or of its Namespace requires a dry run.
func (w Workload) IsDryRun() bool { return w.in.isDryRun() }

// Saved returns the CPU and memory requests that a stop saves now.
func (w Workload) Saved() corev1.ResourceList { return w.kind.saved(w.in.object) }

// Running reports whether the workload has more replicas than after a stop. A workload without replicas runs if it is
// on.
func (w Workload) Running(s *schedule.Schedule) bool {
	return w.kind.level(w.in.object) > w.kind.stopLevel(s)
}

// Record returns the data that the operator has recorded in the annotations of the workload.
func (w Workload) Record() schedule.Record { return schedule.ReadRecord(w.in.object.GetAnnotations()) }

// IsIgnored reports whether the operator ignores the workload, because the workload is paused or being deleted, or
// because another object controls it.
func (w Workload) IsIgnored() bool {
	return w.kind.leaveAlone(w.in.object)
}

// Stop changes the object like a stop that is due now. It also ends an uptime on demand. The next start then restores
// the workload. It returns an error if the schedule is invalid, or if start-until of the Namespace keeps the workload
// running. It also returns an error if stop-replicas of a HorizontalPodAutoscaler is 0.
func (w Workload) Stop() error {
	delete(w.in.object.GetAnnotations(), v1beta1.StartUntilAnnotation)
	s, problems := w.Parse()
	if s == nil {
		_, note := schedule.Explain(problems)
		return errors.New(note)
	}
	if w.kind.least != nil && s.StopReplicas == 0 {
		return errors.New("a HorizontalPodAutoscaler has at least 1 replica: " +
			"set " + v1beta1.StopReplicasAnnotation + " to \"1\" or more, or stop its workload")
	}
	now := w.in.now.UTC().Truncate(time.Second)
	due := s.Due(w.Record(), false, now)
	if due.IsUptime {
		return errors.New("start-until of the Namespace keeps the workload running: remove it from the Namespace")
	}
	due.Event = schedule.Event{At: now, IsStop: true}
	p := plan{transition: stop, level: w.kind.level(w.in.object), record: w.Record()}
	w.kind.execute(&p, w.in, s, due, nothing)
	w.kind.apply(w.in.object, p)
	return nil
}

// CanStart reports whether the workload would run during an uptime on demand. It returns false if the schedule is
// invalid, or if the level before the stop is not known.
func (w Workload) CanStart() bool {
	copied := w.in
	copied.object = w.in.object.DeepCopyObject().(client.Object)
	copied.object.GetAnnotations()[v1beta1.StartUntilAnnotation] = "1h"
	p := w.kind.decide(copied)
	s, _ := w.Parse()
	return s != nil && p.transition == start && p.level > w.kind.stopLevel(s)
}

// StartCommand returns the arguments of a kubectl command that starts a stopped workload without its schedule. The
// argument target contains the namespace and the workload, for example "-n dev deployment/web".
func (w Workload) StartCommand(target string) (string, error) {
	s, _ := w.Parse()
	if s == nil {
		s = &schedule.Schedule{}
	}
	level := w.kind.stopLevel(s) + 1
	if w.kind.isScalable {
		return fmt.Sprintf("scale %s --replicas=%d", target, level), nil
	}
	started := w.in.object.DeepCopyObject().(client.Object)
	w.kind.setLevel(started, level)
	patch, err := client.MergeFrom(w.in.object).Data(started)
	return fmt.Sprintf("patch %s --type=merge -p '%s'", target, patch), err
}

// ResumeCommand returns the arguments of a kubectl command that resumes a workload that was paused by a field or an
// annotation of its kind. It returns an empty string if the kind has neither. For the target, see StartCommand.
func (w Workload) ResumeCommand(target string) string {
	return strings.Replace(w.kind.resume, "{}", target, 1)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"container.training/useless/internal/pause"
	"container.training/useless/internal/schedule"
)

// A kind has the functions to read, stop and start one kind of workload. The functions send no requests. The level of a
// workload is its number of replicas. The level of a HorizontalPodAutoscaler is maxReplicas. For a kind without
// replicas, the level is 1 for on and 0 for off.
//
// To add a kind, write a file such as cronjob.go and add a line to kinds.
type kind struct {
	name      string // in --schedule-kinds: the plural in lower case
	shortName string // in kubectl
	gvk       schema.GroupVersionKind
	object    client.Object
	list      client.ObjectList
	onOff     bool // the kind has no replicas

	// isScalable means that a HorizontalPodAutoscaler can scale the kind.
	isScalable bool
	// takesDefaults means that the default schedule of a Namespace applies to the kind.
	takesDefaults bool
	// isOptional means that the kind's CustomResourceDefinition does not belong to the operator, and may be absent.
	isOptional bool

	level    func(client.Object) int32
	setLevel func(client.Object, int32)
	// least and setLeast read and set a lower bound of the level. A stop may lower the bound, and a start restores it.
	// Nil means that the kind has no lower bound.
	least    func(client.Object) *int32
	setLeast func(client.Object, int32)
	// field is the field that setLevel sets. Its field manager is the author of a change, see author.
	field fieldpath.Path
	// problems returns the problems of annotations that are valid for other kinds, but not for this kind. Nil means
	// none.
	problems func(annotations map[string]string) []schedule.Problem
	// describe describes a change of the level in an event, without a full stop.
	describe func(before, after int32) string
	// requests returns the CPU and memory requests of one replica, or of a workload without replicas. Nil means none.
	requests func(client.Object) corev1.ResourceList
	// isPaused reports whether a field or an annotation of the kind pauses the workload. Nil means that it has neither.
	isPaused func(client.Object) bool
	// resume has the arguments of the kubectl command that ends this pause. {} stands for the namespace and the
	// workload.
	resume string
	// trim returns a copy with only the fields that the functions read. Nil means that the cache keeps all fields.
	trim func(client.Object) client.Object
}

// kinds has all kinds, in the order in which --schedule-kinds shows them.
var kinds = []*kind{
	deployments, statefulSets, cronJobs, virtualMachines, horizontalPodAutoscalers, scaledObjects,
}

// Kinds returns the names of all kinds.
func Kinds() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// kindsNamed returns the kinds with these names, or all kinds if there are no names. If a kind does not exist, it
// returns an error about the flag --schedule-kinds.
func kindsNamed(names []string) ([]*kind, error) {
	if len(names) == 0 {
		return kinds, nil
	}
	for _, name := range names {
		if !slices.Contains(Kinds(), name) {
			return nil, fmt.Errorf("invalid value %q for flag --schedule-kinds: choose from %s",
				name, strings.Join(Kinds(), ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k *kind) bool { return !slices.Contains(names, k.name) }), nil
}

// transform trims an object before it is cached.
func (k *kind) transform(o any) (any, error) {
	if object, ok := o.(client.Object); ok {
		return k.trim(object), nil
	}
	return o, nil
}

// parse reads a schedule for a workload of the kind. It returns either a schedule or all problems. The argument
// annotations has the schedule, which can come from the Namespace. The argument own has the workload's own annotations,
// with its record.
func (k *kind) parse(
	annotations, own map[string]string, zone *time.Location,
) (*schedule.Schedule, []schedule.Problem) {
	s, problems := schedule.Parse(annotations, zone)
	problems = append(problems, schedule.ProblemsOfRecord(own)...)
	if k.problems != nil {
		problems = append(problems, k.problems(annotations)...)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return s, nil
}

// leaveAlone reports whether a workload must not be changed: it is being deleted, it is paused, or another object
// controls it. The annotation paused or a field of the kind can pause it.
func (k *kind) leaveAlone(o client.Object) bool {
	return !o.GetDeletionTimestamp().IsZero() || metav1.GetControllerOfNoCopy(o) != nil ||
		k.isPaused != nil && k.isPaused(o) || pause.IsPaused(o)
}

// scaledReplicas describes a change of the number of replicas.
func scaledReplicas(before, after int32) string {
	direction := "in"
	if after > before {
		direction = "out"
	}
	return fmt.Sprintf("Scaled %s from %d to %d replicas", direction, before, after)
}

// requestsOf returns the CPU and memory requests of a Pod while it runs. They are the sum of the requests of its
// containers and sidecars, unless the Pod itself has a request. If a container has no request, its limit counts as its
// request. If no container has a request or a limit, the limit of the Pod counts. See
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers.
func requestsOf(pod *corev1.PodSpec) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		total := resource.Quantity{}
		for _, container := range slices.Concat(pod.Containers, sidecars(pod)) {
			quantity, ok := container.Resources.Requests[name]
			if !ok {
				quantity = container.Resources.Limits[name]
			}
			total.Add(quantity)
		}
		if ofPod := pod.Resources; ofPod != nil {
			if quantity, ok := ofPod.Requests[name]; ok {
				total = quantity
			} else if total.IsZero() {
				total = ofPod.Limits[name]
			}
		}
		sum[name] = total
	}
	return sum
}

// sidecars returns the init containers that run until the Pod ends.
func sidecars(pod *corev1.PodSpec) (containers []corev1.Container) {
	for _, c := range pod.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	return containers
}

// trimPod returns a Pod with only the fields that requestsOf reads.
func trimPod(pod *corev1.PodSpec) corev1.PodSpec {
	trimmed := corev1.PodSpec{Resources: pod.Resources}
	for _, c := range pod.Containers {
		trimmed.Containers = append(trimmed.Containers, corev1.Container{Resources: c.Resources})
	}
	for _, c := range sidecars(pod) {
		trimmed.InitContainers = append(trimmed.InitContainers,
			corev1.Container{Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	return trimmed
}

// trimMeta returns metadata without the managed fields and the last applied configuration, which repeat the whole
// object. The key of the last applied configuration stays, with an empty value. Otherwise, a merge patch that removes
// all other annotations would contain "annotations": null. Then the API server would also remove the last applied
// configuration.
func trimMeta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	meta.ManagedFields = nil
	if _, found := meta.Annotations[corev1.LastAppliedConfigAnnotation]; found {
		meta.Annotations[corev1.LastAppliedConfigAnnotation] = ""
	}
	return meta
}

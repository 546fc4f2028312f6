// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/plugin/legacy"
	"container.training/useless/internal/schedule"
)

func isSleepInfo(u *unstructured.Unstructured) bool {
	return u.GetKind() == "SleepInfo" && strings.HasPrefix(u.GetAPIVersion(), "kube-green.com/")
}

// changesOfSleepInfo translates a SleepInfo of kube-green. With includeRef, the selected workloads get the schedule.
// Otherwise, the Namespace gets it, and the workloads that the SleepInfo does not stop are excluded. If the Namespace
// already gets another schedule, the SleepInfo is not translated.
func (i *importer) changesOfSleepInfo(info *resource.Info) (changes []change, err error) {
	s := &legacy.SleepInfo{}
	u := info.Object.(*unstructured.Unstructured)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, s); err != nil {
		return nil, err
	}
	namespace := u.GetNamespace()
	own := change{target: "sleepinfo/" + u.GetName(), namespace: namespace, Translation: s.Translate()}
	switch _, hasDefault := i.defaults[namespace]; {
	case namespace == "":
		own.Translation = legacy.Translation{
			Reasons: []string{"nothing is translated: add its namespace to metadata.namespace in the file"},
		}
	case len(own.Annotations) == 0: // the reasons say why
	case s.HasIncludes():
		changes = i.changesOfWorkloads(s, namespace, own.Annotations)
		own.Annotations = nil
		own.Reasons = append(own.Reasons, i.remaining(s, len(changes))...)
	case hasDefault:
		own = i.changeOfDefault(namespace, legacy.Translation{Reasons: []string{"the schedule of SleepInfo " +
			u.GetName() + " is not translated: a Namespace has one schedule; annotate the workloads instead"}})
	default:
		i.defaults[namespace] = s
		changes = i.changesOfWorkloads(s, namespace, own.Annotations)
		own = i.changeOfDefault(namespace, own.Translation)
		own.Reasons = append(own.Reasons, i.remaining(s, len(changes))...)
	}
	own.isManual = len(own.Reasons) > 0
	return append(changes, own), nil
}

// changeOfDefault returns the change of a Namespace.
func (i *importer) changeOfDefault(namespace string, t legacy.Translation) change {
	return change{target: namespaceTarget(namespace), info: i.namespaces[namespace], Translation: t}
}

// changesOfWorkloads returns the changes of single workloads. With includeRef, the selected workloads get the
// annotations. Otherwise, each workload that the SleepInfo does not stop is excluded, unless it has its own schedule.
func (i *importer) changesOfWorkloads(
	s *legacy.SleepInfo, namespace string, annotations map[string]string,
) (changes []change) {
	if !s.HasIncludes() {
		annotations = map[string]string{v1beta1.ScheduleAnnotation: v1beta1.ScheduleNone}
	}
	for _, info := range i.infos {
		u := info.Object.(*unstructured.Unstructured)
		k, err := kindOf(u.GetAPIVersion(), u.GetKind())
		needsChange := s.HasIncludes() || schedule.IsUnscheduled(u.GetAnnotations())
		if err != nil || !k.takesDefaults || u.GetNamespace() != namespace || !needsChange ||
			metav1.GetControllerOfNoCopy(u) != nil || selects(s, info) != s.HasIncludes() {
			continue
		}
		changes = append(changes, change{
			target: k.singular + "/" + u.GetName(), namespace: namespace, info: info,
			Translation: legacy.Translation{Annotations: annotations},
		})
	}
	return changes
}

// selects reports whether a SleepInfo stops a workload.
func selects(s *legacy.SleepInfo, workload *resource.Info) bool {
	u := workload.Object.(*unstructured.Unstructured)
	return s.Selects(u, u.GetAPIVersion(), u.GetKind())
}

// excluded is the annotation of a workload that the default of its Namespace must not stop.
const excluded = v1beta1.ScheduleAnnotation + "=" + v1beta1.ScheduleNone

// remaining returns the manual steps that the changes of workloads do not cover. If the Namespace gets a default, the
// user must do them before that change.
func (i *importer) remaining(s *legacy.SleepInfo, changed int) []string {
	switch {
	case s.HasIncludes() && changed == 0:
		return []string{"includeRef selects no workload here: annotate the workloads with the schedule, " +
			"and not the Namespace"}
	case i.areFiles && s.HasIncludes():
		return []string{"includeRef may select workloads that are not in these files: annotate them, too"}
	case i.areFiles:
		return []string{"kube-green does not stop all workloads of the Namespace: if some of the others are not in " +
			"these files, first annotate them with " + excluded}
	}
	return nil
}

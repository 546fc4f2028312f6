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
// Otherwise, the Namespace gets it, and the workloads that the SleepInfo does not stop are excluded.
func changesOfSleepInfo(info *resource.Info, infos []*resource.Info, areFiles bool) ([]change, error) {
	var s legacy.SleepInfo
	u := info.Object.(*unstructured.Unstructured)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &s); err != nil {
		return nil, err
	}
	if u.GetNamespace() == "" {
		return []change{{target: "sleepinfo/" + u.GetName(), Translation: legacy.Translation{
			Reasons: []string{"nothing is translated: add its namespace to metadata.namespace in the file"},
		}}}, nil
	}
	own := change{target: namespaceTarget(u.GetNamespace()), info: info, Translation: s.Translate(), isIndirect: true}
	if len(own.Annotations) == 0 {
		return []change{own}, nil
	}
	changes := changesOfWorkloads(s, u.GetNamespace(), infos, own.Annotations)
	if s.HasIncludes() {
		own.Annotations = nil
	}
	own.Reasons = append(own.Reasons, remaining(s, areFiles, len(changes))...)
	if len(own.Annotations)+len(own.Reasons) == 0 {
		return changes, nil
	}
	return append(changes, own), nil
}

// changesOfWorkloads returns the changes of single workloads. With includeRef, the selected workloads get the
// annotations. Otherwise, each workload that the SleepInfo does not stop is excluded.
func changesOfWorkloads(
	s legacy.SleepInfo, namespace string, infos []*resource.Info, annotations map[string]string,
) (changes []change) {
	if !s.HasIncludes() {
		annotations = map[string]string{v1beta1.ScheduleAnnotation: v1beta1.ScheduleNone}
	}
	for _, info := range infos {
		u := info.Object.(*unstructured.Unstructured)
		k, err := kindNamed(u.GetKind())
		if err != nil || !k.takesDefaults || u.GetNamespace() != namespace || !isAnnotatable(u) {
			continue
		}
		if s.Selects(u, u.GetAPIVersion(), u.GetKind()) == s.HasIncludes() {
			changes = append(changes, change{
				target: k.singular + "/" + u.GetName(), namespace: namespace, info: info,
				Translation: legacy.Translation{Annotations: annotations},
			})
		}
	}
	return changes
}

// isAnnotatable reports whether a workload has no schedule of its own, and no controller.
func isAnnotatable(u *unstructured.Unstructured) bool {
	return schedule.IsUnscheduled(u.GetAnnotations()) && metav1.GetControllerOfNoCopy(u) == nil
}

// remaining returns what the user has to do after the changes of single workloads, and before that of the Namespace.
func remaining(s legacy.SleepInfo, areFiles bool, changed int) []string {
	const none = v1beta1.ScheduleAnnotation + "=" + v1beta1.ScheduleNone
	switch {
	case s.HasIncludes() && changed == 0:
		return []string{"includeRef selects no workload here: annotate the workloads with the schedule, " +
			"and not the Namespace"}
	case areFiles && s.HasIncludes():
		return []string{"includeRef may select workloads that are not in these files: annotate them, too"}
	case areFiles && s.HasExcludes():
		return []string{"kube-green does not stop all workloads of the Namespace: if these files do not have all of " +
			"the others, first annotate them with " + none}
	}
	return nil
}

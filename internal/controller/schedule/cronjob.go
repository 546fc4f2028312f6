// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"container.training/useless/internal/schedule"
)

// +kubebuilder:rbac:groups=batch,resources=cronjobs,verbs=list;watch;patch

// cronJobs is the kind CronJob. A stop suspends a CronJob, but its running Jobs finish.
var cronJobs = &kind{
	name:          "cronjobs",
	shortName:     "cj",
	gvk:           batchv1.SchemeGroupVersion.WithKind("CronJob"),
	object:        &batchv1.CronJob{},
	list:          &batchv1.CronJobList{},
	onOff:         true,
	problems:      schedule.ProblemsOfOnOff,
	takesDefaults: true,
	field:         fieldpath.MakePathOrDie("spec", "suspend"),
	level: func(o client.Object) int32 {
		if ptr.Deref(o.(*batchv1.CronJob).Spec.Suspend, false) {
			return 0
		}
		return 1
	},
	setLevel: func(o client.Object, level int32) { o.(*batchv1.CronJob).Spec.Suspend = new(level == 0) },
	describe: func(_, after int32) string {
		if after == 0 {
			return "Suspended"
		}
		return "Resumed"
	},
	trim: func(o client.Object) client.Object {
		c := o.(*batchv1.CronJob)
		return &batchv1.CronJob{
			ObjectMeta: trimMeta(c.ObjectMeta), Spec: batchv1.CronJobSpec{Suspend: c.Spec.Suspend},
		}
	},
}

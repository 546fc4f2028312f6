// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// short returns annotations without the prefix of this project.
func short(annotations map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range annotations {
		out[strings.TrimPrefix(key, "useless.container.training/")] = value
	}
	return out
}

func TestDownscaler(t *testing.T) {
	type m = map[string]string
	for _, c := range []struct {
		reason      string
		own, def    m
		isNamespace bool
		want        m
		omitted     string // part of a reason; empty for no reason
	}{
		{"an uptime is a start and a stop", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 Europe/Berlin"}, nil, true,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "Europe/Berlin"}, ""},
		{"a downtime of whole days has no breaks", m{"downscaler/downtime": "Sat-Sun 00:00-24:00 UTC"}, nil, false,
			m{"stop-schedule": "Sat 00:00", "start-schedule": "Mon 00:00", "time-zone": "UTC"}, ""},
		{"a downtime at night", m{"downscaler/downtime": "Mon-Fri 20:00-08:00 UTC"}, nil, false,
			m{"stop-schedule": "Mon-Fri 20:00", "start-schedule": "Mon-Fri 08:00", "time-zone": "UTC"}, "at midnight"},
		{"downtime always", m{"downscaler/downtime": "always"}, nil, false, m{"stop-after": "8h"}, "8 hours"},
		{"a downscale-period is a stop", m{"downscaler/downscale-period": "Mon-Sun 19:00-20:00 UTC"}, nil, false,
			m{"stop-schedule": "19:00", "time-zone": "UTC"}, ""},
		{"an excluded workload", m{"downscaler/exclude": "true"}, nil, false, m{"schedule": "none"}, ""},
		{"an excluded Namespace", m{"downscaler/exclude": "true"}, nil, true, m{"suspend": "true"}, ""},
		{"exclude-until", m{"downscaler/exclude-until": "2026-11-23T07:00:00+01:00"}, nil, false,
			m{"start-until": "2026-11-23T07:00:00+01:00"}, ""},
		{"a workload with its own replicas also gets the schedule of the Namespace", m{"downscaler/downtime-replicas": "1"},
			m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC", "stop-replicas": "1"}, ""},
		{"a workload with its own times also gets the exclusion of the Namespace", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC"},
			m{"downscaler/exclude": "true"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC", "suspend": "true"}, ""},
		{"a workload with its own times also gets exclude-until of the Namespace", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC"},
			m{"downscaler/exclude-until": "2026-11-23T07:00:00+01:00"}, false, m{"start-schedule": "Mon-Fri 08:00",
				"stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC", "start-until": "2026-11-23T07:00:00+01:00"}, ""},
		{"a workload with its own times also gets force-uptime of the Namespace", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC"},
			m{"downscaler/force-uptime": "true"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC", "start-until": "3h"},
			"the Namespace's force-uptime: the uptime ends after 3 hours"},
		{"an own force-uptime replaces exclude-until of the Namespace",
			m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC", "downscaler/force-uptime": "true"},
			m{"downscaler/exclude-until": "2026-11-23T07:00:00+01:00"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC", "start-until": "3h"},
			"the Namespace's exclude-until is not translated: force-uptime already sets start-until"},
		{"an own exclude-until differs from exclude-until of the Namespace",
			m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC", "downscaler/exclude-until": "2024-01-01T00:00:00Z"},
			m{"downscaler/exclude-until": "2027-01-01T00:00:00Z"}, false, m{"start-schedule": "Mon-Fri 08:00",
				"stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC", "start-until": "2024-01-01T00:00:00Z"},
			"the Namespace's exclude-until is not translated: the workload has another value; use the same value for both"},
		{"an own exclusion replaces the exclusion of the Namespace",
			m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC", "downscaler/exclude": "true"}, m{"downscaler/exclude": "true"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC", "schedule": "none"}, ""},
		{"an own uptime replaces the downtime of the Namespace", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC"},
			m{"downscaler/downtime": "Sat-Sun 00:00-24:00 UTC"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC"},
			"the Namespace's downtime is not translated: another annotation sets the same times; keep only one of them"},
		{"an own uptime replaces the downtime always of the Namespace", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC"},
			m{"downscaler/downtime": "always"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC"},
			"the Namespace's downtime is not translated"},
		{"an own downtime always replaces the uptime of the Namespace", m{"downscaler/downtime": "always"},
			m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC"}, false, m{"stop-after": "8h"},
			"the Namespace's uptime is not translated"},
		{"a period of the Namespace in another time zone is not translated", m{"downscaler/upscale-period": "Mon-Fri 07:00-08:00 UTC"},
			m{"downscaler/downscale-period": "Mon-Fri 20:00-21:00 Asia/Tokyo"}, false,
			m{"start-schedule": "Mon-Fri 07:00", "time-zone": "UTC"}, "the Namespace's downscale-period is not translated"},
		{"own replicas replace the replicas of the Namespace with the other name", m{"downscaler/downscale-replicas": "1"},
			m{"downscaler/downtime-replicas": "2", "downscaler/uptime": "Mon-Fri 08:00-20:00"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "stop-replicas": "1"},
			"the Namespace's downtime-replicas is not translated"},
		{"an uptime and a downtime of the same object have no equivalent", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC",
			"downscaler/downtime": "Sat-Sun 00:00-24:00 UTC", "downscaler/downtime-replicas": "1"},
			m{"downscaler/upscale-period": "Mon-Fri 07:00-08:00 UTC"}, false, m{},
			"the times are not translated: uptime and downtime set the same times; keep only one of them"},
		{"a percentage has no equivalent", m{"downscaler/downtime-replicas": "50%"}, nil, false, m{},
			"downtime-replicas is not translated: only a whole number has an equivalent"},
		{"the reason has the annotation of the user", m{"downscaler/downscale-replicas": "50%"}, nil, false, m{},
			"downscale-replicas is not translated: only a whole number has an equivalent"},
		{"replicas without times have no equivalent", m{"downscaler/downscale-replicas": "1"}, nil, false, m{},
			"downscale-replicas is not translated: there is no schedule"},
		{"hours that differ by day have no equivalent",
			m{"downscaler/uptime": "Mon-Thu 08:00-18:00 UTC,Fri-Fri 08:00-16:00 UTC"}, nil, false, m{},
			`cannot have Fri 16:00, Mon-Thu 18:00; choose the times, for example start-schedule="Mon-Fri 08:00" and stop-schedule="Mon-Fri 18:00"`},
		{"a break at noon is two starts and two stops",
			m{"downscaler/uptime": "Mon-Fri 08:00-12:00 UTC, Mon-Fri 13:00-20:00 UTC"}, nil, false,
			m{"start-schedule": "0 8,13 * * 1-5", "stop-schedule": "0 12,20 * * 1-5", "time-zone": "UTC"}, ""},
		{"nights and the weekend together are one stop and one start",
			m{"downscaler/downtime": "Mon-Fri 20:00-24:00 UTC,Mon-Fri 00:00-07:30 UTC,Sat-Sun 00:00-24:00 UTC"}, nil, true,
			m{"stop-schedule": "Mon-Fri 20:00", "start-schedule": "Mon-Fri 07:30", "time-zone": "UTC"}, ""},
		{"nights that cross midnight, and the weekend",
			m{"downscaler/downtime": "Mon-Fri 20:00-08:00 UTC,Sat-Sun 00:00-24:00 UTC"}, nil, true,
			m{"stop-schedule": "Mon-Fri 20:00", "start-schedule": "Mon-Fri 08:00", "time-zone": "UTC"}, ""},
		{"days with gaps, and spans that touch", m{"downscaler/uptime": "Mon-Mon 08:00-12:00,Mon-Mon 12:00-20:00,Wed-Wed 08:00-20:00"},
			nil, false, m{"start-schedule": "Mon,Wed 08:00", "stop-schedule": "Mon,Wed 20:00"}, ""},
		{"a weekend with two starts on each day", m{"downscaler/uptime": "Sat-Sun 08:00-09:00,Sat-Sun 10:00-11:00"},
			nil, false, m{"start-schedule": "0 8,10 * * 0,6", "stop-schedule": "0 9,11 * * 0,6"}, ""},
		{"different minutes in different hours have no equivalent", m{"downscaler/uptime": "Mon-Sun 08:00-12:00,Mon-Sun 13:30-20:00"},
			nil, false, m{}, `cannot have 08:00, 13:30; choose the times, for example start-schedule="08:00" and stop-schedule="0 12,20 * * *"`},
		{"time zones that differ have no equivalent", m{"downscaler/uptime": "Mon-Fri 08:00-12:00 UTC,Sat-Sat 08:00-12:00 Asia/Tokyo"},
			nil, false, m{}, "convert them to one time zone"},
		{"two annotations with different time zones", m{"downscaler/downscale-period": "Mon-Fri 20:00-21:00 UTC",
			"downscaler/upscale-period": "Mon-Fri 07:00-08:00 Asia/Tokyo"}, nil, false,
			m{"stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC"}, "another time zone"},
		{"two annotations with the same time zone", m{"downscaler/downscale-period": "Mon-Fri 20:00-21:00 UTC",
			"downscaler/upscale-period": "Mon-Fri 07:00-08:00 UTC,Sat-Sat 07:00-09:00 UTC"}, nil, false,
			m{"stop-schedule": "Mon-Fri 20:00", "start-schedule": "Mon-Sat 07:00", "time-zone": "UTC"}, ""},
		{"two annotations with the same times", m{"downscaler/downtime": "Mon-Fri 20:00-24:00 UTC",
			"downscaler/upscale-period": "Mon-Fri 07:00-08:00 UTC"}, nil, false,
			m{"stop-schedule": "Mon-Fri 20:00", "start-schedule": "Tue-Sat 00:00", "time-zone": "UTC"}, "keep only one of them"},
		{"a period that crosses midnight", m{"downscaler/downscale-period": "Mon-Fri 22:00-02:00 UTC"}, nil, false,
			m{"stop-schedule": "Mon-Fri 22:00", "time-zone": "UTC"}, "at midnight"},
		{"the whole week has no start", m{"downscaler/uptime": "Mon-Sun 00:00-24:00 UTC"}, nil, false, m{}, "nothing to start or stop"},
		{"dates have no equivalent", m{"downscaler/downtime": "2026-12-24T00:00:00Z-2026-12-27T00:00:00Z"}, nil, false, m{},
			"for single dates, use start-until or exclude-dates"},
		{"a day that does not exist", m{"downscaler/uptime": "Mon-Fre 08:00-12:00"}, nil, false, m{}, "use for example Mon-Fri"},
		{"a time that does not exist", m{"downscaler/uptime": "Mon-Fri 08:60-12:00"}, nil, false, m{}, "use 00:00 to 24:00"},
		{"an unknown zone is not translated", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 Moon"}, nil, false, m{}, "database"},
		{"two annotations with an uptime on demand", m{"downscaler/force-uptime": "true", "downscaler/exclude-until": "2026-12-01"}, nil,
			false, m{"start-until": "2026-12-01T00:00:00Z"}, "exclude-until already sets start-until"},
		{"an unknown annotation has no equivalent", m{"downscaler/scale-children": "true"}, nil, false, m{}, "no equivalent"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			kind := "deployments"
			if c.isNamespace {
				kind = ""
			}
			got := Downscaler(c.own, c.def, kind)
			if diff := cmp.Diff(c.want, short(got.Annotations)); diff != "" {
				t.Error(diff)
			}
			reasons := strings.Join(got.Reasons, "\n")
			if (reasons == "") != (c.omitted == "") || !strings.Contains(reasons, c.omitted) {
				t.Errorf("reasons %q, want %q", reasons, c.omitted)
			}
		})
	}
}

// TestDownscalerOfKinds translates annotations that only some kinds accept.
func TestDownscalerOfKinds(t *testing.T) {
	type m = map[string]string
	uptime := func(replicas string) m {
		return m{"downscaler/uptime": "Mon-Fri 08:00-20:00", "downscaler/downtime-replicas": replicas}
	}
	for _, c := range []struct {
		reason, kind string
		own          m
		replicas     string // stop-replicas of the translation
		omitted      string // part of a reason; empty for no reason
	}{
		{"a Deployment may stop at 0 replicas", "deployments", uptime("0"), "0", ""},
		{"a ScaledObject may stop at 1 replica", "scaledobjects", uptime("1"), "1", ""},
		{"an autoscaler may stop at 1 replica", "horizontalpodautoscalers", uptime("1"), "1", ""},
		{"an autoscaler cannot stop at 0 replicas", "horizontalpodautoscalers", uptime("0"), "",
			"nothing is translated: useless.container.training/stop-replicas \"0\": a HorizontalPodAutoscaler has at least 1"},
		{"an autoscaler needs a number of replicas", "horizontalpodautoscalers", m{"downscaler/uptime": "Mon-Fri 08:00-20:00"}, "",
			"nothing is translated: useless.container.training/stop-replicas \"\""},
		{"an autoscaler has no default schedule", "horizontalpodautoscalers", m{"downscaler/exclude-until": "2026-11-23"}, "",
			"nothing is translated: useless.container.training/start-until"},
		{"0 replicas of a CronJob need no annotation", "cronjobs", uptime("0"), "", ""},
		{"0 replicas of a VirtualMachine need no annotation", "virtualmachines", uptime("0"), "", ""},
		{"a CronJob has no replicas", "cronjobs", uptime("1"), "", "downtime-replicas is not translated: this kind of workload has no replicas"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			got := Downscaler(c.own, nil, c.kind)
			if replicas := short(got.Annotations)["stop-replicas"]; replicas != c.replicas {
				t.Errorf("got %v, want stop-replicas %q", got.Annotations, c.replicas)
			}
			if isNothing := strings.HasPrefix(c.omitted, "nothing"); isNothing != (got.Annotations == nil) {
				t.Errorf("got %v", got.Annotations)
			}
			reasons := strings.Join(got.Reasons, "\n")
			if (reasons == "") != (c.omitted == "") || !strings.HasPrefix(reasons, c.omitted) {
				t.Errorf("reasons %q, want %q", reasons, c.omitted)
			}
		})
	}
}

func TestSleepInfo(t *testing.T) {
	info := SleepInfo{}
	info.Spec.Weekdays, info.Spec.SleepAt, info.Spec.WakeUpAt, info.Spec.TimeZone = "1-5", "20:00", "08:00", "Europe/Rome"
	got := info.Translate()
	want := map[string]string{"stop-schedule": "0 20 * * 1-5", "start-schedule": "0 8 * * 1-5", "time-zone": "Europe/Rome"}
	if diff := cmp.Diff(want, short(got.Annotations)); diff != "" {
		t.Error(diff)
	}
	if len(got.Reasons) > 0 {
		t.Errorf("unexpected reasons: %q", got.Reasons)
	}
	info.Spec.Patches = []any{nil}
	if got := info.Translate(); len(got.Reasons) != 1 || !strings.HasPrefix(got.Reasons[0], "patches is not translated") {
		t.Errorf("the reasons do not name the patches: %q", got.Reasons)
	}
	for _, c := range []struct{ weekdays, sleepAt, wakeUpAt, want string }{
		{"1-5", "20", "", `spec.sleepAt "20" is invalid; use for example "20:00"`},
		{"1-5", "", "08:00", `spec.sleepAt is missing; use for example "20:00"`},
		{"", "20:00", "", `spec.weekdays is missing; use for example "1-5"`},
		{"1-8", "20:00", "", `spec.weekdays "1-8" is invalid; use for example "1-5"`},
		{"1-5", "20:00", "25:00", `spec.wakeUpAt "25:00" is invalid; use for example "08:00"`},
	} {
		info.Spec.Weekdays, info.Spec.SleepAt, info.Spec.WakeUpAt = c.weekdays, c.sleepAt, c.wakeUpAt
		want := Translation{Reasons: []string{"nothing is translated: " + c.want}}
		if diff := cmp.Diff(want, info.Translate()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestSleepInfoSelects(t *testing.T) {
	web := ref{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	labelled := func(pairs map[string]string) ref { return ref{MatchLabels: pairs} }
	for _, c := range []struct {
		reason                           string
		include, exclude                 []ref
		deployment, statefulSet, cronJob bool // the results for workloads with the name web and the labels tier=a, app=b
	}{
		{"Deployments and StatefulSets sleep, but not CronJobs", nil, nil, true, true, false},
		{"a name excludes a workload of the kind", nil, []ref{web}, false, true, false},
		{"another name excludes nothing", nil, []ref{{APIVersion: "apps/v1", Kind: "Deployment", Name: "db"}}, true, true, false},
		{"one common label is enough to exclude a workload", nil, []ref{labelled(map[string]string{"tier": "a", "app": "c"})}, false, false, false},
		{"a missing label does not exclude", nil, []ref{labelled(map[string]string{"zone": ""})}, true, true, false},
		{"a name includes a workload of the kind", []ref{web}, nil, true, false, false},
		{"a workload with all labels of an element is included", []ref{labelled(map[string]string{"tier": "a", "app": "b"})}, nil, true, true, false},
		{"one common label is not enough to include a workload", []ref{labelled(map[string]string{"tier": "a", "app": "c"})}, nil, false, false, false},
		{"one element of several is enough", []ref{web, labelled(map[string]string{"tier": "z"})}, nil, true, false, false},
		{"an excluded workload is not included", []ref{labelled(map[string]string{"tier": "a"})}, []ref{web}, false, true, false},
	} {
		t.Run(c.reason, func(t *testing.T) {
			info := SleepInfo{}
			info.Spec.IncludeRef, info.Spec.ExcludeRef = c.include, c.exclude
			o := &metav1.ObjectMeta{Name: "web", Labels: map[string]string{"tier": "a", "app": "b"}}
			for kind, want := range map[string]bool{
				"Deployment": c.deployment, "StatefulSet": c.statefulSet, "CronJob": c.cronJob, "VirtualMachine": false,
			} {
				if got := info.Selects(o, "apps/v1", kind); got != want {
					t.Errorf("%s: got %t, want %t", kind, got, want)
				}
			}
		})
	}
	info := SleepInfo{}
	info.Spec.SuspendCronJobs, info.Spec.SuspendDeployments = true, new(bool)
	o := &metav1.ObjectMeta{Name: "web"}
	if info.Selects(o, "apps/v1", "Deployment") || !info.Selects(o, "batch/v1", "CronJob") {
		t.Error("suspendDeployments and suspendCronJobs have no effect")
	}
}

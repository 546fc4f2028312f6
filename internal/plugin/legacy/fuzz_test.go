// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"encoding/json"
	"maps"
	"testing"
	"time"
	"unicode/utf8"

	"container.training/useless/api/useless/v1beta1"
	controller "container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/schedule"
)

// FuzzDownscaler translates any annotations of the other tools. The operator must accept each translation.
func FuzzDownscaler(f *testing.F) {
	f.Add("Mon-Fri 08:00-20:00 Europe/Berlin", "-", "-", "-", "true", "2026-11-23T07:00", "false", "1", "-")
	f.Add("-", "always", "-", "-", "1", "2026-11-23", "true", "50%", "Sat-Sun 00:00-24:00 UTC")
	f.Add("-", "Fri-Mon 20:00-08:00 UTC", "-", "Mon-Sun 19:00-24:00 UTC", "-", "-", "-", "-0", "-")
	f.Add("-", "-", "Sun-Sun 00:00-00:00", "Mon-Mon 00:00-24:00", "T", "0000-01-01", "-", "2147483648", "")
	names := []string{"uptime", "downtime", "upscale-period", "downscale-period", "exclude", "exclude-until",
		"force-uptime", "downtime-replicas"}
	f.Fuzz(func(t *testing.T, uptime, downtime, upscale, downscale, exclude, excludeUntil, forceUptime, replicas,
		defaultUptime string) {
		own, defaults := map[string]string{}, map[string]string{}
		for i, value := range []string{uptime, downtime, upscale, downscale, exclude, excludeUntil, forceUptime,
			replicas} {
			if value != "-" {
				own[Prefix+names[i]] = value
			}
		}
		if defaultUptime != "-" {
			defaults[Prefix+"uptime"] = defaultUptime
		}
		for _, kind := range append(controller.Kinds(), "") {
			checkTranslation(t, Downscaler(own, defaults, kind), kind)
		}
	})
}

// FuzzSleepInfo translates any SleepInfo. The operator must accept each translation.
func FuzzSleepInfo(f *testing.F) {
	f.Add([]byte(`{"spec":{"weekdays":"1-5","sleepAt":"20:00","wakeUpAt":"08:00","timeZone":"Europe/Rome"}}`))
	f.Add([]byte(`{"spec":{"weekdays":"*","sleepAt":"*/2:*/15","suspendCronJobs":true,"excludeRef":[{}]}}`))
	f.Add([]byte(`{"spec":{"weekdays":"TZ=","sleepAt":":","suspendDeployments":false,"patches":[null]}}`))
	f.Add([]byte(`{"spec":{"includeRef":[{}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		info := SleepInfo{}
		if json.Unmarshal(data, &info) != nil {
			t.Skip()
		}
		checkTranslation(t, info.Translate(), "")
	})
}

// checkTranslation fails the test if the operator rejects a translation for a kind, or if a reason is empty or not
// UTF-8. An empty kind is a Namespace. If a translation has no times, the test adds a stop-schedule. Such a translation
// is for an object that gets the times from elsewhere, for example from its Namespace.
func checkTranslation(t *testing.T, got Translation, kind string) {
	t.Helper()
	annotations := maps.Clone(got.Annotations)
	var problems []schedule.Problem
	if o := controller.NewObject(kind); o != nil {
		o.SetAnnotations(annotations)
		defaults := map[string]string{v1beta1.StopScheduleAnnotation: "20:00"}
		_, problems = controller.NewWorkload(kind, o, defaults, time.UTC, time.Time{}).Parse()
	} else {
		if len(annotations) > 0 && schedule.IsUnscheduled(annotations) {
			annotations[v1beta1.StopScheduleAnnotation] = "20:00"
		}
		problems = schedule.ProblemsOfNamespace(annotations, time.UTC)
	}
	if len(problems) > 0 {
		t.Errorf("%s: the operator rejects %v: %v", kind, got.Annotations, problems)
	}
	for _, reason := range got.Reasons {
		if reason == "" || !utf8.ValidString(reason) {
			t.Errorf("invalid reason %q", reason)
		}
	}
}

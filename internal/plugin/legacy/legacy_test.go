// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		{"replicas repeat the schedule of the Namespace", m{"downscaler/downtime-replicas": "1"},
			m{"downscaler/uptime": "Mon-Fri 08:00-20:00 UTC", "downscaler/exclude": "true"}, false,
			m{"start-schedule": "Mon-Fri 08:00", "stop-schedule": "Mon-Fri 20:00", "time-zone": "UTC", "stop-replicas": "1"}, ""},
		{"a percentage has no equivalent", m{"downscaler/downtime-replicas": "50%"}, nil, false, m{}, "whole number"},
		{"hours that differ by day have no equivalent",
			m{"downscaler/uptime": "Mon-Thu 08:00-18:00 UTC,Fri-Fri 08:00-16:00 UTC"}, nil, false, m{}, "not one span"},
		{"an unknown zone is not translated", m{"downscaler/uptime": "Mon-Fri 08:00-20:00 Moon"}, nil, false, m{}, "database"},
		{"an unknown annotation has no equivalent", m{"downscaler/scale-children": "true"}, nil, false, m{}, "no equivalent"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			got := Downscaler(c.own, c.def, c.isNamespace)
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

func TestSleepInfo(t *testing.T) {
	info := SleepInfo{}
	info.Spec.Weekdays, info.Spec.SleepAt, info.Spec.WakeUpAt, info.Spec.TimeZone = "1-5", "20:00", "08:00", "Europe/Rome"
	got := info.Translate()
	want := map[string]string{"stop-schedule": "0 20 * * 1-5", "start-schedule": "0 8 * * 1-5", "time-zone": "Europe/Rome"}
	if diff := cmp.Diff(want, short(got.Annotations)); diff != "" {
		t.Error(diff)
	}
	if reasons := strings.Join(got.Reasons, "\n"); !strings.HasPrefix(reasons, "suspendCronJobs is not translated") {
		t.Errorf("the reasons do not name CronJobs: %s", reasons)
	}
	info.Spec.SleepAt = "20"
	if got := info.Translate(); got.Annotations != nil {
		t.Errorf("an invalid time was translated: %v", got.Annotations)
	}
}

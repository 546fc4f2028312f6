// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/api/useless/v1beta1"
)

// onFriday returns a time of day (UTC) of 20 November 2026, a Friday.
func onFriday(hour, minute int) time.Time {
	return time.Date(2026, 11, 20, hour, minute, 0, 0, time.UTC)
}

// TestDue checks the event that is due on Friday at 12:00. The regular start was at 07:00, and the regular stop is at
// 20:00.
func TestDue(t *testing.T) {
	noon := onFriday(12, 0)
	for _, c := range []struct {
		reason  string
		key     string // an additional annotation; empty for none
		value   string
		record  Record
		stopped bool
		want    Due
	}{
		{"the last start was handled", "", "", Record{Last: onFriday(7, 0)}, false,
			Due{Next: onFriday(20, 0)}},
		{"the last start was not handled", "", "", Record{Last: onFriday(6, 0)}, true,
			Due{IsDue: true, Next: onFriday(20, 0)}},
		{"an uptime begins, and ends before the stop", v1beta1.StartUntilAnnotation, "3h", Record{Last: onFriday(7, 0)}, true,
			Due{Event: Event{At: noon, Cause: v1beta1.StartUntilAnnotation}, IsDue: true, IsUptime: true,
				Next: onFriday(20, 0), Expiry: onFriday(15, 0)}},
		{"an uptime ends after the regular stop", v1beta1.StartUntilAnnotation, "2026-11-20T22:00:00Z",
			Record{ExpiresAt: onFriday(22, 0)}, false,
			Due{Event: Event{At: noon, Cause: v1beta1.StartUntilAnnotation}, IsUptime: true,
				Next: onFriday(22, 0), Expiry: onFriday(22, 0), ExpiresIntoStop: true}},
		{"after an uptime, the last start is due again", v1beta1.StartUntilAnnotation, "2026-11-20T11:00:00Z",
			Record{ExpiresAt: onFriday(11, 0)}, false, Due{IsDue: true, Next: onFriday(20, 0)}},
		{"without a recorded time, stop-after of a running workload counts from now", v1beta1.StopAfterAnnotation, "4h", Record{Last: onFriday(7, 0)}, false,
			Due{Next: onFriday(20, 0), Since: noon, Expiry: onFriday(16, 0), ExpiresIntoStop: true}},
		{"stop-after of a stopped workload does not count", v1beta1.StopAfterAnnotation, "4h",
			Record{Last: onFriday(7, 0), RunningSince: onFriday(7, 0)}, true, Due{Next: onFriday(20, 0)}},
		{"stop-after counts from the recorded time, even after a restart of the operator", v1beta1.StopAfterAnnotation, "4h",
			Record{Last: onFriday(7, 0), RunningSince: onFriday(9, 0)}, false,
			Due{Next: onFriday(20, 0), Since: onFriday(9, 0), Expiry: onFriday(13, 0), ExpiresIntoStop: true}},
		{"stop-after has passed", v1beta1.StopAfterAnnotation, "4h",
			Record{Last: onFriday(7, 0), RunningSince: onFriday(7, 30)}, false,
			Due{Event: Event{onFriday(11, 30), true, v1beta1.StopAfterAnnotation}, IsDue: true, Next: onFriday(20, 0),
				Since: onFriday(7, 30), Expiry: onFriday(11, 30), ExpiresIntoStop: true}},
		{"a start after the end of stop-after is due if it was not handled", v1beta1.StopAfterAnnotation, "4h",
			Record{Last: onFriday(6, 0), RunningSince: onFriday(2, 0)}, false,
			Due{IsDue: true, Next: onFriday(20, 0), Since: onFriday(2, 0), Expiry: onFriday(6, 0), ExpiresIntoStop: true}},
		{"a recorded time far in the future is replaced by now", v1beta1.StopAfterAnnotation, "4h",
			Record{Last: onFriday(7, 0), RunningSince: onFriday(23, 0)}, false,
			Due{Next: onFriday(20, 0), Since: noon, Expiry: onFriday(16, 0), ExpiresIntoStop: true}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			annotations := map[string]string{
				v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", v1beta1.StopScheduleAnnotation: "Mon-Fri 20:00",
			}
			if c.key != "" {
				annotations[c.key] = c.value
			}
			s, problems := Parse(annotations, time.UTC)
			if len(problems) > 0 {
				t.Fatal(problems[0])
			}
			if c.want.Event == (Event{}) {
				c.want.Event = Event{At: onFriday(7, 0), Cause: v1beta1.StartScheduleAnnotation}
			}
			c.record.Observed = s.Observed
			if diff := cmp.Diff(c.want, s.Due(c.record, !c.stopped, noon)); diff != "" {
				t.Errorf("due (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEffective(t *testing.T) {
	defaults := map[string]string{v1beta1.StopScheduleAnnotation: "20:00", v1beta1.TimeZoneAnnotation: "Europe/Berlin"}
	add := func(key, value string) map[string]string {
		merged := maps.Clone(defaults)
		merged[key] = value
		return merged
	}
	for _, c := range []struct {
		reason        string
		own, defaults map[string]string
		want          map[string]string
		isDefault     bool
	}{
		{"without a default, the result is the workload's own annotations", map[string]string{"a": "b"}, nil, map[string]string{"a": "b"}, false},
		{"without own annotations, the default applies", nil, defaults, defaults, true},
		{"a schedule of the workload replaces the whole default", map[string]string{v1beta1.StopScheduleAnnotation: "21:00"}, defaults,
			map[string]string{v1beta1.StopScheduleAnnotation: "21:00"}, false},
		{"stop-after replaces the default, too", map[string]string{v1beta1.StopAfterAnnotation: "1h"}, defaults,
			map[string]string{v1beta1.StopAfterAnnotation: "1h"}, false},
		{"a suspension is added to the default", map[string]string{v1beta1.SuspendAnnotation: "true"}, defaults,
			add(v1beta1.SuspendAnnotation, "true"), true},
		{"an uptime is added to the default", map[string]string{v1beta1.StartUntilAnnotation: "3h"}, defaults,
			add(v1beta1.StartUntilAnnotation, "3h"), true},
		{"a workload opts out", map[string]string{v1beta1.ScheduleAnnotation: v1beta1.ScheduleNone}, defaults, nil, false},
		{"an invalid value of the annotation schedule is not an opt-out", map[string]string{v1beta1.ScheduleAnnotation: "nine"}, defaults,
			add(v1beta1.ScheduleAnnotation, "nine"), true},
		{"a Namespace with only a dry run has no default", map[string]string{"a": "b"}, map[string]string{v1beta1.DryRunAnnotation: "true"},
			map[string]string{"a": "b"}, false},
	} {
		got, isDefault := Effective(c.own, c.defaults)
		if diff := cmp.Diff(c.want, got); diff != "" || isDefault != c.isDefault {
			t.Errorf("%s: isDefault is %t; annotations (-want +got):\n%s", c.reason, isDefault, diff)
		}
	}
}

func TestProblemsOfNamespace(t *testing.T) {
	for _, c := range []struct {
		reason, key, value string
		want               string // empty for no problem
	}{
		{"other annotations have no problems", "example.com/owner", "lab", ""},
		{"a regular schedule is valid", v1beta1.StopScheduleAnnotation, "20:00", ""},
		{"stop-after alone is valid", v1beta1.StopAfterAnnotation, "1d", ""},
		{"a dry run needs no schedule", v1beta1.DryRunAnnotation, "true", ""},
		{"a Namespace cannot opt out", v1beta1.ScheduleAnnotation, "none",
			`useless.container.training/schedule "none": only a workload can have it; remove it`},
		{"an uptime without a schedule is invalid", v1beta1.StartUntilAnnotation, "3h", `useless.container.training/start-until "3h": ` +
			`there is no start-schedule, stop-schedule or stop-after; use for example stop-schedule "Mon-Fri 20:00" in addition`},
	} {
		problems := ProblemsOfNamespace(map[string]string{c.key: c.value}, time.UTC)
		got := ""
		if len(problems) > 0 {
			got = problems[0].String()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
		}
	}
	problems := ProblemsOfNamespace(map[string]string{
		v1beta1.StopScheduleAnnotation: "20:00", v1beta1.StartUntilAnnotation: "3h",
	}, time.UTC)
	const want = `useless.container.training/start-until "3h": on a Namespace, it must be a time; ` +
		`use for example "2026-11-23T20:00:00+01:00"`
	if len(problems) != 1 || problems[0].String() != want {
		t.Errorf("a duration on a Namespace has problems %v, want %q", problems, want)
	}
}

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

// oddZones are the time zones of the fuzz tests. Some have unusual offsets or clock changes.
var oddZones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "America/Sao_Paulo",
	"Asia/Kathmandu", "Antarctica/Troll", "Pacific/Kiritimati",
}

func oddZone(t *testing.T, n uint8) *time.Location {
	t.Helper()
	return zone(t, oddZones[int(n)%len(oddZones)])
}

// century maps any number to an instant from 2000 to 2100.
func century(unix int64) time.Time {
	const length = 100 * 365 * 86400
	return time.Unix(946_684_800+(unix%length+length)%length, 0).UTC()
}

// FuzzInstant computes the instants of two wall-clock times in any zone. A later wall-clock time must not have an
// earlier instant. At the instant, the clock must show the wall-clock time. If a clock change skips that time, the
// instant must be the instant of the change.
func FuzzInstant(f *testing.F) {
	f.Add(uint8(2), int64(320_000_000), int64(3600))
	f.Add(uint8(4), int64(378_700_000), int64(86_400))
	f.Add(uint8(3), int64(826_000_000), int64(-1800))
	f.Fuzz(func(t *testing.T, zone uint8, unix, apart int64) {
		in, wall := oddZone(t, zone), century(unix)
		other := wall.Add(time.Duration(apart%(2*86400)) * time.Second)
		at, otherAt := instant(wall, in), instant(other, in)
		if wall.Before(other) && at.After(otherAt) || other.Before(wall) && otherAt.After(at) {
			t.Errorf("%s in %s is %s, and %s is %s", wall, in, at, other, otherAt)
		}
		if shown := wallClock(at, in); !shown.Equal(wall) {
			if just := wallClock(at.Add(-time.Second), in); shown.Before(wall) || !just.Before(wall) {
				t.Errorf("%s in %s is %s, but there the clock goes from %s to %s and does not skip it", wall, in, at, just, shown)
			}
		}
		// If the clock shows a time twice, the result must be the first instant.
		for _, earlier := range []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour, day} {
			if wallClock(at.Add(-earlier), in).Equal(wall) {
				t.Errorf("%s in %s is %s, but also %s earlier", wall, in, at, earlier)
			}
		}
	})
}

// recordTime is the current time of FuzzRecord.
var recordTime = time.Unix(1_763_600_000, 0)

// FuzzRecord reads a Record from any annotations and writes it. A second read and write must not change the
// annotations. Other annotations must never change.
func FuzzRecord(f *testing.F) {
	f.Add("3", "2026-11-20T07:00:00Z", "2026-11-20T20:00:00+01:00", v1beta1.ScheduleStarted, "x")
	f.Add("-3", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "", "")
	f.Add("", "2026-11-20T07:00:00Z", "", v1beta1.OriginalStateActive, "x")
	f.Add("2147483648", "now", "2026-11-20T07:00:00.999999999Z", "Sideways", "\x00")
	f.Fuzz(func(t *testing.T, original, last, next, state, observed string) {
		annotations := map[string]string{
			v1beta1.OriginalReplicasAnnotation: original, v1beta1.OriginalStateAnnotation: state, v1beta1.LastScheduleTimeAnnotation: last, v1beta1.NextScheduleTimeAnnotation: next,
			v1beta1.ScheduleStateAnnotation: state, v1beta1.ObservedScheduleAnnotation: observed, v1beta1.StartScheduleAnnotation: original, "example.com/else": last,
			v1beta1.RunningSinceAnnotation: last, v1beta1.ExpiresAtAnnotation: next,
		}
		for _, onOff := range []bool{false, true} {
			annotations := maps.Clone(annotations)
			first := ReadRecord(annotations)
			if first.Original < 0 || first.Handled(recordTime).After(recordTime.Add(v1beta1.MaxClockSkew)) {
				t.Errorf("got invalid record %+v from %v", first, annotations)
			}
			first.Write(annotations, onOff)
			if problems := ProblemsOfRecord(annotations); len(problems) > 0 {
				t.Errorf("the operator has written an invalid time: %v", problems)
			}
			once := maps.Clone(annotations)
			ReadRecord(annotations).Write(annotations, onOff)
			if diff := cmp.Diff(once, annotations); diff != "" {
				t.Errorf("annotations (-first write +second write):\n%s", diff)
			}
			if annotations[v1beta1.StartScheduleAnnotation] != original || annotations["example.com/else"] != last {
				t.Errorf("other annotations were changed: %v", annotations)
			}
		}
	})
}

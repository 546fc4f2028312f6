// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Zones whose clocks have been put forward and back in all ways that there are.
var oddZones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "America/Sao_Paulo",
	"Asia/Kathmandu", "Antarctica/Troll", "Pacific/Kiritimati",
}

func oddZone(t *testing.T, n uint8) *time.Location {
	t.Helper()
	return zone(t, oddZones[int(n)%len(oddZones)])
}

// century is any instant from 2000 to 2100.
func century(unix int64) time.Time {
	const length = 100 * 365 * 86400
	return time.Unix(946_684_800+(unix%length+length)%length, 0).UTC()
}

// FuzzDecide starts and stops a Deployment, whatever is remembered of it. What is done is done once, and is what the event
// asks for: a stop leaves no more replicas than there were, a start no fewer, and both together as many.
func FuzzDecide(f *testing.F) {
	f.Add(uint16(7*60), uint16(20*60), uint8(1), int32(3), int32(0), int32(0), int32(3), StateStopped, "2026-11-20T07:00:00Z", int64(1_000_000_000), false)
	f.Add(uint16(2*60+30), uint16(3*60), uint8(2), int32(0), int32(0), int32(5), int32(0), StateStarted, "", int64(763_000_000), false)
	f.Add(uint16(0), uint16(1), uint8(4), int32(9), int32(2), int32(4), int32(-1), "", "yesterday", int64(378_000_000), true)
	f.Fuzz(func(t *testing.T, starts, stops uint16, zone uint8, replicas, stopReplicas, startReplicas, original int32, state, last string, unix int64, autoscaled bool) {
		annotations := map[string]string{
			StartScheduleAnnotation: timeOfDay(starts), StopScheduleAnnotation: timeOfDay(stops), TimeZoneAnnotation: oddZones[int(zone)%len(oddZones)],
			StopReplicasAnnotation: strconv.Itoa(int(stopReplicas)), OriginalReplicasAnnotation: strconv.Itoa(int(original)),
			StateAnnotation: state, LastScheduleTimeAnnotation: last, ObservedScheduleAnnotation: state, "example.com/else": last,
		}
		if startReplicas != 0 {
			annotations[StartReplicasAnnotation] = strconv.Itoa(int(startReplicas))
		}
		s, problems := parse(annotations, time.UTC)
		if len(problems) > 0 || replicas < 0 {
			t.Skip(problems)
		}
		d, now := newDeployment(replicas), century(unix)
		d.Annotations = annotations
		for range 3 { // a stop, a start, and a stop, in whichever order
			before := *d.Spec.Replicas
			p := decide(d, s, autoscaled, now)
			checkPlan(t, p, before, now)
			if p.outcome != nothing {
				p.apply(d)
			}
			if again := decide(d, s, autoscaled, now); again.outcome != nothing {
				t.Errorf("done twice: %+v, then %+v", p, again)
			}
			if now = p.next; now.IsZero() {
				t.Fatalf("nothing comes next: %+v", p)
			}
		}
		checkRemoval(t, d.DeepCopy().Annotations, *d.Spec.Replicas, last)
	})
}

// timeOfDay is a time of any day.
func timeOfDay(minutes uint16) string {
	return fmt.Sprintf("%02d:%02d", minutes/60%24, minutes%60)
}

func checkPlan(t *testing.T, p plan, before int32, now time.Time) {
	t.Helper()
	if p.due.After(now) || !p.next.After(now) {
		t.Errorf("at %s, %s is due and %s is next", now, p.due, p.next)
	}
	checkReplicas(t, p, before)
}

func checkReplicas(t *testing.T, p plan, before int32) {
	t.Helper()
	if (p.outcome == scaled) != (p.replicas != before) {
		t.Errorf("%s from %d to %d", p.outcome, before, p.replicas)
	}
	remembers := p.record.original
	if p.transition == stop && (p.replicas > before || p.outcome == scaled && remembers < before) {
		t.Errorf("a stop scales from %d to %d, and remembers %d", before, p.replicas, remembers)
	}
	if done := p.outcome == scaled || p.outcome == unchanged; p.transition == start && (p.replicas < before || done && remembers != 0) {
		t.Errorf("a start scales from %d to %d, and still remembers %d", before, p.replicas, remembers)
	}
}

// checkRemoval fails unless without a schedule as many come back as were stopped, and nothing is left of it but what people
// have written.
func checkRemoval(t *testing.T, annotations map[string]string, replicas int32, foreign string) {
	t.Helper()
	d := newDeployment(replicas)
	d.Annotations = annotations
	want := max(replicas, readRecord(annotations).original)
	p := remove(d)
	p.apply(d)
	if *d.Spec.Replicas != want || remembered(d.Annotations) || d.Annotations["example.com/else"] != foreign {
		t.Errorf("removal leaves %d replicas, not %d, and %v", *d.Spec.Replicas, want, d.Annotations)
	}
}

// FuzzInstant takes two wall-clock times in any zone. The later one never comes at the earlier instant, and what clocks show
// then is the time, or the first that they show after they were put forward.
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
				t.Errorf("%s in %s is %s, when clocks go from %s to %s", wall, in, at, just, shown)
			}
		}
		for _, earlier := range []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour, day} { // all that clocks are put back by
			if wallClock(at.Add(-earlier), in).Equal(wall) {
				t.Errorf("%s in %s is %s, and also %s before", wall, in, at, earlier)
			}
		}
	})
}

// FuzzRecord reads what anybody may have written where the operator keeps its record. What it makes of it, it reads again,
// and it leaves alone what is not its own.
func FuzzRecord(f *testing.F) {
	f.Add("3", "2026-11-20T07:00:00Z", "2026-11-20T20:00:00+01:00", StateStarted, "x")
	f.Add("-3", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "", "")
	f.Add("2147483648", "now", "2026-11-20T07:00:00.999999999Z", "Sideways", "\x00")
	f.Fuzz(func(t *testing.T, original, last, next, state, observed string) {
		annotations := map[string]string{
			OriginalReplicasAnnotation: original, LastScheduleTimeAnnotation: last, NextScheduleTimeAnnotation: next,
			StateAnnotation: state, ObservedScheduleAnnotation: observed, StartScheduleAnnotation: original, "example.com/else": last,
		}
		first := readRecord(annotations)
		if first.original < 0 || first.handled(now).After(now.Add(maxClockSkew)) {
			t.Errorf("%+v of %v", first, annotations)
		}
		first.write(annotations)
		once := maps.Clone(annotations)
		readRecord(annotations).write(annotations)
		if diff := cmp.Diff(once, annotations); diff != "" {
			t.Errorf("the second time (-first +second):\n%s", diff)
		}
		if annotations[StartScheduleAnnotation] != original || annotations["example.com/else"] != last {
			t.Errorf("changed what others have written: %v", annotations)
		}
	})
}

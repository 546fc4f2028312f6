// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

var seed = flag.Uint64("seed", rand.Uint64(), "seed of the simulated year")

// TestYear simulates a year of 1,000 Deployments, whose users scale by hand and edit schedules, and an operator that wakes
// late, for no reason, or not at all for days. After each of its looks a Deployment is as the rule says, by an account that
// shares nothing with the controller, and there is a write if and only if something has come or was edited.
func TestYear(t *testing.T) {
	t.Logf("run again with -seed=%d", *seed)
	timetables := newTimetables(t)
	for half := range 2 {
		t.Run(fmt.Sprint(half), func(t *testing.T) {
			t.Parallel()
			events := 0
			for i := range 500 {
				w := &world{T: t, random: rand.New(rand.NewPCG(*seed, uint64(2*i+half))), timetables: timetables, name: 2*i + half}
				events += w.year()
			}
			t.Logf("%d events", events)
			if events < 30_000 {
				t.Errorf("there were only %d events: the simulation is too dull", events)
			}
		})
	}
}

// yearBegins on a Thursday. Schedules count from a month before.
var yearBegins, yearEnds = at("2026-01-01 00:00"), at("2027-01-01 00:00")

// recurrences are what schedules name, each by its text and by what is meant.
var recurrences = []struct {
	text  string
	means func(wall time.Time) bool
}{
	{"Mon 07:00", func(w time.Time) bool { return w.Weekday() == time.Monday && shows(w, 7, 0) }},
	{"30 8 * * 1-5/2", func(w time.Time) bool {
		return (w.Weekday() == time.Monday || w.Weekday() == time.Wednesday || w.Weekday() == time.Friday) && shows(w, 8, 30)
	}},
	{"Sat-Sun 09:45", func(w time.Time) bool {
		return (w.Weekday() == time.Saturday || w.Weekday() == time.Sunday) && shows(w, 9, 45)
	}},
	{"0 12 1 * *", func(w time.Time) bool { return w.Day() == 1 && shows(w, 12, 0) }},
	{"Fri 20:00", func(w time.Time) bool { return w.Weekday() == time.Friday && shows(w, 20, 0) }},
	{"10 22 */9 * *", func(w time.Time) bool { return w.Day()%9 == 1 && shows(w, 22, 10) }},
	{"Sun 02:30", func(w time.Time) bool { return w.Weekday() == time.Sunday && shows(w, 2, 30) }}, // skipped, or shown twice
	{"15 1 * * 0", func(w time.Time) bool { return w.Weekday() == time.Sunday && shows(w, 1, 15) }},
	{"@weekly", func(w time.Time) bool { return w.Weekday() == time.Sunday && shows(w, 0, 0) }},
	{"0 */8 * * 3", func(w time.Time) bool { return w.Weekday() == time.Wednesday && w.Hour()%8 == 0 && w.Minute() == 0 }},
}

func shows(w time.Time, hour, minute int) bool { return w.Hour() == hour && w.Minute() == minute }

var yearZones = []string{
	"Asia/Kolkata", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca",
}

// A tick is when a recurrence comes, and the date by which it may be excluded.
type tick struct {
	at   time.Time
	date string
	wall time.Time
}

// timetables have every tick of every recurrence, by zone and text, from a month before the year to its end.
type timetables map[string]map[string][]tick

// newTimetables looks at the clock in every zone once a minute. What it shows for the first time has come, with all that
// it has skipped.
func newTimetables(t *testing.T) timetables {
	t.Helper()
	all := timetables{}
	for _, name := range yearZones {
		location := zone(t, name)
		table := map[string][]tick{}
		begin := yearBegins.AddDate(0, -1, -3)
		latest := shown(begin, location)
		for at := begin; at.Before(yearEnds); at = at.Add(time.Minute) {
			for now := shown(at, location); latest.Before(now); {
				latest = latest.Add(time.Minute)
				for _, r := range recurrences {
					if r.means(latest) {
						table[r.text] = append(table[r.text], tick{at, latest.Format(time.DateOnly), latest})
					}
				}
			}
		}
		all[name] = table
	}
	return all
}

// A world is a Deployment, its users, the operator, and what we think of it.
type world struct {
	*testing.T
	random     *rand.Rand
	timetables timetables
	name       int
	now        time.Time
	deployment *appsv1.Deployment
	next       time.Time // when the operator wants to look again

	// What the users have asked for.
	zone, start, stop           string
	stopReplicas, startReplicas int
	exclude                     [2]string // first and last date
	suspended                   bool
	suspendUntil                time.Time

	// What has to be so.
	replicas, original int
	isStopped          bool
	dealtWith          time.Time
	edited             bool
}

func (w *world) failf(format string, args ...any) {
	w.Helper()
	w.Fatalf("seed %d, deployment %d, %s, annotations %v: %s", *seed, w.name, w.now, w.deployment.Annotations, fmt.Sprintf(format, args...))
}

func (w *world) pick(n int) bool { return w.random.IntN(n) == 0 }

// year simulates a year, and returns how many events there were.
func (w *world) year() (events int) {
	w.now = yearBegins
	w.replicas = w.random.IntN(6)
	w.deployment = newDeployment(int32(w.replicas))
	w.edit()
	for w.now.Before(yearEnds) {
		if w.operator() {
			events++
		}
		if w.pick(12) {
			w.scaleByHand()
		}
		if w.pick(60) {
			w.edit()
		}
		w.sleep()
	}
	return events
}

// sleep passes the time until the operator looks again: when it wants to, late, for no reason, or after days without it.
func (w *world) sleep() {
	switch {
	case w.pick(80):
		w.now = w.now.Add(time.Duration(w.random.Int64N(int64(5 * day))))
	case w.pick(10):
		w.now = w.now.Add(time.Duration(w.random.Int64N(int64(w.next.Sub(w.now))))) // before the next event
	case w.pick(5):
		w.now = w.next.Add(time.Duration(w.random.Int64N(int64(3 * time.Minute))))
	default:
		w.now = w.next
	}
	if w.pick(200) {
		w.now = w.now.Truncate(time.Second).Add(-1) // just before a full second, perhaps the one that counts
	}
}

func (w *world) scaleByHand() {
	w.replicas = w.random.IntN(6)
	w.deployment.Spec.Replicas = new(int32(w.replicas))
}

// edit writes some other schedule, or only suspends it.
func (w *world) edit() {
	if w.suspended = w.pick(8); w.pick(4) {
		w.suspendUntil = w.now.Add(time.Duration(w.random.Int64N(int64(20 * day)))).Truncate(time.Second)
	}
	if w.zone == "" || w.pick(2) {
		w.zone = yearZones[w.random.IntN(len(yearZones))]
		w.start, w.stop = w.someRecurrence(), w.someRecurrence()
		for w.start == w.stop {
			w.stop = w.someRecurrence()
		}
		w.stopReplicas, w.startReplicas = w.random.IntN(3), 0
		if w.pick(3) {
			w.startReplicas = w.stopReplicas + 1 + w.random.IntN(4)
		}
		w.exclude = [2]string{}
		if w.pick(2) {
			from := w.now.AddDate(0, 0, w.random.IntN(40)-10)
			w.exclude = [2]string{from.Format(time.DateOnly), from.AddDate(0, 0, w.random.IntN(20)).Format(time.DateOnly)}
		}
	}
	w.annotate()
}

func (w *world) someRecurrence() string { return recurrences[w.random.IntN(len(recurrences))].text }

// annotate writes what the users ask for, and notes whether it is another schedule.
func (w *world) annotate() {
	d := w.deployment
	wanted := map[string]string{
		StartScheduleAnnotation: w.start, StopScheduleAnnotation: w.stop, TimeZoneAnnotation: w.zone,
		StopReplicasAnnotation: strconv.Itoa(w.stopReplicas), StartReplicasAnnotation: "", ExcludeDatesAnnotation: "",
	}
	if w.startReplicas > 0 {
		wanted[StartReplicasAnnotation] = strconv.Itoa(w.startReplicas)
	}
	if w.exclude[0] != "" {
		wanted[ExcludeDatesAnnotation] = w.exclude[0] + "/" + w.exclude[1]
	}
	for key, value := range wanted {
		w.edited = w.edited || d.Annotations[key] != value
		with(key, value)(d)
	}
	with(SuspendAnnotation, strconv.FormatBool(w.suspended))(d)
	with(SuspendUntilAnnotation, "")(d)
	if !w.suspendUntil.IsZero() {
		with(SuspendUntilAnnotation, w.suspendUntil.Format(time.RFC3339))(d)
	}
}

// operator looks at the Deployment once, and compares what it does with what it has to do.
func (w *world) operator() (wrote bool) {
	s, problems := parse(w.deployment.Annotations, time.UTC)
	if len(problems) > 0 {
		w.failf("%s", problems[0])
	}
	p := decide(w.deployment, s, false, w.now)
	if p.outcome != nothing {
		p.apply(w.deployment)
	}
	due := w.rule()
	if wrote = p.outcome != nothing; wrote != due {
		w.failf("the operator writes: %v, and it has to: %v", wrote, due)
	}
	if got := int(replicas(w.deployment)); got != w.replicas {
		w.failf("there are %d replicas, and there have to be %d", got, w.replicas)
	}
	if w.next = p.next; !w.next.After(w.now) {
		w.failf("the operator wants to look again at %s", w.next)
	}
	return wrote
}

// rule does to our account what has to be done to the Deployment, and reports whether there is anything to do.
func (w *world) rule() bool {
	last, isStop := w.last()
	if !w.edited && !last.After(w.dealtWith) {
		return false
	}
	wasEdited, remembered := w.edited, w.original
	w.dealtWith, w.edited = last, false
	switch {
	case w.suspended || last.Before(w.suspendUntil):
	case isStop:
		if w.replicas > w.stopReplicas {
			// A stop remembers how many there are. Where an edit makes it count again, there may be only what it has left.
			if w.replicas, w.original = w.stopReplicas, w.replicas; wasEdited {
				w.original = max(w.original, remembered)
			}
		}
		w.isStopped = true
	default:
		target := w.startReplicas
		if target == 0 {
			target = w.original
		}
		w.replicas, w.original, w.isStopped = max(w.replicas, target), 0, false
	}
	return true
}

// last returns the last start or stop that has come. Of those that come at once, the start counts, or what the clock would
// have shown later.
func (w *world) last() (at time.Time, isStop bool) {
	table := w.timetables[w.zone]
	isExcluded := func(e tick) bool { return w.exclude[0] <= e.date && e.date <= w.exclude[1] }
	start, stop := lastTick(table[w.start], w.now, isExcluded), lastTick(table[w.stop], w.now, func(tick) bool { return false })
	if stop.at.After(start.at) || stop.at.Equal(start.at) && stop.wall.After(start.wall) {
		return stop.at, true
	}
	return start.at, false
}

// lastTick returns the last tick until now that is not excluded. There is one, as nothing is excluded for long.
func lastTick(ticks []tick, now time.Time, excluded func(tick) bool) tick {
	i, _ := slices.BinarySearchFunc(ticks, now, func(e tick, now time.Time) int {
		if e.at.After(now) {
			return 1
		}
		return -1
	})
	for i--; i >= 0; i-- {
		if !excluded(ticks[i]) {
			return ticks[i]
		}
	}
	return tick{}
}

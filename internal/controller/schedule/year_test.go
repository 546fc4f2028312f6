// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientevents "k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/events"
	"container.training/useless/internal/queue"
	"container.training/useless/internal/schedule"
)

var seed = flag.Uint64("seed", rand.Uint64(), "seed of the simulated year")

// TestYear simulates a year of 1,000 Deployments, or of 100 with -short. Users scale by hand, edit schedules and remove
// them. The operator wakes late, for no reason, or not at all for days. It restarts, and its cache lags. After each of its
// reconciles a Deployment is as the rule says, by a calculation that shares no code with the controller. The operator
// writes if and only if an event was due or a user has edited something.
func TestYear(t *testing.T) {
	t.Logf("run again with -seed=%d", *seed)
	deployments := 1000
	if testing.Short() {
		deployments = 100
	}
	timetables := newTimetables(t)
	for half := range 2 {
		t.Run(fmt.Sprint(half), func(t *testing.T) {
			t.Parallel()
			events := 0
			for i := range deployments / 2 {
				events += newWorld(t, timetables, 2*i+half).year()
			}
			t.Logf("%d events", events)
			if events < 30*deployments {
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

// timetables have every tick of every recurrence, by zone and text, from a month before the year until some months after it.
type timetables map[string]map[string][]tick

// newTimetables looks at the clock in every zone once a minute. What it shows for the first time has come, with all that
// it has skipped.
func newTimetables(t *testing.T) timetables {
	t.Helper()
	all := timetables{}
	for _, name := range yearZones {
		location, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		table := map[string][]tick{}
		begin := yearBegins.AddDate(0, -1, -3)
		latest := shown(begin, location)
		for at := begin; at.Before(yearEnds.AddDate(0, 4, 0)); at = at.Add(time.Minute) {
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
	shelf      *shelf
	clock      *clocktesting.FakePassiveClock
	controller *Controller

	// What the users have asked for. Without a start there is no schedule.
	zone, start, stop           string
	stopReplicas, startReplicas int
	exclude                     [2]string // first and last date
	suspended                   bool
	suspendUntil                time.Time

	// What has to be so.
	replicas, original int
	state              string
	dealtWith, noted   time.Time // the last and the next event, when there was something to do
	edited             bool

	next time.Time // the next event
}

// A shelf is an API server that has one Deployment and no autoscaler, with a cache that may lag behind.
type shelf struct {
	client.Client
	stored, cached *appsv1.Deployment
	writes         int
}

func (s *shelf) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	s.cached.DeepCopyInto(into.(*appsv1.Deployment))
	return nil
}

func (s *shelf) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func (s *shelf) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if o.GetResourceVersion() != s.stored.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Group: appsv1.GroupName, Resource: "deployments"}, o.GetName(), nil)
	}
	s.writes++
	s.store(o.(*appsv1.Deployment).DeepCopy())
	o.SetResourceVersion(s.stored.ResourceVersion)
	return nil
}

func (s *shelf) store(d *appsv1.Deployment) {
	version, _ := strconv.Atoi(d.ResourceVersion)
	d.ResourceVersion = strconv.Itoa(version + 1)
	s.stored = d
}

// unheard takes events to nobody.
type unheard struct{ recorder.Provider }

func (unheard) GetEventRecorder(string) recorder.EventRecorder { return &clientevents.FakeRecorder{} }

func newWorld(t *testing.T, timetables timetables, name int) *world {
	t.Helper()
	w := &world{T: t, random: rand.New(rand.NewPCG(*seed, uint64(name))), timetables: timetables, name: name, now: yearBegins}
	metrics, err := newMetrics(prometheus.NewRegistry(), collector{})
	if err != nil {
		t.Fatal(err)
	}
	w.replicas = w.random.IntN(6)
	w.shelf = &shelf{}
	w.shelf.store(newDeployment(int32(w.replicas)))
	w.clock = clocktesting.NewFakePassiveClock(w.now)
	w.controller = &Controller{
		client: w.shelf, clock: w.clock, zone: time.UTC, events: events.NewRecorder(unheard{}), metrics: metrics,
		warnings: newWarnings(), alarms: queue.NewAlarms(w.clock),
	}
	woken := priorityqueue.New[reconcile.Request]("test")
	t.Cleanup(woken.ShutDown)
	if err := w.controller.alarms.Source().Start(t.Context(), woken); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) failf(format string, args ...any) {
	w.Helper()
	w.Fatalf("seed %d, deployment %d, %s, annotations %v: %s", *seed, w.name, w.now, w.shelf.stored.Annotations, fmt.Sprintf(format, args...))
}

func (w *world) pick(n int) bool { return w.random.IntN(n) == 0 }

// year simulates a year, and returns how many events there were.
func (w *world) year() (n int) {
	w.edit()
	for w.now.Before(yearEnds) {
		if w.operator() {
			n++
		}
		if w.pick(12) {
			w.scaleByHand()
		}
		switch {
		case w.pick(60) || w.start == "" && w.pick(2):
			w.edit()
		case w.pick(200):
			w.unschedule()
		}
		w.sleep()
	}
	return n
}

// sleep passes the time until the operator looks again: with the next event, late, for no reason, or after days without it.
func (w *world) sleep() {
	switch {
	case w.pick(80):
		w.now = w.now.Add(time.Duration(w.random.Int64N(int64(5 * 24 * time.Hour))))
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
	w.change(func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(w.replicas)) })
}

// change is what somebody else does to the Deployment.
func (w *world) change(change func(*appsv1.Deployment)) {
	d := w.shelf.stored.DeepCopy()
	change(d)
	w.shelf.store(d)
}

// unschedule removes the schedule, and perhaps all that belongs to it.
func (w *world) unschedule() {
	w.start, w.stop = "", ""
	w.change(func(d *appsv1.Deployment) {
		with(v1beta1.StartScheduleAnnotation, "")(d)
		with(v1beta1.StopScheduleAnnotation, "")(d)
		if w.name%2 == 0 {
			for _, key := range []string{
				v1beta1.TimeZoneAnnotation, v1beta1.StopReplicasAnnotation, v1beta1.StartReplicasAnnotation,
				v1beta1.SuspendAnnotation, v1beta1.SuspendUntilAnnotation, v1beta1.ExcludeDatesAnnotation,
			} {
				with(key, "")(d)
			}
		}
	})
}

// edit writes some other schedule, or only suspends it.
func (w *world) edit() {
	if w.suspended = w.pick(8); w.pick(4) {
		w.suspendUntil = w.now.Add(time.Duration(w.random.Int64N(int64(20 * 24 * time.Hour)))).Truncate(time.Second)
	}
	if w.start == "" || w.pick(2) {
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
	w.change(w.annotate)
}

func (w *world) someRecurrence() string { return recurrences[w.random.IntN(len(recurrences))].text }

// annotate writes what the users ask for, and notes whether it is another schedule.
func (w *world) annotate(d *appsv1.Deployment) {
	wanted := map[string]string{
		v1beta1.StartScheduleAnnotation: w.start, v1beta1.StopScheduleAnnotation: w.stop, v1beta1.TimeZoneAnnotation: w.zone,
		v1beta1.StopReplicasAnnotation: strconv.Itoa(w.stopReplicas), v1beta1.StartReplicasAnnotation: "", v1beta1.ExcludeDatesAnnotation: "",
	}
	if w.startReplicas > 0 {
		wanted[v1beta1.StartReplicasAnnotation] = strconv.Itoa(w.startReplicas)
	}
	if w.exclude[0] != "" {
		wanted[v1beta1.ExcludeDatesAnnotation] = w.exclude[0] + "/" + w.exclude[1]
	}
	for key, value := range wanted {
		w.edited = w.edited || d.Annotations[key] != value
		with(key, value)(d)
	}
	with(v1beta1.SuspendAnnotation, strconv.FormatBool(w.suspended))(d)
	with(v1beta1.SuspendUntilAnnotation, "")(d)
	if !w.suspendUntil.IsZero() {
		with(v1beta1.SuspendUntilAnnotation, w.suspendUntil.Format(time.RFC3339))(d)
	}
}

// operator looks at the Deployment once, and compares what it does with what it has to do.
func (w *world) operator() (wrote bool) {
	if w.pick(20) {
		w.controller.warnings = newWarnings() // as a restart does
	}
	before := w.shelf.stored
	w.shelf.cached, w.shelf.writes = before, 0
	w.clock.SetTime(w.now)
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(before)}
	if _, err := w.controller.Reconcile(w.Context(), request); err != nil {
		w.failf("%v", err)
	}
	due := w.rule()
	if wrote = w.shelf.writes > 0; wrote != due || w.shelf.writes > 1 {
		w.failf("the operator writes %d times, and it has to: %v", w.shelf.writes, due)
	}
	if got := int(replicas(w.shelf.stored)); got != w.replicas {
		w.failf("there are %d replicas, and there have to be %d", got, w.replicas)
	}
	w.checkRecord()
	w.plan(w.controller.alarms.Next(request))
	if wrote && w.pick(5) {
		w.lookBack(before)
	}
	return wrote
}

// checkRecord compares what is remembered, which is nothing without a schedule.
func (w *world) checkRecord() {
	want := map[string]string{}
	for key, value := range map[string]string{
		v1beta1.LastScheduleTimeAnnotation: schedule.FormatTime(w.dealtWith), v1beta1.NextScheduleTimeAnnotation: schedule.FormatTime(w.noted), v1beta1.ScheduleStateAnnotation: w.state,
		v1beta1.OriginalReplicasAnnotation: strings.TrimPrefix(strconv.Itoa(w.original), "0"),
	} {
		if value != "" {
			want[key] = value
		}
	}
	got := map[string]string{}
	for _, key := range recordKeys() {
		if value, ok := w.shelf.stored.Annotations[key]; ok && (key != v1beta1.ObservedScheduleAnnotation || w.start == "") {
			got[key] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.failf("it remembers (-want +got):\n%s", diff)
	}
}

// plan computes the next event, and checks that the operator has an alarm for it.
func (w *world) plan(got time.Time) {
	var want time.Time
	if w.next = w.now.Add(24 * time.Hour); w.start != "" {
		w.next = w.upcoming()
		want = w.now.Add(min(w.next.Sub(w.now), longestWait))
	}
	gone := got.IsZero() && want.Sub(w.now) < time.Second // alarms use real timers
	if !got.Equal(want) && !gone {
		w.failf("the alarm is at %s, want %s", got, want)
	}
}

// lookBack starts another operator, whose cache is older than the last write. Its write is refused.
func (w *world) lookBack(before *appsv1.Deployment) {
	w.shelf.cached, w.shelf.writes = before, 0
	_, err := w.controller.Reconcile(w.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(before)})
	if w.shelf.writes > 0 || !apierrors.IsConflict(err) {
		w.failf("with an old cache, it writes %d times: %v", w.shelf.writes, err)
	}
}

// rule does to our account what has to be done to the Deployment, and reports whether there is anything to do.
func (w *world) rule() bool {
	if w.start == "" {
		remembered := !w.dealtWith.IsZero()
		w.replicas = max(w.replicas, w.original)
		w.original, w.state, w.dealtWith, w.noted, w.edited = 0, "", time.Time{}, time.Time{}, true
		return remembered
	}
	last, isStop := w.last()
	if !w.edited && !last.After(w.dealtWith) {
		return false
	}
	wasEdited, remembered := w.edited, w.original
	w.dealtWith, w.noted, w.edited = last, w.upcoming(), false
	switch {
	case w.suspended || last.Before(w.suspendUntil):
	case isStop:
		w.state = "Stopped"
		if w.replicas > w.stopReplicas {
			// A stop remembers how many there are. Where an edit makes it count again, there may be only what it has left.
			if w.replicas, w.original = w.stopReplicas, w.replicas; wasEdited {
				w.original = max(w.original, remembered)
			}
		}
	default:
		target := w.startReplicas
		if target == 0 {
			target = w.original
		}
		w.replicas, w.original, w.state = max(w.replicas, target), 0, "Started"
	}
	return true
}

// isExcluded reports whether there is no start at a tick.
func (w *world) isExcluded(e tick) bool { return w.exclude[0] <= e.date && e.date <= w.exclude[1] }

// last returns the last start or stop that has come. Of those that come at once, the start counts, or what the clock would
// have shown later.
func (w *world) last() (at time.Time, isStop bool) {
	table := w.timetables[w.zone]
	start, stop := lastTick(table[w.start], w.now, w.isExcluded), lastTick(table[w.stop], w.now, func(tick) bool { return false })
	if stop.at.After(start.at) || stop.at.Equal(start.at) && stop.wall.After(start.wall) {
		return stop.at, true
	}
	return start.at, false
}

// upcoming returns when the next start or stop comes.
func (w *world) upcoming() time.Time {
	table := w.timetables[w.zone]
	stops := table[w.stop]
	next := stops[comeBy(stops, w.now)].at
	for _, start := range table[w.start][comeBy(table[w.start], w.now):] {
		if !w.isExcluded(start) {
			if start.at.Before(next) {
				next = start.at
			}
			break
		}
	}
	return next
}

// comeBy is how many ticks have come by a time.
func comeBy(ticks []tick, now time.Time) int {
	i, _ := slices.BinarySearchFunc(ticks, now, func(e tick, now time.Time) int {
		if e.at.After(now) {
			return 1
		}
		return -1
	})
	return i
}

// lastTick returns the last tick until now that is not excluded. There is one, as nothing is excluded for long.
func lastTick(ticks []tick, now time.Time, excluded func(tick) bool) tick {
	for i := comeBy(ticks, now) - 1; i >= 0; i-- {
		if !excluded(ticks[i]) {
			return ticks[i]
		}
	}
	return tick{}
}

func recordKeys() []string {
	return []string{
		v1beta1.OriginalReplicasAnnotation, v1beta1.LastScheduleTimeAnnotation, v1beta1.NextScheduleTimeAnnotation,
		v1beta1.ScheduleStateAnnotation, v1beta1.ObservedScheduleAnnotation,
	}
}

// shown returns what a clock in a zone shows.
func shown(at time.Time, zone *time.Location) time.Time {
	local := at.In(zone)
	year, month, date := local.Date()
	hour, minute, second := local.Clock()
	return time.Date(year, month, date, hour, minute, second, 0, time.UTC)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientevents "k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/events"
	"container.training/useless/internal/memory"
	"container.training/useless/internal/queue"
)

var seed = flag.Uint64("seed", rand.Uint64N(math.MaxUint32), "first seed of the simulated year")

// short reports whether TestYear has one seed and few workloads.
var short = testing.Short

// TestYear simulates a year of 1,000 workloads of all kinds with each of five seeds. With -short or the race detector,
// it has one seed and 100 workloads.
//
// A third of the schedules are defaults of Namespaces. Users scale workloads, edit and remove schedules, start
// workloads on demand, and begin and end dry runs by annotation and by flag. For a quarter of the workloads, a GitOps
// tool restores the level. The operator reconciles late, early, or not at all for days. Its cache lags. It restarts at
// any time, and for half of the workloads it crashes at every write.
//
// After each reconcile, the test computes the expected workload with code that it does not share with the controller.
// Without a dry run, the operator must write if an event is due, or if a user has edited or removed the schedule. It
// must also write if the recorded times of stop-after or start-until change. Otherwise, it must not write. It must warn
// about an overridden schedule if and only if a user or a tool has undone the last start or stop.
func TestYear(t *testing.T) {
	t.Logf("to reproduce: -seed=%d", *seed)
	if len(traitsOf) != len(kinds) {
		t.Fatalf("traitsOf has %d kinds, want %d", len(traitsOf), len(kinds))
	}
	seeds, workloads := 5, 1000
	if short() {
		seeds, workloads = 1, 100
	}
	timetables := newTimetables(t)
	for i := range seeds {
		seed := *seed + uint64(i)
		t.Run(fmt.Sprint(i), func(t *testing.T) { // make mutants needs names that do not change
			t.Parallel()
			sum := counts{}
			for name := range workloads {
				sum.add(newWorld(t, timetables, seed, name).year())
			}
			t.Logf("%+v", sum)
			// The averages are 120, 120, 6 and 23 for each workload. A few workloads cause most of the restored levels.
			if least := (counts{60 * workloads, 60 * workloads, 2 * workloads, 10 * workloads}); !sum.atLeast(least) {
				t.Errorf("got %+v, want at least %+v", sum, least)
			}
		})
	}
}

// counts has the numbers of writes, crashes, restored levels and reconciles during dry runs in a year.
type counts struct{ writes, crashes, restored, dryRuns int }

func (c *counts) add(other counts) {
	c.writes += other.writes
	c.crashes += other.crashes
	c.restored += other.restored
	c.dryRuns += other.dryRuns
}

func (c *counts) atLeast(other counts) bool {
	return c.writes >= other.writes && c.crashes >= other.crashes && c.restored >= other.restored &&
		c.dryRuns >= other.dryRuns
}

// The simulated year begins on a Thursday.
var yearBegins, yearEnds = at("2026-01-01 00:00"), at("2027-01-01 00:00")

// recurrences has texts of schedules. Each has a function that reports whether a wall-clock time is a time of the
// schedule.
var recurrences = []struct {
	text  string
	means func(wall time.Time) bool
}{
	{"Mon 07:00", func(w time.Time) bool { return w.Weekday() == time.Monday && shows(w, 7, 0) }},
	{"30 8 * * 1-5/2", func(w time.Time) bool {
		return (w.Weekday() == time.Monday || w.Weekday() == time.Wednesday || w.Weekday() == time.Friday) &&
			shows(w, 8, 30)
	}},
	{"Sat-Sun 09:45", func(w time.Time) bool {
		return (w.Weekday() == time.Saturday || w.Weekday() == time.Sunday) && shows(w, 9, 45)
	}},
	{"0 12 1 * *", func(w time.Time) bool { return w.Day() == 1 && shows(w, 12, 0) }},
	{"Fri 20:00", func(w time.Time) bool { return w.Weekday() == time.Friday && shows(w, 20, 0) }},
	{"10 22 */9 * *", func(w time.Time) bool { return w.Day()%9 == 1 && shows(w, 22, 10) }},
	// clock changes skip or repeat this time
	{"Sun 02:30", func(w time.Time) bool { return w.Weekday() == time.Sunday && shows(w, 2, 30) }},
	{"15 1 * * 0", func(w time.Time) bool { return w.Weekday() == time.Sunday && shows(w, 1, 15) }},
	{"@weekly", func(w time.Time) bool { return w.Weekday() == time.Sunday && shows(w, 0, 0) }},
	{"0 */8 * * 3",
		func(w time.Time) bool { return w.Weekday() == time.Wednesday && w.Hour()%8 == 0 && w.Minute() == 0 }},
}

func shows(w time.Time, hour, minute int) bool { return w.Hour() == hour && w.Minute() == minute }

var yearZones = []string{
	"Asia/Kolkata", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca",
}

// A tick is an occurrence of a recurrence: its instant, its date for exclusions, and its wall-clock time.
type tick struct {
	at   time.Time
	date string
	wall time.Time
}

// timetables has the ticks of each recurrence, by time zone and text. They begin a month before the year, so that each
// schedule has an earlier event. They end four months after the year.
type timetables map[string]map[string][]tick

// newTimetables checks the wall clock of every zone once a minute. A tick occurs when the clock first shows or skips
// its time.
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

// traits are the properties of a kind in docs/schedule.md. The oracle is the code in this file that computes the
// expected state. It does not read the traits from the controller.
type traits struct {
	takesDefaults bool // the annotations of a Namespace apply to the kind
	onOff         bool // it has no replicas
	isScalable    bool // an autoscaler can scale it
	hasLeast      bool // it has a minimum besides the maximum
}

var traitsOf = map[*kind]traits{
	deployments:              {takesDefaults: true, isScalable: true},
	statefulSets:             {takesDefaults: true, isScalable: true},
	cronJobs:                 {takesDefaults: true, onOff: true},
	virtualMachines:          {takesDefaults: true, onOff: true},
	horizontalPodAutoscalers: {hasLeast: true},
	scaledObjects:            {onOff: true},
}

func (w *world) traits() traits { return traitsOf[w.kind] }

// A world is a workload, its users, the operator, and the expected state.
type world struct {
	*testing.T
	counts
	kind       *kind
	seed       uint64
	random     *rand.Rand
	timetables timetables
	name       int
	now        time.Time
	api        *fakeClient
	clock      *clocktesting.FakePassiveClock
	controller *Controller

	// The users' settings. If start is empty, there is no schedule.
	zone, start, stop           string
	stopReplicas, startReplicas int
	exclude                     [2]string // first and last date
	suspended                   bool
	suspendUntil                time.Time
	stopAfter                   time.Duration
	startUntil                  time.Time
	dryRun                      bool
	isDefault                   bool // the schedule is the default of the Namespace
	manifest                    int  // the level that a GitOps tool restores; -1 for no tool

	flag      bool // the operator runs with --schedule-dry-run
	isCrashed bool // the operator crashes at every write

	// The expected state.
	level, original      int // for a kind without replicas, 1 is on and 0 is off
	least, originalLeast int // minReplicas of an autoscaler
	state                string
	lastEvent, nextEvent time.Time // the recorded last and next event
	since, expiresAt     time.Time // of stop-after and start-until
	edited               bool
	executed             bool      // the last reconcile executed or skipped a start or stop
	wasDryRun            bool      // the operator's memory: its last reconcile was in a dry run
	dryRunEnd            time.Time // the operator's memory: its first reconcile after the last dry run
	flagEnd              time.Time // ten seconds after the Lease was renewed

	next time.Time // the next event, or 24 h from now without a schedule
}

// A fakeClient has one workload, one Lease and no autoscaler. Its cache may lag.
type fakeClient struct {
	client.Client
	stored, cached client.Object
	defaults       map[string]string // the annotations of the Namespace
	lease          *coordinationv1.Lease
	writes         int
	crash          error // if not nil, patches return this error and do not reach the API server
	lost           bool  // patches reach the API server, but their responses are lost
}

func (s *fakeClient) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Namespace:
		into.Annotations = s.defaults
		return nil
	case *coordinationv1.Lease:
		if s.lease == nil {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, dryRunLease)
		}
		s.lease.DeepCopyInto(into)
		return nil
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(s.cached.DeepCopyObject()).Elem())
	return nil
}

func (s *fakeClient) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if namespaces, ok := list.(*corev1.NamespaceList); ok {
		namespaces.Items = []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Annotations: s.defaults}}}
	}
	return nil
}

func (s *fakeClient) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	s.lease = o.(*coordinationv1.Lease)
	return nil
}

func (s *fakeClient) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	s.lease = o.(*coordinationv1.Lease)
	return nil
}

// DeleteAllOf returns an error, because a start or a stop must not delete anything.
func (s *fakeClient) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return errors.New("the operator deletes objects")
}

func (s *fakeClient) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if s.crash != nil {
		return s.crash
	}
	if o.GetResourceVersion() != s.stored.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{Resource: "workloads"},
			o.GetName(), nil)
	}
	s.writes++
	s.store(o.DeepCopyObject().(client.Object))
	if s.lost {
		return errCrash
	}
	o.SetResourceVersion(s.stored.GetResourceVersion())
	return nil
}

func (s *fakeClient) store(o client.Object) {
	version, _ := strconv.Atoi(o.GetResourceVersion())
	o.SetResourceVersion(strconv.Itoa(version + 1))
	s.stored = o
}

// noEvents discards Kubernetes events.
type noEvents struct{ recorder.Provider }

func (noEvents) GetEventRecorder(string) recorder.EventRecorder { return &clientevents.FakeRecorder{} }

func newWorld(t *testing.T, timetables timetables, seed uint64, name int) *world {
	t.Helper()
	w := &world{T: t, kind: kinds[name%len(kinds)], seed: seed, random: rand.New(rand.NewPCG(seed, uint64(name))),
		timetables: timetables, name: name, now: yearBegins, manifest: -1}
	w.isCrashed = w.pick(2)
	if w.pick(4) {
		w.manifest = w.anyLevel()
	}
	w.level = w.anyLevel()
	w.least = min(4, w.level)
	w.api = &fakeClient{defaults: map[string]string{}}
	w.api.store(newWorkload(w.kind, int32(w.level)))
	if w.isDefault = w.traits().takesDefaults && w.pick(2); w.isDefault {
		w.change(func(o client.Object) { o.SetAnnotations(nil) })
	}
	w.clock = clocktesting.NewFakePassiveClock(w.now)
	w.controller = &Controller{
		kind: w.kind, client: w.api, clock: w.clock, zone: time.UTC, events: events.NewRecorder(noEvents{}),
		metrics: newMetrics(prometheus.NewRegistry(), collector{}), alarms: queue.NewAlarms(w.clock),
		namespaces: &Namespaces{client: w.api, api: w.api}, api: w.api,
	}
	w.restart()
	woken := priorityqueue.New[reconcile.Request]("test")
	t.Cleanup(woken.ShutDown)
	if err := w.controller.alarms.Source().Start(t.Context(), woken); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) failf(format string, args ...any) {
	w.Helper()
	w.Fatalf("seed %d, %s %d, %s, annotations %v: %s", w.seed, w.kind.name, w.name, w.now,
		w.api.stored.GetAnnotations(), fmt.Sprintf(format, args...))
}

func (w *world) pick(n int) bool { return w.random.IntN(n) == 0 }

// year simulates a year, and returns the counts.
func (w *world) year() counts {
	w.edit()
	for w.now.Before(yearEnds) {
		if w.operator() {
			w.writes++
		}
		w.changeLevel()
		w.changeSchedule()
		w.sleep()
	}
	return w.counts
}

// changeLevel sometimes scales the workload, as a GitOps tool or a user does.
func (w *world) changeLevel() {
	switch {
	case w.manifest >= 0 && w.level != w.manifest && w.pick(2):
		w.restored++
		w.scale(w.manifest)
	case w.pick(12):
		w.scale(w.anyLevel())
	}
}

// changeSchedule sometimes changes the schedule, or begins or ends a dry run.
func (w *world) changeSchedule() {
	switch {
	case w.pick(60) || w.start == "" && w.pick(2):
		w.edit()
	case w.pick(200):
		w.unschedule()
	case w.pick(40):
		w.startOnDemand()
	case w.pick(40) || w.dryRun && w.pick(4):
		w.toggleDryRun()
	case w.pick(60) || w.flag && w.pick(4):
		w.toggleFlag()
	}
}

// sleep advances the clock to the next reconcile: at the next event, early, late, or days later.
func (w *world) sleep() {
	switch {
	case w.flagEnd.After(w.now) && w.pick(2):
		w.now = w.now.Add(time.Duration(w.random.Int64N(int64(15 * time.Second))))
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
		w.now = w.now.Truncate(time.Second).Add(-1) // 1 ns before a full second at which an event may be due
	}
}

// newWorkload returns a workload of a kind with the schedule office.
func newWorkload(k *kind, level int32) client.Object {
	o := k.object.DeepCopyObject().(client.Object)
	o.SetNamespace("default")
	o.SetName("w")
	o.SetAnnotations(maps.Clone(office))
	scale(o, int(level), min(4, int(level)))
	if k == horizontalPodAutoscalers {
		set(o, v1beta1.StopReplicasAnnotation, "1")
	}
	return o
}

// set sets an annotation, or removes it if the value is empty.
func set(o client.Object, key, value string) {
	if o.GetAnnotations()[key] = value; value == "" {
		delete(o.GetAnnotations(), key)
	}
}

func (w *world) anyLevel() int {
	switch {
	case w.traits().onOff:
		return w.random.IntN(2)
	case w.kind == horizontalPodAutoscalers:
		return 1 + w.random.IntN(6)
	default:
		return w.random.IntN(6)
	}
}

// scale sets the level as a user or a GitOps tool does.
func (w *world) scale(level int) {
	w.level = level
	w.least = w.random.IntN(w.level + 1)
	w.change(func(o client.Object) { scale(o, w.level, w.least) })
}

// scale sets the fields of a workload that a stop changes. It shares no code with the kinds under test.
func scale(o client.Object, level, least int) {
	switch o := o.(type) {
	case *appsv1.Deployment:
		o.Spec.Replicas = new(int32(level))
	case *appsv1.StatefulSet:
		o.Spec.Replicas = new(int32(level))
	case *batchv1.CronJob:
		o.Spec.Suspend = new(level == 0)
	case *v1alpha1.VirtualMachine:
		o.Spec.Action = []v1alpha1.Action{"inactive", "active"}[level]
	case *autoscalingv2.HorizontalPodAutoscaler:
		o.Spec.MaxReplicas, o.Spec.MinReplicas = int32(level), new(int32(least))
	case *metav1.PartialObjectMetadata: // ScaledObject
		set(annotated(o), "autoscaling.keda.sh/paused-replicas", []string{"0", ""}[level])
	default:
		panic(fmt.Sprintf("scale and scaleOf lack the type %T", o))
	}
}

// scaleOf returns the values of the fields that scale sets. The result least is want for kinds without a lower bound.
func scaleOf(o client.Object, want int) (level, least int) {
	isOff := false
	switch o := o.(type) {
	case *appsv1.Deployment:
		return int(*o.Spec.Replicas), want
	case *appsv1.StatefulSet:
		return int(*o.Spec.Replicas), want
	case *autoscalingv2.HorizontalPodAutoscaler:
		return int(o.Spec.MaxReplicas), int(*o.Spec.MinReplicas)
	case *batchv1.CronJob:
		isOff = *o.Spec.Suspend
	case *v1alpha1.VirtualMachine:
		isOff = o.Spec.Action == "inactive"
	default: // ScaledObject
		_, isOff = o.GetAnnotations()["autoscaling.keda.sh/paused-replicas"]
	}
	if isOff {
		return 0, want
	}
	return 1, want
}

// timestamp formats a time for an annotation. For the zero time it returns "".
func timestamp(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04:05Z")
}

// change changes the workload as a user does.
func (w *world) change(change func(client.Object)) {
	o := w.api.stored.DeepCopyObject().(client.Object)
	change(o)
	w.api.store(o)
}

// settings changes the object with the users' schedule: the workload, or the Namespace if isDefault is true.
func (w *world) settings(change func(client.Object)) {
	if !w.isDefault {
		w.change(change)
		return
	}
	namespace := &corev1.Namespace{}
	namespace.Annotations = maps.Clone(w.api.defaults)
	change(namespace)
	w.api.defaults = namespace.Annotations
}

// startOnDemand sets start-until of the workload to a time. In about a third of the calls, the time is in the past, or
// the annotation is removed.
func (w *world) startOnDemand() {
	if w.start == "" {
		return
	}
	w.startUntil = w.now.Add(time.Duration(w.random.Int64N(int64(40 * time.Hour)))).Add(-10 * time.Hour).Truncate(time.Second)
	if w.pick(8) {
		w.startUntil = time.Time{}
	}
	w.change(func(o client.Object) {
		set(annotated(o), v1beta1.StartUntilAnnotation, timestamp(w.startUntil))
	})
}

// annotated returns an object with a map of annotations.
func annotated(o client.Object) client.Object {
	if o.GetAnnotations() == nil {
		o.SetAnnotations(map[string]string{})
	}
	return o
}

// toggleFlag restarts the operator with or without --schedule-dry-run. A dry run by flag renews its Lease at least every
// ten seconds.
func (w *world) toggleFlag() {
	if w.flag {
		renewed := w.now.Add(-time.Duration(w.random.Int64N(int64(10 * time.Second))))
		if err := renewDryRun(w.Context(), w.api, w.api, leaseKey, renewed); err != nil {
			w.failf("%v", err)
		}
		w.flagEnd = renewed.Add(10 * time.Second)
	}
	w.flag = !w.flag
	w.restart()
}

// isDryRun reports whether the operator must not write.
func (w *world) isDryRun() bool { return w.dryRun || w.flag }

// toggleDryRun begins or ends a dry run by annotation.
func (w *world) toggleDryRun() {
	w.dryRun = !w.dryRun
	value := "true"
	if !w.dryRun {
		value = []string{"", "false"}[w.random.IntN(2)]
	}
	w.change(func(o client.Object) { set(annotated(o), v1beta1.DryRunAnnotation, value) })
}

// unschedule removes the schedule, and in half of the calls also its settings.
func (w *world) unschedule() {
	w.start, w.stop, w.stopAfter, w.startUntil = "", "", 0, time.Time{}
	w.change(func(o client.Object) { set(annotated(o), v1beta1.StartUntilAnnotation, "") })
	w.settings(func(o client.Object) {
		set(o, v1beta1.StartScheduleAnnotation, "")
		set(o, v1beta1.StopScheduleAnnotation, "")
		set(o, v1beta1.StopAfterAnnotation, "")
		if w.pick(2) {
			for _, key := range []string{
				v1beta1.TimeZoneAnnotation, v1beta1.StopReplicasAnnotation, v1beta1.StartReplicasAnnotation,
				v1beta1.SuspendAnnotation, v1beta1.SuspendUntilAnnotation, v1beta1.ExcludeDatesAnnotation,
			} {
				set(o, key, "")
			}
		}
	})
}

// edit sets another schedule, or changes only the suspension and stop-after.
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
		if w.stopReplicas, w.startReplicas = 0, 0; !w.traits().onOff {
			w.stopReplicas = w.random.IntN(3)
		}
		if w.kind == horizontalPodAutoscalers {
			w.stopReplicas = max(1, w.stopReplicas)
		}
		if w.traits().isScalable && w.pick(3) {
			w.startReplicas = w.stopReplicas + 1 + w.random.IntN(4)
		}
		w.exclude = [2]string{}
		if w.pick(2) {
			from := w.now.AddDate(0, 0, w.random.IntN(40)-10)
			w.exclude = [2]string{from.Format(time.DateOnly),
				from.AddDate(0, 0, w.random.IntN(20)).Format(time.DateOnly)}
		}
	}
	if w.stopAfter = 0; w.pick(3) {
		w.stopAfter = time.Duration(1+w.random.IntN(60)) * time.Hour
	}
	w.settings(w.annotate)
}

func (w *world) someRecurrence() string { return recurrences[w.random.IntN(len(recurrences))].text }

// annotate writes the users' settings. It sets edited if the schedule changes.
func (w *world) annotate(o client.Object) {
	wanted := map[string]string{
		v1beta1.StartScheduleAnnotation: w.start, v1beta1.StopScheduleAnnotation: w.stop,
		v1beta1.TimeZoneAnnotation:     w.zone,
		v1beta1.StopReplicasAnnotation: "", v1beta1.StartReplicasAnnotation: "",
		v1beta1.ExcludeDatesAnnotation: "",
	}
	stopAfter := ""
	if w.stopAfter > 0 {
		stopAfter = fmt.Sprintf("%dh", w.stopAfter/time.Hour)
	}
	set(o, v1beta1.StopAfterAnnotation, stopAfter) // a change of stop-after does not execute the last event again
	if !w.traits().onOff {
		wanted[v1beta1.StopReplicasAnnotation] = strconv.Itoa(w.stopReplicas)
	}
	if w.startReplicas > 0 {
		wanted[v1beta1.StartReplicasAnnotation] = strconv.Itoa(w.startReplicas)
	}
	if w.exclude[0] != "" {
		wanted[v1beta1.ExcludeDatesAnnotation] = w.exclude[0] + "/" + w.exclude[1]
	}
	for key, value := range wanted {
		w.edited = w.edited || o.GetAnnotations()[key] != value
		set(o, key, value)
	}
	set(o, v1beta1.SuspendAnnotation, strconv.FormatBool(w.suspended))
	set(o, v1beta1.SuspendUntilAnnotation, "")
	if !w.suspendUntil.IsZero() {
		set(o, v1beta1.SuspendUntilAnnotation, w.suspendUntil.Format(time.RFC3339))
	}
}

// leaseKey is the name of the Lease of a dry run by flag.
var leaseKey = client.ObjectKey{Namespace: "useless-system", Name: dryRunLease}

// restart replaces the operator's process. The new process remembers nothing.
func (w *world) restart() {
	c := w.controller
	c.memory = memory.Memory[remembered]{}
	c.alarms.Set(w.request(), time.Time{})
	c.dryRun, c.dryRunEnd = w.flag, &dryRunEnd{reader: w.api, lease: leaseKey}
	w.wasDryRun, w.dryRunEnd = false, time.Time{}
}

func (w *world) request() reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.api.stored)}
}

// operator runs one reconcile and compares the result with the expected state.
func (w *world) operator() (wrote bool) {
	w.clock.SetTime(w.now)
	before := w.api.stored
	w.api.cached, w.api.writes = before, 0
	if w.isCrashed {
		w.crashBeforeWrite()
	}
	if w.pick(20) {
		w.restart()
	}
	w.api.lost = w.isCrashed
	if _, err := w.controller.Reconcile(w.Context(), w.request()); err != nil && !errors.Is(err, errCrash) {
		w.failf("%v", err)
	}
	due := w.rule()
	if wrote = w.api.writes > 0; wrote != due || w.api.writes > 1 {
		w.failf("the operator wrote %d times; a write was due: %t", w.api.writes, due)
	}
	w.checkRecord()
	w.checkOverridden()
	if wrote {
		if w.isCrashed {
			w.crashes++
			w.restart()
		}
		w.settle()
	}
	w.remember()
	w.plan(w.controller.alarms.Next(w.request()))
	if wrote && w.pick(5) {
		w.reconcileStale(before)
	}
	return wrote
}

// remember updates the oracle's copy of what the operator remembers about a dry run. The operator forgets the dry run
// two seconds after its end.
func (w *world) remember() {
	if w.isDryRun() {
		w.dryRuns++
		w.wasDryRun, w.dryRunEnd = true, time.Time{}
		return
	}
	if w.wasDryRun {
		w.dryRunEnd = w.now
	}
	if w.wasDryRun = false; !w.now.Before(w.dryRunEnd.Add(2 * time.Second)) {
		w.dryRunEnd = time.Time{}
	}
}

// errCrash is the error of a request during which the operator crashes.
var errCrash = errors.New("crash")

// crashBeforeWrite reconciles. If the operator sends a write, the API server does not receive it, and the operator's
// process ends.
func (w *world) crashBeforeWrite() {
	w.api.crash = errCrash
	_, err := w.controller.Reconcile(w.Context(), w.request())
	w.api.crash = nil
	switch {
	case errors.Is(err, errCrash):
		w.crashes++
		w.restart()
	case err != nil:
		w.failf("%v", err)
	case w.isDryRun():
		w.wasDryRun, w.dryRunEnd = true, time.Time{}
	}
}

// settle reconciles again, because the watch event of a write causes a reconcile. The operator must not write again.
func (w *world) settle() {
	w.api.cached, w.api.writes, w.api.lost = w.api.stored, 0, false
	if _, err := w.controller.Reconcile(w.Context(), w.request()); err != nil || w.api.writes > 0 {
		w.failf("after a write, the operator wrote %d times: %v", w.api.writes, err)
	}
}

// checkRecord compares the level and the operator's annotations with the expected state. A workload without a schedule
// must have no annotations of the operator.
func (w *world) checkRecord() {
	if level, least := scaleOf(w.api.stored, w.least); level != w.level || least != w.least {
		w.failf("the level is %d with the lower bound %d, want %d and %d", level, least, w.level, w.least)
	}
	want := map[string]string{}
	for key, value := range map[string]string{
		v1beta1.LastScheduleTimeAnnotation:    timestamp(w.lastEvent),
		v1beta1.NextScheduleTimeAnnotation:    timestamp(w.nextEvent),
		v1beta1.ScheduleStateAnnotation:       w.state,
		v1beta1.OriginalReplicasAnnotation:    w.originalReplicas(),
		v1beta1.OriginalMinReplicasAnnotation: w.originalMinReplicas(),
		v1beta1.OriginalStateAnnotation:       w.originalState(),
		v1beta1.RunningSinceAnnotation:        timestamp(w.since),
		v1beta1.ExpiresAtAnnotation:           timestamp(w.expiresAt),
	} {
		if value != "" {
			want[key] = value
		}
	}
	got := map[string]string{}
	for _, key := range recordKeys() {
		if value, ok := w.api.stored.GetAnnotations()[key]; ok &&
			(key != v1beta1.ObservedScheduleAnnotation || w.start == "" && !w.isDryRun()) {
			got[key] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.failf("record (-want +got):\n%s", diff)
	}
}

// checkOverridden requires a warning if and only if a user or a tool has undone the last start or stop.
func (w *world) checkOverridden() {
	undone := w.state == "Stopped" && w.level > w.stopReplicas || w.state == "Started" && w.level <= w.stopReplicas
	want := undone && w.start != "" && !w.executed && !w.isDryRun() && !w.isSuspendedAt(w.now)
	got := w.controller.memory.Of(w.api.stored).warning.reason
	if (got == "ScheduleOverridden") != want {
		w.failf("got the warning %q, want one about an overridden schedule: %t", got, want)
	}
}

// originalReplicas returns the expected annotation, or an empty string.
func (w *world) originalReplicas() string {
	if w.traits().onOff || w.original == 0 {
		return ""
	}
	return strconv.Itoa(w.original)
}

// originalMinReplicas returns the expected annotation, or an empty string.
func (w *world) originalMinReplicas() string {
	if !w.traits().hasLeast || w.originalLeast == 0 {
		return ""
	}
	return strconv.Itoa(w.originalLeast)
}

// originalState returns the expected annotation, or an empty string.
func (w *world) originalState() string {
	if !w.traits().onOff || w.original == 0 {
		return ""
	}
	return "Active"
}

// plan computes the next event, and checks that the operator has an alarm for it.
func (w *world) plan(got time.Time) {
	var want time.Time
	if w.next = w.now.Add(24 * time.Hour); w.start != "" {
		w.next = w.soonest()
		want = w.now.Add(min(w.next.Sub(w.now), 10*time.Minute))
	}
	if end := w.dryRunEnd.Add(2 * time.Second); !w.dryRunEnd.IsZero() && end.Before(w.next) {
		w.next, want = end, end
	}
	if w.isDryRun() { // the oracle does not follow the memory of a dry run
		if got.After(want) {
			w.failf("the alarm is at %s, want %s at the latest", got, want)
		}
		return
	}
	// Alarms use real timers. So an alarm that is due in less than a second may fire before this check.
	gone := got.IsZero() && want.Sub(w.now) < time.Second
	if !got.Equal(want) && !gone {
		w.failf("the alarm is at %s, want %s", got, want)
	}
}

// reconcileStale reconciles with a cache that does not have the last write. The API server must reject the operator's
// write.
func (w *world) reconcileStale(before client.Object) {
	w.api.cached, w.api.writes = before, 0
	_, err := w.controller.Reconcile(w.Context(), w.request())
	if w.api.writes > 0 || !apierrors.IsConflict(err) {
		w.failf("with a stale cache, the operator wrote %d times; error %v, want a conflict", w.api.writes, err)
	}
}

// rule updates the expected state, and reports whether a write is due.
func (w *world) rule() bool {
	if w.executed = false; w.isDryRun() {
		return false
	}
	if w.start == "" {
		recorded := w.state != "" || !w.lastEvent.IsZero() || !w.nextEvent.IsZero()
		w.raise(w.original)
		w.state, w.lastEvent, w.nextEvent, w.edited = "", time.Time{}, time.Time{}, true
		w.since, w.expiresAt = time.Time{}, time.Time{}
		return recorded
	}
	return w.execute()
}

// execute updates the expected state outside of a dry run.
func (w *world) execute() bool {
	since := w.runningSince()
	if w.startUntil.After(w.now) {
		return w.executeUptime(since)
	}
	last, isStop := w.last(w.now)
	due := w.edited || last.After(w.lastEvent)
	var expiry time.Time
	if !since.IsZero() {
		expiry = since.Add(w.stopAfter)
	}
	switch {
	case !since.IsZero() && !expiry.After(w.now) && (!due || expiry.After(last)):
		handled := w.lastEvent
		if w.regular(expiry, true, since); handled.After(expiry) {
			w.lastEvent = handled // a user has shortened stop-after
		}
	case due:
		w.regular(last, isStop, since)
	case since.Equal(w.since) && expiry.Equal(w.expiresAt):
		return false
	default:
		w.since, w.expiresAt = since, expiry
		w.nextEvent = w.nextStartOrStop()
	}
	return true
}

// runningSince returns the time from which the workload has been running; zero if it is stopped or does not have
// stop-after.
func (w *world) runningSince() time.Time {
	switch {
	case w.stopAfter == 0 || w.level <= w.stopReplicas:
		return time.Time{}
	case w.since.IsZero():
		return w.now.Truncate(time.Second)
	default:
		return w.since
	}
}

// nextStartOrStop returns the next event of the regular schedule or of stop-after.
func (w *world) nextStartOrStop() time.Time {
	next := w.upcoming(w.now)
	if !w.expiresAt.IsZero() && w.expiresAt.Before(next) {
		return w.expiresAt
	}
	return next
}

// executeUptime updates the expected state while start-until is in the future. Each value of start-until is executed
// once.
func (w *world) executeUptime(since time.Time) bool {
	if wrote := !since.Equal(w.since); w.expiresAt.Equal(w.startUntil) {
		if w.since = since; wrote {
			w.nextEvent = w.afterUptime(since)
		}
		return wrote
	}
	w.nextEvent, w.executed = w.afterUptime(since), true
	w.begin(since)
	w.lastEvent, w.expiresAt, w.edited = time.Time{}, w.startUntil, false
	return true
}

// afterUptime returns start-until if the workload stops then. Otherwise, it returns the first regular start or stop
// after start-until.
func (w *world) afterUptime(since time.Time) time.Time {
	_, isStop := w.last(w.startUntil)
	if isStop || !since.IsZero() && !since.Add(w.stopAfter).After(w.startUntil) {
		return w.startUntil
	}
	return w.upcoming(w.startUntil)
}

// regular updates the expected state after a start or a stop that is due.
func (w *world) regular(due time.Time, isStop bool, since time.Time) {
	wasEdited, announced := w.edited, due
	if w.lastEvent.IsZero() && w.expiresAt.After(due) && !w.expiresAt.After(w.now) {
		announced = w.expiresAt // the end of start-until
	}
	w.lastEvent, w.edited, w.executed = due, false, true
	switch {
	case w.isSuspendedAt(due) || w.isOfDryRun(announced):
		if !since.IsZero() && !since.Add(w.stopAfter).After(w.now) {
			since = w.now.Truncate(time.Second)
		}
		w.track(since)
	case isStop:
		w.state = "Stopped"
		if w.level > w.stopReplicas {
			w.lower(wasEdited)
		}
		w.track(time.Time{})
	default:
		if !since.IsZero() && !since.Add(w.stopAfter).After(w.now) {
			since = time.Time{}
		}
		w.begin(since)
	}
	w.nextEvent = w.nextStartOrStop()
}

// begin starts the workload in the expected state. The argument since is the time from which it has been running; zero
// means now.
func (w *world) begin(since time.Time) {
	target := w.startReplicas
	if target == 0 {
		target = w.original
	}
	w.raise(target)
	if w.state = "Started"; since.IsZero() {
		since = w.now.Truncate(time.Second)
	}
	w.track(since)
	if w.level <= w.stopReplicas { // the operator does not know the level before the stop
		w.state = ""
		w.track(time.Time{})
	}
}

// track sets the time from which the workload has been running, and the time at which stop-after ends.
func (w *world) track(since time.Time) {
	w.since, w.expiresAt = time.Time{}, time.Time{}
	if w.stopAfter > 0 && !since.IsZero() {
		w.since, w.expiresAt = since, since.Add(w.stopAfter)
	}
}

// isOfDryRun reports whether an event was due up to the end of the last dry run. The operator forgets a dry run by
// annotation when it restarts.
func (w *world) isOfDryRun(event time.Time) bool {
	return w.wasDryRun || !event.After(w.dryRunEnd) || !event.After(w.flagEnd)
}

func (w *world) isSuspendedAt(event time.Time) bool {
	return w.suspended || event.Before(w.suspendUntil)
}

// soonest returns the next time at which the operator must act. It is the next start or stop, the end of start-until or
// stop-after, or the notice before that end. In a dry run, stop-after counts from a simulated start, which the oracle
// does not follow.
func (w *world) soonest() time.Time {
	soonest, end := w.upcoming(w.now), w.startUntil
	if end.After(w.now) {
		soonest = end
	} else if end = (time.Time{}); !w.isDryRun() && w.stopAfter > 0 && w.level > w.stopReplicas && !w.since.IsZero() {
		end = w.since.Add(w.stopAfter)
	}
	for _, t := range []time.Time{end, end.Add(-15 * time.Minute)} {
		if t.After(w.now) && t.Before(soonest) {
			soonest = t
		}
	}
	return soonest
}

// lower lowers the level to stopReplicas, and records the previous level. If an edit repeats the stop, the higher level
// stays in the record. If the lower bound is still that of an earlier stop, the bound before that stop stays too.
func (w *world) lower(wasEdited bool) {
	if !wasEdited || w.level > w.original {
		w.original = w.level
		if w.least > w.stopReplicas {
			w.originalLeast = 0
		}
	}
	if w.level = w.stopReplicas; w.least > w.level {
		if w.originalLeast == 0 {
			w.originalLeast = w.least
		}
		w.least = w.level
	}
}

// raise raises the level to a target, and forgets the level before the stop.
func (w *world) raise(target int) {
	w.level = max(w.level, target)
	w.least = max(w.least, min(w.originalLeast, w.level))
	w.original, w.originalLeast = 0, 0
}

// isExcluded reports whether a start at a tick is excluded.
func (w *world) isExcluded(e tick) bool { return w.exclude[0] <= e.date && e.date <= w.exclude[1] }

// last returns the last regular start or stop until now. If both are at the same instant, it returns the event with the
// later wall-clock time. If the wall-clock times are also equal, it returns the start.
func (w *world) last(now time.Time) (at time.Time, isStop bool) {
	table := w.timetables[w.zone]
	start, stop := lastTick(table[w.start], now, w.isExcluded),
		lastTick(table[w.stop], now, func(tick) bool { return false })
	if stop.at.After(start.at) || stop.at.Equal(start.at) && stop.wall.After(start.wall) {
		return stop.at, true
	}
	return start.at, false
}

// upcoming returns the next regular start or stop after now.
func (w *world) upcoming(now time.Time) time.Time {
	table := w.timetables[w.zone]
	stops := table[w.stop]
	next := stops[countUntil(stops, now)].at
	for _, start := range table[w.start][countUntil(table[w.start], now):] {
		if !w.isExcluded(start) {
			if start.at.Before(next) {
				next = start.at
			}
			break
		}
	}
	return next
}

// countUntil returns the number of ticks until now.
func countUntil(ticks []tick, now time.Time) int {
	i, _ := slices.BinarySearchFunc(ticks, now, func(e tick, now time.Time) int {
		if e.at.After(now) {
			return 1
		}
		return -1
	})
	return i
}

// lastTick returns the last tick until now that is not excluded. Such a tick always exists, because excluded ranges are
// short.
func lastTick(ticks []tick, now time.Time, excluded func(tick) bool) tick {
	for i := countUntil(ticks, now) - 1; i >= 0; i-- {
		if !excluded(ticks[i]) {
			return ticks[i]
		}
	}
	return tick{}
}

func recordKeys() []string {
	return []string{
		v1beta1.OriginalReplicasAnnotation, v1beta1.OriginalMinReplicasAnnotation, v1beta1.OriginalStateAnnotation,
		v1beta1.LastScheduleTimeAnnotation, v1beta1.NextScheduleTimeAnnotation,
		v1beta1.ScheduleStateAnnotation, v1beta1.ObservedScheduleAnnotation,
		v1beta1.RunningSinceAnnotation, v1beta1.ExpiresAtAnnotation,
	}
}

// shown returns the wall-clock time of a zone at an instant, as a time in UTC.
func shown(at time.Time, zone *time.Location) time.Time {
	local := at.In(zone)
	year, month, date := local.Date()
	hour, minute, second := local.Clock()
	return time.Date(year, month, date, hour, minute, second, 0, time.UTC)
}

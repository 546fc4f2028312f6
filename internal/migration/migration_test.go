// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/operator-framework/operator-lib/conditions"
	"github.com/prometheus/client_golang/prometheus"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// server is a fake API server with objects of the kind Thing. It can have a stale storage version, and its lists can
// expire.
type server struct {
	client.Client

	crds    map[string]*apiextensionsv1.CustomResourceDefinition
	stores  string            // the version in which it stores objects
	objects map[string]string // stored version by name
	expires map[string]bool   // continue tokens; the first list with such a token fails, because the token has expired
	refuses map[string]error  // the errors of reads and patches, by the name of the object
	between []func(*server)   // functions that change the server; each wait of the migration calls the next one

	current string // the resourceVersion of the CustomResourceDefinition

	writes int
	waits  []time.Duration
	pruned []string // the stored versions that the migration wrote; nil if it wrote none
}

// fill stores five objects in a version. By default, the server's storage version is new.
func (s *server) fill(stored string) {
	s.objects, s.current = map[string]string{}, "7"
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.objects[name] = stored
	}
	if s.stores == "" {
		s.stores = "new"
	}
}

func (s *server) names() []string {
	names := make([]string, 0, len(s.objects))
	for name := range s.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Get implements client.Reader.
func (s *server) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if err := s.refuses[key.Name]; err != nil {
		return err
	}
	if crd := s.crds[key.Name]; crd != nil {
		crd.DeepCopyInto(object.(*apiextensionsv1.CustomResourceDefinition))
		return nil
	}
	return apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), key.Name)
}

// List implements client.Reader, with two objects per page.
func (s *server) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := &client.ListOptions{}
	asked.ApplyOptions(options)
	if s.expires[asked.Continue] {
		delete(s.expires, asked.Continue)
		expired := apierrors.NewResourceExpired("too old")
		expired.ErrStatus.Continue = asked.Continue
		return fmt.Errorf("wrapped: %w", expired)
	}
	metadata := list.(*metav1.PartialObjectMetadataList)
	metadata.Items, metadata.Continue = nil, ""
	names := slices.DeleteFunc(s.names(), func(name string) bool { return name < asked.Continue })
	for i, name := range names {
		if i == 2 {
			metadata.Continue = name
			break
		}
		metadata.Items = append(metadata.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "room", Name: name, ResourceVersion: "1"}})
	}
	return nil
}

// Patch implements client.Writer. It accepts only an apply, see rewrite.
func (s *server) Patch(_ context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	if patch.Type() != types.ApplyPatchType {
		return fmt.Errorf("got a patch of the type %s, want %s", patch.Type(), types.ApplyPatchType)
	}
	if err := s.refuses[object.GetName()]; err != nil {
		return err
	}
	object.SetResourceVersion("1")
	if s.objects[object.GetName()] != s.stores {
		s.objects[object.GetName()] = s.stores
		s.writes++
		object.SetResourceVersion("2")
	}
	return nil
}

// Status implements client.Client.
func (s *server) Status() client.SubResourceWriter { return statusWriter{server: s} }

type statusWriter struct {
	client.SubResourceWriter
	server *server
}

// Update implements client.SubResourceWriter.
func (w statusWriter) Update(_ context.Context, object client.Object, _ ...client.SubResourceUpdateOption) error {
	if object.GetResourceVersion() != w.server.current {
		return apierrors.NewConflict(schema.GroupResource{}, object.GetName(), errors.New("changed"))
	}
	w.server.pruned = object.(*apiextensionsv1.CustomResourceDefinition).Status.StoredVersions
	return nil
}

// passingClock is a clock whose waits end at once. Each wait calls the next function in server.between.
type passingClock struct {
	clock.RealClock
	server *server
}

func (c passingClock) After(d time.Duration) <-chan time.Time {
	c.server.waits = append(c.server.waits, d)
	if len(c.server.between) > 0 {
		c.server.between[0](c.server)
		c.server.between = c.server.between[1:]
	}
	passed := make(chan time.Time, 1)
	passed <- time.Time{}
	return passed
}

type migrateTest struct {
	reason     string
	server     server
	stored     string // the version of all objects before the migration
	wantWrites int
	wantWaits  int
	wantErr    string // if set, the stored versions must not change
}

func TestMigrate(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "b", errors.New("changed"))
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "b")
	catchUp := func(s *server) { s.stores = "new" }

	for _, tt := range []migrateTest{
		{reason: "each object in the old version is rewritten once, and a second pass finds no object to rewrite", stored: "old", wantWrites: 5, wantWaits: 1},
		{reason: "objects in the new version are not rewritten, but a second pass checks them again", stored: "new", wantWaits: 1},
		{
			reason: "if the API server does not know the new storage version in the first pass, later passes rewrite the objects", stored: "old",
			server: server{stores: "old", between: []func(*server){catchUp}}, wantWrites: 5, wantWaits: 2,
		},
		{
			reason: "an object that is stored in the old version after the first pass is rewritten, too", stored: "old",
			server:     server{between: []func(*server){func(s *server) { s.objects["c"] = "old" }}},
			wantWrites: 6, wantWaits: 2,
		},
		{
			reason: "if a list expires, the migration continues it with the token in the error", stored: "old",
			server: server{expires: map[string]bool{"c": true}}, wantWrites: 5, wantWaits: 1,
		},
		{
			reason: "a conflict is ignored, because the object has changed since the list", stored: "new",
			server: server{refuses: map[string]error{"b": conflict}}, wantWaits: 1,
		},
		{
			reason: "an object that was deleted since the list is ignored", stored: "new",
			server: server{refuses: map[string]error{"b": notFound}}, wantWaits: 1,
		},
		{
			reason: "if the rewrite of an object fails, the stored versions do not change", stored: "old",
			server:     server{refuses: map[string]error{"b": errors.New("no converter")}},
			wantWrites: 1, wantErr: "rewrite Thing room/b: no converter",
		},
		{
			reason: "if the CustomResourceDefinition changes during the migration, its stored versions do not change", stored: "old",
			server:     server{between: []func(*server){func(s *server) { s.current = "8" }}},
			wantWrites: 5, wantWaits: 1, wantErr: "things.example.com",
		},
	} {
		t.Run(tt.reason, tt.run)
	}
}

func (tt *migrateTest) run(t *testing.T) {
	s := &tt.server
	s.fill(tt.stored)
	todo, err := decide(Resource{}, aCRD(nil, "old", "new"))
	if err != nil {
		t.Fatal(err)
	}
	m := &Migrator{client: s, clock: passingClock{server: s}, log: testr.New(t), olm: &reporter{}}
	err = m.migrate(t.Context(), []*migration{todo})
	if s.writes != tt.wantWrites || len(s.waits) != tt.wantWaits {
		t.Errorf("got %d writes and waits %v, want %d writes and %d waits", s.writes, s.waits, tt.wantWrites, tt.wantWaits)
	}
	if tt.wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), tt.wantErr) || s.pruned != nil {
			t.Errorf("got error %v, want one with %q; got stored versions %v, want no change", err, tt.wantErr, s.pruned)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"new"}, s.pruned); diff != "" {
		t.Errorf("stored versions (-want +got):\n%s", diff)
	}
	for name, version := range s.objects {
		if version != "new" {
			t.Errorf("%s is stored as %s, want new", name, version)
		}
	}
}

// condition is a fake OperatorCondition. Set returns an error if the reported status is equal to rejects.
type condition struct {
	rejects metav1.ConditionStatus
	reports []string // the status and the reason of each report
	message string   // of the last report
}

func (c *condition) Get(context.Context) (*metav1.Condition, error) { return nil, nil }

func (c *condition) Set(_ context.Context, status metav1.ConditionStatus, options ...conditions.Option) error {
	if status == c.rejects {
		return errors.New("no answer")
	}
	set := metav1.Condition{Status: status}
	for _, option := range options {
		option(&set)
	}
	c.reports, c.message = append(c.reports, fmt.Sprintf("%s %s", set.Status, set.Reason)), set.Message
	return nil
}

func TestTry(t *testing.T) {
	const machines, switches = "machines.useless.container.training", "switches.useless.container.training"
	old, current := aCRD(nil, "old", "new"), aCRD(nil, "new")
	unconverted := aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Conversion = nil }, "old", "new")

	for _, tt := range []struct {
		reason    string
		server    server
		before    error
		condition condition
		want      []string // reports to OLM
		wantErr   string
		wantWrite bool
	}{
		{
			reason: "the start and the end of a migration are reported to OLM",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: current}},
			want:   []string{"False MigrationRunning", "True Migrated"}, wantWrite: true,
		},
		{
			reason: "the report of the start contains the error of the previous attempt",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: current}},
			before: errors.New("no converter"),
			want:   []string{"False MigrationFailing", "True Migrated"}, wantWrite: true,
		},
		{
			reason: "the end is reported even if there is nothing to migrate, because a previous process may have crashed before its report",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: current, switches: current}},
			want:   []string{"True Migrated"},
		},
		{reason: "CustomResourceDefinitions that do not exist need no migration", want: []string{"True Migrated"}},
		{
			reason:    "the migration continues if the report of its start fails",
			server:    server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: old}},
			condition: condition{rejects: metav1.ConditionFalse},
			want:      []string{"True Migrated"}, wantWrite: true,
		},
		{
			reason:    "if the report of the end fails, try returns the error, because the earlier report still blocks upgrades",
			server:    server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: current, switches: current}},
			condition: condition{rejects: metav1.ConditionTrue},
			wantErr:   "report the end of the migration to OLM",
		},
		{
			reason:  "a migration without a conversion webhook is impossible, and is reported as failing",
			server:  server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: unconverted, switches: current}},
			want:    []string{"False MigrationFailing"},
			wantErr: "no conversion webhook",
		},
		{
			reason: "if one CustomResourceDefinition cannot be read, the others are migrated",
			server: server{
				crds:    map[string]*apiextensionsv1.CustomResourceDefinition{switches: old},
				refuses: map[string]error{machines: errors.New("forbidden")},
			},
			want: []string{"False MigrationFailing"}, wantErr: "forbidden", wantWrite: true,
		},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			s := &tt.server
			s.fill("old")
			m := &Migrator{client: s, clock: passingClock{server: s}, log: testr.New(t), olm: &reporter{&tt.condition, testr.New(t)}}
			err := m.try(t.Context(), tt.before)
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("got error %v, want one with %q", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, tt.condition.reports); diff != "" {
				t.Errorf("reports to OLM (-want +got):\n%s", diff)
			}
			if c := tt.condition; slices.Contains(c.reports, "False MigrationFailing") && !strings.Contains(c.message, tt.wantErr) {
				t.Errorf("got report %q, want one with the cause %q", c.message, tt.wantErr)
			}
			if written := s.writes > 0 && s.pruned != nil; written != tt.wantWrite {
				t.Errorf("got %d writes and stored versions %v", s.writes, s.pruned)
			}
		})
	}
}

// stoppingCondition cancels the context of the migration during the first report, as if the process ended.
type stoppingCondition struct {
	condition
	stop context.CancelFunc
}

func (c *stoppingCondition) Set(ctx context.Context, status metav1.ConditionStatus, options ...conditions.Option) error {
	c.stop()
	if status == metav1.ConditionTrue && ctx.Err() != nil {
		return ctx.Err()
	}
	return c.condition.Set(ctx, status, options...)
}

// TestStop ends the process during a migration. The last report to OLM must not block upgrades.
func TestStop(t *testing.T) {
	unconverted := aCRD(func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Conversion = nil }, "old", "new")
	s := &server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{"machines.useless.container.training": unconverted}}
	s.fill("old")
	ctx, cancel := context.WithCancel(t.Context())
	c := &stoppingCondition{stop: cancel}
	m := &Migrator{
		client: s, clock: passingClock{server: s}, log: testr.New(t), olm: &reporter{c, testr.New(t)},
		gauge: newGauge(prometheus.NewRegistry()),
	}
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"False MigrationFailing", "True OperatorStopped"}, c.reports); diff != "" {
		t.Errorf("reports to OLM (-want +got):\n%s", diff)
	}
}

func TestContinueAfter(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "here"
	for _, tt := range []struct {
		reason string
		err    error
		want   string
	}{
		{"there is no token without an error", nil, ""},
		{"the error about an expired list contains a token", fmt.Errorf("list: %w", expired), "here"},
		{"the error about an expired list contains no token", apierrors.NewResourceExpired("too old"), ""},
		{"another error contains no token", apierrors.NewGenericServerResponse(http.StatusInternalServerError, "list", schema.GroupResource{}, "", "", 0, true), ""},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			if got := continueAfter(tt.err); got != tt.want {
				t.Errorf("got %s", strconv.Quote(got))
			}
		})
	}
}

// attempts is a server that rejects the reads of the first two attempts. It records the values of the metric at the
// start of each attempt.
type attempts struct {
	*server
	registry *prometheus.Registry
	states   []map[string]float64
	t        *testing.T
}

func (a *attempts) Get(
	ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption,
) error {
	if key.Name == Resources[0].CRD {
		a.states = append(a.states, states(a.t, a.registry))
		if len(a.states) <= 2 {
			return errors.New("forbidden")
		}
	}
	return a.server.Get(ctx, key, object, options...)
}

// states returns the values of useless_storage_migration by state.
func states(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			found[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
		}
	}
	return found
}

// TestStates runs a migration whose first two attempts fail.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		s := &server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{}}
		a := &attempts{server: s, registry: registry, t: t}
		m := &Migrator{
			client: a, clock: passingClock{server: s}, log: testr.New(t), olm: &reporter{}, gauge: newGauge(registry),
		}
		got := []map[string]float64{states(t, registry)}
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		got = append(append(got, a.states...), states(t, registry))
		want := []map[string]float64{
			{"running": 0, "failing": 0, "complete": 0}, // not the leader yet
			{"running": 1, "failing": 0, "complete": 0},
			{"running": 0, "failing": 1, "complete": 0},
			{"running": 0, "failing": 1, "complete": 0},
			{"running": 0, "failing": 0, "complete": 1},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
	})
}

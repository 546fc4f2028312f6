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
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/operator-framework/operator-lib/conditions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A server stands in for API servers that are behind, and for lists that grow too old: neither can be had on demand.
type server struct {
	client.Client

	crds    map[string]*apiextensionsv1.CustomResourceDefinition
	stores  string            // the version that it writes
	objects map[string]string // the version that each is stored in
	expires map[string]bool   // where a list is too old to go on, once
	refuses map[string]error  // what it answers to a rewrite
	between []func(*server)   // what happens while the migration waits, in turn

	current string // the version of the CustomResourceDefinition

	writes int
	waits  []time.Duration
	pruned []string // the stored versions, as they were last written
}

// fill stores five objects in a version.
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

// List implements client.Reader, in pages of two.
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

// Patch implements client.Writer.
func (s *server) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
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

// A passingClock lets the time pass at once, and what is to happen in it happen.
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
	stored     string // how every object is stored before
	wantWrites int
	wantWaits  int
	wantErr    string // then the stored versions stay
}

func TestMigrate(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "b", errors.New("changed"))
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "b")
	catchUp := func(s *server) { s.stores = "new" }

	for _, tt := range []migrateTest{
		{reason: "what is stored in the old version is written once, and looked at once more", stored: "old", wantWrites: 5, wantWaits: 1},
		{reason: "what is stored in the new version is not written, and looked at once more", stored: "new", wantWaits: 1},
		{
			reason: "an API server that is behind changes nothing at first", stored: "old",
			server: server{stores: "old", between: []func(*server){catchUp}}, wantWrites: 5, wantWaits: 2,
		},
		{
			reason: "a late write in the old version is found", stored: "old",
			server:     server{between: []func(*server){func(s *server) { s.objects["c"] = "old" }}},
			wantWrites: 6, wantWaits: 2,
		},
		{
			reason: "a list that is too old goes on where it was", stored: "old",
			server: server{expires: map[string]bool{"c": true}}, wantWrites: 5, wantWaits: 1,
		},
		{
			reason: "an object that has changed since it was listed is left", stored: "new",
			server: server{refuses: map[string]error{"b": conflict}}, wantWaits: 1,
		},
		{
			reason: "an object that is gone is left", stored: "new",
			server: server{refuses: map[string]error{"b": notFound}}, wantWaits: 1,
		},
		{
			reason: "an object that cannot be written keeps the stored versions as they are", stored: "old",
			server:     server{refuses: map[string]error{"b": errors.New("no converter")}},
			wantWrites: 1, wantErr: "rewrite Thing room/b: no converter",
		},
		{
			reason: "a CustomResourceDefinition that changes meanwhile keeps its stored versions", stored: "old",
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
	todo, err := decide(resource{}, aCRD(nil, "old", "new"))
	if err != nil {
		t.Fatal(err)
	}
	m := &Migrator{client: s, clock: passingClock{server: s}, log: testr.New(t), olm: &reporter{}}
	err = m.migrate(t.Context(), []*migration{todo})
	if s.writes != tt.wantWrites || len(s.waits) != tt.wantWaits {
		t.Errorf("%d writes and waits %v, not %d and %d", s.writes, s.waits, tt.wantWrites, tt.wantWaits)
	}
	if tt.wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), tt.wantErr) || s.pruned != nil {
			t.Errorf("error %v, not one with %q, and stored versions %v", err, tt.wantErr, s.pruned)
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
			t.Errorf("%s is stored as %s", name, version)
		}
	}
}

// A condition stands in for OLM's, to refuse what it is told.
type condition struct {
	refuses metav1.ConditionStatus
	told    []string
	message string // the last one
}

func (c *condition) Get(context.Context) (*metav1.Condition, error) { return nil, nil }

func (c *condition) Set(_ context.Context, status metav1.ConditionStatus, options ...conditions.Option) error {
	if status == c.refuses {
		return errors.New("no answer")
	}
	set := metav1.Condition{Status: status}
	for _, option := range options {
		option(&set)
	}
	c.told, c.message = append(c.told, fmt.Sprintf("%s %s", set.Status, set.Reason)), set.Message
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
		want      []string // what OLM is told
		wantErr   string
		wantWrite bool
	}{
		{
			reason: "OLM is told before and after",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: current}},
			want:   []string{"False MigrationRunning", "True Migrated"}, wantWrite: true,
		},
		{
			reason: "another try tells of the one before",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: current}},
			before: errors.New("no converter"),
			want:   []string{"False MigrationFailing", "True Migrated"}, wantWrite: true,
		},
		{
			reason: "where there is nothing to migrate, OLM is told so, for the process before may have crashed",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: current, switches: current}},
			want:   []string{"True Migrated"},
		},
		{reason: "kinds that are not there need no migration", want: []string{"True Migrated"}},
		{
			reason:    "a migration does not wait for OLM",
			server:    server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: old}},
			condition: condition{refuses: metav1.ConditionFalse},
			want:      []string{"True Migrated"}, wantWrite: true,
		},
		{
			reason:    "that all is done must reach OLM, or no upgrade would ever be let through",
			server:    server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: current, switches: current}},
			condition: condition{refuses: metav1.ConditionTrue},
			wantErr:   "tell OLM",
		},
		{
			reason:  "what cannot be migrated is told at once, and no reason to say that all is done",
			server:  server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: unconverted, switches: current}},
			want:    []string{"False MigrationFailing"},
			wantErr: "no conversion webhook",
		},
		{
			reason: "a kind that cannot be read keeps no other back",
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
				t.Errorf("error %v, not one with %q", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, tt.condition.told); diff != "" {
				t.Errorf("what OLM is told (-want +got):\n%s", diff)
			}
			if told := tt.condition; slices.Contains(told.told, "False MigrationFailing") && !strings.Contains(told.message, tt.wantErr) {
				t.Errorf("OLM is told %q, without the cause, %s", told.message, tt.wantErr)
			}
			if written := s.writes > 0 && s.pruned != nil; written != tt.wantWrite {
				t.Errorf("%d writes, and stored versions %v", s.writes, s.pruned)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	now := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	p := newProgress(log, now)
	for _, rest := range []*int64{new(int64(30)), new(int64(15)), nil} {
		p.page(&metav1.PartialObjectMetadataList{
			ListMeta: metav1.ListMeta{RemainingItemCount: rest}, Items: make([]metav1.PartialObjectMetadata, 15),
		})
		for range 15 {
			now.SetTime(now.Now().Add(time.Second))
			p.one()
		}
	}
	p.end(7)
	want := []string{
		`"level"=0 "msg"="Rewriting what is stored in another version" "objects"=45`,
		`"level"=0 "msg"="Still rewriting" "done"=10 "objects"=45`,
		`"level"=0 "msg"="Still rewriting" "done"=20 "objects"=45`,
		`"level"=0 "msg"="Still rewriting" "done"=30 "objects"=45`,
		`"level"=0 "msg"="Still rewriting" "done"=40 "objects"=45`,
		`"level"=0 "msg"="Went through all objects" "rewritten"=7 "objects"=45 "took"="45s"`,
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestRestOf(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "here"
	for _, tt := range []struct {
		reason string
		err    error
		want   string
	}{
		{"no error has no rest", nil, ""},
		{"a list that is too old says where to go on", fmt.Errorf("list: %w", expired), "here"},
		{"a list that is too old and says nothing is an error", apierrors.NewResourceExpired("too old"), ""},
		{"any other error is one", apierrors.NewGenericServerResponse(http.StatusInternalServerError, "list", schema.GroupResource{}, "", "", 0, true), ""},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			if got := restOf(tt.err); got != tt.want {
				t.Errorf("got %s", strconv.Quote(got))
			}
		})
	}
}

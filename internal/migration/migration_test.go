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

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/operator-framework/operator-lib/conditions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// server is a fake API server. It can have a stale storage version, and its lists can expire.
type server struct {
	client.Client

	crds    map[string]*apiextensionsv1.CustomResourceDefinition
	stores  string            // the version in which it stores objects
	objects map[string]string // stored version by name
	expires map[string]bool   // continue tokens that expire once
	refuses map[string]error  // errors by the name of the object
	between []func(*server)   // called in order, one in each wait of the migration

	current string // the resource version of the CustomResourceDefinition

	writes int
	waits  []time.Duration
	pruned []string // the last written stored versions
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

// passingClock ends each wait at once, and calls the next function of server.between.
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
		{reason: "objects in the old version are written once and checked again", stored: "old", wantWrites: 5, wantWaits: 1},
		{reason: "objects in the new version are not written and are checked again", stored: "new", wantWaits: 1},
		{
			reason: "an API server with a stale storage version writes nothing in the first pass", stored: "old",
			server: server{stores: "old", between: []func(*server){catchUp}}, wantWrites: 5, wantWaits: 2,
		},
		{
			reason: "a later write in the old version is found", stored: "old",
			server:     server{between: []func(*server){func(s *server) { s.objects["c"] = "old" }}},
			wantWrites: 6, wantWaits: 2,
		},
		{
			reason: "an expired list is continued", stored: "old",
			server: server{expires: map[string]bool{"c": true}}, wantWrites: 5, wantWaits: 1,
		},
		{
			reason: "an object that has changed since the list is skipped", stored: "new",
			server: server{refuses: map[string]error{"b": conflict}}, wantWaits: 1,
		},
		{
			reason: "a deleted object is skipped", stored: "new",
			server: server{refuses: map[string]error{"b": notFound}}, wantWaits: 1,
		},
		{
			reason: "if an object cannot be written, the stored versions do not change", stored: "old",
			server:     server{refuses: map[string]error{"b": errors.New("no converter")}},
			wantWrites: 1, wantErr: "rewrite Thing room/b: no converter",
		},
		{
			reason: "a CustomResourceDefinition that changes during the migration keeps its stored versions", stored: "old",
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

// condition is a fake OperatorCondition. It rejects one status.
type condition struct {
	rejects metav1.ConditionStatus
	reports []string
	message string // of the last report
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
			reason: "the start and the end are reported",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: current}},
			want:   []string{"False MigrationRunning", "True Migrated"}, wantWrite: true,
		},
		{
			reason: "an attempt reports the error of the previous attempt",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: current}},
			before: errors.New("no converter"),
			want:   []string{"False MigrationFailing", "True Migrated"}, wantWrite: true,
		},
		{
			reason: "without a migration, the end is reported, because the previous process may have crashed",
			server: server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: current, switches: current}},
			want:   []string{"True Migrated"},
		},
		{reason: "missing CustomResourceDefinitions need no migration", want: []string{"True Migrated"}},
		{
			reason:    "a migration continues if the report of its start fails",
			server:    server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: old, switches: old}},
			condition: condition{rejects: metav1.ConditionFalse},
			want:      []string{"True Migrated"}, wantWrite: true,
		},
		{
			reason:    "an error of the final report is returned, because OLM would block all upgrades",
			server:    server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: current, switches: current}},
			condition: condition{rejects: metav1.ConditionTrue},
			wantErr:   "report the end of the migration to OLM",
		},
		{
			reason:  "an impossible migration is reported as failing",
			server:  server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{machines: unconverted, switches: current}},
			want:    []string{"False MigrationFailing"},
			wantErr: "no conversion webhook",
		},
		{
			reason: "an unreadable CustomResourceDefinition does not affect the others",
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

func TestContinueAfter(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "here"
	for _, tt := range []struct {
		reason string
		err    error
		want   string
	}{
		{"without an error, the list is complete", nil, ""},
		{"an expired list has a token", fmt.Errorf("list: %w", expired), "here"},
		{"an expired list has no token", apierrors.NewResourceExpired("too old"), ""},
		{"the error has another reason", apierrors.NewGenericServerResponse(http.StatusInternalServerError, "list", schema.GroupResource{}, "", "", 0, true), ""},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			if got := continueAfter(tt.err); got != tt.want {
				t.Errorf("got %s", strconv.Quote(got))
			}
		})
	}
}

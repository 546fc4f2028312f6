// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/test/sim"
)

// operations is how many requests TestConformance makes. Half of them are refused.
const operations = 400

// TestConformance has the simulated API server and a real one answer the same requests, and compares the answers and what
// watches tell.
func TestConformance(t *testing.T) {
	server := sim.NewServer(kinds...)
	simulated := newSide(t, server.Connect("user").Config(), server.Mapper())
	genuine := newSide(t, startCluster(t), server.Mapper())
	random := rand.New(rand.NewPCG(1, 2))
	answers := map[string]int{}
	for i := range operations {
		o := randomOperation(random)
		want, got := genuine.do(t, o), simulated.do(t, o)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("operation %d, %+v: (-API server +simulated)\n%s", i, o, diff)
		}
		answers[want.Reason]++
	}
	t.Logf("answers: %v", answers)
	if diff := cmp.Diff(genuine.events(t), simulated.events(t)); diff != "" {
		t.Errorf("events (-API server +simulated)\n%s", diff)
	}
}

// startCluster is a real API server that knows the operator's kinds.
func startCluster(t *testing.T) *rest.Config {
	t.Helper()
	programs, err := cluster.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := cluster.ReadManifests("../../config/crd")
	if err != nil {
		t.Fatal(err)
	}
	plane, err := cluster.Start(t.Context(), programs, cluster.Options{UnsafeNoFsync: true, BeforeControllers: func(ctx context.Context, config *rest.Config) error {
		return cluster.Install(ctx, config, manifests, cluster.WebhookServer{})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	return plane.Config
}

// An operation is a request, in words that are the same for both sides.
type operation struct {
	Verb    string
	Kind    string
	Name    string
	Body    string // of a patch, and what is merged into what is created or updated
	Version string // in the body: none, current or stale
	UID     string // the precondition of a deletion: none, current or wrong
}

func pick[T any](random *rand.Rand, values ...T) T { return values[random.IntN(len(values))] }

func randomOperation(random *rand.Rand) operation {
	o := operation{
		Verb:    pick(random, "create", "create", "create", "get", "list", "patch", "patch", "patch", "patch status", "update", "update status", "delete"),
		Kind:    pick(random, "Machine", "Machine", "Switch"),
		Name:    pick(random, "a", "b"),
		Version: pick(random, "none", "current", "current", "stale"),
		UID:     pick(random, "none", "none", "current", "wrong"),
	}
	bodies := []string{
		`{}`,
		`{"spec":{"position":"up"}}`, `{"spec":{"position":"down"}}`, `{"spec":{"position":null}}`, `{"spec":{"position":"sideways"}}`,
		`{"spec":{"unknown":1}}`, `{"spec":null}`, `{"spec":{"position":7}}`,
		`{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"labels":{"a":null}}}`, `{"metadata":{"annotations":{"a":"b"}}}`,
		`{"metadata":{"finalizers":["example.com/one"]}}`, `{"metadata":{"finalizers":["example.com/one","example.com/two"]}}`,
		`{"metadata":{"finalizers":null}}`, `{"metadata":{"finalizers":[]}}`,
		`{"status":{"observedGeneration":7}}`, `{"status":{"observedGeneration":8},"metadata":{"labels":{"c":"d"}}}`,
		`{"status":{"observedGeneration":"x"}}`, `{"status":null}`,
	}
	if o.Kind == "Machine" {
		bodies = append(bodies,
			`{"spec":{"switches":{"count":3}}}`, `{"spec":{"switches":{"count":0}}}`, `{"spec":{"switches":{"count":1001}}}`,
			`{"spec":{"switches":{"count":"x"}}}`, `{"spec":{"flip":{"delaySeconds":0}}}`, `{"spec":{"flip":null}}`,
			`{"spec":{"switches":{"selector":{"matchLabels":{"a":"b"}}}}}`, `{"spec":{"switches":{"selector":{}}}}`,
		)
	}
	o.Body = pick(random, bodies...)
	return o
}

// A side is one of the two API servers.
type side struct {
	client  client.WithWatch
	uids    map[types.UID]int // in the order in which they were first seen
	watches []watch.Interface
}

func newSide(t *testing.T, config *rest.Config, mapper meta.RESTMapper) *side {
	t.Helper()
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	c, err := client.NewWithWatch(config, client.Options{Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	s := &side{client: c, uids: map[types.UID]int{}}
	for _, kind := range []string{"Machine", "Switch"} {
		w, err := c.Watch(t.Context(), listOf(kind))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		s.watches = append(s.watches, w)
	}
	return s
}

func listOf(kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1beta1.GroupVersion.WithKind(kind + "List"))
	return list
}

func objectOf(kind, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(v1beta1.GroupVersion.WithKind(kind))
	object.SetNamespace(metav1.NamespaceDefault)
	object.SetName(name)
	return object
}

// An answer is what both sides have to say alike.
type answer struct {
	Code   int32
	Reason string
	Fields []string // that are invalid
	Object any
}

// do makes a request.
func (s *side) do(t *testing.T, o operation) answer {
	t.Helper()
	ctx := t.Context()
	current := objectOf(o.Kind, o.Name)
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(current), current); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	change, err := s.change(o, current)
	if err != nil {
		t.Fatal(err)
	}
	object := objectOf(o.Kind, o.Name)
	switch o.Verb {
	case "get":
		err = s.client.Get(ctx, client.ObjectKeyFromObject(object), object)
	case "list":
		list := listOf(o.Kind)
		err = s.client.List(ctx, list, client.InNamespace(metav1.NamespaceDefault))
		object.Object = map[string]any{"items": []any{}}
		for _, item := range list.Items {
			object.Object["items"] = append(object.Object["items"].([]any), s.normal(&item))
		}
	case "create":
		merge(object.Object, change)
		object.SetResourceVersion("")
		err = s.client.Create(ctx, object)
	case "patch", "patch status":
		data, _ := (&unstructured.Unstructured{Object: change}).MarshalJSON()
		if o.Verb == "patch" {
			err = s.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, data))
		} else {
			err = s.client.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, data))
		}
	case "update", "update status":
		object = current.DeepCopy()
		object.SetResourceVersion("")
		merge(object.Object, change)
		if o.Verb == "update" {
			err = s.client.Update(ctx, object)
		} else {
			err = s.client.Status().Update(ctx, object)
		}
	case "delete":
		err = s.client.Delete(ctx, object, s.precondition(o, current)...)
		object.Object = nil
	}
	return s.answer(object, err)
}

// change is the operation's body with the version of the object as this side knows it.
func (s *side) change(o operation, current *unstructured.Unstructured) (map[string]any, error) {
	change := &unstructured.Unstructured{}
	if err := kruntime.DecodeInto(unstructured.UnstructuredJSONScheme, fmt.Appendf(nil,
		`{"apiVersion":%q,"kind":%q}`, v1beta1.GroupVersion.String(), o.Kind), change); err != nil {
		return nil, err
	}
	body := map[string]any{}
	if err := json.Unmarshal([]byte(o.Body), &body); err != nil {
		return nil, err
	}
	merge(change.Object, body)
	switch o.Version {
	case "current":
		change.SetResourceVersion(current.GetResourceVersion())
	case "stale":
		change.SetResourceVersion("1")
	}
	return change.Object, nil
}

func (s *side) precondition(o operation, current *unstructured.Unstructured) []client.DeleteOption {
	switch o.UID {
	case "current":
		return []client.DeleteOption{client.Preconditions{UID: new(current.GetUID())}}
	case "wrong":
		return []client.DeleteOption{client.Preconditions{UID: new(types.UID("wrong"))}}
	}
	return nil
}

// merge changes an object as a merge patch does.
func merge(object, change map[string]any) {
	for name, value := range change {
		if value == nil {
			delete(object, name)
			continue
		}
		if inner, ok := value.(map[string]any); ok {
			if before, ok := object[name].(map[string]any); ok {
				merge(before, inner)
				continue
			}
			fresh := map[string]any{}
			merge(fresh, inner)
			value = fresh
		}
		object[name] = value
	}
}

func (s *side) answer(object *unstructured.Unstructured, err error) answer {
	if err == nil {
		return answer{Object: s.normal(object)}
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return answer{Reason: err.Error()}
	}
	a := answer{Code: status.Status().Code, Reason: string(status.Status().Reason)}
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			// Not how often it is told, nor that rules were not looked at because of it.
			if field := strings.TrimPrefix(cause.Field, "."); field != "<nil>" && !slices.Contains(a.Fields, field) {
				a.Fields = append(a.Fields, field)
			}
		}
	}
	slices.Sort(a.Fields)
	return a
}

// normal is an object in words that are the same for both sides.
func (s *side) normal(object *unstructured.Unstructured) any {
	if object.Object == nil || object.Object["metadata"] == nil {
		return object.Object
	}
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	if _, ok := s.uids[object.GetUID()]; !ok {
		s.uids[object.GetUID()] = len(s.uids) + 1
	}
	object.SetUID(types.UID(strconv.Itoa(s.uids[object.GetUID()])))
	object.SetResourceVersion("") // field managers make some more
	for _, name := range []string{"creationTimestamp", "deletionTimestamp"} {
		if _, ok, _ := unstructured.NestedString(object.Object, "metadata", name); ok {
			_ = unstructured.SetNestedField(object.Object, "set", "metadata", name)
		}
	}
	return object.Object
}

// events are what the watches have told, of each kind, up to an object that is made for that. One that differs from the one
// before it in its version alone is a field manager's.
func (s *side) events(t *testing.T) (all [][]any) {
	t.Helper()
	for i, kind := range []string{"Machine", "Switch"} {
		if err := s.client.Create(t.Context(), objectOf(kind, "last")); err != nil {
			t.Fatal(err)
		}
		var told []any
		before := map[string]any{}
		for last := false; !last; {
			select {
			case event := <-s.watches[i].ResultChan():
				object, ok := event.Object.(*unstructured.Unstructured)
				if !ok {
					t.Fatalf("watch %s: %v", kind, event)
				}
				last = object.GetName() == "last"
				heard := s.normal(object)
				if event.Type != watch.Modified || !reflect.DeepEqual(before[object.GetName()], heard) {
					told = append(told, []any{event.Type, heard})
				}
				before[object.GetName()] = heard
			case <-time.After(30 * time.Second):
				t.Fatalf("the watch of %s does not tell of the last one", kind)
			}
		}
		all = append(all, told)
	}
	return all
}

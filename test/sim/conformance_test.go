// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"cmp"
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

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/test/sim"
)

// operations is the number of requests for single objects. The API server rejects about half of them.
const operations = 600

// TestConformance sends the same requests to the simulated API server and to a real one. It compares the responses, the
// watch events, garbage collection and quotas.
func TestConformance(t *testing.T) {
	server := sim.NewServer(kinds...)
	simulated := newSide(t, server.Connect("user").Config(), server.Mapper())
	config := startCluster(t)
	if !canResize(t, config) {
		t.Skip("the simulated API server behaves like Kubernetes 1.33 or later")
	}
	reference := newSide(t, config, server.Mapper())
	compareRequests(t, reference, simulated)
	compareDependents(t, reference, simulated, server)
}

// compareRequests compares requests whose effects are complete when the response arrives.
func compareRequests(t *testing.T, reference, simulated *side) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	answers := map[string]int{}
	for i := range operations {
		o := randomOperation(random)
		want, got := reference.do(t, o), simulated.do(t, o)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("operation %d, %+v: (-API server +simulated)\n%s", i, o, diff)
		}
		answers[want.Reason]++
	}
	t.Logf("answers: %v", answers)
	if diff := gocmp.Diff(reference.events(t, "last"), simulated.events(t, "last")); diff != "" {
		t.Errorf("events (-API server +simulated)\n%s", diff)
	}
}

// canResize reports whether the API server can resize Pods in place. Kubernetes 1.33 and later can.
func canResize(t *testing.T, config *rest.Config) bool {
	t.Helper()
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	served, err := api.ServerResourcesForGroupVersion("v1")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/resize" })
}

// startCluster starts a real API server with the operator's CustomResourceDefinitions, garbage collection and quotas.
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
	plane, err := cluster.Start(t.Context(), programs, cluster.Options{
		Disposable: true,
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			return cluster.Install(ctx, config, manifests, cluster.WebhookServer{})
		},
		// No other controller may change the compared objects.
		Controllers: []string{"garbage-collector-controller", "resourcequota-controller",
			"serviceaccount-controller"},
		EagerControllers: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(plane.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("9"), "memory": resource.MustParse("9Gi")}
	if err := c.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	return plane.Config
}

// An operation is a request to either side.
type operation struct {
	Verb    string
	Kind    string
	Name    string
	Body    string // the patch; for create and update, it is merged into the object
	Version string // the resourceVersion in the body: none, current or stale
	UID     string // the UID in the precondition of a deletion or in the body of an apply: none, current or wrong
	Manager string // the field manager
	Force   bool   // an apply also takes over fields of other managers
	Grace   *int64 // seconds

	Policy metav1.DeletionPropagation // of a deletion
	Owners []owner                    // of a created object
}

// An owner is an entry of an object's ownerReferences. The named object need not exist.
type owner struct {
	Kind, Name string
	Blocks     bool // blockOwnerDeletion
}

// kindsCompared maps the name of each compared kind to its group and version.
var kindsCompared = map[string]schema.GroupVersionKind{
	"Machine":       v1beta1.GroupVersion.WithKind("Machine"),
	"Switch":        v1beta1.GroupVersion.WithKind("Switch"),
	"Pod":           corev1.SchemeGroupVersion.WithKind("Pod"),
	"Ingress":       networkingv1.SchemeGroupVersion.WithKind("Ingress"),
	"Deployment":    appsv1.SchemeGroupVersion.WithKind("Deployment"),
	"ReplicaSet":    appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	"ResourceQuota": corev1.SchemeGroupVersion.WithKind("ResourceQuota"),
}

func pick[T any](random *rand.Rand, values ...T) T { return values[random.IntN(len(values))] }

func randomOperation(random *rand.Rand) operation {
	switch random.IntN(4) {
	case 0:
		return randomPodOperation(random)
	case 1:
		return randomIngressOperation(random)
	}
	o := operation{
		Verb: pick(random, "create", "create", "create", "get", "list", "patch", "patch", "patch", "patch status",
			"update", "update status", "delete"),
		Kind:    pick(random, "Machine", "Machine", "Switch"),
		Name:    pick(random, "a", "b"),
		Version: pick(random, "none", "current", "current", "stale"),
		UID:     pick(random, "none", "none", "current", "wrong"),
	}
	bodies := []string{
		`{}`,
		`{"spec":{"position":"up"}}`, `{"spec":{"position":"down"}}`, `{"spec":{"position":null}}`,
		`{"spec":{"position":"sideways"}}`,
		`{"spec":{"unknown":1}}`, `{"spec":null}`, `{"spec":{"position":7}}`,
		`{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"labels":{"a":null}}}`,
		`{"metadata":{"annotations":{"a":"b"}}}`,
		`{"metadata":{"finalizers":["example.com/one"]}}`,
		`{"metadata":{"finalizers":["example.com/one","example.com/two"]}}`,
		`{"metadata":{"finalizers":null}}`, `{"metadata":{"finalizers":[]}}`,
		`{"status":{"observedGeneration":7}}`, `{"status":{"observedGeneration":8},"metadata":{"labels":{"c":"d"}}}`,
		`{"status":{"observedGeneration":"x"}}`, `{"status":null}`,
	}
	if o.Kind == "Machine" {
		bodies = append(bodies,
			`{"spec":{"switches":{"count":3}}}`, `{"spec":{"switches":{"count":0}}}`,
			`{"spec":{"switches":{"count":1001}}}`,
			`{"spec":{"switches":{"count":"x"}}}`, `{"spec":{"flip":{"delaySeconds":0}}}`, `{"spec":{"flip":null}}`,
			`{"spec":{"switches":{"selector":{"matchLabels":{"a":"b"}}}}}`, `{"spec":{"switches":{"selector":{}}}}`,
		)
	}
	o.Body = pick(random, bodies...)
	return o
}

// randomPodOperation returns a request for a Pod, as the operator, a user or a node sends it.
func randomPodOperation(random *rand.Rand) operation {
	o := operation{
		Verb: pick(random, "create", "create", "get metadata", "patch", "patch status", "resize", "resize", "delete"),
		Kind: "Pod", Name: pick(random, "a", "b"), Version: "none",
		UID:   pick(random, "none", "none", "current", "wrong"),
		Grace: pick(random, nil, nil, new(int64), new(int64(7))),
	}
	switch o.Verb {
	case "create":
		o.Body = pick(random, `{}`, `{"spec":{"nodeName":"node"}}`, `{"metadata":{"finalizers":["example.com/one"]}}`)
	case "patch":
		o.Body = pick(random, `{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"finalizers":null}}`,
			`{"metadata":{"uid":"wrong","labels":{"a":"c"}}}`)
	case "patch status":
		o.Body = pick(random, `{"status":{"phase":"Running"}}`, `{"status":{"phase":"Failed"}}`)
	default:
		o.Body = fmt.Sprintf(`{"metadata":{"annotations":{"a":"b"}},"spec":{"containers":[{"name":"server","resources":{
			"requests":{"cpu":"%[1]d"},"limits":{"cpu":"%[1]d"}}}]}}`, 1+random.IntN(3))
	}
	return o
}

// randomIngressOperation returns a request for an Ingress, as one of two field managers sends it.
func randomIngressOperation(random *rand.Rand) operation {
	return operation{
		Verb: pick(random, "create", "patch", "patch", "apply", "apply", "apply", "apply", "get metadata", "delete"),
		Kind: "Ingress", Name: pick(random, "a", "b"), Version: pick(random, "none", "current", "current", "stale"),
		Body: pick(random,
			`{"metadata":{"annotations":{"a":"1"}}}`, `{"metadata":{"annotations":{"a":"1"}}}`,
			`{"metadata":{"annotations":{"a":"2"}}}`,
			`{"metadata":{"annotations":{"b":"1","c":"1"}}}`, `{"metadata":{"annotations":{"b":"2"}}}`, `{}`),
		UID:     pick(random, "current", "current", "current", "wrong"),
		Manager: pick(random, "one", "two"),
		Force:   random.IntN(2) == 0,
	}
}

// A side is one of the two API servers.
type side struct {
	client  client.WithWatch
	uids    map[types.UID]int // numbered in the order of their first appearance
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
	for _, watched := range watched {
		w, err := c.Watch(t.Context(), listOf(watched.kind), client.InNamespace(metav1.NamespaceDefault),
			client.MatchingLabels(watched.labels))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		s.watches = append(s.watches, w)
	}
	return s
}

// watched lists the watches of each side.
var watched = []struct {
	kind   string
	labels map[string]string
}{
	{kind: "Machine"}, {kind: "Switch"}, {kind: "Pod"}, {kind: "Ingress"}, {kind: "Deployment"}, {kind: "ReplicaSet"},
	{"Machine", map[string]string{"a": "b"}},
}

func listOf(kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kindsCompared[kind].GroupVersion().WithKind(kind + "List"))
	return list
}

func objectOf(kind, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kindsCompared[kind])
	object.SetNamespace(metav1.NamespaceDefault)
	object.SetName(name)
	return object
}

// newObject returns an object with all required fields.
func newObject(kind, name string) *unstructured.Unstructured {
	object := objectOf(kind, name)
	const replicas = `{"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"server","image":"example.com/image"}]}}}`
	specs := map[string]string{
		"Deployment": replicas, "ReplicaSet": replicas,
		"Pod": `{"containers":[{"name":"server","image":"example.com/image",
			"resources":{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"1","memory":"1Gi"}}}]}`,
		"Ingress": `{"defaultBackend":{"service":{"name":"web","port":{"number":80}}}}`,
	}
	if spec, ok := specs[kind]; ok {
		var fields any
		if err := json.Unmarshal([]byte(spec), &fields); err != nil {
			panic(err)
		}
		object.Object["spec"] = fields
	}
	return object
}

// An answer is the part of a response that must be equal on both sides.
type answer struct {
	Code   int32
	Reason string
	Fields []string // the invalid fields
	Object any
}

// do sends a request.
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
	case "get metadata":
		err = s.getMetadata(ctx, object)
	case "list":
		list := listOf(o.Kind)
		err = s.client.List(ctx, list, client.InNamespace(metav1.NamespaceDefault))
		object.Object = map[string]any{"items": []any{}}
		for _, item := range list.Items {
			object.Object["items"] = append(object.Object["items"].([]any), s.normal(&item))
		}
	case "create":
		object = newObject(o.Kind, o.Name)
		merge(object.Object, change)
		object.SetResourceVersion("")
		err = s.client.Create(ctx, object, o.owner())
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
	default:
		err = s.patch(ctx, o, object, change)
	}
	return s.answer(object, err)
}

// getMetadata reads only the metadata of an object.
func (s *side) getMetadata(ctx context.Context, object *unstructured.Unstructured) error {
	partial := &metav1.PartialObjectMetadata{}
	partial.SetGroupVersionKind(object.GroupVersionKind())
	err := s.client.Get(ctx, client.ObjectKeyFromObject(object), partial)
	if err == nil {
		object.Object, err = kruntime.DefaultUnstructuredConverter.ToUnstructured(partial)
	}
	return err
}

// patch sends a patch or apply request.
func (s *side) patch(ctx context.Context, o operation, object *unstructured.Unstructured, change map[string]any) error {
	data, err := (&unstructured.Unstructured{Object: change}).MarshalJSON()
	if err != nil {
		return err
	}
	switch o.Verb {
	case "patch status":
		return s.client.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, data))
	case "resize":
		return s.client.SubResource("resize").Patch(ctx, object,
			client.RawPatch(types.StrategicMergePatchType, []byte(o.Body)))
	case "apply":
		options := []client.PatchOption{o.owner()}
		if o.Force {
			options = append(options, client.ForceOwnership)
		}
		return s.client.Patch(ctx, object, client.RawPatch(types.ApplyPatchType, data), options...)
	}
	return s.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, data), o.owner())
}

// owner returns the field manager of a request.
func (o operation) owner() client.FieldOwner { return client.FieldOwner(cmp.Or(o.Manager, "user")) }

// change returns the operation's body with this side's resourceVersion and UIDs.
func (s *side) change(o operation, current *unstructured.Unstructured) (map[string]any, error) {
	change := &unstructured.Unstructured{}
	if err := kruntime.DecodeInto(unstructured.UnstructuredJSONScheme, fmt.Appendf(nil,
		`{"apiVersion":%q,"kind":%q}`, kindsCompared[o.Kind].GroupVersion().String(), o.Kind), change); err != nil {
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
	if o.Verb == "apply" {
		if o.UID != "none" {
			change.SetUID(types.UID("wrong"))
		}
		if uid := current.GetUID(); o.UID == "current" && uid != "" {
			change.SetUID(uid)
		}
		change.SetName(o.Name)
	}
	references, err := s.references(o.Owners)
	change.SetOwnerReferences(references)
	return change.Object, err
}

// references returns references to owners. An owner that does not exist gets a UID that never existed.
func (s *side) references(owners []owner) (references []metav1.OwnerReference, err error) {
	for _, o := range owners {
		object := objectOf(o.Kind, o.Name)
		object.SetUID("wrong")
		err = errors.Join(err,
			client.IgnoreNotFound(s.client.Get(context.Background(), client.ObjectKeyFromObject(object), object)))
		reference := metav1.OwnerReference{UID: object.GetUID(), Name: o.Name}
		reference.APIVersion, reference.Kind = object.GroupVersionKind().ToAPIVersionAndKind()
		if o.Blocks {
			reference.BlockOwnerDeletion = new(true)
		}
		references = append(references, reference)
	}
	return references, err
}

func (s *side) precondition(o operation, current *unstructured.Unstructured) []client.DeleteOption {
	options := []client.DeleteOption{&client.DeleteOptions{GracePeriodSeconds: o.Grace}}
	if o.Policy != "" {
		options = append(options, client.PropagationPolicy(o.Policy))
	}
	switch o.UID {
	case "current":
		options = append(options, client.Preconditions{UID: new(current.GetUID())})
	case "wrong":
		options = append(options, client.Preconditions{UID: new(types.UID("wrong"))})
	}
	return options
}

// merge applies a merge patch to an object.
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
			// Ignore duplicates. Also ignore "<nil>", which means that validation rules were not evaluated.
			if field := strings.TrimPrefix(cause.Field, "."); field != "<nil>" && !slices.Contains(a.Fields, field) {
				a.Fields = append(a.Fields, field)
			}
		}
	}
	slices.Sort(a.Fields)
	return a
}

// normal returns an object without the fields that differ between the sides.
func (s *side) normal(object *unstructured.Unstructured) any {
	if object.Object == nil || object.Object["metadata"] == nil {
		return object.Object
	}
	object = object.DeepCopy()
	fields := sorted(object.GetManagedFields())
	for i := range fields {
		fields[i].Time = nil
	}
	switch object.GetKind() {
	case "Ingress":
		unstructured.RemoveNestedField(object.Object, "status")
		for i := range fields {
			fields[i].FieldsV1 = metadataOf(fields[i].FieldsV1)
		}
	case "Pod":
		object.Object = simulated(object)
		fields = nil
	case "Deployment", "ReplicaSet":
		object.Object = map[string]any{"kind": object.GetKind(), "metadata": object.Object["metadata"]}
		fields = nil
	case "ResourceQuota":
		return object.GetName() // only the real quota has a status, and s.count changes its spec
	default:
		fields = nil
	}
	object.SetManagedFields(fields)
	if _, ok := s.uids[object.GetUID()]; !ok {
		s.uids[object.GetUID()] = len(s.uids) + 1
	}
	object.SetUID(types.UID(strconv.Itoa(s.uids[object.GetUID()])))
	s.nameOwners(object)
	object.SetResourceVersion("") // field managers cause additional revisions
	for _, name := range []string{"creationTimestamp", "deletionTimestamp"} {
		if _, ok, _ := unstructured.NestedString(object.Object, "metadata", name); ok {
			_ = unstructured.SetNestedField(object.Object, "set", "metadata", name)
		}
	}
	return object.Object
}

// nameOwners replaces each UID in owner references by the number of the object. An unknown UID becomes 0.
func (s *side) nameOwners(object *unstructured.Unstructured) {
	references := object.GetOwnerReferences()
	for i := range references {
		references[i].UID = types.UID(strconv.Itoa(s.uids[references[i].UID]))
	}
	object.SetOwnerReferences(references)
}

// metadataOf returns the managed fields in the metadata of an Ingress. After the creation, the requests of this test
// change no other fields.
func metadataOf(fields *metav1.FieldsV1) *metav1.FieldsV1 {
	all := map[string]any{}
	if err := json.Unmarshal(fields.GetRawBytes(), &all); err != nil {
		panic(err)
	}
	known, err := json.Marshal(all["f:metadata"])
	if err != nil {
		panic(err)
	}
	return metav1.NewFieldsV1(string(known))
}

// simulated returns the part of a Pod that the simulator supports.
func simulated(pod *unstructured.Unstructured) map[string]any {
	known := map[string]any{"metadata": pod.Object["metadata"]}
	known["node"], _, _ = unstructured.NestedString(pod.Object, "spec", "nodeName")
	if phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase"); phase != "" &&
		phase != string(corev1.PodPending) {
		known["phase"] = phase
	}
	containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
	for _, container := range containers {
		known["resources"] = container.(map[string]any)["resources"]
	}
	return known
}

// A watchEvent is an event of a watch.
type watchEvent struct {
	Name   string
	Type   watch.EventType
	Object any
}

// events creates an object for each watch, and returns the events of each watch up to this object. Field managers cause
// events that differ from the previous event only in the resourceVersion. The result does not contain these events.
func (s *side) events(t *testing.T, until string) (all [][]watchEvent) {
	t.Helper()
	for i, watched := range watched {
		last := newObject(watched.kind, fmt.Sprintf("%s-%d", until, i))
		last.SetLabels(map[string]string{"a": "b"})
		if err := s.client.Create(t.Context(), last, client.FieldOwner("user")); err != nil {
			t.Fatal(err)
		}
		var some []watchEvent
		before := map[string]any{}
		for done := false; !done; {
			select {
			case event := <-s.watches[i].ResultChan():
				object, ok := event.Object.(*unstructured.Unstructured)
				if !ok {
					t.Fatalf("watch %s: %v", watched.kind, event)
				}
				done = object.GetName() == last.GetName()
				seen := s.normal(object)
				if event.Type != watch.Modified || !reflect.DeepEqual(before[object.GetName()], seen) {
					some = append(some, watchEvent{object.GetName(), event.Type, seen})
				}
				before[object.GetName()] = seen
			case <-time.After(2 * time.Minute):
				t.Fatalf("the watch of %s did not deliver the last event", watched.kind)
			}
		}
		all = append(all, some)
	}
	return all
}

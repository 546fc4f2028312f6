// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
)

// A Change is the effect of one write on one object.
type Change struct {
	Revision int64
	Time     time.Time
	Type     watch.EventType // ADDED, MODIFIED or DELETED
	Kind     *Kind
	Object   *unstructured.Unstructured // as watches deliver it; read-only
	Before   *unstructured.Unstructured // the previous state; nil for a new object
	By       string                     // the client's name
}

// An author is the client that writes, and its field manager.
type author struct{ client, manager string }

// A Server stores the objects of some kinds, and their history.
type Server struct {
	// NoStreams disables watches with initial events, as in an API server without the feature gate WatchList. This
	// feature gate is enabled by default since 1.34.
	NoStreams bool

	// Mutate changes each new object, as a mutating admission webhook does. It may be nil.
	Mutate func(*unstructured.Unstructured)

	mu       sync.Mutex
	kinds    map[schema.GroupResource]*Kind
	objects  map[schema.GroupResource]map[types.NamespacedName]*unstructured.Unstructured
	initial  map[schema.GroupResource]map[types.NamespacedName]*unstructured.Unstructured // at revision 0
	history  []Change
	revision int64
	uids     int
	watches  []*watcher
}

// NewServer returns a server without objects.
func NewServer(kinds ...*Kind) *Server {
	s := &Server{
		kinds:   map[schema.GroupResource]*Kind{},
		objects: map[schema.GroupResource]map[types.NamespacedName]*unstructured.Unstructured{},
	}
	for _, k := range kinds {
		s.kinds[k.GroupResource()] = k
		s.objects[k.GroupResource()] = map[types.NamespacedName]*unstructured.Unstructured{}
	}
	return s
}

// addInitial adds an object that exists before the first revision.
func (s *Server) addInitial(object *unstructured.Unstructured, resource schema.GroupResource) {
	object.SetUID("00000000-0000-4000-8000-000000000000")
	object.SetResourceVersion("0")
	s.objects[resource][keyOf(object)] = object
	s.initial = map[schema.GroupResource]map[types.NamespacedName]*unstructured.Unstructured{
		resource: maps.Clone(s.objects[resource]),
	}
}

// History returns all changes, the oldest first.
func (s *Server) History() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history)
}

// Revision returns the newest revision.
func (s *Server) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// at returns the objects of a kind at a revision, sorted by namespace and name.
func (s *Server) at(k *Kind, revision int64) []*unstructured.Unstructured {
	found := maps.Clone(s.objects[k.GroupResource()])
	if revision < s.revision {
		clear(found)
		maps.Copy(found, s.initial[k.GroupResource()])
		for _, change := range s.history {
			if change.Revision > revision {
				break
			}
			if change.Kind == k {
				found[keyOf(change.Object)] = change.Object
				if change.Type == watch.Deleted {
					delete(found, keyOf(change.Object))
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// get returns an object. The caller must not modify it.
func (s *Server) get(k *Kind, key types.NamespacedName) (*unstructured.Unstructured, error) {
	if object, ok := s.objects[k.GroupResource()][key]; ok {
		return object, nil
	}
	return nil, apierrors.NewNotFound(k.GroupResource(), key.Name)
}

func (s *Server) create(by author, k *Kind, namespace string,
	object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	s.uids++
	if object.GetName() == "" {
		object.SetName(fmt.Sprintf("%s%05d", object.GetGenerateName(), s.uids))
	}
	if namespace != "" {
		object.SetNamespace(namespace)
	}
	object.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", s.uids)))
	object.SetCreationTimestamp(metav1.Now())
	object.SetGeneration(1)
	object.SetResourceVersion("")
	object.SetDeletionTimestamp(nil)
	object.SetDeletionGracePeriodSeconds(nil)
	if k.HasStatus {
		delete(object.Object, statusField)
	}
	if s.Mutate != nil {
		s.Mutate(object)
	}
	if err := normalizeMeta(object); err != nil {
		return nil, err
	}
	k.complete(object.Object)
	object = k.trackFields(k.empty(), object, by.manager)
	if errs := k.validate(object.Object, nil); len(errs) > 0 {
		return nil, apierrors.NewInvalid(k.GroupKind(), object.GetName(), errs)
	}
	if err := s.admit(k, object); err != nil {
		return nil, err
	}
	if _, exists := s.objects[k.GroupResource()][keyOf(object)]; exists {
		return nil, apierrors.NewAlreadyExists(k.GroupResource(), object.GetName())
	}
	return s.write(by, watch.Added, k, object), nil
}

// admit rejects a new object if a ResourceQuota limits the number of objects of its kind, and this number is reached.
// The server does not simulate other limits, such as CPU requests.
func (s *Server) admit(k *Kind, object *unstructured.Unstructured) error {
	resource := corev1.ResourceName("count/" + k.GroupResource().String())
	for _, item := range s.objects[schema.GroupResource{Resource: "resourcequotas"}] {
		quota := &corev1.ResourceQuota{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, quota); err != nil {
			return err
		}
		hard, limited := quota.Spec.Hard[resource]
		if !limited || quota.Namespace != object.GetNamespace() {
			continue
		}
		used := int64(0)
		for key := range s.objects[k.GroupResource()] {
			if key.Namespace == quota.Namespace {
				used++
			}
		}
		if used >= hard.Value() {
			return apierrors.NewForbidden(k.GroupResource(), object.GetName(), fmt.Errorf(
				"exceeded quota: %s, requested: %s=1, used: %s=%d, limited: %s=%s", quota.Name, resource, resource,
				used, resource, hard.String()))
		}
	}
	return nil
}

// patch applies the patch in the call's body.
func (s *Server) patch(by author, call Call) (*unstructured.Unstructured, error) {
	k := call.Kind
	if call.patch == types.ApplyPatchType {
		return s.apply(by, call)
	}
	old, err := s.get(k, call.Key)
	if err != nil {
		return nil, err
	}
	object, err := k.patch(old, call.Body, call.patch)
	if err != nil {
		return nil, err
	}
	return s.change(by, k, old, call.Subresource, object)
}

// apply executes a server-side apply request.
func (s *Server) apply(by author, call Call) (*unstructured.Unstructured, error) {
	k := call.Kind
	applied, err := decode(call.Body)
	if err != nil {
		return nil, err
	}
	old, err := s.get(k, call.Key)
	switch {
	case k.fields == nil || err != nil && applied.GetUID() == "":
		return nil, apierrors.NewBadRequest("not simulated")
	case err != nil: // the request has the UID of a deleted object, so apply does not create an object
		return nil, apierrors.NewConflict(k.GroupResource(), call.Key.Name, errOther)
	}
	object, err := k.apply(old, applied, by.manager, isSet(call.query, "force"))
	if err != nil {
		return nil, err
	}
	if err := checkVersion(k, applied, old); err != nil {
		return nil, err
	}
	return s.replace(by, k, old, object)
}

// update replaces an object, or only the part that belongs to the subresource.
func (s *Server) update(by author, k *Kind, key types.NamespacedName, subresource string,
	object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	old, err := s.get(k, key)
	if err != nil {
		return nil, err
	}
	if uid := object.GetUID(); uid != "" && uid != old.GetUID() {
		return nil, apierrors.NewConflict(k.GroupResource(), old.GetName(), errOther)
	}
	return s.change(by, k, old, subresource, object)
}

// change stores a changed object. It ignores changes of fields that the subresource does not allow.
func (s *Server) change(by author, k *Kind, old *unstructured.Unstructured, subresource string,
	object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := checkVersion(k, object, old); err != nil {
		return nil, err
	}
	switch subresource {
	case statusField:
		object = withStatus(old, object)
	case "resize":
		object = withResources(old, object)
	default:
		if k.HasStatus {
			object = withStatus(object, old)
		}
		object = k.trackFields(old, object, by.manager)
	}
	return s.replace(by, k, old, object)
}

// replace validates and stores the new state of an object.
func (s *Server) replace(by author, k *Kind, old,
	object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	errs := validateMeta(object, old)
	copyServerFields(object, old)
	if err := normalizeMeta(object); err != nil {
		return nil, err
	}
	k.complete(object.Object)
	object.SetGeneration(old.GetGeneration())
	if !reflect.DeepEqual(specOf(object, k), specOf(old, k)) {
		object.SetGeneration(old.GetGeneration() + 1)
	}
	if len(errs) == 0 && reflect.DeepEqual(object.Object, old.Object) {
		return old, nil
	}
	if errs = append(errs, k.validate(object.Object, old.Object)...); len(errs) > 0 {
		return nil, apierrors.NewInvalid(k.GroupKind(), old.GetName(), errs)
	}
	if object.GetDeletionTimestamp() != nil && *object.GetDeletionGracePeriodSeconds() == 0 &&
		len(object.GetFinalizers()) == 0 {
		// The response has the requested state. Watches deliver the stored state.
		s.write(by, watch.Deleted, k, old.DeepCopy())
		return object, nil
	}
	return s.write(by, watch.Modified, k, object), nil
}

// checkVersion rejects an update with a resourceVersion that is not current. It also rejects an update of a custom
// resource without a resourceVersion.
func checkVersion(k *Kind, object, old *unstructured.Unstructured) error {
	version := object.GetResourceVersion()
	switch {
	case k.schema != nil && version == "":
		return apierrors.NewInvalid(k.GroupKind(), old.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
		})
	case version != "" && version != old.GetResourceVersion():
		return apierrors.NewConflict(k.GroupResource(), old.GetName(), errModified)
	}
	return nil
}

// statusField is the field of the status, and the name of its subresource.
const statusField = "status"

// withStatus returns a copy of object with the status of other.
func withStatus(object, other *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	delete(object.Object, statusField)
	if status, ok := other.Object[statusField]; ok {
		object.Object[statusField] = status
	}
	return object
}

// withResources returns a copy of a Pod with the container resources of other.
func withResources(object, other *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	containers, wanted := containersOf(object), containersOf(other)
	for i := range min(len(containers), len(wanted)) {
		containers[i]["resources"] = wanted[i]["resources"]
	}
	return object
}

func containersOf(pod *unstructured.Unstructured) (containers []map[string]any) {
	all, _, _ := unstructured.NestedFieldNoCopy(pod.Object, "spec", "containers")
	list, _ := all.([]any)
	for _, container := range list {
		if container, ok := container.(map[string]any); ok {
			containers = append(containers, container)
		}
	}
	return containers
}

// normalizeMeta decodes and encodes an object's metadata, which removes empty lists and maps.
func normalizeMeta(object *unstructured.Unstructured) error {
	var meta metav1.ObjectMeta
	fields, _, _ := unstructured.NestedMap(object.Object, "metadata")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &meta); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&meta)
	if err != nil {
		return err
	}
	object.Object["metadata"] = fields
	return nil
}

// copyServerFields copies the metadata that clients cannot change.
func copyServerFields(object, old *unstructured.Unstructured) {
	object.SetUID(old.GetUID())
	object.SetResourceVersion(old.GetResourceVersion())
	object.SetCreationTimestamp(old.GetCreationTimestamp())
	object.SetDeletionTimestamp(old.GetDeletionTimestamp())
	object.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
}

// specOf returns all fields that affect the generation.
func specOf(object *unstructured.Unstructured, k *Kind) map[string]any {
	all := maps.Clone(object.Object)
	delete(all, "metadata")
	if k.HasStatus {
		delete(all, statusField)
	}
	return all
}

func validateMeta(object, old *unstructured.Unstructured) (errs field.ErrorList) {
	if uid := object.GetUID(); uid != "" && uid != old.GetUID() {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable"))
	}
	if old.GetDeletionTimestamp() == nil {
		return errs
	}
	for _, finalizer := range object.GetFinalizers() {
		if !slices.Contains(old.GetFinalizers(), finalizer) {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "finalizers"),
				fmt.Sprintf("no new finalizers can be added if the object is being deleted, found new finalizers %#v",
					[]string{finalizer})))
		}
	}
	return errs
}

// Finalizers of the garbage collector.
const (
	orphan     = metav1.FinalizerOrphanDependents
	foreground = metav1.FinalizerDeleteDependents
)

// remove deletes an object. If the object has finalizers or a grace period, remove only sets its deletionTimestamp and
// returns the object. If remove has deleted the object immediately, it returns nil.
func (s *Server) remove(by author, k *Kind, key types.NamespacedName,
	options metav1.DeleteOptions) (*unstructured.Unstructured, error) {
	old, err := s.get(k, key)
	if err != nil {
		return nil, err
	}
	if err := checkPreconditions(k, old, options.Preconditions); err != nil {
		return nil, err
	}
	object, finalizers := old.DeepCopy(), finalizersOf(old, options.PropagationPolicy)
	object.SetFinalizers(finalizers)
	grace, graceful := graceOf(k, old, options)
	if len(finalizers) == 0 && !graceful {
		s.write(by, watch.Deleted, k, object)
		return nil, nil
	}
	first := old.GetDeletionTimestamp() == nil
	if first {
		object.SetGeneration(old.GetGeneration() + 1)
	}
	if first || grace < *old.GetDeletionGracePeriodSeconds() {
		object.SetDeletionTimestamp(new(metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))))
		object.SetDeletionGracePeriodSeconds(&grace)
	}
	if !reflect.DeepEqual(object.Object, old.Object) {
		object = s.write(by, watch.Modified, k, object)
	}
	if len(finalizers) == 0 && *object.GetDeletionGracePeriodSeconds() == 0 {
		s.write(by, watch.Deleted, k, object.DeepCopy())
		return nil, nil
	}
	return object, nil
}

// graceOf returns the grace period of a deletion. Only Pods have a grace period. It is 0 if the Pod has ended or is not
// on a node.
func graceOf(k *Kind, object *unstructured.Unstructured, options metav1.DeleteOptions) (seconds int64, graceful bool) {
	node, _, _ := unstructured.NestedString(object.Object, "spec", "nodeName")
	phase, _, _ := unstructured.NestedString(object.Object, statusField, "phase")
	switch {
	case k.Kind != "Pod":
		return 0, false
	case node == "" || phase == string(corev1.PodFailed) || phase == string(corev1.PodSucceeded):
		return 0, true
	case options.GracePeriodSeconds != nil:
		return *options.GracePeriodSeconds, true
	}
	return corev1.DefaultTerminationGracePeriodSeconds, true
}

// checkPreconditions rejects a deletion whose UID or resourceVersion does not match.
func checkPreconditions(k *Kind, old *unstructured.Unstructured, p *metav1.Preconditions) error {
	switch {
	case p == nil:
	case p.UID != nil && *p.UID != old.GetUID():
		return apierrors.NewConflict(k.GroupResource(), old.GetName(), errOther)
	case p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion():
		return apierrors.NewConflict(k.GroupResource(), old.GetName(), errModified)
	}
	return nil
}

// finalizersOf returns the object's finalizers after a deletion with this propagation policy.
func finalizersOf(object *unstructured.Unstructured, policy *metav1.DeletionPropagation) []string {
	if policy == nil {
		return object.GetFinalizers()
	}
	finalizers := slices.DeleteFunc(object.GetFinalizers(),
		func(name string) bool { return name == orphan || name == foreground })
	switch *policy {
	case metav1.DeletePropagationOrphan:
		return append(finalizers, orphan)
	case metav1.DeletePropagationForeground:
		return append(finalizers, foreground)
	}
	return finalizers
}

// write stores or deletes an object as a new revision, and wakes all watches.
func (s *Server) write(by author, event watch.EventType, k *Kind,
	object *unstructured.Unstructured) *unstructured.Unstructured {
	s.revision++
	before := s.objects[k.GroupResource()][keyOf(object)]
	object.SetGroupVersionKind(k.GroupVersionKind)
	object.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	if event == watch.Deleted {
		delete(s.objects[k.GroupResource()], keyOf(object))
	} else {
		s.objects[k.GroupResource()][keyOf(object)] = object
	}
	s.history = append(s.history, Change{s.revision, time.Now(), event, k, object, before, by.client})
	for _, w := range s.watches {
		w.wake()
	}
	return object
}

// collector is the author of the garbage collector's writes.
var collector = author{client: "garbage collector", manager: "garbage collector"}

// CollectGarbage executes one step of Kubernetes' garbage collector. It returns false if there was nothing to do.
func (s *Server) CollectGarbage() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uids := map[types.UID]*unstructured.Unstructured{}
	for _, objects := range s.objects {
		for _, object := range objects {
			uids[object.GetUID()] = object
		}
	}
	for _, k := range s.ordered() {
		for _, object := range s.at(k, s.revision) {
			done, err := s.collect(k, object, uids)
			if done || err != nil {
				return done, err
			}
		}
	}
	return false, nil
}

// collect processes one object. It reports whether it changed an object.
func (s *Server) collect(k *Kind, object *unstructured.Unstructured,
	uids map[types.UID]*unstructured.Unstructured) (bool, error) {
	if object.GetDeletionTimestamp() != nil {
		return s.release(k, object)
	}
	var present, waiting []metav1.OwnerReference
	for _, ref := range object.GetOwnerReferences() {
		owner := uids[ref.UID]
		switch {
		case owner == nil || owner.GetNamespace() != "" && owner.GetNamespace() != object.GetNamespace():
		case owner.GetDeletionTimestamp() != nil && slices.Contains(owner.GetFinalizers(), foreground):
			waiting = append(waiting, ref)
		default:
			present = append(present, ref)
		}
	}
	switch {
	case len(present) == len(object.GetOwnerReferences()):
		return false, nil
	case len(present) > 0:
		kept := object.DeepCopy()
		kept.SetOwnerReferences(present)
		_, err := s.update(collector, k, keyOf(kept), "", kept)
		return true, err
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.GetUID()))}
	if dependent, _ := s.dependent(object, false); dependent != nil && len(waiting) > 0 {
		options.PropagationPolicy = new(metav1.DeletePropagationForeground)
	}
	_, err := s.remove(collector, k, keyOf(object), options)
	return true, err
}

// release processes the garbage collector's finalizers of an object that is being deleted.
func (s *Server) release(k *Kind, object *unstructured.Unstructured) (bool, error) {
	for _, finalizer := range []string{orphan, foreground} {
		if !slices.Contains(object.GetFinalizers(), finalizer) {
			continue
		}
		dependent, of := s.dependent(object, finalizer == foreground)
		switch {
		case dependent == nil:
			changed := object.DeepCopy()
			changed.SetFinalizers(slices.DeleteFunc(changed.GetFinalizers(),
				func(name string) bool { return name == finalizer }))
			_, err := s.update(collector, k, keyOf(changed), "", changed)
			return true, err
		case finalizer == orphan:
			freed := dependent.DeepCopy()
			freed.SetOwnerReferences(slices.DeleteFunc(freed.GetOwnerReferences(),
				func(ref metav1.OwnerReference) bool { return ref.UID == object.GetUID() }))
			_, err := s.update(collector, of, keyOf(freed), "", freed)
			return true, err
		}
		return false, nil // wait until the dependent is deleted
	}
	return false, nil
}

// dependent returns an object that refers to the owner, or nil. If blocking is true, it returns only objects that block
// the deletion of the owner. An object that is being deleted blocks it only if its owner reference sets
// blockOwnerDeletion.
func (s *Server) dependent(owner *unstructured.Unstructured, blocking bool) (*unstructured.Unstructured, *Kind) {
	for _, k := range s.ordered() {
		for _, object := range s.at(k, s.revision) {
			for _, ref := range object.GetOwnerReferences() {
				if ref.UID == owner.GetUID() &&
					(!blocking || object.GetDeletionTimestamp() == nil || isTrue(ref.BlockOwnerDeletion)) {
					return object, k
				}
			}
		}
	}
	return nil, nil
}

func isTrue(value *bool) bool { return value != nil && *value }

func keyOf(object *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// decode decodes an object. Whole numbers become int64, as the schema validation requires.
func decode(data []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(data); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return object, nil
}

// The API server's messages for conflicts.
var (
	errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")
	errOther    = errors.New("the UID does not match")
)

// Objects returns all objects, sorted by resource, namespace and name. The caller must not modify them.
func (s *Server) Objects() (all []*unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.ordered() {
		all = append(all, s.at(k, s.revision)...)
	}
	return all
}

// ordered returns the kinds, sorted by resource.
func (s *Server) ordered() []*Kind {
	return slices.SortedFunc(maps.Values(s.kinds), func(a, b *Kind) int { return cmp.Compare(a.Resource, b.Resource) })
}

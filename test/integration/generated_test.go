// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

var (
	seed      = flag.Uint64("seed", rand.Uint64(), "seed of the generated changes")
	generated = flag.Int("generated", 1000,
		"number of valid and of invalid changes per kind; the versions of a kind share it; -short divides it by 5")
)

// kindOfObject is a kind in one API version. The test generates changes of its objects.
type kindOfObject struct {
	crd, group, version, kind string
	versions                  int    // number of versions of the kind in kindsOfObjects
	limit                     string // path of a number that the operator limits to 100; may be empty
	immutable                 string // path of an immutable field; may be empty
}

var kindsOfObjects = []kindOfObject{
	{
		crd: "useless.container.training_machines", group: v1beta1.GroupVersion.Group, version: beta, kind: "Machine", versions: 2,
		limit: "spec.switches.count", immutable: "spec.switches.selector",
	},
	{
		crd: "useless.container.training_machines", group: v1beta1.GroupVersion.Group, version: alpha, kind: "Machine", versions: 2,
		limit: "spec.switches", immutable: "spec.selector",
	},
	{crd: "useless.container.training_switches", group: v1beta1.GroupVersion.Group, version: beta, kind: "Switch", versions: 1},
	{
		crd: "cloudnative.tw_virtualmachines", group: cloudnativev1alpha1.GroupVersion.Group, version: alpha, kind: "VirtualMachine", versions: 1,
		immutable: "spec.resource.rootDisk",
	},
}

// TestGeneratedChanges generates changes from the schemas. The API server and the webhook must accept valid changes.
// They must reject invalid changes with a message that names the field. The test uses crdValidator to decide which
// changes are valid according to the schema and its CEL rules. The operator must not panic.
func TestGeneratedChanges(t *testing.T) {
	useSharedCluster(t)
	t.Logf("repeat this run with -seed=%d", *seed)
	before := panicsOf(t)
	t.Cleanup(func() {
		if after := panicsOf(t); after != before {
			t.Errorf("the operator has panicked %v times", after-before)
		}
	})
	for _, kind := range kindsOfObjects {
		t.Run(kind.version+" "+kind.kind, func(t *testing.T) {
			t.Parallel()
			c := &changes{
				T: t, kindOfObject: kind, validator: newCRDValidator(t, kind.crd, kind.version),
				namespace: newNamespace(t),
				generator: generator{t, rand.New(rand.NewPCG(*seed, 0))},
			}
			c.createObjects()
			c.each(c.valid)
			c.each(c.invalid)
		})
	}
}

// panicsOf returns how many panics the operator has recovered from. The operator runs in the test process, so
// controller-runtime counts its panics in this process's registry.
func panicsOf(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	panics, known := 0.0, 0
	for _, family := range families {
		if !strings.Contains(family.GetName(), "panic") {
			continue
		}
		known++
		for _, metric := range family.GetMetric() {
			panics += metric.GetCounter().GetValue()
		}
	}
	if known == 0 {
		t.Error("no metric counts panics")
	}
	return panics
}

// changes generates and sends the changes of one kind in one version.
type changes struct {
	*testing.T
	kindOfObject
	validator crdValidator
	namespace string
	generator generator
	olds      []*unstructured.Unstructured // stored objects that updates apply to
}

// generatedChange is an object to create, or an update of an old object.
type generatedChange struct {
	object map[string]any
	old    *unstructured.Unstructured // nil for a create
	status bool                       // updates the status subresource
	wrong  string                     // describes what is invalid, for failure messages
	fields []string                   // the error must contain one of them; empty if the change is valid
}

// each calls next for one change after the other, so the seed determines the changes. It sends up to eight changes in
// parallel.
func (c *changes) each(next func() generatedChange) {
	c.Helper()
	var group errgroup.Group
	group.SetLimit(8)
	count := *generated / c.versions
	if testing.Short() {
		count /= 5
	}
	for range count {
		change := next()
		group.Go(func() error {
			if err := checkAnswer(change, c.send(change)); err != nil {
				c.Errorf("seed %d: %v\n%v", *seed, err, change.object)
			}
			return nil
		})
	}
	_ = group.Wait()
}

// checkAnswer returns an error unless err is the expected response to a change. For a valid change, err must be nil.
// For an invalid change, err must have status 422 or 400 and name one of change.fields.
func checkAnswer(change generatedChange, err error) error {
	if len(change.fields) == 0 {
		return err
	}
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return fmt.Errorf("accepted, but invalid: %s", change.wrong)
	case !errors.As(err, &status):
		return err
	case status.Status().Code != http.StatusUnprocessableEntity && status.Status().Code != http.StatusBadRequest:
		return fmt.Errorf("%s: status %d: %w", change.wrong, status.Status().Code, err)
	}
	for _, field := range change.fields {
		if strings.Contains(err.Error(), field) {
			return nil
		}
	}
	return fmt.Errorf("%s: the message names none of %q: %w", change.wrong, change.fields, err)
}

// send sends a change as a dry run.
func (c *changes) send(change generatedChange) error {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(change.object)}
	strict := client.FieldValidation("Strict")
	switch {
	case change.old == nil:
		return admin(c.T).Create(c.Context(), u, client.DryRunAll, strict)
	case change.status:
		return admin(c.T).Status().Update(c.Context(), u, client.DryRunAll, strict)
	}
	return admin(c.T).Update(c.Context(), u, client.DryRunAll, strict)
}

// createObjects creates the objects that updates apply to.
func (c *changes) createObjects() {
	c.Helper()
	for i := range 10 {
		u := &unstructured.Unstructured{Object: c.validObject(fmt.Sprintf("old-%d", i), nil)}
		unstructured.RemoveNestedField(u.Object, "status")
		if err := admin(c.T).Create(c.Context(), u); err != nil {
			c.Fatalf("seed %d: %v", *seed, err)
		}
		c.olds = append(c.olds, u)
	}
}

// candidate generates an object whose types and bounds satisfy the schema. The object may violate CEL rules. If
// old is not nil, the object is an update of old with the same value of the immutable field.
func (c *changes) candidate(name string, old *unstructured.Unstructured) map[string]any {
	object := c.generator.object(c.validator.schema)
	u := unstructured.Unstructured{Object: object}
	u.SetAPIVersion(c.group + "/" + c.version)
	u.SetKind(c.kind)
	u.SetNamespace(c.namespace)
	u.SetName(name)
	u.SetAnnotations(map[string]string{v1beta1.PausedAnnotation: "true"})
	if old == nil {
		return object
	}
	u.SetName(old.GetName())
	u.SetResourceVersion(old.GetResourceVersion())
	u.SetUID(old.GetUID())
	path := strings.Split(c.immutable, ".")
	unstructured.RemoveNestedField(object, path...)
	if kept, found, _ := unstructured.NestedFieldCopy(old.Object, path...); found {
		if err := unstructured.SetNestedField(object, kept, path...); err != nil {
			c.Fatal(err)
		}
	}
	return object
}

// validObject generates an object that satisfies the schema, its CEL rules and the operator's limit.
func (c *changes) validObject(name string, old *unstructured.Unstructured) map[string]any {
	c.Helper()
	for range 10_000 {
		object := c.candidate(name, old)
		errs := c.validator.validate(c.Context(), runtime.DeepCopyJSON(object), c.objectOf(old))
		if len(errs) == 0 && !c.beyondLimit(object) {
			return object
		}
	}
	c.Fatalf("seed %d: no generated %s is valid", *seed, c.kind)
	return nil
}

func (c *changes) objectOf(old *unstructured.Unstructured) map[string]any {
	if old == nil {
		return nil
	}
	return old.Object
}

func (c *changes) beyondLimit(object map[string]any) bool {
	if c.limit == "" {
		return false
	}
	count, found, err := unstructured.NestedInt64(object, strings.Split(c.limit, ".")...)
	return err == nil && found && count > 100
}

// oldOrNil returns one of the stored objects, or nil for a create.
func (c *changes) oldOrNil() *unstructured.Unstructured {
	if c.generator.IntN(3) == 0 {
		return nil
	}
	return c.olds[c.generator.IntN(len(c.olds))]
}

// valid generates a change that must be accepted.
func (c *changes) valid() generatedChange {
	old := c.oldOrNil()
	change := generatedChange{object: c.validObject("new", old), old: old}
	change.status = old != nil && c.generator.IntN(3) == 0
	return change
}

// invalid generates a change that must be rejected. It violates the schema or a CEL rule, or exceeds the operator's
// limit.
func (c *changes) invalid() generatedChange {
	for range 10_000 {
		change := c.valid()
		if c.generator.IntN(4) == 0 && c.breakRule(&change) || c.breakValue(&change) {
			return change
		}
	}
	c.Fatalf("seed %d: every generated %s is valid", *seed, c.kind)
	return generatedChange{}
}

// breakRule generates a new object that may break a CEL rule or exceed the operator's limit. It returns false if the
// new object is valid.
func (c *changes) breakRule(change *generatedChange) bool {
	change.object, change.status = c.candidate("new", change.old), false
	delete(change.object, "status") // the API server ignores the status in this request
	errs := c.validator.validate(c.Context(), runtime.DeepCopyJSON(change.object), c.objectOf(change.old))
	for _, err := range errs {
		change.wrong += err.Error() + "; "
		change.fields = append(change.fields, err.Field)
	}
	if len(errs) == 0 && c.beyondLimit(change.object) {
		change.wrong, change.fields = "above the operator's limit", []string{c.limit}
	}
	return len(change.fields) > 0
}

// breakValue changes, removes or adds one value. It returns false if the object is still valid.
func (c *changes) breakValue(change *generatedChange) bool {
	part := "spec"
	if change.status {
		part = "status"
	}
	schema := c.validator.schema.Properties[part]
	value, found := change.object[part]
	if !found {
		return false
	}
	all := c.generator.breakages(&schema, value, []any{part})
	one := all[c.generator.IntN(len(all))]
	change.object, change.wrong, change.fields = one.in(change.object), one.String(), []string{dotted(one.path)}
	if change.status {
		// Some error messages have a path that is relative to the status: for a number above 32 bits, and in
		// Kubernetes 1.30 for every wrong type.
		below := dotted(one.path[1:])
		change.fields = append(change.fields, " in "+below, "is invalid: "+below, "is invalid: ["+below)
	}
	if one.path[len(one.path)-1] == unknownField { // the API server rejects an unknown field, but crdValidator does not
		return true
	}
	return len(c.validator.validate(c.Context(), runtime.DeepCopyJSON(change.object), c.objectOf(change.old))) > 0
}

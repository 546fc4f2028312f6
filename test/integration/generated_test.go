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
	generated = flag.Int("generated", 1000, "how many valid changes are generated of each kind, and how many invalid ones, in all of its versions; a fifth with -short")
)

// A kindOfObject is one whose changes are generated.
type kindOfObject struct {
	crd, group, version, kind string
	versions                  int    // of the kind that are here
	limit                     string // path of a number of which the operator allows 100
	immutable                 string // path of what no change may touch
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

// TestGeneratedChanges makes changes out of the schemas. Those that fit are accepted, those that do not are refused and the
// refusal names the field: by the API server, which is shown to agree with the schema alone, or by the webhook. Nobody fails.
func TestGeneratedChanges(t *testing.T) {
	shared(t)
	t.Logf("run again with -seed=%d", *seed)
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
				T: t, kindOfObject: kind, judge: newJudge(t, kind.crd, kind.version), namespace: newNamespace(t),
				generator: generator{t, rand.New(rand.NewPCG(*seed, 0))},
			}
			c.bases()
			c.each(c.valid)
			c.each(c.invalid)
		})
	}
}

// panicsOf counts what the operator, which runs in this process, has recovered from.
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
		t.Error("nobody counts panics")
	}
	return panics
}

// Changes are those of one kind.
type changes struct {
	*testing.T
	kindOfObject
	judge     judge
	namespace string
	generator generator
	olds      []*unstructured.Unstructured // that are there to be changed
}

// A generatedChange is an object to create, or that an old one is to become.
type generatedChange struct {
	object map[string]any
	old    *unstructured.Unstructured // nil for a new one
	status bool                       // it is the status that changes
	wrong  string                     // with it, for people
	fields []string                   // one of which is to be named
}

// each makes changes one after the other, from the seed, and sends several at a time.
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

// checkAnswer says in which way the answer to a change is not as it has to be.
func checkAnswer(change generatedChange, err error) error {
	if len(change.fields) == 0 {
		return err
	}
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return fmt.Errorf("accepted, and wrong: %s", change.wrong)
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
	return fmt.Errorf("%s: none of %q is named: %w", change.wrong, change.fields, err)
}

// send has the API server do all but keep a change.
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

// bases makes what is to be changed.
func (c *changes) bases() {
	c.Helper()
	for i := range 10 {
		u := &unstructured.Unstructured{Object: c.fitting(fmt.Sprintf("old-%d", i), nil)}
		unstructured.RemoveNestedField(u.Object, "status")
		if err := admin(c.T).Create(c.Context(), u); err != nil {
			c.Fatalf("seed %d: %v", *seed, err)
		}
		c.olds = append(c.olds, u)
	}
}

// candidate is an object that fits the schema, and perhaps not the rules.
func (c *changes) candidate(name string, old *unstructured.Unstructured) map[string]any {
	object := c.generator.object(c.judge.schema)
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

// fitting is an object that fits both, and what the operator allows.
func (c *changes) fitting(name string, old *unstructured.Unstructured) map[string]any {
	c.Helper()
	for range 10_000 {
		object := c.candidate(name, old)
		if len(c.judge.problems(c.Context(), runtime.DeepCopyJSON(object), c.before(old))) == 0 && !c.beyondLimit(object) {
			return object
		}
	}
	c.Fatalf("seed %d: no %s fits", *seed, c.kind)
	return nil
}

func (c *changes) before(old *unstructured.Unstructured) map[string]any {
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

// any is an old object, or none.
func (c *changes) any() *unstructured.Unstructured {
	if c.generator.IntN(3) == 0 {
		return nil
	}
	return c.olds[c.generator.IntN(len(c.olds))]
}

// valid is a change that is to be accepted.
func (c *changes) valid() generatedChange {
	old := c.any()
	made := generatedChange{object: c.fitting("new", old), old: old}
	made.status = old != nil && c.generator.IntN(3) == 0
	return made
}

// invalid is a change that is to be refused: for a rule, for the operator's limit, or for one value that does not fit.
func (c *changes) invalid() generatedChange {
	for range 10_000 {
		made := c.valid()
		if c.generator.IntN(4) == 0 && c.outOfRule(&made) || c.broken(&made) {
			return made
		}
	}
	c.Fatalf("seed %d: every %s fits", *seed, c.kind)
	return generatedChange{}
}

// outOfRule makes an object that fits the schema and not the rules, or not the operator's limit.
func (c *changes) outOfRule(made *generatedChange) bool {
	made.object, made.status = c.candidate("new", made.old), false
	delete(made.object, "status") // which is not what changes
	errs := c.judge.problems(c.Context(), runtime.DeepCopyJSON(made.object), c.before(made.old))
	for _, err := range errs {
		made.wrong += err.Error() + "; "
		made.fields = append(made.fields, err.Field)
	}
	if len(errs) == 0 && c.beyondLimit(made.object) {
		made.wrong, made.fields = "too many", []string{c.limit}
	}
	return len(made.fields) > 0
}

// broken puts one value where it does not fit.
func (c *changes) broken(made *generatedChange) bool {
	part := "spec"
	if made.status {
		part = "status"
	}
	schema := c.judge.schema.Properties[part]
	value, found := made.object[part]
	if !found {
		return false
	}
	all := c.generator.breakages(&schema, value, []any{part})
	one := all[c.generator.IntN(len(all))]
	made.object, made.wrong, made.fields = one.in(made.object), one.String(), []string{dotted(one.path)}
	if made.status { // of numbers beyond 32 bits, the API server says where they are below the status
		made.fields = append(made.fields, " in "+dotted(one.path[1:]))
	}
	return one.path[len(one.path)-1] == unknownField || len(c.judge.problems(c.Context(), runtime.DeepCopyJSON(made.object), c.before(made.old))) > 0
}

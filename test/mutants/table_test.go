// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutants makes mistakes in copies of the operator's source, one after the other, and sees which test finds each.
// A test that none of them fails tests nothing that matters; a mistake that none finds is one that could be made.
package mutants

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const repository = "../.."

// A mutant is the operator with a mistake.
type mutant struct {
	class int    // of bugs; zero for a whole controller
	bug   string // what is wrong
	edits []edit
	tests []string // that are run when the tests of the edited packages and the simulations find nothing: arguments of go test
}

// An edit replaces a text that a file has exactly once.
type edit struct{ file, old, new string }

const (
	act        = "internal/controller/machine/act.go"
	controller = "internal/controller/machine/controller.go"
	decide     = "internal/controller/machine/decide.go"
	recent     = "internal/controller/machine/recent.go"
	status     = "internal/controller/machine/status.go"
	wake       = "internal/controller/machine/wake.go"
	object     = "internal/object/object.go"
	crd        = "config/crd/bases/useless.container.training_machines.yaml"
)

// mutants have the mistakes that others have found in operators. The numbers and the order are those of the classes of bugs.
var mutants = []mutant{
	// What is stale, and what nobody has seen.
	{class: 1, bug: "Children have generated names, so that an old list leads to more of them", edits: []edit{
		{act, "			Name:            name,\n", "			GenerateName:    m.Name + \"-\",\n"},
	}},
	{class: 2, bug: "What is deleted may be another object of that name, or a newer one", edits: []edit{
		{act, ", client.Preconditions{UID: &sw.UID, ResourceVersion: &sw.ResourceVersion})", ")"},
	}},
	{class: 3, bug: "What was decided on an older state is written over a newer one", edits: []edit{
		{object, "return client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})", "return client.MergeFrom(read)"},
	}},
	{class: 4, bug: "What is missing follows from what was written about it last, not from what there is", edits: []edit{
		{decide, "missing := int(wanted(m)) - len(mine) - len(p.adopt)", "missing := int(wanted(m)-m.Status.Switches.Total) - len(p.adopt)"},
	}},
	{class: 5, bug: "An object of the cache is changed in place", edits: []edit{
		{object, "	changed := read.DeepCopyObject().(T)\n	change(changed)", "	changed := read\n	read = read.DeepCopyObject().(T)\n	change(changed)"},
	}},
	{class: 6, bug: "Who cannot tell whether there is a child makes another one", edits: []edit{
		{act, "isThere, err = c.exists(ctx, m, sw.Name)", "_, err = c.exists(ctx, m, sw.Name)"},
	}},
	{class: 7, bug: "A child is thought to be there until its deletion is heard of", edits: []edit{
		{recent, "if written == nil || !object.Newer(written.ResourceVersion, seen) {", "if written == nil {"},
	}},

	// Halfway.
	{class: 8, bug: "A flip and when it was are two writes", edits: []edit{
		{act, "		metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, at)\n", "		_ = at\n"},
	}},
	{class: 9, bug: "Names follow from the clock, so that a try whose answer was lost is made once more", edits: []edit{
		{decide, `m.Name + "-" + strconv.Itoa(ordinal)`, `m.Name + "-" + strconv.FormatInt(time.Now().UnixNano()+int64(ordinal), 10)`},
	}},
	{class: 10, bug: "A step that fails keeps those back that do not depend on it", edits: []edit{
		{act, "		p.create = 0 // what could not be let go is still one of the Machine's\n", "		return p.mine, done, releasing\n"},
	}, tests: []string{"./test/integration -run ^TestRefusal$"}},
	{class: 11, bug: "All children are tried at once, whatever refuses the first", edits: []edit{
		{act, "for batch := 1; missing > 0", "for batch := maxConcurrent; missing > 0"},
	}, tests: []string{"./test/integration -run ^TestScaling$|^TestRefusal$"}},

	// Ownership.
	{class: 12, bug: "Children are known by their label, whoever controls them", edits: []edit{
		{decide, "if sw.DeletionTimestamp.IsZero() && metav1.IsControlledBy(sw, m) {", "if sw.DeletionTimestamp.IsZero() && sw.Labels[v1beta1.MachineLabel] == m.Name {"},
	}},
	{class: 13, bug: "Whom a child was taken from does not hear of it", edits: []edit{
		{wake, "wake(q, changedByUser(e.ObjectOld, e.ObjectNew), e.ObjectOld, e.ObjectNew)", "wake(q, changedByUser(e.ObjectOld, e.ObjectNew), e.ObjectNew)"},
	}, tests: []string{"./test/integration -run ^TestOwnership$"}},
	{class: 14, bug: "An owner may be in another namespace", edits: []edit{
		{controller, `return namespace + "/" + string(uid) }`, `return string(uid) }`},
	}},
	{class: 15, bug: "A child's owner is of a kind that does not exist", edits: []edit{
		{act, "OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind(\"Machine\"))},", "OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind(\"Machines\"))},"},
	}},
	{class: 16, bug: "Children that are to be kept are taken back", edits: []edit{
		{act, "	if current, err := c.look(ctx, m); err != nil || !current.DeletionTimestamp.IsZero() {\n		return err\n	}\n	return forEach(switches", "	return forEach(switches"},
	}},
	{class: 17, bug: "An owner is known by its name, also after it was made anew", edits: []edit{
		{decide, "if sw.DeletionTimestamp.IsZero() && metav1.IsControlledBy(sw, m) {", "if owner := metav1.GetControllerOfNoCopy(sw); sw.DeletionTimestamp.IsZero() && owner != nil && owner.Name == m.Name {"},
		{controller, "ownerKey(sw.Namespace, owner.UID)", "ownerKey(sw.Namespace, types.UID(owner.Name))"},
		{controller, "ownerKey(m.Namespace, m.UID)", "ownerKey(m.Namespace, types.UID(m.Name))"},
	}},

	// Lifecycle.
	{class: 18, bug: "The finalizers of others go with one's own", edits: []edit{
		{object, "controllerutil.RemoveFinalizer(object, finalizer)", "object.SetFinalizers(nil)"},
	}, tests: []string{"./test/integration -run ^TestDeletion$"}},
	{class: 19, bug: "A finalizer can only be removed while the webhook is there", edits: []edit{
		{"dist/install.yaml", "request.operation == 'CREATE' || object.?spec != oldObject.?spec", `"true"`},
	}, tests: []string{"./test/integration -run ^TestWithoutWebhook$"}},
	{class: 20, bug: "What is being deleted is worked on as if it were alive", edits: []edit{
		{controller, "	if !m.DeletionTimestamp.IsZero() {\n		return reconcile.Result{}, c.finalize(ctx, m)\n	}\n", "	if !m.DeletionTimestamp.IsZero() {\n		if err := c.finalize(ctx, m); err != nil {\n			return reconcile.Result{}, err\n		}\n	}\n"},
	}},
	{class: 21, bug: "A child that is being deleted counts as there", edits: []edit{
		{decide, "if sw.DeletionTimestamp.IsZero() && metav1.IsControlledBy(sw, m) {", "if metav1.IsControlledBy(sw, m) {"},
		{act, "	if !existing.DeletionTimestamp.IsZero() {\n		return false, nil\n	}\n	if metav1.IsControlledBy(existing, m)", "	if metav1.IsControlledBy(existing, m)"},
	}},

	// Status and time.
	{class: 22, bug: "A status is written where it is ignored", edits: []edit{
		{object, "return changed, c.Status().Patch(ctx, changed, unlessChanged(read))", "return changed, any(c).(client.Client).Patch(ctx, changed, unlessChanged(read))"},
	}},
	{class: 23, bug: "Nobody is woken when the next switch is due", edits: []edit{
		{controller, "	c.alarms.set(request, p.next)\n", ""},
	}},
	{class: 23, bug: "Instants are in whole seconds", edits: []edit{
		{status, "t.Add(time.Microsecond - time.Nanosecond).Truncate(time.Microsecond)", "t.Truncate(time.Second)"},
	}},
	{class: 24, bug: "A status is written though it says nothing new", edits: []edit{
		{object, "	if reflect.DeepEqual(status(read), updated) {\n		return read, nil\n	}\n", ""},
	}, tests: []string{"./test/integration -run ^TestWrites$|^TestIdle$"}},
	{class: 25, bug: "The status does not say which generation it is of", edits: []edit{
		{status, "	status.ObservedGeneration = m.Generation\n	status.Selector = selector\n", "	status.Selector = selector\n"},
	}},
	{class: 26, bug: "An empty position has a first letter", edits: []edit{
		{decide, "{ return sw.Spec.Position == v1beta1.PositionUp }", "{ return sw.Spec.Position[0] == 'u' }"},
	}},

	// The API over time.
	{class: 27, bug: "A field is lost on the way to another version", edits: []edit{
		{"internal/conversion/machine.go", "		FlipIntervalSeconds: src.Flip.IntervalSeconds,\n", ""},
	}},
	{class: 28, bug: "Versions have different defaults", edits: []edit{
		{crd, "              flipIntervalSeconds:\n                default: 5\n", "              flipIntervalSeconds:\n                default: 6\n"},
		{"dist/install.yaml", "              flipIntervalSeconds:\n                default: 5\n", "              flipIntervalSeconds:\n                default: 6\n"},
	}, tests: []string{"./test/integration -run ^TestDefaultsAreTheSameInBothVersions$"}},
	{class: 29, bug: "The old version stays among those that are stored", edits: []edit{
		{"internal/migration/migration.go", "		crd.Status.StoredVersions = []string{migration.to.Version}\n", ""},
	}, tests: []string{"./internal/migration"}},
	{class: 30, bug: "A new authority is not made known where conversion is configured", edits: []edit{
		{"internal/certificates/certificates.go", "			{Name: MachineCRD, Type: rotator.CRDConversion},\n", ""},
	}, tests: []string{"./test/integration -run ^TestSelfManagedCertificates$"}},

	// Scale and the control plane.
	{class: 31, bug: "What was refused for now is not tried again", edits: []edit{
		{act, `		return fmt.Errorf("create switches: %w", err)` + "\n", `		log.FromContext(ctx).Error(err, "Cannot create switches")` + "\n"},
	}},
	{class: 32, bug: "Everybody leads", edits: []edit{
		{"cmd/main.go", "LeaderElection:                o.leaderElect,", "LeaderElection:                o.leaderElect && o.namespace == \"\","},
	}, tests: []string{"./test/integration -run ^TestLeaderChange$"}},
	{class: 33, bug: "The time until the next try grows for ever", edits: []edit{
		{"internal/object/controller.go", "LastRetry = time.Minute", "LastRetry = 100 * time.Hour"},
	}},

	// Whole controllers.
	{bug: "The controller of the tutorial, in place of ours", edits: naive("Tutorial")},
	{bug: "A controller with the habits of operator-sdk's sample, in place of ours", edits: naive("Sample")},
}

// naive has another controller reconcile Machines in simulations.
func naive(name string) []edit {
	const world = "test/sim/world.go"
	return []edit{
		{world, "	if err := controller.Setup(ctx, quiet{mgr, &w.Reconciles}, options, clock.RealClock{}, prometheus.NewRegistry()); err != nil {", "	if err := (baseline." + name + "{}).Add(mgr); err != nil {"},
		{world, "	options := controller.Options{", "	_ = controller.Options{"},
		{world, "	\"github.com/prometheus/client_golang/prometheus\"\n", ""},
		{world, "	\"k8s.io/utils/clock\"\n", ""},
		{world, "	\"container.training/useless/internal/controller/virtualmachine\"\n", "	\"container.training/useless/internal/controller/virtualmachine\"\n	\"container.training/useless/test/bench/baseline\"\n"},
	}
}

// edited returns the files of a folder that have the mistake, as they are and with it.
func (m mutant) edited(dir string) (before, after map[string]string, err error) {
	before = map[string]string{}
	for _, e := range m.edits {
		data, err := os.ReadFile(filepath.Join(dir, e.file))
		if err != nil {
			return nil, nil, err
		}
		before[e.file] = string(data)
	}
	after = maps.Clone(before)
	for _, e := range m.edits {
		if n := strings.Count(after[e.file], e.old); n != 1 {
			return nil, nil, fmt.Errorf("%s has this %d times, not once:\n%s", e.file, n, e.old)
		}
		after[e.file] = strings.Replace(after[e.file], e.old, e.new, 1)
	}
	return before, after, nil
}

// TestEdits wants every mistake to be one that can be made: make mutants takes long, and is not run for each change.
func TestEdits(t *testing.T) {
	for _, m := range mutants {
		if _, _, err := m.edited(repository); err != nil {
			t.Errorf("%s: %v", m.bug, err)
		}
		if m.bug == "" || len(m.edits) == 0 {
			t.Errorf("class %d has no mistake", m.class)
		}
	}
}

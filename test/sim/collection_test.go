// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/test/sim"
)

// dependentOperations returns the number of requests for owners, dependents and quotas. TestConformance waits for the
// garbage collector after each of these requests, so a short test sends fewer of them.
func dependentOperations() int {
	if short() {
		return 40
	}
	return 200
}

// layers lists kinds of owners, then the kinds of their dependents, and then the kinds of the dependents' dependents.
var layers = [][]string{{"Deployment"}, {"ReplicaSet", "Machine"}, {"Pod", "Switch"}}

// quotas maps the possible quota resources to kinds.
var quotas = map[corev1.ResourceName]string{
	"count/switches.useless.container.training": "Switch", "count/pods": "Pod", "count/replicasets.apps": "ReplicaSet",
}

// compareDependents compares garbage collection and quotas. The simulated garbage collector runs when the test calls
// it. The test waits for the real one.
//
// The order of deletions is not defined, so the test compares the watch events of each object separately.
func compareDependents(t *testing.T, reference, simulated *side, server *sim.Server) {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	answers := map[string]int{}
	for i := range dependentOperations() {
		o := randomDependent(random)
		if o.Verb == "create" {
			reference.count(t)
		} else {
			reference.collect(t)
		}
		want, got := reference.do(t, o), simulated.do(t, o)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Fatalf("operation %d, %+v: (-API server +simulated)\n%s", i, o, diff)
		}
		answers[strings.Join([]string{o.Verb, string(o.Policy), want.Reason}, " ")]++
		collectGarbage(t, server)
		if diff := reference.becomes(t, simulated.all(t)); diff != "" {
			t.Fatalf("operation %d, %+v: final objects (-API server +simulated)\n%s", i, o, diff)
		}
	}
	t.Logf("answers: %v", answers)
	for _, s := range []*side{reference, simulated} {
		must(t, client.IgnoreNotFound(s.client.Delete(t.Context(), objectOf("ResourceQuota", "quota"))))
	}
	reference.collect(t)
	if diff := gocmp.Diff(byName(reference.events(t, "end")), byName(simulated.events(t, "end"))); diff != "" {
		t.Errorf("events (-API server +simulated)\n%s", diff)
	}
}

func collectGarbage(t *testing.T, server *sim.Server) {
	t.Helper()
	for {
		done, err := server.CollectGarbage()
		must(t, err)
		if !done {
			return
		}
	}
}

// byName sorts events by the names of their objects.
func byName(all [][]watchEvent) [][]watchEvent {
	for _, some := range all {
		slices.SortStableFunc(some, func(a, b watchEvent) int { return cmp.Compare(a.Name, b.Name) })
	}
	return all
}

// randomDependent returns one of these operations at random:
//   - It creates an object with up to two owners.
//   - It deletes an object with any propagation policy.
//   - It removes an object's finalizers or owners.
//   - It creates or deletes a quota.
//
// randomDependent does not generate two cases, because their results depend on timing:
//   - Several owners of an object have the same owner.
//   - An object has an owner and dependents, but does not block the deletion of its owner. The object or a dependent
//     has finalizers.
func randomDependent(random *rand.Rand) operation {
	layer := random.IntN(len(layers))
	o := operation{
		Verb: pick(random, "create", "create", "create", "patch", "patch", "delete", "delete", "delete"),
		Kind: pick(random, layers[layer]...),
		Name: pick(random, "c", "d", "e"), Version: "none", UID: "none",
		Body: `{}`,
	}
	if layer > 0 && random.IntN(3) == 0 {
		o.Body = `{"metadata":{"finalizers":["example.com/one"]}}`
	}
	switch {
	case random.IntN(12) == 0:
		limited := pick(random, slices.Sorted(maps.Keys(quotas))...)
		o.Verb, o.Kind, o.Name = pick(random, "create", "create", "delete"), "ResourceQuota", "quota"
		o.Body = fmt.Sprintf(`{"spec":{"hard":{%q:"%d"}}}`, limited, random.IntN(3))
	case o.Verb == "create":
		o.Owners = randomOwners(random, layer)
	case o.Verb == "patch":
		o.Body = pick(random, `{"metadata":{"finalizers":null}}`, `{"metadata":{"finalizers":null}}`,
			`{"metadata":{"ownerReferences":null}}`)
	case o.Verb == "delete":
		o.UID = pick(random, "none", "current", "current", "wrong")
		o.Policy = pick(random, "", metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
			metav1.DeletePropagationOrphan)
	}
	return o
}

// randomOwners returns no owner, one owner of the previous layer, or two owners of the first layer.
func randomOwners(random *rand.Rand, layer int) []owner {
	switch n := random.IntN(6); {
	case layer == 0 || n == 0:
		return nil
	case n == 1:
		blocks := layer < len(layers)-1 || random.IntN(2) == 0
		return []owner{{"Deployment", "c", blocks}, {"Deployment", "d", blocks}}
	}
	return []owner{{pick(random, layers[layer-1]...), pick(random, "c", "d", "e"), true}}
}

// all returns all objects of the kinds in layers.
func (s *side) all(t *testing.T) (all []any) {
	t.Helper()
	for _, kind := range slices.Concat(layers...) {
		list := listOf(kind)
		must(t, s.client.List(t.Context(), list, client.InNamespace(metav1.NamespaceDefault)))
		for i := range list.Items {
			all = append(all, s.normal(&list.Items[i]))
		}
	}
	return all
}

// becomes waits until the objects equal want. If they still differ after the time limit of poll, it returns the
// difference.
func (s *side) becomes(t *testing.T, want []any) (diff string) {
	t.Helper()
	if err := poll(t, func(context.Context) (bool, error) {
		diff = gocmp.Diff(s.all(t), want)
		return diff == "", nil
	}); !wait.Interrupted(err) {
		must(t, err)
	}
	return diff
}

// collect waits until the garbage collector has processed all earlier events. For each kind, it creates an object whose
// owner never existed, and waits until this object is deleted. The garbage collector receives the events of each kind
// in order.
func (s *side) collect(t *testing.T) {
	t.Helper()
	kinds := slices.Concat(layers...)
	for _, kind := range kinds {
		last := newObject(kind, "last")
		last.SetNamespace(metav1.NamespacePublic)
		last.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "none",
			UID: uuid.NewUUID()}})
		must(t, poll(t, func(ctx context.Context) (bool, error) {
			err := s.client.Create(ctx, last)
			return err == nil, ignoreForbidden(err) // forbidden until the ServiceAccount exists
		}))
	}
	must(t, poll(t, func(ctx context.Context) (bool, error) {
		for _, kind := range kinds {
			list := listOf(kind)
			if err := s.client.List(ctx, list, client.InNamespace(metav1.NamespacePublic)); err != nil ||
				len(list.Items) > 0 {
				return false, err
			}
		}
		return true, nil
	}))
}

func ignoreForbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

// count makes the quota controller count the objects again. Then it waits until the quota has the correct count, and
// until admission uses this count. Admission counts a request before the API server rejects it for a name that already
// exists. Without the new count, the quota would include this rejected request for up to five minutes.
func (s *side) count(t *testing.T) {
	t.Helper()
	nonce := 0
	must(t, poll(t, func(ctx context.Context) (bool, error) {
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "quota"}}
		nonce++
		change := fmt.Appendf(nil, `{"spec":{"hard":{%q:"%d"}}}`, recounted, nonce)
		if err := s.client.Patch(ctx, quota, client.RawPatch(types.MergePatchType, change)); err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
		if err := poll(t, func(ctx context.Context) (bool, error) {
			err := s.client.Get(ctx, client.ObjectKeyFromObject(quota), quota)
			return equality.Semantic.DeepEqual(quota.Spec.Hard, quota.Status.Hard), err
		}); err != nil {
			return false, err
		}
		for limited, kind := range quotas {
			if hard, ok := quota.Spec.Hard[limited]; ok {
				return s.counts(ctx, kind, quota.Status.Used[limited], hard)
			}
		}
		return true, nil
	}))
}

// recounted is a second resource of the quota. A change of its limit makes the quota controller count again.
const recounted = "count/configmaps"

// counts reports whether the quota is up to date. used must equal the number of objects. Admission must reject another
// object if and only if used has reached hard.
func (s *side) counts(ctx context.Context, kind string, used, hard resource.Quantity) (bool, error) {
	list := listOf(kind)
	if err := s.client.List(ctx, list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return false, err
	}
	err := s.client.Create(ctx, newObject(kind, "another"), client.DryRunAll)
	n := int64(len(list.Items))
	return used.Value() == n && apierrors.IsForbidden(err) == (n >= hard.Value()), ignoreForbidden(err)
}

// poll calls check until it returns true, for up to two minutes.
func poll(t *testing.T, check wait.ConditionWithContextFunc) error {
	t.Helper()
	return wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 2*time.Minute, true, check)
}

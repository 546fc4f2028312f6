// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"encoding/json"
	"flag"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/randfill"

	"container.training/useless/api/useless/v1beta1"
	clientscheme "container.training/useless/client/versioned/scheme"
)

var seed = flag.Int64("seed", rand.Int64(), "seed of the round-trip tests")

// newScheme returns a scheme with all versions of Machine. It is generated from the folders in api.
func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

func mustConverters(t testing.TB) map[versionPair]converter {
	t.Helper()
	all, err := converters(newScheme(t))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// machines returns the Go type of Machine in each version.
func machines(t testing.TB) map[schema.GroupVersion]reflect.Type {
	t.Helper()
	types := map[schema.GroupVersion]reflect.Type{}
	for kind, machine := range newScheme(t).AllKnownTypes() {
		if kind.GroupKind() == v1beta1.GroupVersion.WithKind(machineKind).GroupKind() {
			types[kind.GroupVersion()] = machine
		}
	}
	return types
}

func specOf(machine reflect.Type) reflect.Type {
	spec, _ := machine.FieldByName("Spec")
	return spec.Type
}

// roundTrip converts specs of a version to another version and back.
type roundTrip struct {
	name        string       // both versions
	spec        reflect.Type // of the first version
	there, back converter
}

// roundTrips returns a round trip for each pair of versions, beginning with the most stable version.
func roundTrips(t *testing.T) (all []roundTrip) {
	t.Helper()
	types, converters := machines(t), mustConverters(t)
	versions := slices.SortedFunc(maps.Keys(types), func(a, b schema.GroupVersion) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	for _, from := range versions {
		for _, to := range versions {
			if from != to {
				all = append(all, roundTrip{
					from.Version + " through " + to.Version, specOf(types[from]),
					converters[versionPair{from.String(), to.String()}], converters[versionPair{to.String(), from.String()}],
				})
			}
		}
	}
	if len(all) == 0 {
		t.Fatal("there is only one version")
	}
	return all
}

// diff returns what a round trip changes in a spec, or "".
func (r roundTrip) diff(t *testing.T, spec reflect.Value) string {
	t.Helper()
	want, got := spec.Interface(), reflect.New(r.spec)
	raw, err := json.Marshal(want)
	for _, convert := range []converter{r.there, r.back} {
		if err == nil {
			raw, err = convert(raw)
		}
	}
	if err == nil {
		err = json.Unmarshal(raw, got.Interface())
	}
	if err != nil {
		t.Fatal(err)
	}
	// DeepEqual first: cmp is fifty times slower, and is needed only for the message.
	if reflect.DeepEqual(want, got.Elem().Interface()) {
		return ""
	}
	return cmp.Diff(want, got.Elem().Interface())
}

// TestRoundTrip converts random specs to another version and back.
func TestRoundTrip(t *testing.T) {
	t.Logf("run again with -seed=%d", *seed)
	rounds := 10_000
	if testing.Short() {
		rounds = 1_000
	}
	for _, trip := range roundTrips(t) {
		t.Run(trip.name, func(t *testing.T) {
			fill := filler(*seed)
			for range rounds {
				spec := reflect.New(trip.spec)
				fill.Fill(spec.Interface())
				if diff := trip.diff(t, spec.Elem()); diff != "" {
					t.Fatalf("seed %d: lost in the round trip (-want +got):\n%s", *seed, diff)
				}
			}
		})
	}
}

func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3)
}

// TestVersionsHoldTheSameFields compares the number of leaf fields of each type. It fails if a version lacks a field of
// another version, even if no converter uses the field.
func TestVersionsHoldTheSameFields(t *testing.T) {
	types := machines(t)
	want := types[v1beta1.GroupVersion]
	for groupVersion, got := range types {
		if diff := cmp.Diff(leaves(specOf(want)), leaves(specOf(got))); diff != "" {
			t.Errorf("v1beta1 and %s have different fields (-v1beta1 +%[1]s):\n%s", groupVersion.Version, diff)
		}
		if want.NumField() != got.NumField() {
			t.Errorf("v1beta1.Machine has %d fields, %s.Machine has %d", want.NumField(), groupVersion.Version, got.NumField())
		}
	}
}

// TestEveryLeafIsConverted sets one leaf field at a time, so that a failure names the field that a converter does not
// copy.
func TestEveryLeafIsConverted(t *testing.T) {
	for _, trip := range roundTrips(t) {
		t.Run(trip.name, func(t *testing.T) { testLeaves(t, trip, "spec", nil, trip.spec) })
	}
}

func testLeaves(t *testing.T, trip roundTrip, path string, index []int, typ reflect.Type) {
	if typ.Kind() == reflect.Struct {
		for i := range typ.NumField() {
			testLeaves(t, trip, path+"."+typ.Field(i).Name, append(slices.Clone(index), i), typ.Field(i).Type)
		}
		return
	}
	t.Run(path, func(t *testing.T) {
		spec := reflect.New(trip.spec).Elem()
		randfill.NewWithSeed(1).NilChance(0).NumElements(1, 1).Fill(spec.FieldByIndex(index).Addr().Interface())
		if spec.IsZero() {
			t.Fatal("the test did not set a field")
		}
		if diff := trip.diff(t, spec); diff != "" {
			t.Errorf("lost in the round trip (-want +got):\n%s", diff)
		}
	})
}

// leaves counts the leaf fields of a struct and of its nested structs by type, because versions may nest differently.
func leaves(typ reflect.Type) map[string]int {
	if typ.Kind() != reflect.Struct {
		return map[string]int{typ.String(): 1}
	}
	counts := map[string]int{}
	for field := range typ.Fields() {
		for leaf, n := range leaves(field.Type) {
			counts[leaf] += n
		}
	}
	return counts
}

// TestEveryVersionHasConverters adds a version without a converter to the scheme. NewHandler must return an error.
func TestEveryVersionHasConverters(t *testing.T) {
	scheme := newScheme(t)
	versions := len(machines(t))
	all, err := converters(scheme)
	if err != nil || len(all) != versions*versions {
		t.Errorf("got %d converters of %d versions, want %d: %v", len(all), versions, versions*versions, err)
	}
	next := schema.GroupVersion{Group: v1beta1.GroupVersion.Group, Version: "v9"}
	scheme.AddKnownTypeWithName(next.WithKind(machineKind), &v1beta1.Machine{})
	if _, err := NewHandler(scheme); err == nil || !strings.Contains(err.Error(), next.String()) {
		t.Errorf("got the error %v, want one about %s", err, next)
	}
}

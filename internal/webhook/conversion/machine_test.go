// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"flag"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/randfill"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

var seed = flag.Int64("seed", rand.Int64(), "seed of the round-trip tests")

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
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

func TestRoundTrip(t *testing.T) {
	t.Logf("run again with -seed=%d", *seed)
	rounds := 10_000
	if testing.Short() {
		rounds = 1_000
	}
	t.Run("v1beta1 through v1alpha1", func(t *testing.T) {
		fill := filler(*seed)
		for range rounds {
			roundTrip(t, fill, SpecToV1alpha1, SpecFromV1alpha1)
		}
	})
	t.Run("v1alpha1 through v1beta1", func(t *testing.T) {
		fill := filler(*seed)
		for range rounds {
			roundTrip(t, fill, SpecFromV1alpha1, SpecToV1alpha1)
		}
	})
}

// roundTrip converts a random spec there and back. The result must equal the original.
func roundTrip[A, B any](t *testing.T, fill *randfill.Filler, there func(A) B, back func(B) A) {
	t.Helper()
	var want A
	fill.Fill(&want)
	// DeepEqual first: cmp is fifty times slower, and is needed only for the message.
	if got := back(there(want)); !reflect.DeepEqual(want, got) {
		t.Fatalf("seed %d: lost in the round trip (-want +got):\n%s", *seed, cmp.Diff(want, got))
	}
}

func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3)
}

// TestVersionsHoldTheSameFields compares the number of leaf fields of each type. It fails if a field is added to one
// version only, even if no converter uses the field.
func TestVersionsHoldTheSameFields(t *testing.T) {
	alpha := leaves(reflect.TypeFor[v1alpha1.MachineSpec]())
	beta := leaves(reflect.TypeFor[v1beta1.MachineSpec]())
	if diff := cmp.Diff(alpha, beta); diff != "" {
		t.Errorf("v1alpha1 and v1beta1 have different fields (-v1alpha1 +v1beta1):\n%s", diff)
	}
	if alpha, beta := reflect.TypeFor[v1alpha1.Machine](), reflect.TypeFor[v1beta1.Machine](); alpha.NumField() != beta.NumField() {
		t.Errorf("v1alpha1.Machine has %d fields, v1beta1.Machine has %d", alpha.NumField(), beta.NumField())
	}
}

// TestEveryLeafIsConverted sets one leaf field at a time, so that its failure names the field that a converter lacks.
func TestEveryLeafIsConverted(t *testing.T) {
	fill := randfill.NewWithSeed(1).NilChance(0).NumElements(1, 1)
	spec := reflect.TypeFor[v1beta1.MachineSpec]()
	var visit func(path string, index []int, typ reflect.Type)
	visit = func(path string, index []int, typ reflect.Type) {
		if typ.Kind() == reflect.Struct {
			for i := range typ.NumField() {
				visit(path+"."+typ.Field(i).Name, append(append([]int{}, index...), i), typ.Field(i).Type)
			}
			return
		}
		t.Run(path, func(t *testing.T) {
			var want v1beta1.MachineSpec
			fill.Fill(reflect.ValueOf(&want).Elem().FieldByIndex(index).Addr().Interface())
			if reflect.ValueOf(want).IsZero() {
				t.Fatal("the test did not set a field")
			}
			if diff := cmp.Diff(want, SpecFromV1alpha1(SpecToV1alpha1(want))); diff != "" {
				t.Errorf("lost in the round trip (-want +got):\n%s", diff)
			}
		})
	}
	visit("spec", nil, spec)
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
	all, err := converters(scheme)
	if err != nil || len(all) != 4 {
		t.Errorf("got %d converters of two versions, want 4: %v", len(all), err)
	}
	next := schema.GroupVersion{Group: v1beta1.GroupVersion.Group, Version: "v1"}
	scheme.AddKnownTypeWithName(next.WithKind("Machine"), &v1beta1.Machine{})
	const want = "no conversion of Machines from useless.container.training/v1"
	if _, err := NewHandler(scheme); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got the error %v, want %s...", err, want)
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"context"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
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

// typeMeta must survive like everything else: the handler sets it on the destination, the converter leaves it alone.
var (
	v1alpha1Type = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Machine"}
	v1beta1Type  = metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "Machine"}
)

// shapes are the objects that the API server sends: whole ones, and those it makes while it merges managed fields.
var shapes = map[string]shape{
	"whole":            {withMeta: true, withSpec: true},
	"without spec":     {withMeta: true},
	"without metadata": {withSpec: true},
	"without either":   {},
}

type shape struct{ withMeta, withSpec bool }

// fill fills the parts that an object of the shape has.
func (s shape) fill(f *randfill.Filler, meta, spec, status any) {
	f.Fill(status)
	if s.withMeta {
		f.Fill(meta)
	}
	if s.withSpec {
		f.Fill(spec)
	}
}

func TestRoundTrip(t *testing.T) {
	t.Logf("run again with -seed=%d", *seed)
	rounds := 10_000
	if testing.Short() {
		rounds = 1_000
	}
	for name, shape := range shapes {
		t.Run("v1beta1 through v1alpha1, "+name, func(t *testing.T) {
			fill := filler(*seed)
			for range rounds {
				want := &v1beta1.Machine{TypeMeta: v1beta1Type}
				shape.fill(fill, &want.ObjectMeta, &want.Spec, &want.Status)
				got := &v1beta1.Machine{TypeMeta: v1beta1Type}
				roundTrip(t, want, &v1alpha1.Machine{TypeMeta: v1alpha1Type}, got, machineToV1alpha1, machineFromV1alpha1)
			}
		})
		t.Run("v1alpha1 through v1beta1, "+name, func(t *testing.T) {
			fill := filler(*seed)
			for range rounds {
				want := &v1alpha1.Machine{TypeMeta: v1alpha1Type}
				shape.fill(fill, &want.ObjectMeta, &want.Spec, &want.Status)
				got := &v1alpha1.Machine{TypeMeta: v1alpha1Type}
				roundTrip(t, want, &v1beta1.Machine{TypeMeta: v1beta1Type}, got, machineFromV1alpha1, machineToV1alpha1)
			}
		})
	}
}

// roundTrip converts a copy of want by way of via into got, which must then equal want to the last field.
func roundTrip[A interface{ DeepCopy() A }, B any](t *testing.T, want A, via B, got A,
	there func(context.Context, A, B) error, back func(context.Context, B, A) error,
) {
	t.Helper()
	if err := there(t.Context(), want.DeepCopy(), via); err != nil {
		t.Fatal(err)
	}
	if err := back(t.Context(), via, got); err != nil {
		t.Fatal(err)
	}
	// DeepEqual first: cmp is fifty times slower and is needed only to say what differs.
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("seed %d: lost on the way (-want +got):\n%s", *seed, cmp.Diff(want, got))
	}
}

func filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).Funcs(
		// The raw bytes of managed fields must be JSON, as they always are on the wire.
		func(f *metav1.FieldsV1, c randfill.Continue) {
			raw, err := json.Marshal(map[string]string{"f:" + c.String(8): ""})
			if err != nil {
				panic(err)
			}
			*f = *metav1.NewFieldsV1(string(raw))
		},
		func(at *metav1.MicroTime, c randfill.Continue) {
			*at = metav1.NewMicroTime(time.UnixMicro(c.Int63n(1e16)))
		},
		func(at *metav1.Time, c randfill.Continue) { *at = metav1.Unix(c.Int63n(1e10), 0) },
	)
}

// TestVersionsHoldTheSameFields fails when a field is added to one version only: it counts the leaves of each spec by
// type, which says so even before a converter has heard of the field.
func TestVersionsHoldTheSameFields(t *testing.T) {
	alpha := leaves(reflect.TypeFor[v1alpha1.MachineSpec]())
	beta := leaves(reflect.TypeFor[v1beta1.MachineSpec]())
	if diff := cmp.Diff(alpha, beta); diff != "" {
		t.Errorf("v1alpha1 and v1beta1 do not hold the same fields (-v1alpha1 +v1beta1):\n%s", diff)
	}
	if alpha, beta := reflect.TypeFor[v1alpha1.Machine](), reflect.TypeFor[v1beta1.Machine](); alpha.NumField() != beta.NumField() {
		t.Errorf("v1alpha1.Machine has %d fields, v1beta1.Machine has %d", alpha.NumField(), beta.NumField())
	}
}

// TestEveryLeafIsConverted sets one leaf at a time, so that a field which a converter forgot is named.
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
			want := &v1beta1.Machine{}
			fill.Fill(reflect.ValueOf(&want.Spec).Elem().FieldByIndex(index).Addr().Interface())
			if reflect.ValueOf(want.Spec).IsZero() {
				t.Fatal("the test set nothing")
			}
			roundTrip(t, want, &v1alpha1.Machine{}, &v1beta1.Machine{}, machineToV1alpha1, machineFromV1alpha1)
		})
	}
	visit("spec", nil, spec)
}

// leaves counts the leaf fields of a struct by type; nested structs are looked into, as versions may nest differently.
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

// TestConverterKnowsEveryVersion fails when a version is added to the scheme without a converter.
func TestConverterKnowsEveryVersion(t *testing.T) {
	scheme := newScheme(t)
	if _, err := Machine(scheme); err != nil {
		t.Error(err)
	}
	versions := sets.New[string]()
	for gvk := range scheme.AllKnownTypes() {
		if gvk.Kind == "Machine" {
			versions.Insert(gvk.Version)
		}
	}
	if want := sets.New("v1alpha1", "v1beta1"); !versions.Equal(want) {
		t.Errorf("the scheme has Machine in %v, want %v", sets.List(versions), sets.List(want))
	}
	known := machines()
	for from := range versions {
		for to := range versions {
			if known[way{v1beta1.GroupVersion.Group + "/" + from, v1beta1.GroupVersion.Group + "/" + to}] == nil {
				t.Errorf("the handler has no converter from %s to %s", from, to)
			}
		}
	}
}

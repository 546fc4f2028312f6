// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

// pausedVirtualMachine returns a paused VirtualMachine, which the operator does not change. The fields in set override
// its fields.
func pausedVirtualMachine(t *testing.T, namespace, name string, set ...fields) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("VirtualMachine"))
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetAnnotations(map[string]string{v1beta1.PausedAnnotation: "true"})
	for _, f := range set {
		f.setIn(t, u)
	}
	return u
}

// smallVirtualMachine has the resources of the first manifest in docs/virtualmachine.md. The CPUs are a number. The
// other quantities are strings.
var smallVirtualMachine = fields{"spec.resource": `{cpu: 2, memory: 4G, rootDisk: 40G}`}

func TestVirtualMachineSchemaDefaults(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	if err := admin(t).Create(t.Context(), pausedVirtualMachine(t, namespace, "test-vm", smallVirtualMachine)); err != nil {
		t.Fatal(err)
	}
	got := &v1alpha1.VirtualMachine{}
	if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "test-vm"}, got); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.VirtualMachineSpec{Action: v1alpha1.ActionActive, Resource: v1alpha1.ResourceSpec{
		CPU: apiresource.MustParse("2"), Memory: apiresource.MustParse("4G"), RootDisk: new(apiresource.MustParse("40G")),
	}}
	if diff := cmp.Diff(want, got.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestVirtualMachineSchemaRefusesOnCreate(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	cases := map[string]struct {
		reason string
		name   string
		set    fields
		want   string // part of the error message; empty if the API server accepts the object
	}{
		"NoResource": {
			reason: "spec.resource is required",
			set:    fields{"spec.action": "active"}, want: "spec.resource: Required value",
		},
		"NoCPU": {
			reason: "cpu is required",
			set:    fields{"spec.resource": "{memory: 4G}"}, want: "spec.resource.cpu: Required value",
		},
		"NoMemory": {
			reason: "memory is required",
			set:    fields{"spec.resource": "{cpu: 2}"}, want: "spec.resource.memory: Required value",
		},
		"ZeroCPU": {
			reason: "cpu must be positive",
			set:    fields{"spec.resource": "{cpu: 0, memory: 4G}"},
			want:   "cpu must be more than 0 and at most 1P, such as 2 or 500m",
		},
		"NegativeMemory": {
			reason: "memory must be positive",
			set:    fields{"spec.resource": "{cpu: 1, memory: -1Gi}"}, want: "memory must be more than 0 bytes",
		},
		"ZeroDisk": {
			reason: "rootDisk must be positive",
			set:    fields{"spec.resource": "{cpu: 1, memory: 1Gi, rootDisk: 0}"},
			want:   "rootDisk must be more than 0 bytes",
		},
		"TooMuchCPU": {
			reason: "the number of milli-CPUs does not fit into 64 bits",
			set:    fields{"spec.resource": "{cpu: 1001P, memory: 4G}"}, want: "cpu must be more than 0 and at most 1P",
		},
		"TooMuchMemory": {
			reason: "Kubernetes serializes 1000E as 1",
			set:    fields{"spec.resource": "{cpu: 1, memory: 1000E}"},
			want:   "memory must be more than 0 bytes and at most 1E",
		},
		"TooMuchDisk": {
			reason: "the size exceeds the maximum by one byte",
			set:    fields{"spec.resource": "{cpu: 1, memory: 1Gi, rootDisk: 1000000000000000001}"},
			want:   "rootDisk must be more than 0 bytes and at most 1E",
		},
		"HugeExponent": {
			reason: "a parser would expand all digits of the number",
			set:    fields{"spec.resource": "{cpu: 1e2147483647, memory: 1Gi}"},
			want:   "cpu must be more than 0 and at most 1P",
		},
		"HugeFraction": {
			reason: "the quantity would be rounded",
			set:    fields{"spec.resource": "{cpu: 1, memory: 1e-2147483647}"},
			want:   "memory must be more than 0 bytes and at most 1E",
		},
		"LongQuantity": {
			reason: "a quantity has at most 64 characters",
			set:    fields{"spec.resource": "{cpu: 1, memory: 1, rootDisk: \"" + strings.Repeat("0", 64) + "1\"}"},
			want:   "rootDisk must be more than 0 bytes and at most 1E",
		},
		"Largest": {
			reason: "the bounds are inclusive",
			set:    fields{"spec.resource": "{cpu: 1P, memory: 1E, rootDisk: 1E}"},
		},
		"NoQuantity": {
			reason: "the word two is not a quantity",
			set:    fields{"spec.resource": "{cpu: two, memory: 1Gi}"}, want: "spec.resource.cpu",
		},
		"OddExponent": {
			reason: "1e1.5 matches the pattern of the schema but is not a quantity",
			set:    fields{"spec.resource": "{cpu: \"1e1.5\", memory: 1Gi}"}, want: "cpu must be more than 0",
		},
		"Action": {
			reason: "only active and inactive are valid actions",
			set:    fields{"spec.resource": "{cpu: 1, memory: 1Gi}", "spec.action": "paused"},
			want:   `supported values: "active", "inactive"`,
		},
		"LongName": {
			reason: "the name of the Pod is a host name, so it has at most 63 characters",
			name:   strings.Repeat("x", 61), set: smallVirtualMachine, want: "name must have at most 60 characters",
		},
		"LongestName": {
			reason: "60 characters and the suffix -vm are 63 characters",
			name:   strings.Repeat("x", 60), set: smallVirtualMachine,
		},
		"FractionOfCPU": {reason: "half a CPU is allowed", set: fields{"spec.resource": "{cpu: 500m, memory: 512Mi}"}},
		"DecimalsAsText": {
			reason: "quantities may have decimals",
			set:    fields{"spec.resource": `{cpu: "1.5", memory: 0.5Gi}`},
		},
		"NumbersOfBytes": {
			reason: "a quantity may be a number",
			set:    fields{"spec.resource": "{cpu: 1, memory: 4000000000, rootDisk: 4000000000}"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.name == "" {
				c.name = strings.ToLower(name)
			}
			err := admin(t).Create(t.Context(), pausedVirtualMachine(t, namespace, c.name, c.set))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !hasWording(t, err.Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
}

func TestVirtualMachineSchemaRefusesOnUpdate(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	immutable := "spec.resource.rootDisk: Invalid value: rootDisk is immutable"
	without := fields{"spec.resource": "{cpu: 2, memory: 4G}"}
	cases := map[string]struct {
		reason string
		base   fields
		patch  string
		want   string // part of the error message; empty if the API server accepts the object
	}{
		"Changed": {
			reason: "the size of a disk cannot change",
			base:   smallVirtualMachine, patch: `{"spec":{"resource":{"rootDisk":"50G"}}}`, want: immutable,
		},
		"Removed": {
			reason: "a disk cannot be removed",
			base:   smallVirtualMachine, patch: `{"spec":{"resource":{"rootDisk":null}}}`, want: immutable,
		},
		"Added": {
			reason: "a disk cannot be added later",
			base:   without, patch: `{"spec":{"resource":{"rootDisk":"50G"}}}`, want: immutable,
		},
		"Huge": {
			reason: "the immutability rule also parses the size",
			base:   smallVirtualMachine, patch: `{"spec":{"resource":{"rootDisk":"1e2147483647"}}}`, want: immutable,
		},
		"Respelled": {
			reason: "the same size in another notation is not a change",
			base:   smallVirtualMachine, patch: `{"spec":{"resource":{"rootDisk":40000000000}}}`,
		},
		"Resized": {
			reason: "cpu and memory can change",
			base:   smallVirtualMachine, patch: `{"spec":{"resource":{"cpu":"500m","memory":"8G"}}}`,
		},
		"ToZero": {
			reason: "the rules for creation also apply to updates",
			base:   smallVirtualMachine, patch: `{"spec":{"resource":{"cpu":0}}}`, want: "cpu must be more than 0",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := pausedVirtualMachine(t, namespace, strings.ToLower(name), c.base)
			if err := admin(t).Create(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			err := admin(t).Patch(t.Context(), u, client.RawPatch("application/merge-patch+json", []byte(c.patch)))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !hasWording(t, err.Error(), c.want)) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
}

func TestVirtualMachineColumns(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	u := pausedVirtualMachine(t, namespace, "test-vm", smallVirtualMachine)
	if err := admin(t).Create(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	vm := &v1alpha1.VirtualMachine{}
	if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(u), vm); err != nil {
		t.Fatal(err)
	}
	vm.Status.Phase = v1alpha1.PhaseActive
	vm.Status.Server = &v1alpha1.ServerStatus{Node: "node-1", Usage: &v1alpha1.UsageStatus{CPU: 0, Memory: 42}}
	vm.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonServerReady, LastTransitionTime: metav1.Now(),
	}}
	if err := admin(t).Status().Update(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"vm":          "NAME STATUS CPU MEMORY AGE test-vm Active 0 42",
		"vms -o wide": "NAME STATUS CPU MEMORY READY NODE AGE test-vm Active 0 42 True node-1",
	} {
		got := strings.Join(strings.Fields(mustKubectl(t, "", append(strings.Fields("get "+args), "-n", namespace)...)), " ")
		if got = got[:strings.LastIndex(got, " ")]; got != want { // without the age
			t.Error(fmt.Sprintf("kubectl get %s:", args), cmp.Diff(want, got))
		}
	}
}

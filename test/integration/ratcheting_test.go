// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// TestOldObjectsStayWritable creates a Machine with a delay that a later, stricter schema does not allow. Users and the
// operator must still be able to write the Machine, in both versions.
func TestOldObjectsStayWritable(t *testing.T) {
	useExclusiveCluster(t)
	namespace := newNamespace(t)
	runOperatorFor(t, operatorOptions{})
	const today, looser, delay = 86400, 100000, 90000

	t.Cleanup(func() { setMaximumDelay(context.Background(), t, today) })
	setMaximumDelay(t.Context(), t, looser)
	old := newMachine(namespace, "old")
	// The operator must not write the Machine before the stricter schema applies.
	old.Annotations = map[string]string{v1beta1.PausedAnnotation: "true"}
	old.Spec.Flip.DelaySeconds = new(int32(delay))
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Create(t.Context(), old)
		return err == nil, fmt.Sprint("with the looser schema: ", err)
	})
	setMaximumDelay(t.Context(), t, today)
	eventually(t, defaultTimeout, func() (bool, string) {
		m := newMachine(namespace, "new")
		m.Spec.Flip.DelaySeconds = new(int32(delay))
		err := admin(t).Create(t.Context(), m, client.DryRunAll)
		return apierrors.IsInvalid(err), fmt.Sprint("want an invalid Machine with the stricter schema, got ", err)
	})

	for _, version := range []string{alpha, beta} {
		mustKubectl(t, "", "label", resource("machines", version), "old", "-n", namespace, version+"=writable")
	}
	later := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"flip":{"delaySeconds":%d}}}`, delay+1))
	if err := admin(t).Patch(t.Context(), newMachine(namespace, "old"), later); !apierrors.IsInvalid(err) {
		t.Errorf("a change of delaySeconds to another invalid value: want an invalid Machine, got %v", err)
	}
	mustKubectl(t, "", "annotate", "machine", "old", "-n", namespace, v1beta1.PausedAnnotation+"-")
	m := waitForPositions(t, namespace, "old", "d", defaultTimeout)
	if len(m.Finalizers) == 0 || *m.Spec.Flip.DelaySeconds != delay {
		t.Errorf("finalizers %q and delaySeconds %d, want a finalizer of the operator and %d", m.Finalizers, *m.Spec.Flip.DelaySeconds, delay)
	}
	switches := recordSwitches(t, namespace)
	turnUpInOrder(t, switches, namespace, "old-0")
	waitForPositions(t, namespace, "old", "u", defaultTimeout)
	if err := admin(t).Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(m), m)
		return apierrors.IsNotFound(err), fmt.Sprintf("the Machine is not deleted: finalizers %q, error %v", m.Finalizers, err)
	})
}

// setMaximumDelay sets the maximum of a Machine's delay in the schemas of both versions. The API server uses the new
// schemas a moment later.
func setMaximumDelay(ctx context.Context, t *testing.T, maximum float64) {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := admin(t).Get(ctx, client.ObjectKey{Name: "machines." + v1beta1.GroupVersion.Group}, crd); err != nil {
		t.Fatal(err)
	}
	before := crd.DeepCopy()
	for _, version := range crd.Spec.Versions {
		spec := version.Schema.OpenAPIV3Schema.Properties["spec"]
		name := "flipDelaySeconds"
		if version.Name == beta {
			spec, name = spec.Properties["flip"], "delaySeconds"
		}
		field, found := spec.Properties[name]
		if !found {
			t.Fatalf("%s has no field %s", version.Name, name)
		}
		field.Maximum = &maximum
		spec.Properties[name] = field
	}
	if err := admin(t).Patch(ctx, crd, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

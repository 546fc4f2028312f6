// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"path/filepath"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/informers"
	"container.training/useless/client/versioned"
	"container.training/useless/client/versioned/fake"
	"container.training/useless/hack/cluster"
)

// TestEveryKindHasAnInformer fails for a kind without the marker +genclient.
func TestEveryKindHasAnInformer(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(crds, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d CRDs: %v", len(files), err)
	}
	factory := informers.NewSharedInformerFactory(fake.NewSimpleClientset(), 0)
	for _, file := range files {
		objects, err := cluster.ReadManifests(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, &crd); err != nil {
			t.Fatal(err)
		}
		for _, version := range crd.Spec.Versions {
			resource := schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural}
			if _, err := factory.ForResource(resource); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// TestScale scales a Machine, as kubectl scale does.
func TestScale(t *testing.T) {
	// The results in go test's cache depend only on what tests read, and not on what TestMain reads. With this call, they
	// depend on the release of Kubernetes.
	if _, err := cluster.Build(t.Context(), t.Output()); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", plane.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	clientset, err := versioned.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	machines := clientset.UselessV1beta1().Machines(metav1.NamespaceDefault)
	machine := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "machine"}}
	if _, err := machines.Create(t.Context(), machine, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale, err := machines.GetScale(t.Context(), machine.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec = autoscalingv1.ScaleSpec{Replicas: 3}
	if _, err := machines.UpdateScale(t.Context(), machine.Name, scale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scaled, err := machines.Get(t.Context(), machine.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := scaled.Spec.Switches.Count; got != 3 {
		t.Errorf("the Machine has %d switches, want 3", got)
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// fieldOwner is the field manager of the objects that Install applies.
const fieldOwner = client.FieldOwner("useless-cluster")

// establishTimeout limits the wait until a CustomResourceDefinition is established.
const establishTimeout = time.Minute

// WebhookServer is the address of the operator's webhooks while the operator runs as a process outside the cluster.
type WebhookServer struct {
	// URL is the server's address without a path, for example https://127.0.0.1:9443.
	URL string
	// CA is the PEM certificate of the authority that signed the server's certificate.
	CA []byte
}

// ReadManifests reads the objects of a YAML file. If path is a folder, it reads the files in the resources list of
// path/kustomization.yaml, in this order. It ignores all other fields of kustomization.yaml.
func ReadManifests(path string) ([]*unstructured.Unstructured, error) {
	files := []string{path}
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	} else if info.IsDir() {
		if files, err = resources(path); err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		more, err := readFile(file)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %s: %w", file, err)
		}
		objects = append(objects, more...)
	}
	return objects, nil
}

// resources returns the paths of the files in the resources list of dir/kustomization.yaml.
func resources(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	var kustomization struct{ Resources []string }
	if err := yaml.Unmarshal(data, &kustomization); err != nil {
		return nil, err
	}
	for i, file := range kustomization.Resources {
		kustomization.Resources[i] = filepath.Join(dir, file)
	}
	return kustomization.Resources, nil
}

func readFile(path string) ([]*unstructured.Unstructured, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// Install applies the CustomResourceDefinitions first, and waits until they are established. Then it applies the other
// objects in their order. It cannot apply an object without a name, so it creates such an object with its generateName.
// If a namespaced object has no namespace, its namespace becomes default. If server.URL is set, Install replaces the
// Services of admission and conversion webhooks by this URL.
func Install(
	ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured, server WebhookServer,
) error {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	var crds, others []*unstructured.Unstructured
	for _, object := range objects {
		object = object.DeepCopy()
		redirect(object, server)
		if object.GetKind() == "CustomResourceDefinition" {
			crds = append(crds, object)
		} else {
			others = append(others, object)
		}
	}
	for _, step := range []struct {
		do      func(context.Context, client.Client, *unstructured.Unstructured) error
		objects []*unstructured.Unstructured
	}{{apply, crds}, {awaitEstablished, crds}, {apply, others}} {
		for _, object := range step.objects {
			if err := step.do(ctx, c, object); err != nil {
				return fmt.Errorf("install %s %s: %w", object.GetKind(), cmp.Or(object.GetName(), object.GetGenerateName()), err)
			}
		}
	}
	return nil
}

func apply(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	namespaced, err := c.IsObjectNamespaced(object)
	if err != nil {
		return err
	}
	if namespaced && object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	if object.GetName() == "" {
		return c.Create(ctx, object, fieldOwner)
	}
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldOwner, client.ForceOwnership)
}

// awaitEstablished waits until crd is established. Then the API server serves its objects.
func awaitEstablished(ctx context.Context, c client.Client, crd *unstructured.Unstructured) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, establishTimeout, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
			return false, err
		}
		// The error is ignored, because the list is null until the API server has checked the CRD.
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(condition any) bool {
			c, _ := condition.(map[string]any)
			return c["type"] == "Established" && c["status"] == "True"
		}), nil
	})
}

// redirect replaces the Services in an object's admission and conversion webhooks with server.URL, if it is set.
func redirect(object *unstructured.Unstructured, server WebhookServer) {
	if server.URL == "" {
		return
	}
	webhooks, _, _ := unstructured.NestedSlice(object.Object, "webhooks")
	for _, webhook := range webhooks {
		redirectClient(webhook, server)
	}
	if len(webhooks) > 0 {
		object.Object["webhooks"] = webhooks
	}
	conversion, found, _ := unstructured.NestedMap(object.Object, "spec", "conversion", "webhook")
	if found {
		redirectClient(conversion, server)
		_ = unstructured.SetNestedMap(object.Object, conversion, "spec", "conversion", "webhook")
	}
}

// redirectClient replaces the Service in a clientConfig and keeps its path.
func redirectClient(webhook any, server WebhookServer) {
	w, ok := webhook.(map[string]any)
	if !ok {
		return
	}
	service, found, _ := unstructured.NestedMap(w, "clientConfig", "service")
	if !found {
		return
	}
	path, _ := service["path"].(string)
	w["clientConfig"] = map[string]any{
		"url":      server.URL + path,
		"caBundle": base64.StdEncoding.EncodeToString(server.CA),
	}
}

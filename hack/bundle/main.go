// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bundle completes a bundle that operator-sdk has generated. It adds the icon, the related images, and
// descriptors for the fields of spec and status. It also sets createdAt to the time of the release, because
// operator-sdk sets the current time. It lists the owned APIs and their examples in the order of the base CSV in
// config/manifests/bases.
//
// make bundle runs it. It must run in the root folder of the repository.
package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"container.training/useless/internal/controller/virtualmachine"
)

const (
	csvFile  = "useless-operator.clusterserviceversion.yaml"
	baseFile = "config/manifests/bases/" + csvFile
	iconFile = "config/manifests/useless-machine.svg"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bundle FOLDER")
		os.Exit(2)
	}
	dir := filepath.Join(os.Args[1], "manifests")
	if err := errors.Join(complete(dir), tidy(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "error: complete the bundle:", err)
		os.Exit(1)
	}
}

func complete(dir string) error {
	var csv, base operatorsv1alpha1.ClusterServiceVersion
	var written unstructured.Unstructured // a typed object would add empty fields
	path := filepath.Join(dir, csvFile)
	if err := errors.Join(read(path, &csv), read(path, &written.Object), read(baseFile, &base)); err != nil {
		return err
	}
	owned := csv.Spec.CustomResourceDefinitions.Owned
	for i := range owned {
		if err := describe(dir, &owned[i]); err != nil {
			return err
		}
	}
	// operator-sdk lists the versions in the order of the CRDs. There, the deprecated version is first.
	slices.SortStableFunc(owned, inOrderOf(base.Spec.CustomResourceDefinitions.Owned))
	icon, err := os.ReadFile(iconFile)
	annotations := written.GetAnnotations()
	annotations["createdAt"] = base.Annotations["createdAt"]
	if err := errors.Join(err, sortExamples(annotations, owned)); err != nil {
		return err
	}
	images := csv.Spec.RelatedImages
	for _, deployment := range csv.Spec.InstallStrategy.StrategySpec.DeploymentSpecs {
		for _, container := range deployment.Spec.Template.Spec.Containers {
			images = append(images, operatorsv1alpha1.RelatedImage{Name: container.Name, Image: container.Image})
			annotations["containerImage"] = container.Image
		}
		// OLM creates this Service itself. operator-sdk needed the Service only to generate webhookdefinitions.
		if err := os.Remove(filepath.Join(dir, deployment.Name+"-service_v1_service.yaml")); err != nil {
			return err
		}
	}
	images = append(images, operatorsv1alpha1.RelatedImage{Name: virtualmachine.Name, Image: virtualmachine.DefaultImage})
	written.SetAnnotations(annotations)
	spec := written.Object["spec"].(map[string]any)
	spec["icon"] = []operatorsv1alpha1.Icon{{Data: base64.StdEncoding.EncodeToString(icon), MediaType: "image/svg+xml"}}
	spec["relatedImages"] = images
	spec["customresourcedefinitions"] = map[string]any{"owned": owned}
	return write(path, written.Object)
}

// sortExamples sorts the examples in the order of the owned APIs.
func sortExamples(annotations map[string]string, owned []operatorsv1alpha1.CRDDescription) error {
	const key = "alm-examples"
	var examples []unstructured.Unstructured
	if err := json.Unmarshal([]byte(annotations[key]), &examples); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	position := func(example unstructured.Unstructured) int {
		return slices.IndexFunc(owned, func(api operatorsv1alpha1.CRDDescription) bool {
			kind := example.GroupVersionKind()
			return api.Kind == kind.Kind && api.Version == kind.Version
		})
	}
	slices.SortStableFunc(examples, func(a, b unstructured.Unstructured) int { return position(a) - position(b) })
	sorted, err := json.MarshalIndent(examples, "", "  ")
	annotations[key] = string(sorted)
	return err
}

// inOrderOf returns a comparison that sorts APIs in the order of a list.
func inOrderOf(list []operatorsv1alpha1.CRDDescription) func(a, b operatorsv1alpha1.CRDDescription) int {
	position := func(api operatorsv1alpha1.CRDDescription) int {
		return slices.IndexFunc(list, func(other operatorsv1alpha1.CRDDescription) bool {
			return other.Name == api.Name && other.Version == api.Version
		})
	}
	return func(a, b operatorsv1alpha1.CRDDescription) int { return position(a) - position(b) }
}

// describe adds descriptors to api for the fields of its spec and status, except the fields of a condition.
func describe(dir string, api *operatorsv1alpha1.CRDDescription) error {
	var crd apiextensionsv1.CustomResourceDefinition
	plural, group, _ := strings.Cut(api.Name, ".")
	if err := read(filepath.Join(dir, group+"_"+plural+".yaml"), &crd); err != nil {
		return err
	}
	for _, version := range crd.Spec.Versions {
		if version.Name == api.Version {
			properties := version.Schema.OpenAPIV3Schema.Properties
			api.SpecDescriptors = specDescriptors(properties["spec"])
			api.StatusDescriptors = statusDescriptors(properties["status"])
			return nil
		}
	}
	return fmt.Errorf("%s has no version %s", api.Name, api.Version)
}

// tidy removes the empty creationTimestamp and status that operator-sdk writes.
func tidy(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		var object map[string]any
		if err := read(file, &object); err != nil {
			return err
		}
		unstructured.RemoveNestedField(object, "metadata", "creationTimestamp")
		unstructured.RemoveNestedField(object, "status")
		if err := write(file, object); err != nil {
			return err
		}
	}
	return nil
}

func read(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func write(path string, object any) error {
	data, err := yaml.Marshal(object)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o666)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle checks the OLM bundle without OLM.
package bundle

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/operator-framework/api/pkg/manifests"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	apiversion "k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/virtualmachine"
	"container.training/useless/test/internal/combinations"
)

// folder returns the bundle's folder.
func folder() string { return cmp.Or(os.Getenv("BUNDLE_DIR"), "../../bundle") }

func load(t *testing.T) *manifests.Bundle {
	t.Helper()
	bundle, err := manifests.GetBundleFromDir(folder())
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text(t, path)), into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// inspectable puts a fake docker into PATH, so that validators can inspect the operator's image before it is published.
func inspectable(t *testing.T) {
	t.Helper()
	platforms := regexp.MustCompile(`(?m)^PLATFORMS \?= (.*)$`).FindStringSubmatch(text(t, "../../Makefile"))
	if platforms == nil {
		t.Fatal("no PLATFORMS in the Makefile")
	}
	dir, err := filepath.Abs("inspect")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PLATFORMS", platforms[1])
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// TestValidators runs OLM's validators. operator-sdk contains an older release of these validators.
func TestValidators(t *testing.T) {
	inspectable(t)
	objects := load(t).ObjectsToValidate()
	for _, result := range validation.AllValidators.Validate(append(objects, map[string]string{"container-tools": "none"})...) {
		for _, problem := range slices.Concat(result.Errors, result.Warnings) {
			t.Errorf("%s: %v", result.Name, problem)
		}
	}
	for _, result := range validation.OperatorHubValidator.Validate(objects...) { //nolint:staticcheck // deprecated, but the pipelines of catalogs still use it
		for _, problem := range slices.Concat(result.Errors, result.Warnings) {
			if !strings.Contains(problem.Error(), "The \"operatorhub\" validator is deprecated") {
				t.Errorf("%s: %v", result.Name, problem)
			}
		}
	}
}

// TestOwnedVersions compares the versions in the CRDs with those in the ClusterServiceVersion. In the
// ClusterServiceVersion, the newest version of each kind must be first.
func TestOwnedVersions(t *testing.T) {
	bundle := load(t)
	var inCRDs, owned []string
	for _, crd := range bundle.V1CRDs {
		for _, version := range crd.Spec.Versions {
			inCRDs = append(inCRDs, crd.Name+"/"+version.Name+" "+crd.Spec.Names.Kind)
		}
	}
	newest := map[string]string{}
	for _, api := range bundle.CSV.Spec.CustomResourceDefinitions.Owned {
		owned = append(owned, api.Name+"/"+api.Version+" "+api.Kind)
		if first := newest[api.Name]; first == "" {
			newest[api.Name] = api.Version
		} else if apiversion.CompareKubeAwareVersionStrings(first, api.Version) < 0 {
			t.Errorf("%s: %s is listed before %s", api.Name, first, api.Version)
		}
		if api.DisplayName == "" || api.Description == "" || len(api.Resources) == 0 {
			t.Errorf("%s/%s lacks a display name, a description or resources", api.Name, api.Version)
		}
	}
	slices.Sort(inCRDs)
	slices.Sort(owned)
	if diff := gocmp.Diff(inCRDs, owned); diff != "" || len(owned) == 0 {
		t.Errorf("(-in the CRDs +owned)\n%s", diff)
	}
}

// schemas calls a function with the schema of every version of every kind.
func schemas(bundle *manifests.Bundle, each func(api operatorsv1alpha1.CRDDescription, schema *apiextensionsv1.JSONSchemaProps)) {
	for _, api := range bundle.CSV.Spec.CustomResourceDefinitions.Owned {
		for _, crd := range bundle.V1CRDs {
			for _, version := range crd.Spec.Versions {
				if crd.Name == api.Name && version.Name == api.Version {
					each(api, version.Schema.OpenAPIV3Schema)
				}
			}
		}
	}
}

// paths returns the paths of all fields in a schema.
func paths(schema *apiextensionsv1.JSONSchemaProps, prefix string) []string {
	if schema.Items != nil {
		return paths(schema.Items.Schema, prefix+"[0]")
	}
	var found []string
	for name, field := range schema.Properties {
		path := strings.TrimPrefix(prefix+"."+name, ".")
		found = append(found, path)
		found = append(found, paths(&field, path)...)
	}
	return found
}

// TestDescriptors checks that every field of a spec or status has a descriptor, and that every descriptor has a field.
func TestDescriptors(t *testing.T) {
	schemas(load(t), func(api operatorsv1alpha1.CRDDescription, schema *apiextensionsv1.JSONSchemaProps) {
		spec, status := schema.Properties["spec"], schema.Properties["status"]
		want := map[string][]string{"spec": paths(&spec, ""), "status": slices.DeleteFunc(paths(&status, ""), func(path string) bool {
			return strings.HasPrefix(path, "conditions[") // every condition has these fields
		})}
		got := map[string][]string{}
		for _, d := range api.SpecDescriptors {
			got["spec"] = append(got["spec"], d.Path)
			if d.DisplayName == "" || d.Description == "" {
				t.Errorf("%s/%s: spec.%s lacks a display name or a description", api.Kind, api.Version, d.Path)
			}
		}
		for _, d := range api.StatusDescriptors {
			got["status"] = append(got["status"], d.Path)
			if d.DisplayName == "" || d.Description == "" {
				t.Errorf("%s/%s: status.%s lacks a display name or a description", api.Kind, api.Version, d.Path)
			}
		}
		for _, of := range []map[string][]string{want, got} {
			slices.Sort(of["spec"])
			slices.Sort(of["status"])
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s/%s (-fields +descriptors):\n%s", api.Kind, api.Version, diff)
		}
	})
}

// TestExamples checks that each owned version of a kind has one example. The examples must have the order of the owned
// versions, so an example of v1beta1 is first. Users edit the examples, so each example must have only a few fields.
// TestOnAPIServer creates all examples.
func TestExamples(t *testing.T) {
	bundle := load(t)
	var examples []unstructured.Unstructured
	if err := json.Unmarshal([]byte(bundle.CSV.Annotations["alm-examples"]), &examples); err != nil {
		t.Fatal(err)
	}
	var owned, got []string
	for _, api := range bundle.CSV.Spec.CustomResourceDefinitions.Owned {
		_, group, _ := strings.Cut(api.Name, ".")
		owned = append(owned, group+"/"+api.Version+" "+api.Kind)
	}
	for _, example := range examples {
		got = append(got, example.GetAPIVersion()+" "+example.GetKind())
		if n, most := leaves(example.Object["spec"]), 5; n == 0 || n > most {
			t.Errorf("the spec of %s has %d fields, want 1 to %d", example.GetName(), n, most)
		}
	}
	if diff := gocmp.Diff(owned, got); diff != "" {
		t.Errorf("(-owned +examples)\n%s", diff)
	}
}

// leaves returns the number of fields that are not objects.
func leaves(value any) (n int) {
	fields, ok := value.(map[string]any)
	if !ok {
		return 1
	}
	for _, field := range fields {
		n += leaves(field)
	}
	return n
}

// TestConversion compares the conversion in the bundle's CRDs with the conversion that OLM will write.
func TestConversion(t *testing.T) {
	bundle := load(t)
	converted := map[string]operatorsv1alpha1.WebhookDescription{}
	for _, webhook := range bundle.CSV.Spec.WebhookDefinitions {
		for _, crd := range webhook.ConversionCRDs {
			converted[crd] = webhook
		}
	}
	if want := []string{"machines.useless.container.training"}; !slices.Equal(slices.Sorted(maps.Keys(converted)), want) {
		t.Errorf("webhook conversion of %v, want %v", converted, want)
	}
	for _, crd := range bundle.V1CRDs {
		webhook, converts := converted[crd.Name]
		if !converts {
			if crd.Spec.Conversion != nil {
				t.Errorf("%s: got conversion %+v, want none", crd.Name, crd.Spec.Conversion)
			}
			continue
		}
		want := &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig: &apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{
					Namespace: bundle.CSV.Annotations["operatorframework.io/suggested-namespace"],
					Name:      webhook.DeploymentName + "-service",
					Path:      webhook.WebhookPath,
				}}, // the default port is 443; OLM adds the CA bundle
				ConversionReviewVersions: webhook.AdmissionReviewVersions,
			},
		}
		if diff := gocmp.Diff(want, crd.Spec.Conversion); diff != "" {
			t.Errorf("%s (-written by OLM +in the bundle):\n%s", crd.Name, diff)
		}
	}
}

// deployment returns the bundle's only Deployment.
func deployment(t *testing.T, bundle *manifests.Bundle) operatorsv1alpha1.StrategyDeploymentSpec {
	t.Helper()
	deployments := bundle.CSV.Spec.InstallStrategy.StrategySpec.DeploymentSpecs
	if len(deployments) != 1 || len(deployments[0].Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("got %+v, want one Deployment with one container", deployments)
	}
	return deployments[0]
}

// TestWebhooks compares the webhooks with the operator's Deployment and with OLM's requirements.
func TestWebhooks(t *testing.T) {
	bundle := load(t)
	deployment := deployment(t, bundle)
	ports := deployment.Spec.Template.Spec.Containers[0].Ports
	port := ports[slices.IndexFunc(ports, func(port corev1.ContainerPort) bool { return port.Name == "webhook" })].ContainerPort
	names := sets.New[string]()
	for _, webhook := range bundle.CSV.Spec.WebhookDefinitions {
		if names.Has(webhook.GenerateName) {
			t.Errorf("two webhooks are named %s", webhook.GenerateName)
		}
		names.Insert(webhook.GenerateName)
		if webhook.DeploymentName != deployment.Name || webhook.ContainerPort != 443 || webhook.TargetPort.IntVal != port {
			t.Errorf("%s is at %s, port %d, target port %s; want %s, 443, %d", webhook.GenerateName,
				webhook.DeploymentName, webhook.ContainerPort, webhook.TargetPort, deployment.Name, port)
		}
	}
	if len(names) != 3 {
		t.Errorf("got %v, want a webhook for conversion, one for Machines and one for their scale", names)
	}
	for _, mode := range bundle.CSV.Spec.InstallModes {
		if want := mode.Type == operatorsv1alpha1.InstallModeTypeAllNamespaces; mode.Supported != want {
			t.Errorf("install mode %s: supported is %v", mode.Type, mode.Supported)
		}
	}
}

// TestKinds checks that the bundle contains only the expected kinds. OLM creates objects of some other kinds itself.
// OLM and the pipeline of the community catalog reject some kinds.
func TestKinds(t *testing.T) {
	got := map[string]int{}
	for _, object := range load(t).Objects {
		got[object.GetKind()]++
		if namespace := object.GetNamespace(); namespace != "" {
			t.Errorf("%s %s has the namespace %s, want none: OLM sets it", object.GetKind(), object.GetName(), namespace)
		}
	}
	want := map[string]int{
		"ClusterServiceVersion": 1, "CustomResourceDefinition": 3,
		"ClusterRole":         5, // for users, and for optional controllers
		"Service":             1, // for metrics; OLM creates the Service of the webhooks
		"PodDisruptionBudget": 1,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestDeployment compares the Deployment with the Deployment of an installation without OLM. Only the certificates, the
// image, its platforms, and the flags that select controllers may differ. With OLM, users select controllers with
// environment variables.
func TestDeployment(t *testing.T) {
	got := deployment(t, load(t)).Spec
	want := installed[appsv1.Deployment](t, "Deployment")[0].Spec
	pod := &want.Template.Spec
	container := &pod.Containers[0]
	container.Args = slices.DeleteFunc(container.Args, func(arg string) bool {
		return arg == "--self-managed-certs" || slices.Contains(combinations.Default.Args(), arg)
	})
	container.VolumeMounts, pod.Volumes = nil, nil
	pod.Affinity = got.Template.Spec.Affinity
	container.Image = got.Template.Spec.Containers[0].Image // checked by TestImages
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-without OLM +in the bundle)\n%s", diff)
	}
	if *got.Replicas != 2 || got.Strategy.RollingUpdate.MaxUnavailable.String() != "0" {
		t.Errorf("%d replicas with maxUnavailable %s: conversions would fail during a rollout", *got.Replicas, got.Strategy.RollingUpdate.MaxUnavailable)
	}
}

// TestImages checks all references to images in the bundle.
func TestImages(t *testing.T) {
	bundle := load(t)
	image := deployment(t, bundle).Spec.Template.Spec.Containers[0].Image
	if got := bundle.CSV.Annotations["containerImage"]; got != image {
		t.Errorf("containerImage is %s, want %s", got, image)
	}
	want := []operatorsv1alpha1.RelatedImage{
		{Name: "manager", Image: image},
		{Name: "virtualmachine", Image: virtualmachine.DefaultImage}, // clusters without internet access must mirror it
	}
	if diff := gocmp.Diff(want, bundle.CSV.Spec.RelatedImages); diff != "" {
		t.Errorf("related images (-want +got):\n%s", diff)
	}
	var scorecard, sdk []string
	for _, match := range regexp.MustCompile(`scorecard-test:(\S+)`).FindAllStringSubmatch(text(t, filepath.Join(folder(), "tests/scorecard/config.yaml")), -1) {
		scorecard = append(scorecard, match[1])
	}
	for range scorecard {
		sdk = append(sdk, regexp.MustCompile(`operator-framework/operator-sdk (v\S+)`).FindStringSubmatch(text(t, "../../hack/tools/operator-sdk.mod"))[1])
	}
	if diff := gocmp.Diff(sdk, scorecard); diff != "" || len(scorecard) == 0 {
		t.Errorf("versions of the scorecard's tests (-operator-sdk.mod +config.yaml):\n%s", diff)
	}
}

// TestSize checks that the bundle stays well below the size limits of the objects that store it.
func TestSize(t *testing.T) {
	bundle := load(t)
	if limit := int64(1 << 20 * 85 / 100); bundle.CompressedSize == 0 || bundle.CompressedSize > limit {
		t.Errorf("the compressed bundle has %d bytes, want at most %d: OLM unpacks it to a ConfigMap", bundle.CompressedSize, limit)
	}
	size := 0
	for key, value := range bundle.CSV.Annotations {
		size += len(key) + len(value)
	}
	if limit := 256 << 10 / 4; size > limit {
		t.Errorf("the annotations have %d bytes, want at most %d: OLM copies them to the Pods", size, limit)
	}
}

// TestNoPlaceholders searches for placeholders that generators leave.
func TestNoPlaceholders(t *testing.T) {
	placeholder := regexp.MustCompile(`(?i)todo|fixme|change ?me|xxx|placeholder|example\.com|your[ .-]|:latest|controller:|v0\.0\.0|Cg==|: unknown|-unknown`)
	err := fs.WalkDir(os.DirFS(folder()), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		for i, line := range strings.Split(text(t, filepath.Join(folder(), path)), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "description: type of condition in CamelCase") {
				continue // a description from Kubernetes with an example
			}
			if found := placeholder.FindString(line); found != "" && !strings.Contains(line, "base64data") {
				t.Errorf("%s:%d: %q in %s", path, i+1, found, strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMetadata compares the labels of the bundle image with annotations.yaml. Some tools read the labels, and others
// read the file.
func TestMetadata(t *testing.T) {
	var file struct{ Annotations map[string]string }
	read(t, filepath.Join(folder(), "metadata", "annotations.yaml"), &file)
	labels := map[string]string{}
	dockerfile := text(t, "../../bundle.Dockerfile")
	for _, match := range regexp.MustCompile(`(?m)^LABEL ([^=]+)=(.*)$`).FindAllStringSubmatch(dockerfile, -1) {
		labels[match[1]] = match[2]
	}
	if diff := gocmp.Diff(file.Annotations, labels); diff != "" || len(labels) == 0 {
		t.Errorf("(-annotations.yaml +bundle.Dockerfile)\n%s", diff)
	}
	for _, label := range []string{"bundle.manifests.v1", "bundle.metadata.v1", "test.config.v1"} {
		path := strings.Trim(labels["operators.operatorframework.io."+label], "/")
		if copied := fmt.Sprintf("\nCOPY bundle/%s /%[1]s/\n", path); path == "" || !strings.Contains(dockerfile, copied) {
			t.Errorf("bundle.Dockerfile does not copy to %q, which is the path in the label %s", path, label)
		}
	}
}

// TestDescription checks that the first sentence of the description and the text on the tile name the use case. The
// description must also list the permissions of each controller, and how to stop it.
func TestDescription(t *testing.T) {
	csv := load(t).CSV
	first, _, _ := strings.Cut(csv.Spec.Description, ".")
	for place, text := range map[string]string{"first sentence of the description": first, "tile": csv.Annotations["description"]} {
		if !regexp.MustCompile(`sleep|[Ss]chedule`).MatchString(text) {
			t.Errorf("the %s is about neither sleep nor schedules: %s", place, text)
		}
	}
	for _, name := range controller.Names() {
		if !regexp.MustCompile(`(?m)^\| ` + name + ` \| .+ \| .+ \|$`).MatchString(csv.Spec.Description) {
			t.Errorf("the description has no row with the permissions of the controller %s", name)
		}
	}
}

// TestPresentation checks the icon, the description and the suggested namespace that a catalog shows.
func TestPresentation(t *testing.T) {
	csv := load(t).CSV
	if len(csv.Spec.Icon) != 1 {
		t.Fatalf("got %d icons, want 1", len(csv.Spec.Icon))
	}
	icon, err := base64.StdEncoding.DecodeString(csv.Spec.Icon[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(text(t, "../../config/manifests/useless-machine.svg"), string(icon)); diff != "" {
		t.Errorf("icon (-file +bundle):\n%s", diff)
	}
	var svg struct {
		XMLName xml.Name `xml:"http://www.w3.org/2000/svg svg"`
		ViewBox string   `xml:"viewBox,attr"`
	}
	if err := xml.Unmarshal(icon, &svg); err != nil || svg.ViewBox != "0 0 128 128" {
		t.Errorf("the icon is not a square SVG: view box %q, %v", svg.ViewBox, err)
	}
	if _, err := time.Parse(time.RFC3339, csv.Annotations["createdAt"]); err != nil {
		t.Error(err)
	}
	if line := csv.Annotations["description"]; len(line) < 10 || len(line) > 135 || strings.Contains(line, "\n") {
		t.Errorf("the description on the tile has %d bytes, want one line of 10 to 135 bytes", len(line))
	}
	if namespace := csv.Annotations["operatorframework.io/suggested-namespace"]; namespace != "useless-system" ||
		!strings.Contains(csv.Annotations["operatorframework.io/suggested-namespace-template"], `"name":"`+namespace+`"`) {
		t.Errorf("the suggested namespace %s differs from the one in the namespace template", namespace)
	}
}

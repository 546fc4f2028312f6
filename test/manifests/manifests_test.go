// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests checks the installation manifests without installing them.
package manifests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/operator-framework/api/pkg/validation"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	sigsyaml "sigs.k8s.io/yaml"

	"container.training/useless/internal/certificates"
	"container.training/useless/internal/migration"
	"container.training/useless/test/internal/combinations"
	"container.training/useless/test/internal/installer"
)

const (
	repository   = "../.."
	installation = repository + "/dist/install.yaml"
)

// objects returns the objects of a kind in dist/install.yaml.
func objects[T any](t *testing.T, kind string) []T {
	t.Helper()
	raw, err := os.ReadFile(installation)
	if err != nil {
		t.Fatal(err)
	}
	found := decode[T](t, raw, kind)
	if len(found) == 0 {
		t.Fatalf("no %s in %s", kind, installation)
	}
	return found
}

// decode returns the objects of a kind in manifests.
func decode[T any](t *testing.T, raw []byte, kind string) []T {
	t.Helper()
	var found []T
	for _, object := range all(t, raw) {
		if object.GetKind() != kind {
			continue
		}
		var typed T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &typed, true); err != nil {
			t.Fatalf("%s %s: %v", kind, object.GetName(), err)
		}
		found = append(found, typed)
	}
	return found
}

// all returns every object in manifests.
var all = installer.Objects

// TestCRDs runs OLM's validator on the CRDs, because the bundle contains them.
func TestCRDs(t *testing.T) {
	crds := objects[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition")
	for _, crd := range crds {
		for _, result := range validation.CustomResourceDefinitionValidator.Validate(&crd) {
			for _, problem := range append(result.Errors, result.Warnings...) {
				t.Errorf("%s: %v", crd.Name, problem)
			}
		}
		if crd.Spec.Conversion != nil && crd.Spec.Conversion.Webhook != nil && crd.Spec.Conversion.Webhook.ClientConfig.CABundle != nil {
			t.Errorf("%s has a caBundle, want none: the certificate source writes it", crd.Name)
		}
	}
}

// TestProject compares the versions of the kinds in PROJECT with those in the CRDs. The storage version of a kind with
// a conversion webhook must list all other versions as spokes.
func TestProject(t *testing.T) {
	raw, err := os.ReadFile(repository + "/PROJECT")
	if err != nil {
		t.Fatal(err)
	}
	var project struct {
		Resources []struct {
			Group, Domain, Kind, Path, Version string
			Webhooks                           struct{ Spoke []string }
		}
	}
	if err := sigsyaml.Unmarshal(raw, &project); err != nil {
		t.Fatal(err)
	}
	got, want := sets.New[string](), sets.New[string]()
	for _, r := range project.Resources {
		got.Insert(fmt.Sprint(r.Kind, ".", r.Version, ".", r.Group, ".", r.Domain, " in ", r.Path, ", spokes ", r.Webhooks.Spoke))
	}
	for _, crd := range objects[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition") {
		group, _, _ := strings.Cut(crd.Spec.Group, ".")
		for i, version := range crd.Spec.Versions {
			var spokes []string
			if version.Storage && crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter {
				for _, other := range slices.Delete(slices.Clone(crd.Spec.Versions), i, i+1) {
					spokes = append(spokes, other.Name)
				}
			}
			want.Insert(fmt.Sprint(crd.Spec.Names.Kind, ".", version.Name, ".", crd.Spec.Group,
				" in container.training/useless/api/", group, "/", version.Name, ", spokes ", spokes))
		}
	}
	if diff := cmp.Diff(sets.List(want), sets.List(got)); diff != "" {
		t.Errorf("PROJECT (-CRDs +PROJECT):\n%s", diff)
	}
}

// TestFieldsAreDocumented compares the fields in the storage version of each kind with the tables in docs. A row for a
// field also documents the fields below it.
func TestFieldsAreDocumented(t *testing.T) {
	headings := map[string][2]string{
		"Machine": {"reference.md", "\n## Machine\n"}, "Switch": {"reference.md", "\n## Switch\n"},
		"VirtualMachine": {"virtualmachine.md", "\n## Fields\n"},
	}
	for _, crd := range objects[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition") {
		kind := crd.Spec.Names.Kind
		raw, err := os.ReadFile(filepath.Join(repository, "docs", headings[kind][0]))
		if err != nil {
			t.Fatal(err)
		}
		_, section, found := strings.Cut(string(raw), headings[kind][1])
		if !found {
			t.Fatalf("%s: no heading %q", kind, headings[kind][1])
		}
		section, _, _ = strings.Cut(section, "\n## ")
		documented := documentedFields(section)
		fields := sets.New[string]()
		for _, version := range crd.Spec.Versions {
			for _, name := range []string{"spec", "status"} {
				if field := version.Schema.OpenAPIV3Schema.Properties[name]; version.Storage {
					addFields(fields, name, field, documented)
				}
			}
		}
		if diff := cmp.Diff(sets.List(fields), sets.List(documented)); diff != "" {
			t.Errorf("fields of %s (-CRD +docs/%s):\n%s", kind, headings[kind][0], diff)
		}
	}
}

// documentedFields returns the fields in the first column of a table. A field that begins with a dot replaces the last
// part of the previous field.
func documentedFields(section string) sets.Set[string] {
	fields := sets.New[string]()
	for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z]+\\..*?) \\|").FindAllStringSubmatch(section, -1) {
		previous := ""
		for _, match := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(row[1], -1) {
			field := match[1]
			if last, ok := strings.CutPrefix(field, "."); ok {
				field = previous[:strings.LastIndex(previous, ".")+1] + last
			}
			previous = field
			if !strings.HasPrefix(field, "metadata.") {
				fields.Insert(field)
			}
		}
	}
	return fields
}

// addFields adds the path of a field if the path is documented, or if the field has no fields below it. Otherwise, it
// adds the fields below it.
func addFields(fields sets.Set[string], path string, field apiextensionsv1.JSONSchemaProps, documented sets.Set[string]) {
	if documented.Has(path) || len(field.Properties) == 0 {
		fields.Insert(path)
		return
	}
	for name, below := range field.Properties {
		addFields(fields, path+"."+name, below, documented)
	}
}

// TestOnlyMachinesUseConversionWebhook checks that only Machines have a conversion webhook. Switches must not need one,
// because they are written often.
func TestOnlyMachinesUseConversionWebhook(t *testing.T) {
	for _, crd := range objects[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition") {
		converts := crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
		if want := crd.Spec.Names.Kind == "Machine"; converts != want {
			t.Errorf("%s: conversion by webhook is %v", crd.Name, converts)
		}
	}
}

// TestCertificateNames checks that internal/certificates and config/ use the same names.
func TestCertificateNames(t *testing.T) {
	secrets := objects[corev1.Secret](t, "Secret")
	if len(secrets) != 1 || secrets[0].Name != certificates.SecretName {
		t.Errorf("want exactly one Secret, %s", certificates.SecretName)
	}
	var services []string
	for _, service := range objects[corev1.Service](t, "Service") {
		services = append(services, service.Name)
	}
	if !slices.Contains(services, certificates.ServiceName) {
		t.Errorf("no Service %s among %v", certificates.ServiceName, services)
	}
	for _, configuration := range objects[admissionregistrationv1.ValidatingWebhookConfiguration](t, "ValidatingWebhookConfiguration") {
		if configuration.Name != certificates.ValidatingWebhook {
			t.Errorf("ValidatingWebhookConfiguration %s is unknown", configuration.Name)
		}
		for _, webhook := range configuration.Webhooks {
			if got := webhook.ClientConfig.Service.Name; got != certificates.ServiceName {
				t.Errorf("webhook %s is served by %s", webhook.Name, got)
			}
		}
	}
	for _, crd := range objects[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition") {
		if crd.Spec.Names.Kind == "Machine" && crd.Name != certificates.MachineCRD {
			t.Errorf("CustomResourceDefinition %s is unknown", crd.Name)
		}
	}
}

// TestServiceMonitors checks that Prometheus verifies the certificate of the webhooks, which the metrics endpoint uses.
func TestServiceMonitors(t *testing.T) {
	type tlsConfig struct {
		CA struct {
			Secret corev1.SecretKeySelector `json:"secret"`
		} `json:"ca"`
		ServerName string `json:"serverName"`
	}
	type serviceMonitor struct {
		Spec struct {
			Endpoints []struct {
				TLSConfig tlsConfig `json:"tlsConfig"`
			} `json:"endpoints"`
		} `json:"spec"`
	}
	olm := objects[appsv1.Deployment](t, "Deployment")[0].Name + "-service" // OLM's name of the Service
	for _, c := range []struct{ folder, secret, key, service string }{
		{"prometheus", certificates.SecretName, "ca.crt", certificates.ServiceName},
		{"olm/prometheus", olm + "-cert", "olmCAKey", olm},
	} {
		found := false
		for _, object := range all(t, kustomize(t, "resources: [useless-operator/config/"+c.folder+"]\n")) {
			if object.GetKind() != "ServiceMonitor" {
				continue
			}
			found = true
			var monitor serviceMonitor
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &monitor); err != nil {
				t.Fatal(err)
			}
			want := tlsConfig{ServerName: c.service + "." + object.GetNamespace() + ".svc"}
			want.CA.Secret.Name, want.CA.Secret.Key = c.secret, c.key
			if diff := cmp.Diff(want, monitor.Spec.Endpoints[0].TLSConfig); diff != "" || object.GetNamespace() == "" {
				t.Errorf("config/%s: TLS configuration (-want +got):\n%s", c.folder, diff)
			}
		}
		if !found {
			t.Errorf("config/%s has no ServiceMonitor", c.folder)
		}
	}
}

// TestPermissionsAreNamed checks that no role has a wildcard.
func TestPermissionsAreNamed(t *testing.T) {
	raw := kustomize(t, combinations.Everything.Kustomization(combinations.SelfManaged))
	for _, role := range append(decode[rbacv1.ClusterRole](t, raw, "ClusterRole"), decode[rbacv1.ClusterRole](t, raw, "Role")...) {
		for _, rule := range role.Rules {
			for _, word := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs) {
				if strings.Contains(word, "*") {
					t.Errorf("%s grants %v", role.Name, rule)
				}
			}
		}
	}
}

// TestMigrationKnowsEveryResource checks that internal/migration, the CRDs and the operator's ClusterRole agree.
func TestMigrationKnowsEveryResource(t *testing.T) {
	converted := map[string]bool{}
	for _, crd := range objects[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition") {
		converted[crd.Name] = crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
	}
	migrated := map[string]bool{}
	for _, resource := range migration.Resources {
		migrated[resource.CRD] = resource.Converted
	}
	if diff := cmp.Diff(converted, migrated); diff != "" {
		t.Errorf("CRDs and whether they have a conversion webhook (-installed +migrated):\n%s", diff)
	}
	for resource, verb := range map[string]string{"customresourcedefinitions": "get", "customresourcedefinitions/status": "update"} {
		var granted []rbacv1.PolicyRule
		for _, role := range objects[rbacv1.ClusterRole](t, "ClusterRole") {
			if role.Name == "useless-manager-role" {
				granted = append(granted, slices.DeleteFunc(role.Rules, func(rule rbacv1.PolicyRule) bool { return !slices.Contains(rule.Resources, resource) })...)
			}
		}
		want := []rbacv1.PolicyRule{{
			APIGroups: []string{apiextensionsv1.GroupName}, Resources: []string{resource}, Verbs: []string{verb},
			ResourceNames: slices.Sorted(maps.Keys(converted)),
		}}
		if diff := cmp.Diff(want, granted); diff != "" {
			t.Errorf("permissions on %s (-want +granted):\n%s", resource, diff)
		}
	}
}

// TestFlowSchemaIsForTheOperator checks the names in the FlowSchema, because kustomize does not replace them. It also
// checks that the FlowSchema covers all of the operator's permissions on its Leases.
func TestFlowSchemaIsForTheOperator(t *testing.T) {
	schemas, deployment := objects[flowcontrolv1.FlowSchema](t, "FlowSchema"), objects[appsv1.Deployment](t, "Deployment")[0]
	if len(schemas) != 1 || schemas[0].Namespace != "" {
		t.Fatalf("want one FlowSchema, without namespace; got %+v", schemas)
	}
	want := []flowcontrolv1.PolicyRulesWithSubjects{{
		Subjects: []flowcontrolv1.Subject{{
			Kind: flowcontrolv1.SubjectKindServiceAccount,
			ServiceAccount: &flowcontrolv1.ServiceAccountSubject{
				Namespace: deployment.Namespace, Name: deployment.Spec.Template.Spec.ServiceAccountName,
			},
		}},
		ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
			Verbs: leaseVerbs(t), APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Namespaces: []string{deployment.Namespace},
		}},
	}}
	if diff := cmp.Diff(want, schemas[0].Spec.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// leaseVerbs returns the verbs of the operator's permissions on its Leases.
func leaseVerbs(t *testing.T) []string {
	t.Helper()
	var verbs []string
	for _, role := range objects[rbacv1.Role](t, "Role") {
		for _, rule := range role.Rules {
			if slices.Contains(rule.Resources, "leases") {
				verbs = append(verbs, rule.Verbs...)
			}
		}
	}
	slices.Sort(verbs)
	return slices.Compact(verbs)
}

// TestMemoryLimit checks that GOMEMLIMIT is at least 40 MiB below the container's memory limit. Then Go's garbage
// collector frees memory before the kernel kills the container. The 40 MiB are for memory that Go does not count, such
// as the program's code.
func TestMemoryLimit(t *testing.T) {
	container := objects[appsv1.Deployment](t, "Deployment")[0].Spec.Template.Spec.Containers[0]
	i := slices.IndexFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
	if i < 0 {
		t.Fatal("the container has no GOMEMLIMIT")
	}
	heap, err := resource.ParseQuantity(strings.TrimSuffix(container.Env[i].Value, "B"))
	if err != nil {
		t.Fatal(err)
	}
	if limit := container.Resources.Limits.Memory(); heap.Value()+40<<20 > limit.Value() {
		t.Errorf("GOMEMLIMIT is %s, and the memory limit is %s", container.Env[i].Value, limit)
	}
}

// TestPodIsRestricted checks the security contexts that the Pod Security profile "restricted" requires. It also checks
// that the user is fixed, that the root file system is read-only, and that the image has a version.
func TestPodIsRestricted(t *testing.T) {
	for _, deployment := range objects[appsv1.Deployment](t, "Deployment") {
		pod := deployment.Spec.Template.Spec
		if !ptr.Deref(pod.SecurityContext.RunAsNonRoot, false) || ptr.Deref(pod.SecurityContext.RunAsUser, 0) != 65532 ||
			pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("Pod security context is %+v", pod.SecurityContext)
		}
		for _, container := range pod.Containers {
			security := container.SecurityContext
			if !*security.ReadOnlyRootFilesystem || *security.AllowPrivilegeEscalation || !slices.Contains(security.Capabilities.Drop, "ALL") {
				t.Errorf("security context of %s is %+v", container.Name, security)
			}
			if strings.HasSuffix(container.Image, ":latest") || !strings.Contains(filepath.Base(container.Image), ":") {
				t.Errorf("image %s of container %s has no version", container.Image, container.Name)
			}
		}
	}
}

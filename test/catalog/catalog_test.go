// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package catalog checks the operator's catalog for OLM, and the files for the catalogs of other projects. It does not
// start a catalog server.
package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/operator-framework/api/pkg/manifests"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"container.training/useless/test/internal/executable"
)

const (
	root      = "../.."
	candidate = "candidate"
	stable    = "stable"
)

// bare is an entry of catalog/template.yaml.
type bare struct {
	Schema         string                 `json:"schema"`
	Package        string                 `json:"package"`
	Name           string                 `json:"name"`
	DefaultChannel string                 `json:"defaultChannel"`
	Description    string                 `json:"description"`
	Icon           operatorsv1alpha1.Icon `json:"icon"`
	Entries        []upgrade              `json:"entries"`
	Image          string                 `json:"image"`
}

// entry has the checked fields of a package, a channel or a bundle.
type entry struct {
	bare
	Properties []property `json:"properties"`
}

type upgrade struct {
	Name string `json:"name"`
	edge
}

// follows returns the names of the bundles that this bundle can replace in an upgrade.
func (u upgrade) follows() []string {
	if u.Replaces == "" {
		return u.Skips
	}
	return append([]string{u.Replaces}, u.Skips...)
}

type edge struct {
	Replaces  string   `json:"replaces,omitempty"`
	Skips     []string `json:"skips,omitempty"`
	SkipRange string   `json:"skipRange,omitempty"`
}

type property struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
}

type catalog []entry

func (c catalog) of(schema string) catalog {
	return slices.DeleteFunc(slices.Clone(c), func(entry entry) bool { return entry.Schema != schema })
}

func (c catalog) named(t *testing.T, schema, name string) entry {
	t.Helper()
	for _, entry := range c.of(schema) {
		if entry.Name == name {
			return entry
		}
	}
	t.Fatalf("the catalog has no %s %s", schema, name)
	return entry{}
}

// find returns the upgrade entry of a bundle in a channel.
func (e entry) find(name string) (upgrade, bool) {
	i := slices.IndexFunc(e.Entries, func(entry upgrade) bool { return entry.Name == name })
	if i < 0 {
		return upgrade{}, false
	}
	return e.Entries[i], true
}

func rendered(t *testing.T) catalog {
	t.Helper()
	file, err := os.Open(filepath.Join(root, "catalog", bundle(t).Package, "catalog.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var entries catalog
	for decoder := utilyaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		var next entry
		if err := decoder.Decode(&next); errors.Is(err, io.EOF) {
			return entries
		} else if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, next)
	}
}

func bundle(t *testing.T) *manifests.Bundle {
	t.Helper()
	bundle, err := manifests.GetBundleFromDir(filepath.Join(root, "bundle"))
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func runMake(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, "Makefile")); err != nil { // so that go test runs the test again after a change of the Makefile
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory", "-C", root}, args...)...)
	// Variables in the environment, such as VERSION or MAKEFLAGS, would override the Makefile's variables.
	command.Env = []string{"PATH=" + os.Getenv("PATH")}
	output, err := executable.Output(command)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func TestTemplate(t *testing.T) {
	var template struct {
		Schema  string `json:"schema"`
		Entries []bare `json:"entries"`
	}
	read(t, filepath.Join(root, "catalog", "template.yaml"), &template)
	var got []bare
	for _, entry := range rendered(t) {
		if entry.Schema == "olm.bundle" { // in the template, a bundle has only an image
			entry.Name, entry.Package = "", ""
		}
		got = append(got, bare{
			entry.Schema, entry.Package, entry.Name, entry.DefaultChannel, entry.Description, entry.Icon, entry.Entries, entry.Image,
		})
	}
	if diff := cmp.Diff(template.Entries, got, cmp.AllowUnexported(upgrade{})); diff != "" {
		t.Errorf("the catalog differs from the template; run make catalog (-template +catalog):\n%s", diff)
	}
}

func TestChannels(t *testing.T) {
	catalog := rendered(t)
	for _, channel := range catalog.of("olm.channel") {
		followed := map[string]bool{}
		for _, entry := range channel.Entries {
			for _, former := range entry.follows() {
				if _, ok := channel.find(former); !ok {
					t.Errorf("channel %s: %s upgrades %s, which is not in the channel", channel.Name, entry.Name, former)
				}
				followed[former] = true
			}
		}
		if heads := len(channel.Entries) - len(followed); heads != 1 {
			t.Errorf("channel %s has %d heads, want 1", channel.Name, heads)
		}
	}
	inCandidate := catalog.named(t, "olm.channel", candidate)
	for _, channel := range catalog.of("olm.channel") {
		for _, entry := range channel.Entries {
			if _, ok := inCandidate.find(entry.Name); !ok {
				t.Errorf("%s is in channel %s, but not in channel candidate", entry.Name, channel.Name)
			}
		}
	}
}

// TestChannelsMatchBundles checks that every bundle is in a channel, and that channels contain only existing bundles.
func TestChannelsMatchBundles(t *testing.T) {
	catalog := rendered(t)
	bundles, inChannels := map[string]bool{}, map[string]bool{}
	for _, entry := range catalog.of("olm.bundle") {
		bundles[entry.Name] = true
	}
	for _, channel := range catalog.of("olm.channel") {
		for _, entry := range channel.Entries {
			inChannels[entry.Name] = true
		}
	}
	if diff := cmp.Diff(bundles, inChannels); diff != "" {
		t.Errorf("-bundles +in channels:\n%s", diff)
	}
}

func TestDefaultChannel(t *testing.T) {
	bundle := bundle(t)
	pkg := rendered(t).named(t, "olm.package", bundle.Package)
	want := candidate
	if slices.ContainsFunc(rendered(t).of("olm.channel"), func(e entry) bool { return e.Name == stable }) {
		want = stable
	}
	if pkg.DefaultChannel != want || bundle.DefaultChannel != want {
		t.Errorf("the default channel is %s in the catalog and %s in the bundle, want %s", pkg.DefaultChannel, bundle.DefaultChannel, want)
	}
}

func TestBundle(t *testing.T) {
	catalog, bundle := rendered(t), bundle(t)
	entry := catalog.named(t, "olm.bundle", bundle.CSV.Name)
	push := strings.Fields(runMake(t, "-n", "bundle-push"))
	if pushed := push[len(push)-1]; entry.Image != pushed {
		t.Errorf("the catalog has the image %s, but make bundle-push pushes %s", entry.Image, pushed)
	}
	pkg := catalog.named(t, "olm.package", bundle.Package)
	if pkg.Description != bundle.CSV.Spec.Description {
		t.Error("the descriptions of the package and the bundle differ; run make catalog")
	}
	if diff := cmp.Diff(bundle.CSV.Spec.Icon, []operatorsv1alpha1.Icon{pkg.Icon}); diff != "" {
		t.Errorf("the icons differ; run make catalog (-bundle +package):\n%s", diff)
	}
	var metadata struct {
		DisplayName               string                                      `json:"displayName"`
		Description               string                                      `json:"description"`
		Annotations               map[string]string                           `json:"annotations"`
		CustomResourceDefinitions operatorsv1alpha1.CustomResourceDefinitions `json:"crdDescriptions"`
	}
	for _, property := range entry.Properties {
		switch property.Type {
		case "olm.bundle.object":
			t.Fatal("the catalog contains complete manifests: they are slow to serve, and other catalogs reject them")
		case "olm.csv.metadata":
			if err := json.Unmarshal(property.Value, &metadata); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := metadata
	want.DisplayName, want.Description = bundle.CSV.Spec.DisplayName, bundle.CSV.Spec.Description
	want.Annotations, want.CustomResourceDefinitions = bundle.CSV.Annotations, bundle.CSV.Spec.CustomResourceDefinitions
	if diff := cmp.Diff(want, metadata); diff != "" {
		t.Errorf("the catalog differs from the bundle; run make catalog (-bundle +catalog):\n%s", diff)
	}
}

// TestImageTagBase sets another registry. The manifests must contain the image that make pushes.
func TestImageTagBase(t *testing.T) {
	const image = "registry.example.com/mine:v9"
	commands := runMake(t, "-n", "overlay", "VERSION=9", "IMAGE_TAG_BASE=registry.example.com/mine")
	if want := "set image container.training/useless-operator=" + image; !strings.Contains(commands, want) {
		t.Errorf("make overlay does not %s:\n%s", want, commands)
	}
	if commands := runMake(t, "-n", "docker-push", "VERSION=9", "IMAGE_TAG_BASE=registry.example.com/mine"); !strings.Contains(commands, "push  "+image) {
		t.Errorf("make docker-push does not push %s:\n%s", image, commands)
	}
}

// continuousIntegration has all fields of ci.yaml. releaseConfig has all fields of release-config.yaml.
type (
	continuousIntegration struct {
		Reviewers   []string `json:"reviewers"`
		UpdateGraph string   `json:"updateGraph"`
		FBC         struct {
			Enabled        bool      `json:"enabled"`
			CatalogMapping []mapping `json:"catalog_mapping"`
		} `json:"fbc"`
	}
	mapping struct {
		TemplateName string   `json:"template_name"`
		CatalogNames []string `json:"catalog_names"`
		Type         string   `json:"type"`
	}
	releaseConfig struct {
		CatalogTemplates []release `json:"catalog_templates"`
	}
	release struct {
		TemplateName string   `json:"template_name"`
		Channels     []string `json:"channels"`
		edge
	}
)

// TestCommunityKeepsReviewers checks that a later release does not overwrite a changed ci.yaml.
func TestCommunityKeepsReviewers(t *testing.T) {
	out := t.TempDir()
	file := filepath.Join(out, "operators", bundle(t).Package, "ci.yaml")
	const edited = "reviewers: [a-reviewer]\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte(edited), 0o600)); err != nil {
		t.Fatal(err)
	}
	runMake(t, "community", "OUT="+out)
	if got, err := os.ReadFile(file); err != nil || string(got) != edited {
		t.Errorf("ci.yaml was %q and is %q, %v", edited, got, err)
	}
}

// TestCommunity assembles the files for community-operators, and repeats the checks of its pipeline.
func TestCommunity(t *testing.T) {
	bundle, out := bundle(t), t.TempDir()
	runMake(t, "community", "OUT="+out)
	operator := filepath.Join(out, "operators", bundle.Package)
	version := filepath.Join(operator, bundle.CSV.Spec.Version.String())
	var ci continuousIntegration
	var config releaseConfig
	read(t, filepath.Join(operator, "ci.yaml"), &ci)
	read(t, filepath.Join(version, "release-config.yaml"), &config)

	t.Run("reviewers and update graph", func(t *testing.T) {
		if len(ci.Reviewers) == 0 || slices.Contains(ci.Reviewers, "") {
			t.Errorf("ci.yaml has the reviewers %q", ci.Reviewers)
		}
		if ci.UpdateGraph != "replaces-mode" {
			t.Errorf("ci.yaml has the updateGraph %q, but in the catalog each version replaces the previous one", ci.UpdateGraph)
		}
		want := []mapping{{"basic.yaml", []string{"latest"}, "olm.template.basic"}} // the only catalog
		if diff := cmp.Diff(want, ci.FBC.CatalogMapping); diff != "" {
			t.Errorf("the templates in ci.yaml (-want +got):\n%s", diff)
		}
	})
	t.Run("catalog files", func(t *testing.T) { // the test opens the files too, because go test's cache does not notice files that only make opens
		got := map[string]string{
			"ci.yaml":             files(t, operator)["ci.yaml"],
			"release-config.yaml": files(t, version)["release-config.yaml"],
		}
		if diff := cmp.Diff(files(t, filepath.Join(root, "catalog", "community")), got); diff != "" {
			t.Errorf("the files differ (-catalog +community):\n%s", diff)
		}
	})
	t.Run("release config", func(t *testing.T) { checkReleaseConfig(t, ci, config) })
	for _, folder := range []string{"manifests", "metadata", "tests"} {
		t.Run(folder, func(t *testing.T) {
			if diff := cmp.Diff(files(t, filepath.Join(root, "bundle", folder)), files(t, filepath.Join(version, folder))); diff != "" {
				t.Errorf("the files differ (-bundle +community):\n%s", diff)
			}
		})
	}
}

// checkReleaseConfig compares the channels and upgrades in release-config.yaml with those in the catalog.
func checkReleaseConfig(t *testing.T, ci continuousIntegration, config releaseConfig) {
	t.Helper()
	bundle := bundle(t)
	got, want := map[string]edge{}, map[string]edge{}
	for _, release := range config.CatalogTemplates {
		if !slices.ContainsFunc(ci.FBC.CatalogMapping, func(m mapping) bool { return m.TemplateName == release.TemplateName }) {
			t.Errorf("release-config.yaml has the template %s, which is not in ci.yaml", release.TemplateName)
		}
		for _, channel := range release.Channels {
			got[channel] = release.edge
		}
	}
	for _, channel := range rendered(t).of("olm.channel") {
		if entry, ok := channel.find(bundle.CSV.Name); ok {
			want[channel.Name] = entry.edge
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("channels and upgrades differ (-catalog +release-config):\n%s", diff)
	}
	first := config.CatalogTemplates[0].Channels[0]
	if _, ok := want[stable]; ok && first != stable {
		t.Errorf("the first channel in release-config.yaml is %s, and the pipeline makes the first channel the default", first)
	}
	// Without a template, the pipeline uses only the bundle. So the bundle must replace the same version as in the
	// catalog.
	if replaces := want[first].Replaces; bundle.CSV.Spec.Replaces != replaces {
		t.Errorf("the bundle replaces %q, but in the catalog it replaces %q; fix spec.replaces in config/manifests", bundle.CSV.Spec.Replaces, replaces)
	}
}

func files(t *testing.T, folder string) map[string]string {
	t.Helper()
	content := map[string]string{}
	if err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(folder, path)
		content[name] = string(bytes.TrimSpace(data))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return content
}

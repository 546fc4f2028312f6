// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blang/semver/v4"
	"github.com/google/go-cmp/cmp"
	"github.com/operator-framework/api/pkg/lib/version"
	"github.com/operator-framework/api/pkg/manifests"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
)

// newBundle returns a bundle with a version and channels. Its image is in the registry.
func newBundle(number, registry string, channels ...string) bundle {
	name := "machine.v" + number
	csv := &operatorsv1alpha1.ClusterServiceVersion{}
	csv.Name = name
	csv.Spec.Version = version.OperatorVersion{Version: semver.MustParse(number)}
	csv.Spec.Icon = []operatorsv1alpha1.Icon{{Data: "AAAA", MediaType: "image/svg+xml"}}
	return bundle{
		&manifests.Bundle{Package: "machine", Channels: channels, DefaultChannel: "stable", CSV: csv},
		blob{"schema": schemaBundle, "name": name, "image": registry + "/bundle:v" + number},
	}
}

func skipping(b bundle, versions string) bundle {
	b.CSV.Annotations = map[string]string{skipRangeAnnotation: versions}
	return b
}

// graph describes a template in a short form: a line for each channel, and then the images. A line begins with the name
// of the channel. 0.2.0<0.1.0 means that 0.2.0 replaces 0.1.0. A skip range follows in parentheses.
func (t *template) graph() []string {
	var graph []string
	for _, channel := range t.channels() {
		words := []string{channel.Name + ":"}
		for _, node := range channel.Entries {
			word := strings.TrimPrefix(node.Name, "machine.v")
			if node.Replaces != "" {
				word += "<" + strings.TrimPrefix(node.Replaces, "machine.v")
			}
			if node.SkipRange != "" {
				word += "<(" + node.SkipRange + ")"
			}
			words = append(words, word)
		}
		graph = append(graph, strings.Join(words, " "))
	}
	for _, entry := range t.Entries {
		if entry.Schema == schemaBundle {
			graph = append(graph, entry.Image)
		}
	}
	return graph
}

func TestAdd(t *testing.T) {
	both := []string{"candidate", "stable"}
	tests := map[string]struct {
		bundles []bundle
		want    []string
		refused string
	}{
		"the first release replaces nothing": {
			bundles: []bundle{newBundle("0.1.0", "r", both...)},
			want:    []string{"candidate: 0.1.0", "stable: 0.1.0", "r/bundle:v0.1.0"},
		},
		"the next release replaces the heads": {
			bundles: []bundle{newBundle("0.1.0", "r", both...), newBundle("0.1.1", "r", both...),
				newBundle("0.2.0", "r", both...)},
			want: []string{
				"candidate: 0.1.0 0.1.1<0.1.0 0.2.0<0.1.1", "stable: 0.1.0 0.1.1<0.1.0 0.2.0<0.1.1",
				"r/bundle:v0.1.0", "r/bundle:v0.1.1", "r/bundle:v0.2.0",
			},
		},
		"each channel has its own head": {
			bundles: []bundle{newBundle("0.1.0", "r", both...), newBundle("0.2.0", "r", "candidate"),
				newBundle("0.3.0", "r", both...)},
			want: []string{
				"candidate: 0.1.0 0.2.0<0.1.0 0.3.0<0.2.0", "stable: 0.1.0 0.3.0<0.1.0",
				"r/bundle:v0.1.0", "r/bundle:v0.2.0", "r/bundle:v0.3.0",
			},
		},
		"adding a bundle again changes nothing": {
			bundles: []bundle{newBundle("0.1.0", "r", both...),
				newBundle("0.2.0", "r", both...), newBundle("0.2.0", "r", both...)},
			want: []string{
				"candidate: 0.1.0 0.2.0<0.1.0", "stable: 0.1.0 0.2.0<0.1.0",
				"r/bundle:v0.1.0", "r/bundle:v0.2.0",
			},
		},
		"adding a bundle again does not add it to more channels": {
			bundles: []bundle{newBundle("0.1.0", "r", both...), newBundle("0.2.0", "r", "candidate"),
				newBundle("0.2.0", "r", both...)},
			want: []string{"candidate: 0.1.0 0.2.0<0.1.0", "stable: 0.1.0", "r/bundle:v0.1.0", "r/bundle:v0.2.0"},
		},
		"a new image replaces the old image of the same bundle": {
			bundles: []bundle{newBundle("0.1.0", "r", both...), newBundle("0.1.0", "elsewhere", both...)},
			want:    []string{"candidate: 0.1.0", "stable: 0.1.0", "elsewhere/bundle:v0.1.0"},
		},
		"the skip range comes from the bundle": {
			bundles: []bundle{newBundle("0.1.0", "r", "stable"), skipping(newBundle("0.2.0", "r", "stable"), ">=0.1.0 <0.2.0")},
			want:    []string{"stable: 0.1.0 0.2.0<0.1.0<(>=0.1.0 <0.2.0)", "r/bundle:v0.1.0", "r/bundle:v0.2.0"},
		},
		"an older version is refused": {
			bundles: []bundle{newBundle("0.10.0", "r", "stable"), newBundle("0.9.0", "r", "stable")},
			refused: "machine.v0.9.0 is not newer than machine.v0.10.0, the head of channel stable",
		},
	}
	for reason, test := range tests {
		t.Run(reason, func(t *testing.T) {
			template := newTemplate(test.bundles[0])
			var earlier []blob
			var err error
			for _, b := range test.bundles {
				if err = template.add(b, earlier); err == nil {
					earlier, err = template.render(b, earlier)
				}
			}
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Fatalf("error %v, want %q", err, test.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, template.graph()); diff != "" {
				t.Errorf("the template (-want +got):\n%s", diff)
			}
			if len(earlier) != len(template.Entries) {
				t.Errorf("%d of %d entries were rendered", len(earlier), len(template.Entries))
			}
		})
	}
}

// TestDescribe checks that the package's description and icon come from the newest bundle.
func TestDescribe(t *testing.T) {
	template := newTemplate(newBundle("0.1.0", "r", "stable"))
	var earlier []blob
	for _, version := range []string{"0.1.0", "0.2.0"} {
		b := newBundle(version, "r", "stable")
		b.CSV.Spec.Description, b.CSV.Spec.Icon[0].Data = "Machines "+version, "v"+strings.ReplaceAll(version, ".", "A")+"=="
		err := template.add(b, earlier)
		if err == nil {
			earlier, err = template.render(b, earlier)
		}
		if err != nil {
			t.Fatal(err)
		}
		description, icon := b.CSV.Spec.Description, &b.CSV.Spec.Icon[0]
		want := entry{Schema: schemaPackage, Name: "machine", DefaultChannel: "stable", Description: description, Icon: icon}
		if diff := cmp.Diff(want, template.Entries[0]); diff != "" {
			t.Errorf("the template after %s (-want +got):\n%s", version, diff)
		}
		wantBlob := blob{"schema": schemaPackage, "name": "machine", "defaultChannel": "stable",
			"description": description, "icon": icon}
		if diff := cmp.Diff(wantBlob, earlier[0]); diff != "" {
			t.Errorf("the catalog after %s (-want +got):\n%s", version, diff)
		}
	}
	newest := template.Entries[0]
	older := newBundle("0.1.0", "elsewhere", "stable")
	older.CSV.Spec.Description = "Machines 0.1.0, built again"
	if err := template.add(older, earlier); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(newest, template.Entries[0]); diff != "" {
		t.Errorf("an older bundle changes the package (-want +got):\n%s", diff)
	}
	for reason, icons := range map[string][]operatorsv1alpha1.Icon{
		"no icon":                    nil,
		"an icon that is not base64": {{Data: "<svg/>"}},
	} {
		b := newBundle("0.3.0", "r", "stable")
		b.CSV.Spec.Icon = icons
		if err := template.add(b, earlier); err == nil || !strings.Contains(err.Error(), "icon") {
			t.Errorf("error %v for %s, want an error about the icon", err, reason)
		}
	}
}

func TestChannelWithTwoHeads(t *testing.T) {
	template := newTemplate(newBundle("0.1.0", "r", "stable"))
	channel := template.channel("machine", "stable")
	channel.Entries = []node{{Name: "machine.v0.1.0"}, {Name: "machine.v0.2.0"}}
	if err := template.add(newBundle("0.3.0", "r", "stable"), nil); err == nil || !strings.Contains(err.Error(), "2 heads") {
		t.Errorf("error %v, want an error about 2 heads", err)
	}
	channel.Entries[1].Skips = []string{"machine.v0.1.0"}
	if err := template.add(newBundle("0.3.0", "r", "stable"), nil); err != nil {
		t.Errorf("a skipped bundle counts as a head: %v", err)
	}
}

func TestRenderRefuses(t *testing.T) {
	latest := newBundle("0.2.0", "r", "stable")
	tests := map[string]struct {
		entry entry
		want  string
	}{
		"a bundle that was never rendered": {entry{Schema: schemaBundle, Image: "r/bundle:v0.0.1"}, "r/bundle:v0.0.1"},
		"an entry with an unknown schema":  {entry{Schema: "olm.deprecations"}, "olm.deprecations"},
	}
	for reason, test := range tests {
		t.Run(reason, func(t *testing.T) {
			template := newTemplate(latest)
			template.Entries = append(template.Entries, test.entry)
			if _, err := template.render(latest, nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want an error that contains %s", err, test.want)
			}
		})
	}
}

func TestReleaseConfig(t *testing.T) {
	template := newTemplate(newBundle("0.1.0", "r"))
	for _, b := range []bundle{
		newBundle("0.1.0", "r", "candidate", "fast", "stable"), newBundle("0.2.0", "r", "candidate"),
		newBundle("0.3.0", "r", "candidate", "fast", "stable"),
	} {
		if err := template.add(b, nil); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		version string
		want    []release
	}{
		"the default channel comes first": {"0.1.0",
			[]release{{communityTemplate, []string{"stable", "candidate", "fast"}, edge{}}}},
		"only the channels of the bundle are listed": {
			"0.2.0", []release{{communityTemplate, []string{"candidate"}, edge{Replaces: "machine.v0.1.0"}}},
		},
		"channels with different edges have separate entries": {"0.3.0", []release{
			{communityTemplate, []string{"stable", "fast"}, edge{Replaces: "machine.v0.1.0"}},
			{communityTemplate, []string{"candidate"}, edge{Replaces: "machine.v0.2.0"}},
		}},
	}
	for reason, test := range tests {
		t.Run(reason, func(t *testing.T) {
			got := template.releaseConfig(newBundle(test.version, "r")).CatalogTemplates
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(release{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestRun adds this tree's bundle to a new catalog, and then adds it again. The second run must change nothing.
func TestRun(t *testing.T) {
	const folder = "../../bundle"
	bundle, err := manifests.GetBundleFromDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	catalog := t.TempDir()
	rendered := fmt.Sprintf(`{"schema": "olm.bundle", "name": %q, "package": %q, "image": "r/bundle:v1"}`,
		bundle.CSV.Name, bundle.Package)
	read := func() map[string]string {
		files := map[string]string{}
		for _, name := range []string{"template.yaml", bundle.Package + "/catalog.yaml", "community/release-config.yaml"} {
			content, err := os.ReadFile(filepath.Join(catalog, name))
			if err != nil {
				t.Fatal(err)
			}
			files[name] = string(content)
		}
		return files
	}
	if err := run(catalog, folder, strings.NewReader(rendered)); err != nil {
		t.Fatal(err)
	}
	first := read()
	if err := run(catalog, folder, strings.NewReader(rendered)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, read()); diff != "" {
		t.Errorf("the second run changes the catalog (-first +second):\n%s", diff)
	}
	for reason, input := range map[string]string{
		"another bundle": strings.Replace(rendered, bundle.CSV.Name, "other.v1.0.0", 1),
		"no bundle":      "",
		"no image":       strings.Replace(rendered, "r/bundle:v1", "", 1),
	} {
		if err := run(catalog, folder, strings.NewReader(input)); err == nil {
			t.Errorf("no error when opm has rendered %s", reason)
		}
	}
	if err := os.WriteFile(filepath.Join(catalog, "template.yaml"), []byte("schema: olm.template.basic\nentires: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(catalog, folder, strings.NewReader(rendered)); err == nil || !strings.Contains(err.Error(), "entires") {
		t.Errorf("error %v, want an error about the unknown field entires", err)
	}
}

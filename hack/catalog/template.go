// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
)

const (
	schemaTemplate = "olm.template.basic"
	schemaPackage  = "olm.package"
	schemaChannel  = "olm.channel"
	schemaBundle   = "olm.bundle"

	skipRangeAnnotation = "olm.skipRange"

	// communityTemplate is the file name of the operator's catalog template in the repository community-operators.
	communityTemplate = "basic.yaml"
)

// template is a basic template of opm: a catalog that lists bundles by image.
type template struct {
	Schema  string  `json:"schema"`
	Entries []entry `json:"entries"`
}

// entry is a package, a channel or a bundle. It has the fields of all three.
type entry struct {
	Schema         string                  `json:"schema"`
	Package        string                  `json:"package,omitempty"`
	Name           string                  `json:"name,omitempty"`
	DefaultChannel string                  `json:"defaultChannel,omitempty"`
	Description    string                  `json:"description,omitempty"`
	Icon           *operatorsv1alpha1.Icon `json:"icon,omitempty"`
	Image          string                  `json:"image,omitempty"`
	Entries        []node                  `json:"entries,omitempty"`
}

// node is a bundle in a channel.
type node struct {
	Name string `json:"name"`
	edge
}

// edge lists the bundles that a bundle can replace in an upgrade.
type edge struct {
	Replaces  string   `json:"replaces,omitempty"`
	Skips     []string `json:"skips,omitempty"`
	SkipRange string   `json:"skipRange,omitempty"`
}

func newTemplate(b bundle) *template {
	return &template{Schema: schemaTemplate, Entries: []entry{
		{Schema: schemaPackage, Name: b.Package, DefaultChannel: b.DefaultChannel},
	}}
}

func (t *template) channels() []*entry {
	var channels []*entry
	for i := range t.Entries {
		if t.Entries[i].Schema == schemaChannel {
			channels = append(channels, &t.Entries[i])
		}
	}
	return channels
}

func (t *template) defaultChannel() string {
	for _, entry := range t.Entries {
		if entry.Schema == schemaPackage {
			return entry.DefaultChannel
		}
	}
	return ""
}

// describe copies the bundle's description and icon to the package. Consoles show the package's description and icon
// for all versions.
func (t *template) describe(b bundle) error {
	if len(b.CSV.Spec.Icon) != 1 {
		return fmt.Errorf("%s has %d icons, want 1", b.CSV.Name, len(b.CSV.Spec.Icon))
	}
	icon := b.CSV.Spec.Icon[0]
	if _, err := base64.StdEncoding.DecodeString(icon.Data); err != nil {
		return fmt.Errorf("the icon of %s: %w", b.CSV.Name, err)
	}
	for i := range t.Entries {
		if t.Entries[i].Schema == schemaPackage {
			t.Entries[i].Description, t.Entries[i].Icon = b.CSV.Spec.Description, &icon
		}
	}
	return nil
}

// isNewest reports whether no channel has a bundle of a later version.
func (t *template) isNewest(b bundle) (bool, error) {
	for _, channel := range t.channels() {
		for _, node := range channel.Entries {
			version, err := channel.versionOf(node.Name, b.Package)
			if err != nil {
				return false, err
			}
			if b.CSV.Spec.Version.LT(version) {
				return false, nil
			}
		}
	}
	return true, nil
}

// versionOf returns the version that is part of a bundle's name, such as PACKAGE.v0.1.0.
func (e *entry) versionOf(name, pkg string) (semver.Version, error) {
	version, err := semver.Parse(strings.TrimPrefix(name, pkg+".v"))
	if err != nil {
		return version, fmt.Errorf("the version of %s in channel %s: %w", name, e.Name, err)
	}
	return version, nil
}

// add makes a bundle the head of its channels. If a channel already contains the bundle, no channel changes. If no
// channel has a later version, the package gets the bundle's description and icon.
func (t *template) add(b bundle, earlier []blob) error {
	isNewest, err := t.isNewest(b)
	if err != nil {
		return err
	}
	if isNewest {
		if err := t.describe(b); err != nil {
			return err
		}
	}
	t.addImage(b, earlier)
	if slices.ContainsFunc(t.channels(), func(channel *entry) bool { return channel.has(b.CSV.Name) }) {
		return nil
	}
	for _, name := range b.Channels {
		if err := t.channel(b.Package, name).add(b); err != nil {
			return err
		}
	}
	return nil
}

// addImage adds the bundle's image. If the template has an older image of the same bundle, addImage replaces the older
// image.
func (t *template) addImage(b bundle, earlier []blob) {
	image := b.blob.text("image")
	for _, former := range earlier {
		if former.text("schema") == schemaBundle && former.text("name") == b.CSV.Name {
			for i := range t.Entries {
				if t.Entries[i].Image == former.text("image") {
					t.Entries[i].Image = image
				}
			}
		}
	}
	if !slices.ContainsFunc(t.Entries, func(entry entry) bool { return entry.Image == image }) {
		t.Entries = append(t.Entries, entry{Schema: schemaBundle, Image: image})
	}
}

// channel returns the channel with this name. If the channel does not exist, the method inserts a new channel before
// the bundles.
func (t *template) channel(pkg, name string) *entry {
	for _, channel := range t.channels() {
		if channel.Name == name {
			return channel
		}
	}
	end := slices.IndexFunc(t.Entries, func(entry entry) bool { return entry.Schema == schemaBundle })
	if end < 0 {
		end = len(t.Entries)
	}
	t.Entries = slices.Insert(t.Entries, end, entry{Schema: schemaChannel, Package: pkg, Name: name})
	return &t.Entries[end]
}

func (e *entry) has(bundle string) bool {
	return slices.ContainsFunc(e.Entries, func(node node) bool { return node.Name == bundle })
}

// add makes the bundle the head of this channel.
func (e *entry) add(b bundle) error {
	added := node{b.CSV.Name, edge{SkipRange: b.CSV.Annotations[skipRangeAnnotation]}}
	if len(e.Entries) > 0 {
		heads := e.heads()
		if len(heads) != 1 {
			return fmt.Errorf("channel %s has %d heads, %q: a new bundle can replace only one", e.Name, len(heads), heads)
		}
		version, err := e.versionOf(heads[0], b.Package)
		if err != nil {
			return err
		}
		if b.CSV.Spec.Version.LE(version) {
			return fmt.Errorf("%s is not newer than %s, the head of channel %s: add it to the template by hand",
				b.CSV.Name, heads[0], e.Name)
		}
		added.Replaces = heads[0]
	}
	e.Entries = append(e.Entries, added)
	return nil
}

// heads returns the bundles of a channel that no other bundle replaces or skips.
func (e *entry) heads() []string {
	var heads []string
	for _, one := range e.Entries {
		followed := slices.ContainsFunc(e.Entries, func(next node) bool {
			return next.Replaces == one.Name || slices.Contains(next.Skips, one.Name)
		})
		if !followed {
			heads = append(heads, one.Name)
		}
	}
	return heads
}

// render returns the catalog: the entries of the template, with a complete bundle instead of each image. It fails if an
// image is unknown.
func (t *template) render(b bundle, earlier []blob) ([]blob, error) {
	known := map[string]blob{}
	for _, former := range append(earlier, b.blob) {
		if former.text("schema") == schemaBundle {
			known[former.text("image")] = former
		}
	}
	var blobs []blob
	for _, entry := range t.Entries {
		switch entry.Schema {
		case schemaPackage:
			blobs = append(blobs, blob{
				"schema": entry.Schema, "name": entry.Name, "defaultChannel": entry.DefaultChannel,
				"description": entry.Description, "icon": entry.Icon,
			})
		case schemaChannel:
			blobs = append(blobs, blob{"schema": entry.Schema, "package": entry.Package,
				"name": entry.Name, "entries": entry.Entries})
		case schemaBundle:
			bundle, ok := known[entry.Image]
			if !ok {
				return nil, fmt.Errorf("%s is neither the new bundle nor in the rendered catalog", entry.Image)
			}
			blobs = append(blobs, bundle)
		default:
			return nil, fmt.Errorf("an entry has the schema %q, want a package, a channel or a bundle", entry.Schema)
		}
	}
	return blobs, nil
}

// releaseConfig is the content of the file release-config.yaml. It lists the channels of one bundle for the pipeline of
// community-operators.
type releaseConfig struct {
	CatalogTemplates []release `json:"catalog_templates"`
}

type release struct {
	TemplateName string   `json:"template_name"`
	Channels     []string `json:"channels"`
	edge
}

// releaseConfig returns the channels of a bundle. The default channel is first, because the pipeline makes the first
// channel the default.
func (t *template) releaseConfig(b bundle) releaseConfig {
	var config releaseConfig
	for _, first := range []bool{true, false} {
		for _, channel := range t.channels() {
			for _, node := range channel.Entries {
				if node.Name == b.CSV.Name && (channel.Name == t.defaultChannel()) == first {
					config.add(channel.Name, node.edge)
				}
			}
		}
	}
	return config
}

func (c *releaseConfig) add(channel string, edge edge) {
	for i := range c.CatalogTemplates {
		if former := &c.CatalogTemplates[i]; former.equal(edge) {
			former.Channels = append(former.Channels, channel)
			return
		}
	}
	c.CatalogTemplates = append(c.CatalogTemplates, release{communityTemplate, []string{channel}, edge})
}

func (e edge) equal(other edge) bool {
	return e.Replaces == other.Replaces && e.SkipRange == other.SkipRange && slices.Equal(e.Skips, other.Skips)
}

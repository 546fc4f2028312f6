// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const checksumFile = "SHA256SUMS"

// chart packages the Helm chart with helm. helm stores the time of the build in the archive, so this step writes the
// archive again.
func (r *release) chart(ctx context.Context) error {
	folder, err := os.MkdirTemp(r.programs, "chart-")
	if err != nil {
		return err
	}
	settings := []string{"HELM_CACHE_HOME=" + folder, "HELM_CONFIG_HOME=" + folder, "HELM_DATA_HOME=" + folder}
	err = r.run(ctx, nil, settings, "hack/tool", "helm", "package", "charts/useless-operator", "--destination", folder)
	if err != nil {
		return err
	}
	name := "useless-operator-" + r.version + ".tgz"
	unpacked := filepath.Join(folder, "unpacked")
	if err := unpackTarGz(filepath.Join(folder, name), unpacked); err != nil {
		return err
	}
	return r.archive(name, unpacked, "")
}

// archive writes all files of a folder to a compressed archive in r.out. to is their folder in the archive; empty means
// the root.
func (r *release) archive(name, folder, to string) error {
	entries, err := entriesOf(folder, to)
	if err != nil {
		return err
	}
	return create(filepath.Join(r.out, name), func(out io.Writer) error { return writeTarGz(out, r.created, entries) })
}

// manifests copies the generated files of the tree. make verify checks that they are up to date.
func (r *release) manifests(context.Context) error {
	for from, to := range map[string]string{
		"dist/install.yaml":                     "install.yaml",
		"catalog/useless-operator/catalog.yaml": "catalog.yaml",
	} {
		write := func(out io.Writer) error { return copyFile(out, filepath.Join(r.root, from)) }
		if err := create(filepath.Join(r.out, to), write); err != nil {
			return err
		}
	}
	return r.archive("useless-operator-bundle-v"+r.version+".tar.gz", filepath.Join(r.root, "bundle"), "bundle")
}

// plugin packages the kubectl plugin for each platform, and writes its manifest for krew, the plugin manager of
// kubectl.
func (r *release) plugin(context.Context) error {
	var platforms []any
	for _, platform := range r.pluginPlatforms {
		system, architecture, _ := strings.Cut(platform, "-")
		bin, name, write := plugin.name, plugin.name+"-"+platform+".tar.gz", writeTarGz
		if system == "windows" {
			bin, name, write = bin+".exe", plugin.name+"-"+platform+".zip", writeZip
		}
		entries := []entry{
			{name: bin, source: r.file(plugin, platform), program: true},
			{name: "LICENSE", source: filepath.Join(r.root, "LICENSE")},
		}
		archive := filepath.Join(r.out, name)
		if err := create(archive, func(out io.Writer) error { return write(out, r.created, entries) }); err != nil {
			return err
		}
		sum, err := checksum(archive)
		if err != nil {
			return err
		}
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"os": system, "arch": architecture}},
			"uri":      r.url + "/" + name, "sha256": sum, "bin": bin,
		})
	}
	return r.krew(platforms)
}

func (r *release) krew(platforms []any) error {
	template, err := os.ReadFile(filepath.Join(r.root, "cmd/kubectl-useless/krew.yaml"))
	if err != nil {
		return err
	}
	var manifest struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       map[string]any `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(template, &manifest); err != nil {
		return fmt.Errorf("krew.yaml: %w", err)
	}
	manifest.Spec["version"], manifest.Spec["platforms"] = "v"+r.version, platforms
	data, err := yaml.Marshal(manifest)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "useless.yaml"), data, 0o644)
}

// sboms writes three SBOMs: for the operator, for the kubectl plugin, and for the programs in the catalog's image. An
// SBOM lists the Go modules of the programs.
func (r *release) sboms(ctx context.Context) error {
	for name, part := range map[string]struct {
		platforms []string
		programs  []program
	}{
		"useless-operator":         {r.platforms, []program{manager}},
		"useless-operator-catalog": {r.platforms, []program{opm, probe}},
		plugin.name:                {r.pluginPlatforms, []program{plugin}},
	} {
		args := []string{"run", "./hack/sbom", "-name", name, "-version", "v" + r.version}
		for _, p := range part.programs {
			for _, platform := range part.platforms {
				args = append(args, r.file(p, platform))
			}
		}
		err := create(filepath.Join(r.out, name+".cdx.json"), func(out io.Writer) error {
			return r.run(ctx, out, nil, "go", args...)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// notes writes the changes of the version, from CHANGELOG.md.
func (r *release) notes(context.Context) error {
	_, text, err := r.section()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "notes.md"), []byte(text), 0o644)
}

// checksums writes the checksums of all files in the format of sha256sum.
func (r *release) checksums(context.Context) error {
	files, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, file := range files {
		sum, err := checksum(filepath.Join(r.out, file.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, file.Name())
	}
	return os.WriteFile(filepath.Join(r.out, checksumFile), list.Bytes(), 0o644)
}

func checksum(file string) (string, error) {
	sum := sha256.New()
	err := copyFile(sum, file)
	return fmt.Sprintf("%x", sum.Sum(nil)), err
}

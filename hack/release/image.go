// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// repository is the name of the operator's image in the manifests, without its tag.
const repository = "container.training/useless-operator"

// Annotations with the name of an image in an OCI layout. containerd reads the first one, other tools the second one.
const (
	containerdName = "io.containerd.image.name"
	refName        = "org.opencontainers.image.ref.name"
)

// images writes the three images, each with all platforms, as archives of OCI layouts.
func (r *release) images(context.Context) error {
	for _, image := range []struct{ suffix, dockerfile string }{
		{"", "Dockerfile"}, {"-bundle", "bundle.Dockerfile"}, {"-catalog", "catalog.Dockerfile"},
	} {
		s, err := parseDockerfile(r.root, image.dockerfile, r.version)
		if err != nil {
			return err
		}
		name := repository + image.suffix + ":v" + r.version
		if err := r.timed("make the image "+name, func() error { return r.writeImage(s, name) }); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) writeImage(s *stage, name string) error {
	var index v1.ImageIndex = empty.Index
	for _, platform := range r.platforms {
		image, err := r.image(s, platform)
		if err != nil {
			return err
		}
		system, architecture, _ := strings.Cut(platform, "/")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: system, Architecture: architecture},
		}})
	}
	folder, err := os.MkdirTemp(r.programs, "image-")
	if err != nil {
		return err
	}
	written, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	names := map[string]string{containerdName: name, refName: name}
	if err := written.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	entries, err := entriesOf(folder, "")
	if err != nil {
		return err
	}
	file := strings.ReplaceAll(path.Base(name), ":", "-") + ".oci.tar"
	return create(filepath.Join(r.out, file), func(out io.Writer) error { return writeTar(out, r.created, entries) })
}

// image makes the image of one platform. All its files are in one layer.
func (r *release) image(s *stage, platform string) (v1.Image, error) {
	config, entries, err := r.onBase(s, platform)
	if err != nil {
		return nil, err
	}
	layer, err := r.layer(entries)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, _ = strings.Cut(platform, "/")
	file.Created.Time, file.Config = r.created, config
	return mutate.ConfigFile(image, file)
}

// onBase returns the image's configuration and all its files. It adds the settings and the files of the base image, and
// the files of other stages. This project builds the programs of the base image opm from source, because a registry may
// not be reachable. opm stores its cache in /tmp, so the image contains this folder.
func (r *release) onBase(s *stage, platform string) (v1.Config, []entry, error) {
	config, entries := s.config, slices.Clone(s.entries)
	for _, file := range s.built {
		if file.source != "/"+manager.name {
			return config, nil, fmt.Errorf("hack/release does not make the file %s", file.source)
		}
		file.source = r.file(manager, platform)
		entries = append(entries, file)
	}
	switch {
	case s.base == "scratch":
	case strings.Contains(s.base, "/opm:"):
		config.User, config.Env = "1001", []string{"PATH=/bin"}
		entries = append(entries, entry{name: "tmp"})
		for _, p := range []program{opm, probe} {
			entries = append(entries, entry{"bin/" + p.name, r.file(p, platform), true})
		}
	default:
		return config, nil, fmt.Errorf("hack/release does not make the base image %s", s.base)
	}
	return config, entries, nil
}

func (r *release) layer(entries []entry) (v1.Layer, error) {
	var content bytes.Buffer
	if err := writeTar(&content, r.created, entries); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.DefaultCompression),
		tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
}

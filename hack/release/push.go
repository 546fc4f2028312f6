// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push pushes the images of a release to a registry, such as registry.example.com/useless. It uses the credentials of
// docker login. It prints the reference of each image with its digest.
func push(ctx context.Context, folder, registry string, out io.Writer) error {
	archives, err := filepath.Glob(filepath.Join(folder, "*.oci.tar"))
	if err != nil {
		return err
	}
	if len(archives) == 0 {
		return fmt.Errorf("no images in %s; make release makes them", folder)
	}
	for _, archive := range archives {
		reference, err := pushArchive(ctx, archive, registry)
		if err != nil {
			return fmt.Errorf("push %s: %w", archive, err)
		}
		fmt.Fprintln(out, reference)
	}
	return nil
}

// pushArchive pushes the multi-platform image in an OCI archive. It returns the reference with the digest.
func pushArchive(ctx context.Context, archive, registry string) (name.Reference, error) {
	work, err := os.MkdirTemp("", "release-push-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := read(archive, func(file io.Reader) error { return unpackTar(file, work) }); err != nil {
		return nil, err
	}
	layouts, err := layout.ImageIndexFromPath(work)
	if err != nil {
		return nil, err
	}
	manifest, err := layouts.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("it contains %d images, not one", len(manifest.Manifests))
	}
	return pushIndex(ctx, layouts, manifest.Manifests[0], registry)
}

// pushIndex pushes an image to registry. The image keeps the name and the tag of its annotation refName.
func pushIndex(ctx context.Context, layouts v1.ImageIndex, image v1.Descriptor, registry string) (name.Reference, error) {
	original := image.Annotations[refName]
	to, err := name.NewTag(registry + original[strings.LastIndex(original, "/"):])
	if err != nil {
		return nil, err
	}
	index, err := layouts.ImageIndex(image.Digest)
	if err != nil {
		return nil, err
	}
	credentials := remote.WithAuthFromKeychain(authn.DefaultKeychain)
	if err := remote.WriteIndex(to, index, remote.WithContext(ctx), credentials); err != nil {
		return nil, err
	}
	return to.Context().Digest(image.Digest.String()), nil
}

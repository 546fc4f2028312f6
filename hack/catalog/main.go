// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command catalog adds a bundle to a catalog, and renders the catalog. If the catalog already contains the bundle, its
// channels do not change. opm can also render a catalog, but only if all bundle images are in a registry. This command
// needs no registry. It reads the new bundle from the output of opm render. It reads the earlier bundles from the
// rendered catalog.
//
//	opm render BUNDLE | catalog CATALOG BUNDLE
//
// The folder CATALOG contains:
//   - template.yaml: the channels, their bundles, and their upgrades
//   - PACKAGE/catalog.yaml: the rendered catalog
//   - community/release-config.yaml: the bundle's channels, for the pipeline of community-operators
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/operator-framework/api/pkg/manifests"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const templateHeader = `# A basic template of opm: the channels, their bundles, and which bundle replaces which.
# make catalog adds a new bundle to the channels that the bundle names. In each channel, it replaces the newest bundle.
# make catalog also copies the description and the icon from the newest bundle to the package. You may edit the
# channels, for example to add a release candidate to stable. make catalog renders your changes.
`

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: opm render BUNDLE | catalog CATALOG BUNDLE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "error: add the bundle to the catalog:", err)
		os.Exit(1)
	}
}

func run(catalog, folder string, rendered io.Reader) error {
	bundle, err := readBundle(folder, rendered)
	if err != nil {
		return err
	}
	templateFile := filepath.Join(catalog, "template.yaml")
	catalogFile := filepath.Join(catalog, bundle.Package, "catalog.yaml")
	template := newTemplate(bundle)
	if err := readFile(templateFile, template); err != nil {
		return err
	}
	earlier, err := readBlobs(catalogFile)
	if err != nil {
		return err
	}
	if err := template.add(bundle, earlier); err != nil {
		return fmt.Errorf("%s: %w", templateFile, err)
	}
	blobs, err := template.render(bundle, earlier)
	if err != nil {
		return fmt.Errorf("%s: %w", templateFile, err)
	}
	return errors.Join(
		write(templateFile, templateHeader, template),
		write(catalogFile, "---\n", blobs...),
		write(filepath.Join(catalog, "community", "release-config.yaml"), "---\n", template.releaseConfig(bundle)),
	)
}

// blob is an entry of a rendered catalog: a package, a channel or a bundle.
type blob map[string]any

func (b blob) text(key string) string {
	text, _ := b[key].(string)
	return text
}

// bundle is a bundle from its folder, with the catalog entry that opm has rendered for it.
type bundle struct {
	*manifests.Bundle
	blob blob
}

func readBundle(folder string, rendered io.Reader) (bundle, error) {
	blobs, err := decode(rendered)
	if err != nil {
		return bundle{}, fmt.Errorf("read the output of opm render: %w", err)
	}
	if len(blobs) != 1 || blobs[0].text("schema") != schemaBundle || blobs[0].text("image") == "" {
		return bundle{}, errors.New("the output of opm render must be exactly one bundle, with an image")
	}
	loaded, err := manifests.GetBundleFromDir(folder)
	if err != nil {
		return bundle{}, fmt.Errorf("read the bundle in %s: %w", folder, err)
	}
	if name := blobs[0].text("name"); name != loaded.CSV.Name {
		return bundle{}, fmt.Errorf("opm has rendered %s, but %s contains %s", name, folder, loaded.CSV.Name)
	}
	return bundle{loaded, blobs[0]}, nil
}

// readFile decodes a YAML file into the value that into points to. If the file does not exist, the value does not
// change, and readFile returns nil. An unknown field is an error.
func readFile(path string, into any) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func readBlobs(path string) ([]blob, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	blobs, err := decode(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return blobs, nil
}

func decode(stream io.Reader) ([]blob, error) {
	var blobs []blob
	for decoder := utilyaml.NewYAMLOrJSONDecoder(stream, 4096); ; {
		var next blob
		if err := decoder.Decode(&next); errors.Is(err, io.EOF) {
			return blobs, nil
		} else if err != nil {
			return nil, err
		}
		blobs = append(blobs, next)
	}
}

// write writes YAML documents in opm's format. The header is above the first document.
func write[T any](path, header string, documents ...T) error {
	content := bytes.NewBufferString(header)
	for i, document := range documents {
		text, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		if i > 0 {
			content.WriteString("---\n")
		}
		content.Write(text)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content.Bytes(), 0o644)
}

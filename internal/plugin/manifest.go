// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"container.training/useless/api/useless/v1beta1"
	controller "container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/schedule"
)

// document is an object of a manifest.
type document struct {
	file                              string
	line                              int // of the first annotation of this project, or of the object
	apiVersion, kind, namespace, name string
	annotations                       map[string]string // those of this project
	lines                             map[string]int    // of the annotations
	mistakes                          []mistake
}

type mistake struct {
	line int
	text string
}

// read reads the objects in a file.
func (o *options) read(file string) ([]document, error) {
	in := o.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("%w: use -f with an existing file, or -f - for stdin", err)
		}
		defer f.Close()
		in = f
	}
	return parseDocuments(file, in)
}

// manifest has the fields of an object that the plugin reads. The decoder resolves aliases and merge keys.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Namespace, Name string
		Annotations     map[string]yaml.Node
	}
	Items []yaml.Node // of a list
}

// parseDocuments parses the objects of a manifest, and the items of lists.
func parseDocuments(file string, in io.Reader) (documents []document, err error) {
	decoder := yaml.NewDecoder(in)
	for {
		var root yaml.Node
		err := decoder.Decode(&root)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err == nil && len(root.Content) > 0 {
			documents, err = appendDocuments(documents, file, root.Content[0])
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w: use -f with manifests in YAML or JSON; render templates first, for "+
				"example with helm template", file, err)
		}
	}
}

// appendDocuments appends an object, or the items of a list.
func appendDocuments(documents []document, file string, object *yaml.Node) ([]document, error) {
	var list manifest
	if err := object.Decode(&list); err != nil {
		return nil, err
	}
	if list.Items == nil {
		return append(documents, newDocument(file, object.Line, list)), nil
	}
	for _, item := range list.Items {
		var m manifest
		if err := item.Decode(&m); err != nil {
			return nil, err
		}
		documents = append(documents, newDocument(file, item.Line, m))
	}
	return documents, nil
}

const prefix = "useless.container.training/"

// newDocument reads the annotations of this project. A value that is not a string is a mistake.
func newDocument(file string, line int, m manifest) document {
	d := document{
		file: file, line: line, apiVersion: m.APIVersion, kind: m.Kind,
		namespace: m.Metadata.Namespace, name: m.Metadata.Name,
		annotations: map[string]string{}, lines: map[string]int{},
	}
	for key, value := range m.Metadata.Annotations {
		if strings.HasPrefix(key, prefix) {
			d.add(key, value)
		}
	}
	if len(d.lines) > 0 {
		d.line = slices.Min(slices.Collect(maps.Values(d.lines)))
	}
	if d.isNamespace() && !schedule.IsUnscheduled(d.annotations) &&
		schedule.IsUnscheduled(controller.DefaultsOf(d.name, d.annotations)) {
		d.mistakes = append(d.mistakes, mistake{d.line,
			fmt.Sprintf("Namespace %s cannot have a default schedule: annotate its workloads", d.name)})
	}
	return d
}

func (d *document) isNamespace() bool { return isNamespace(d.apiVersion, d.kind) }

// add adds an annotation of this project.
func (d *document) add(key string, value yaml.Node) {
	d.lines[key] = value.Line
	if value.Alias != nil {
		value = *value.Alias
	}
	d.annotations[key] = value.Value
	complain := func(text string) { d.mistakes = append(d.mistakes, mistake{d.lines[key], text}) }
	if tag := value.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		complain(fmt.Sprintf("%s must be a string: write %q, with the quotes", key, value.Value))
	}
	_, err := kindOf(d.apiVersion, d.kind)
	if err != nil && !d.isNamespace() && slices.Contains(schedule.Keys(), key) {
		complain("schedules do not apply here: " + err.Error())
	}
	if !isKnown(key) {
		complain(unknownKey(key))
	}
}

func isKnown(key string) bool {
	return slices.Contains(schedule.Keys(), key) || slices.Contains([]string{
		v1beta1.PausedAnnotation, v1beta1.FlippedAtAnnotation,
		v1beta1.IngressAnnotationsAnnotation, v1beta1.OriginalAnnotationsAnnotation,
	}, key)
}

// unknownKey returns a message about an unknown annotation, with the most similar known annotation. It uses cobra's
// suggestions for commands.
func unknownKey(key string) string {
	commands := &cobra.Command{SuggestionsMinimumDistance: 3}
	for _, known := range schedule.Keys() {
		command := &cobra.Command{Use: strings.TrimPrefix(known, prefix), Run: func(*cobra.Command, []string) {}}
		commands.AddCommand(command)
	}
	if similar := commands.SuggestionsFor(strings.TrimPrefix(key, prefix)); len(similar) > 0 {
		return fmt.Sprintf("%s is unknown: do you mean %s?", key, prefix+similar[0])
	}
	return key + " is unknown: docs/schedule.md lists the annotations"
}

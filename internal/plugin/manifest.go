// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"io"
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
	file                  string
	line                  int // of the annotations, or of the object
	kind, namespace, name string
	annotations           map[string]string // those of this project
	lines                 map[string]int    // of the annotations
	mistakes              []mistake
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

// parseDocuments parses the objects of a manifest, and the items of lists.
func parseDocuments(file string, in io.Reader) (documents []document, err error) {
	decoder := yaml.NewDecoder(in)
	for {
		var root yaml.Node
		err := decoder.Decode(&root)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w: use -f with a YAML or JSON file; render templates first, for example with "+
				"helm template", file, err)
		}
		if len(root.Content) == 0 {
			continue
		}
		objects := []*yaml.Node{root.Content[0]}
		if items := child(objects[0], "items"); items != nil {
			objects = items.Content
		}
		for _, object := range objects {
			documents = append(documents, newDocument(file, object))
		}
	}
}

// child returns a value of a mapping, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			if value := n.Content[i+1]; value.Alias != nil {
				return value.Alias
			}
			return n.Content[i+1]
		}
	}
	return nil
}

func text(n *yaml.Node) string {
	if n == nil {
		return ""
	}
	return n.Value
}

const prefix = "useless.container.training/"

// newDocument reads the annotations of this project. A value that is not a string is a mistake.
func newDocument(file string, object *yaml.Node) document {
	metadata := child(object, "metadata")
	annotations := child(metadata, "annotations")
	d := document{
		file: file, line: object.Line, kind: text(child(object, "kind")),
		namespace: text(child(metadata, "namespace")), name: text(child(metadata, "name")),
		annotations: map[string]string{}, lines: map[string]int{},
	}
	if annotations == nil || annotations.Kind != yaml.MappingNode {
		return d
	}
	for i := 0; i+1 < len(annotations.Content); i += 2 {
		if key := annotations.Content[i]; strings.HasPrefix(key.Value, prefix) {
			d.line = annotations.Line
			d.add(key, annotations.Content[i+1])
		}
	}
	if d.kind == namespaceKind && !schedule.IsUnscheduled(d.annotations) &&
		schedule.IsUnscheduled(controller.DefaultsOf(d.name, d.annotations)) {
		d.mistakes = append(d.mistakes, mistake{d.line,
			fmt.Sprintf("Namespace %s cannot have a default schedule: annotate its workloads", d.name)})
	}
	return d
}

// add adds an annotation of this project.
func (d *document) add(key, value *yaml.Node) {
	d.lines[key.Value] = key.Line
	d.annotations[key.Value] = value.Value
	complain := func(text string) { d.mistakes = append(d.mistakes, mistake{key.Line, text}) }
	if tag := value.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		complain(fmt.Sprintf("%s must be a string: write %q, with the quotes", key.Value, value.Value))
	}
	_, err := kindNamed(d.kind)
	if err != nil && d.kind != namespaceKind && slices.Contains(schedule.Keys(), key.Value) {
		complain("schedules do not apply here: " + err.Error())
	}
	if !isKnown(key.Value) {
		complain(unknownKey(key.Value))
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

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
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"container.training/useless/api/useless/v1beta1"
	controller "container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/schedule"
)

func (o *options) newCheck() *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use: "check -f FILE", Short: "Check the schedules in manifests, without a cluster", Args: cobra.NoArgs,
		Long: "Check the schedules in manifests, without a cluster.\nThe exit code is 1 if there is a mistake.",
		Example: "  kubectl useless schedule check -f web.yaml -f cron.yaml\n" +
			"  helm template . | kubectl useless schedule check -f -",
		RunE: func(*cobra.Command, []string) error {
			zone, err := o.location()
			if err != nil {
				return err
			}
			if len(files) == 0 {
				return errors.New("-f is missing: name a manifest, for example -f web.yaml, or -f - for stdin")
			}
			found, mistakes := 0, 0
			for _, file := range files {
				documents, err := o.read(file)
				if err != nil {
					return err
				}
				for _, d := range documents {
					found++
					mistakes += d.check(o.Out, zone, o.clock.Now())
				}
			}
			if found == 0 {
				fmt.Fprintln(o.ErrOut, "No manifest has annotations of a schedule.")
			}
			if mistakes > 0 {
				return fmt.Errorf("%w: %d", errInvalid, mistakes)
			}
			return nil
		},
	}
	c.Flags().StringArrayVarP(&files, "filename", "f", nil, "a manifest; - is stdin; repeat the flag for more files")
	return c
}

// document is an object of a manifest with annotations of this project.
type document struct {
	file        string
	line        int // of the metadata's annotations
	kind, name  string
	annotations map[string]string
	lines       map[string]int
	mistakes    []mistake
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
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return parseDocuments(file, in)
}

// parseDocuments parses the objects of a manifest, and the items of lists. It omits objects without annotations of this
// project.
func parseDocuments(file string, in io.Reader) (documents []document, err error) {
	decoder := yaml.NewDecoder(in)
	for {
		var root yaml.Node
		err := decoder.Decode(&root)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(root.Content) == 0 {
			continue
		}
		objects := []*yaml.Node{root.Content[0]}
		if items := child(objects[0], "items"); items != nil {
			objects = items.Content
		}
		for _, object := range objects {
			if d := newDocument(file, object); len(d.annotations)+len(d.mistakes) > 0 {
				documents = append(documents, d)
			}
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
		file: file, kind: text(child(object, "kind")), name: text(child(metadata, "name")),
		annotations: map[string]string{}, lines: map[string]int{},
	}
	if annotations == nil || annotations.Kind != yaml.MappingNode {
		return d
	}
	d.line = annotations.Line
	for i := 0; i+1 < len(annotations.Content); i += 2 {
		key, value := annotations.Content[i], annotations.Content[i+1]
		if !strings.HasPrefix(key.Value, prefix) {
			continue
		}
		d.lines[key.Value] = key.Line
		d.annotations[key.Value] = value.Value
		if tag := value.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
			d.mistakes = append(d.mistakes, mistake{key.Line,
				fmt.Sprintf("%s must be a string: write %q, with the quotes", key.Value, value.Value)})
		}
		_, err := kindNamed(d.kind)
		if err != nil && d.kind != namespaceKind && slices.Contains(schedule.Keys(), key.Value) {
			d.mistakes = append(d.mistakes, mistake{key.Line, "schedules do not apply here: " + err.Error()})
		}
		if !isKnown(key.Value) {
			d.mistakes = append(d.mistakes, mistake{key.Line, unknownKey(key.Value)})
		}
	}
	return d
}

func isKnown(key string) bool {
	return slices.Contains(schedule.Keys(), key) || slices.Contains([]string{
		v1beta1.PausedAnnotation, v1beta1.FlippedAtAnnotation,
		v1beta1.IngressAnnotationsAnnotation, v1beta1.OriginalAnnotationsAnnotation,
	}, key)
}

// unknownKey suggests the known annotation that is most similar. Cobra has the function for it.
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

// check writes the mistakes of an object, or its next events. It returns the number of mistakes.
func (d document) check(out io.Writer, zone *time.Location, now time.Time) int {
	s, problems := d.parse(zone)
	mistakes := slices.Clone(d.mistakes)
	for _, p := range problems {
		line, found := d.lines[p.Key()]
		if !found {
			line = d.line
		}
		mistakes = append(mistakes, mistake{line, p.String()})
	}
	slices.SortStableFunc(mistakes, func(a, b mistake) int { return a.line - b.line })
	for _, m := range mistakes {
		fmt.Fprintf(out, "%s:%d: %s\n", d.file, m.line, m.text)
	}
	if len(mistakes) == 0 && s != nil {
		fmt.Fprintf(out, "%s/%s (%s:%d), time zone %s:\n", strings.ToLower(d.kind), d.name, d.file, d.line, s.Zone)
		d.print(out, s, now)
	}
	return len(mistakes)
}

// print writes the next ten events.
func (document) print(out io.Writer, s *schedule.Schedule, now time.Time) {
	for _, e := range s.EventsAfter(now, 10) {
		_, name := described(e)
		fmt.Fprintf(out, "  %-5s  %s\n", name, clockTime(s, e.At))
	}
	if s.StopAfter > 0 {
		fmt.Fprintf(out, "  stop   %s after each start\n", s.StopAfter)
	}
}

// parse returns the schedule of an object, or its problems. Both are empty for an object without a schedule of its own.
func (d document) parse(zone *time.Location) (*schedule.Schedule, []schedule.Problem) {
	if !schedule.HasAny(d.annotations) {
		return nil, nil
	}
	if d.kind == namespaceKind {
		if problems := schedule.ProblemsOfNamespace(d.annotations, zone); len(problems) > 0 {
			return nil, problems
		}
		s, _ := schedule.Parse(d.annotations, zone)
		return s, nil
	}
	k, err := kindNamed(d.kind)
	if err != nil {
		return nil, nil // newDocument has reported it
	}
	o := controller.NewObject(k.plural)
	o.SetAnnotations(maps.Clone(d.annotations))
	// A workload without times of its own has those of its Namespace. The manifests may not contain the Namespace.
	assumed := map[string]string{v1beta1.StopScheduleAnnotation: "00:00"}
	w := controller.NewWorkload(k.plural, o, assumed, zone, time.Time{})
	annotations, isDefault := w.Annotations()
	if schedule.IsUnscheduled(annotations) && annotations == nil {
		return nil, nil
	}
	s, problems := w.Parse()
	if isDefault {
		s = nil
	}
	return s, problems
}

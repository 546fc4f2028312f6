// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"container.training/useless/api/useless/v1beta1"
	controller "container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/schedule"
)

var errInvalid = errors.New("there are mistakes")

func (o *options) newCheck() *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use: "check -f FILE", Short: "Check the schedules in manifests, without a cluster",
		Long: "Check the schedules in manifests, without a cluster.\n" +
			"The default of a Namespace in the manifests applies to its workloads in the manifests.\n" +
			"The exit code is 1 if there is a mistake.",
		Example: "  kubectl useless schedule check -f namespace.yaml -f web.yaml\n" +
			"  helm template . | kubectl useless schedule check -n dev -f -",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: use -f %[1]s for a file", args[0])
			}
			zone, err := o.location()
			if err != nil {
				return err
			}
			if len(files) == 0 {
				return errors.New("-f is missing: name a manifest, for example -f web.yaml, or -f - for stdin")
			}
			var documents []document
			for _, file := range files {
				read, err := o.read(file)
				if err != nil {
					return err
				}
				documents = append(documents, read...)
			}
			return o.check(documents, zone)
		},
	}
	c.Flags().StringArrayVarP(&files, "filename", "f", nil, "a manifest; - is stdin; repeat the flag for more files")
	return c
}

// check checks the objects of all files together.
func (o *options) check(documents []document, zone *time.Location) error {
	c := checker{zone, o.clock.Now(), *o.config.Namespace, map[string]map[string]string{}}
	for _, d := range documents {
		if d.isNamespace() {
			c.defaults[d.name] = controller.DefaultsOf(d.name, d.annotations)
		}
	}
	found, mistakes := 0, 0
	for _, d := range documents {
		s, source, problems := c.parse(d)
		if s != nil || len(d.annotations) > 0 || len(d.mistakes) > 0 {
			found++
		}
		d.addProblems(problems)
		if len(d.mistakes) == 0 {
			o.describe(c, d, s, source)
		}
		for _, m := range d.mistakes {
			fmt.Fprintf(o.Out, "%s:%d: %s\n", d.file, m.line, m.text)
		}
		mistakes += len(d.mistakes)
	}
	if found == 0 {
		fmt.Fprintln(o.ErrOut, "No manifest has annotations of a schedule.")
	}
	if mistakes > 0 {
		return fmt.Errorf("%w: %d", errInvalid, mistakes)
	}
	return nil
}

// describe writes the schedule of an object without mistakes, or that the object has schedule: none. It writes a note
// if the object needs a default schedule, but the manifests lack its Namespace.
func (o *options) describe(c checker, d document, s *schedule.Schedule, source string) {
	switch {
	case s != nil:
		d.print(o.Out, s, source, c.now)
	case d.annotations[v1beta1.ScheduleAnnotation] == v1beta1.ScheduleNone && !d.isNamespace():
		fmt.Fprintf(o.Out, "%s/%s (%s:%d): no schedule, because of schedule: none\n", strings.ToLower(d.kind), d.name,
			d.file, d.line)
	case c.needsDefault(d):
		fmt.Fprintf(o.ErrOut, "note: %s/%s (%s:%d) needs the default schedule of its Namespace: "+
			"the Namespace is not in these files\n", strings.ToLower(d.kind), d.name, d.file, d.line)
	}
}

// addProblems adds the problems of a schedule, and the values without quotes, to the mistakes. It sorts the mistakes by
// line and text. An invalid value needs no advice about quotes.
func (d *document) addProblems(problems []schedule.Problem) {
	for _, key := range d.unquoted {
		if !slices.ContainsFunc(problems, func(p schedule.Problem) bool { return p.Key() == key }) {
			d.mistakes = append(d.mistakes, mistake{d.lines[key],
				fmt.Sprintf("%s must be a string: write %q, with the quotes", key, d.annotations[key])})
		}
	}
	for _, p := range problems {
		line, found := d.lines[p.Key()]
		if !found {
			line = d.line
		}
		d.mistakes = append(d.mistakes, mistake{line, p.String()})
	}
	slices.SortFunc(d.mistakes, func(a, b mistake) int {
		return cmp.Or(a.line-b.line, strings.Compare(a.text, b.text))
	})
}

// print writes the next ten events. The argument source names the Namespace of a default schedule. It is empty if the
// schedule is in the annotations of the object.
func (d document) print(out io.Writer, s *schedule.Schedule, source string, now time.Time) {
	if source != "" {
		source = ", default of " + source
	}
	if paused, _ := strconv.ParseBool(d.annotations[v1beta1.PausedAnnotation]); paused && !d.isNamespace() {
		source += ", ignored while it is paused"
	}
	fmt.Fprintf(out, "%s/%s (%s:%d)%s, time zone %s:\n", strings.ToLower(d.kind), d.name, d.file, d.line, source,
		s.Zone)
	for _, e := range s.EventsAfter(now, 10) {
		_, name := described(e)
		fmt.Fprintf(out, "  %-5s  %s\n", name, clockTime(s, e.At))
	}
	if s.StopAfter > 0 {
		fmt.Fprintf(out, "  stop   %s after each start\n", model.Duration(s.StopAfter))
	}
}

// checker checks objects.
type checker struct {
	zone      *time.Location
	now       time.Time
	namespace string                       // the namespace of objects without one; empty if it is not known
	defaults  map[string]map[string]string // the default schedules of the Namespaces in the manifests
}

// parse returns the schedule that applies to an object, and the source of this schedule, or the problems of the
// annotations. All are empty for an object without a schedule.
func (c checker) parse(d document) (s *schedule.Schedule, source string, problems []schedule.Problem) {
	if d.isNamespace() {
		return c.parseNamespace(d)
	}
	k, err := kindOf(d.apiVersion, d.kind)
	if err != nil {
		return nil, "", nil // newDocument has reported its schedule, if it has one
	}
	namespace := cmp.Or(d.namespace, c.namespace)
	defaults, known := c.defaults[namespace]
	if !known { // the Namespace is not in the manifests, so assume that it has a schedule
		defaults = map[string]string{v1beta1.StopScheduleAnnotation: "00:00"}
	}
	o := controller.NewObject(k.plural)
	o.SetAnnotations(maps.Clone(d.annotations))
	w := controller.NewWorkload(k.plural, o, defaults, c.zone, c.now)
	annotations, isDefault := w.Annotations()
	if !schedule.HasAny(annotations) {
		return nil, "", nil
	}
	s, problems = w.Parse()
	switch {
	case !isDefault && !schedule.IsUnscheduled(annotations):
		return s, "", problems
	case !isDefault || !known:
		return nil, "", problems
	case len(schedule.ProblemsOfNamespace(defaults, c.zone)) > 0:
		return nil, "", schedule.Own(problems, d.annotations)
	}
	return s, namespaceKind + " " + namespace, problems
}

// needsDefault reports whether d has a part of a schedule, but no start or stop, and the manifests lack its Namespace.
func (c checker) needsDefault(d document) bool {
	_, known := c.defaults[cmp.Or(d.namespace, c.namespace)]
	return !known && !d.isNamespace() && schedule.HasAny(d.annotations) && schedule.IsUnscheduled(d.annotations) &&
		d.annotations[v1beta1.ScheduleAnnotation] == ""
}

// parseNamespace returns the default schedule of a Namespace, or its problems.
func (c checker) parseNamespace(d document) (*schedule.Schedule, string, []schedule.Problem) {
	problems := schedule.ProblemsOfNamespace(d.annotations, c.zone)
	if len(problems) > 0 || schedule.IsUnscheduled(d.annotations) {
		return nil, "", problems
	}
	s, problems := schedule.Parse(d.annotations, c.zone)
	return s, "", problems
}

// document is an object of a manifest.
type document struct {
	file                              string
	line                              int // of the first annotation of this project, or of the object
	apiVersion, kind, namespace, name string
	annotations                       map[string]string // only this project's annotations
	lines                             map[string]int    // of the annotations
	unquoted                          []string          // the annotations whose values are not strings
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
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return nil, fmt.Errorf("%s is a folder: name a file in it, for example -f %s", file,
				filepath.Join(file, "web.yaml"))
		}
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
	if object.Kind != yaml.MappingNode && object.ShortTag() != "!!null" {
		return nil, fmt.Errorf("line %d is not an object of Kubernetes", object.Line)
	}
	var list manifest
	if err := object.Decode(&list); err != nil {
		return nil, err
	}
	if list.Items == nil {
		return append(documents, newDocument(file, object, list)), nil
	}
	for _, item := range list.Items {
		var m manifest
		if err := item.Decode(&m); err != nil {
			return nil, err
		}
		documents = append(documents, newDocument(file, &item, m))
	}
	return documents, nil
}

const prefix = "useless.container.training/"

// newDocument reads the annotations of this project.
func newDocument(file string, object *yaml.Node, m manifest) document {
	d := document{
		file: file, line: object.Line, apiVersion: m.APIVersion, kind: m.Kind,
		namespace: m.Metadata.Namespace, name: m.Metadata.Name,
		annotations: map[string]string{}, lines: map[string]int{},
	}
	for key, value := range m.Metadata.Annotations {
		switch {
		case strings.HasPrefix(key, prefix):
			d.add(key, value)
		case isMisspelled(key):
			d.mistakes = append(d.mistakes, mistake{value.Line, unknownKey(key)})
		}
	}
	if len(d.lines) > 0 {
		d.line = slices.Min(slices.Collect(maps.Values(d.lines)))
	}
	if _, err := kindOf(d.apiVersion, d.kind); err == nil || d.isNamespace() {
		d.reportMisplaced(object, "")
	}
	if d.isNamespace() && !schedule.IsUnscheduled(d.annotations) &&
		schedule.IsUnscheduled(controller.DefaultsOf(d.name, d.annotations)) {
		d.mistakes = append(d.mistakes, mistake{d.line,
			fmt.Sprintf("Namespace %s cannot have a default schedule: annotate its workloads", d.name)})
	}
	return d
}

// reportMisplaced reports the keys of schedules in metadata and spec that are not in metadata.annotations, for example
// in the Pod template. The path is the position of node in the object, such as .spec.template. It is empty for the
// object.
func (d *document) reportMisplaced(node *yaml.Node, path string) {
	for i := 0; i+1 < len(node.Content) && node.Kind == yaml.MappingNode; i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		isElsewhere := path == "" && key.Value != "metadata" && key.Value != "spec"
		if isElsewhere || path == ".metadata" && key.Value == "annotations" {
			continue
		}
		if slices.Contains(schedule.Keys(), key.Value) {
			d.mistakes = append(d.mistakes, mistake{key.Line, fmt.Sprintf("%s has no effect here: write it under "+
				"metadata.annotations of the %s", key.Value, d.kind)})
		}
		d.reportMisplaced(value, path+"."+key.Value)
	}
}

func (d *document) isNamespace() bool { return isNamespace(d.apiVersion, d.kind) }

// add adds an annotation of this project and its mistakes.
func (d *document) add(key string, value yaml.Node) {
	d.lines[key] = value.Line
	if value.Alias != nil {
		value = *value.Alias
	}
	d.annotations[key] = value.Value
	complain := func(text string) { d.mistakes = append(d.mistakes, mistake{d.lines[key], text}) }
	if tag := value.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		d.unquoted = append(d.unquoted, key)
	}
	_, err := kindOf(d.apiVersion, d.kind)
	if err != nil && !d.isNamespace() && slices.Contains(schedule.Keys(), key) {
		complain("schedules do not apply here: " + err.Error())
	}
	if isMisspelled(key) {
		complain(unknownKey(key))
	}
}

// knownKeys returns all annotations of the operator.
func knownKeys() []string {
	return append(schedule.Keys(), v1beta1.PausedAnnotation, v1beta1.FlippedAtAnnotation,
		v1beta1.IngressAnnotationsAnnotation, v1beta1.OriginalAnnotationsAnnotation)
}

// isMisspelled reports whether an annotation is unknown, but has the prefix of the operator or is similar to a known
// annotation. An annotation without a slash has no prefix, so it belongs to another program.
func isMisspelled(key string) bool {
	if !strings.HasPrefix(key, prefix) {
		return strings.Contains(key, "/") && similarKey(key) != ""
	}
	return !slices.Contains(knownKeys(), key)
}

// unknownKey returns a message about an unknown annotation, with the most similar known annotation.
func unknownKey(key string) string {
	if similar := similarKey(key); similar != "" {
		return fmt.Sprintf("%s is unknown: do you mean %s?", key, similar)
	}
	return key + " is unknown: docs/schedule.md lists the annotations"
}

// similarKey returns the annotation of the operator that is most similar to an unknown one, or "" if none is similar.
// It uses cobra's suggestions for commands.
func similarKey(key string) string {
	commands := &cobra.Command{}
	for _, known := range knownKeys() {
		commands.AddCommand(&cobra.Command{Use: known, Run: func(*cobra.Command, []string) {}})
	}
	for commands.SuggestionsMinimumDistance = range 4 { // the most similar first
		if similar := commands.SuggestionsFor(key); len(similar) > 0 {
			return similar[0]
		}
	}
	return ""
}

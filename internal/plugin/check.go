// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
		if s != nil || len(d.annotations) > 0 {
			found++
		}
		if d.addProblems(problems); len(d.mistakes) == 0 && s != nil {
			d.print(o.Out, s, source, c.now)
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

// addProblems adds the problems of a schedule to the mistakes, and sorts these by line and text.
func (d *document) addProblems(problems []schedule.Problem) {
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

// print writes the next ten events. The source is empty for annotations of the object.
func (d document) print(out io.Writer, s *schedule.Schedule, source string, now time.Time) {
	if source != "" {
		source = ", default of " + source
	}
	fmt.Fprintf(out, "%s/%s (%s:%d)%s, time zone %s:\n", strings.ToLower(d.kind), d.name, d.file, d.line, source,
		s.Zone)
	for _, e := range s.EventsAfter(now, 10) {
		_, name := described(e)
		fmt.Fprintf(out, "  %-5s  %s\n", name, clockTime(s, e.At))
	}
	if s.StopAfter > 0 {
		fmt.Fprintf(out, "  stop   %s after each start\n", s.StopAfter)
	}
}

// checker checks objects.
type checker struct {
	zone      *time.Location
	now       time.Time
	namespace string                       // of objects without one; empty if it is not known
	defaults  map[string]map[string]string // the default schedules of the Namespaces in the manifests
}

// parse returns the schedule that applies to an object and its source, or the problems of the annotations. All are
// empty for an object without a schedule.
func (c checker) parse(d document) (s *schedule.Schedule, source string, problems []schedule.Problem) {
	if d.isNamespace() {
		return c.parseNamespace(d)
	}
	k, err := kindOf(d.apiVersion, d.kind)
	if err != nil {
		return nil, "", nil // newDocument has reported it
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

// parseNamespace returns the default schedule of a Namespace, or its problems.
func (c checker) parseNamespace(d document) (*schedule.Schedule, string, []schedule.Problem) {
	problems := schedule.ProblemsOfNamespace(d.annotations, c.zone)
	if len(problems) > 0 || schedule.IsUnscheduled(d.annotations) {
		return nil, "", problems
	}
	s, problems := schedule.Parse(d.annotations, c.zone)
	return s, "", problems
}

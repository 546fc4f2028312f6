// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// report is the output of schedule list.
type report struct {
	metav1.TypeMeta `json:",inline"`
	Items           []row `json:"items"`
}

// row is a workload with a schedule.
type row struct {
	Kind      string       `json:"kind"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	State     string       `json:"state"`
	DryRun    bool         `json:"dryRun,omitempty"`
	Last      *metav1.Time `json:"lastTime,omitempty"`
	LastEvent string       `json:"lastEvent,omitempty"`
	Next      *metav1.Time `json:"nextTime,omitempty"`
	NextEvent string       `json:"nextEvent,omitempty"`
	Source    string       `json:"source"`
	Cores     string       `json:"savedCores"`
	Memory    string       `json:"savedMemory"`
	CoreHours *float64     `json:"savedCoreHours,omitempty"` // since the last stop was due; nil if it is not known
	GiBHours  *float64     `json:"savedGiBHours,omitempty"`  // since the last stop was due; nil if it is not known
	TimeZone  string       `json:"timeZone,omitempty"`
	Message   string       `json:"message,omitempty"` // why the state is invalid
}

func (o *options) newList() *cobra.Command {
	var all bool
	var output string
	c := &cobra.Command{
		Use: "list", Short: "List the workloads with a schedule, and their savings",
		Example:           "  kubectl useless schedule list -A",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: for one workload, use "+
					"kubectl useless schedule explain KIND/NAME", args[0])
			}
			if !slices.Contains([]string{"", wide, jsonFormat, yamlFormat}, output) {
				return fmt.Errorf("-o %q is not an output format: use json, yaml or wide", output)
			}
			rows, now, err := o.rows(all)
			if err != nil {
				return err
			}
			if len(rows) == 0 && (output == "" || output == wide) {
				return o.describeEmptyList(all)
			}
			return o.print(rows, now, output, all)
		},
	}
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the workloads of all namespaces")
	c.Flags().StringVarP(&output, "output", "o", "", "json, yaml or wide")
	formats := cobra.FixedCompletions([]cobra.Completion{jsonFormat, yamlFormat, wide}, noFiles)
	_ = c.RegisterFlagCompletionFunc("output", formats) // fails only for a flag that does not exist
	return c
}

// describeEmptyList writes to stderr that there are no workloads with a schedule, and what to do.
func (o *options) describeEmptyList(all bool) error {
	namespace, err := o.namespace()
	if err == nil && !all {
		err = o.checkNamespace(namespace)
	}
	switch {
	case err != nil:
		return err
	case all:
		fmt.Fprintln(o.ErrOut, "No workload has an active schedule. To add one, for example:")
		namespace = "NAMESPACE"
	default:
		fmt.Fprintf(o.ErrOut, "No workload in namespace %s has an active schedule. -A lists all namespaces. "+
			"To add one, for example:\n", namespace)
	}
	fmt.Fprintln(o.ErrOut, kinds[0].addSchedule("-n "+namespace+" "+kinds[0].singular+" NAME"))
	return nil
}

// The output formats.
const wide, jsonFormat, yamlFormat = "wide", "json", "yaml"

// rows reads the workloads with a schedule.
func (o *options) rows(all bool) ([]row, time.Time, error) {
	r, err := o.newReader()
	if err != nil {
		return nil, time.Time{}, err
	}
	if all {
		r.listDefaults()
	}
	rows := []row{}
	for _, k := range kinds {
		workloads, err := r.workloads(k, all)
		if err != nil {
			return nil, time.Time{}, err
		}
		for _, w := range workloads {
			if w.state() != "" {
				rows = append(rows, newRow(w, r.now))
			}
		}
	}
	if !r.listed {
		return nil, time.Time{}, r.forbidden
	}
	return rows, r.now, nil
}

// newRow describes a workload with a schedule.
func newRow(w workload, now time.Time) row {
	saved := w.Saved()
	_, isDefault := w.Annotations()
	out := row{
		Kind: w.kind.title, Namespace: w.object.GetNamespace(), Name: w.object.GetName(), State: w.state(),
		DryRun: w.IsDryRun(), Source: "own", Cores: saved.Cpu().String(), Memory: saved.Memory().String(),
	}
	if isDefault {
		out.Source = namespaceKind
	}
	s, problems := w.Parse()
	if s == nil {
		_, out.Message = schedule.Explain(problems)
		return out
	}
	if coreHours, gibHours, isKnown := w.savedHours(s, now); isKnown {
		out.CoreHours, out.GiBHours = &coreHours, &gibHours
	}
	out.TimeZone = s.Zone.String()
	due := s.Due(w.Record(), w.Running(s), now)
	out.Last, out.LastEvent = described(w.lastEvent(due))
	out.Next, out.NextEvent = described(w.nextEvent(s, due, now))
	return out
}

// savedHours returns the CPU and memory requests that a stop saves now, multiplied by the hours since the last stop was
// due. They are not known if the operator has recorded nothing, or a later start that it did not execute.
func (w workload) savedHours(s *schedule.Schedule, now time.Time) (coreHours, gibHours float64, isKnown bool) {
	requests := w.Saved()
	if requests.Cpu().IsZero() && requests.Memory().IsZero() {
		return 0, 0, true
	}
	recorded := w.Record().Last
	last, _, isStop := s.Events(recorded) // stop-after and sleep record other times than the schedule
	if recorded.IsZero() || last.At.Equal(recorded) && !isStop {
		return 0, 0, false
	}
	hours := max(0, now.Sub(recorded).Hours())
	return requests.Cpu().AsApproximateFloat64() * hours,
		requests.Memory().AsApproximateFloat64() / (1 << 30) * hours, true
}

// nextEvent returns the next start or stop that the operator will execute: a regular one, or the stop at the end of
// start-until or stop-after. It is zero if there is none.
func (w workload) nextEvent(s *schedule.Schedule, due schedule.Due, now time.Time) schedule.Event {
	return next(s, w.Record(), due, now, firstEvent)
}

// next is like nextEvent for a workload with the record r. The function regular selects the regular start or stop.
func next(
	s *schedule.Schedule, r schedule.Record, due schedule.Due, now time.Time,
	regular func(*schedule.Schedule, time.Time) schedule.Event,
) schedule.Event {
	from := now
	switch {
	case due.IsUptime && s.StopsAtExpiry(r, due, now):
		return schedule.Event{At: due.Expiry, IsStop: true, Cause: v1beta1.StartUntilAnnotation}
	case s.Suspended:
		return schedule.Event{}
	case due.IsUptime:
		from = due.Expiry
	}
	if s.SuspendUntil.After(from) {
		from = s.SuspendUntil.Add(-time.Second) // an event at the end of the suspension is executed
	}
	event, timer := regular(s, from), timerAfter(s, due, from)
	if event.At.IsZero() || !timer.At.IsZero() && timer.At.Before(event.At) {
		return timer
	}
	return event
}

// timerAfter returns the first end of stop-after after the time from; zero for none. If stop-after ends during an
// uptime or a suspension, and the workload keeps running, stop-after begins again.
func timerAfter(s *schedule.Schedule, due schedule.Due, from time.Time) schedule.Event {
	if due.Since.IsZero() {
		return schedule.Event{}
	}
	end := due.Since.Add(s.StopAfter)
	if due.IsUptime && !end.After(due.Expiry) {
		end = due.Expiry.Add(s.StopAfter)
	}
	if missed := from.Sub(end); missed >= 0 {
		end = end.Add(missed.Truncate(s.StopAfter) + s.StopAfter)
	}
	return schedule.Event{At: end, IsStop: true, Cause: v1beta1.StopAfterAnnotation}
}

// firstEvent returns the first regular start or stop after the time from; zero for none.
func firstEvent(s *schedule.Schedule, from time.Time) schedule.Event {
	if events := s.EventsAfter(from, 1); len(events) > 0 {
		return events[0]
	}
	return schedule.Event{}
}

// firstStop returns the first regular stop after the time from; zero for none. If a stop coincides with a start, the
// start wins. Parse rejects a schedule in which this happens to every stop, so the loop ends.
func firstStop(s *schedule.Schedule, from time.Time) schedule.Event {
	stops := *s
	stops.Start = nil
	for {
		stop := firstEvent(&stops, from)
		if _, _, isStop := s.Events(stop.At); isStop || stop.At.IsZero() {
			return stop
		}
		from = stop.At
	}
}

func described(e schedule.Event) (*metav1.Time, string) {
	switch {
	case e.At.IsZero():
		return nil, ""
	case e.IsStop:
		return &metav1.Time{Time: e.At}, "stop"
	default:
		return &metav1.Time{Time: e.At}, "start"
	}
}

// print prints the rows in an output format: json, yaml or wide. An empty format means a table.
func (o *options) print(rows []row, now time.Time, output string, all bool) error {
	if output == jsonFormat || output == yamlFormat {
		printer, err := genericclioptions.NewJSONYamlPrintFlags().ToPrinter(output)
		if err != nil {
			return err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&report{
			metav1.TypeMeta{APIVersion: "plugin.useless.container.training/v1", Kind: "ScheduleReport"}, rows,
		})
		if err != nil {
			return err
		}
		return printer.PrintObj(&unstructured.Unstructured{Object: content}, o.Out)
	}
	return printers.NewTablePrinter(printers.PrintOptions{Wide: output == wide}).PrintObj(table(rows, now, all), o.Out)
}

// table returns the rows as a table. If namespaces is true, it has a column with the namespace.
func table(rows []row, now time.Time, namespaces bool) *metav1.Table {
	t := &metav1.Table{}
	columns := []string{"Kind", "Name", "State", "Last", "Next", "Source", "Cores", "Memory", "Core Hours", "GiB Hours",
		"Time Zone"}
	if namespaces {
		columns = append([]string{namespaceKind}, columns...)
	}
	for _, name := range columns {
		column := metav1.TableColumnDefinition{Name: name, Type: "string"}
		if name == "Time Zone" {
			column.Priority = 1 // only in the format wide
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, column)
	}
	for _, r := range rows {
		last, next := "-", "-"
		if r.Last != nil {
			last = fmt.Sprintf("%s %s ago", r.LastEvent, duration.HumanDuration(now.Sub(r.Last.Time)))
		}
		if r.Next != nil {
			next = fmt.Sprintf("%s in %s", r.NextEvent, duration.HumanDuration(r.Next.Sub(now)))
		}
		state := r.State
		if r.DryRun {
			state += ",dry-run"
		}
		cells := []any{r.Kind, r.Name, state, last, next, r.Source, r.Cores, r.Memory,
			known(r.CoreHours), known(r.GiBHours), r.TimeZone}
		if namespaces {
			cells = append([]any{r.Namespace}, cells...)
		}
		t.Rows = append(t.Rows, metav1.TableRow{Cells: cells})
	}
	return t
}

func known(hours *float64) string {
	if hours == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *hours)
}

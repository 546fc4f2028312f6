// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

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
	Last      *metav1.Time `json:"lastTime,omitempty"`
	LastEvent string       `json:"lastEvent,omitempty"`
	Next      *metav1.Time `json:"nextTime,omitempty"`
	NextEvent string       `json:"nextEvent,omitempty"`
	Source    string       `json:"source"`
	Cores     string       `json:"savedCores"`
	Memory    string       `json:"savedMemory"`
	CoreHours float64      `json:"savedCoreHours"` // since the last stop
	GiBHours  float64      `json:"savedGiBHours"`  // since the last stop
	TimeZone  string       `json:"timeZone,omitempty"`
}

func (o *options) newList() *cobra.Command {
	var all bool
	var output string
	c := &cobra.Command{
		Use: "list", Short: "List the workloads with a schedule, and their savings",
		Example: "  kubectl useless schedule list -A",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: for one workload, use "+
					"kubectl useless schedule explain KIND/NAME", args[0])
			}
			if err := validOutput(output); err != nil {
				return err
			}
			rows, now, err := o.rows(all)
			if err != nil {
				return err
			}
			if len(rows) == 0 && (output == "" || output == wide) {
				fmt.Fprintln(o.ErrOut, "No workload has a schedule. To add one:\n  kubectl annotate deployment NAME "+
					`"useless.container.training/stop-schedule=Mon-Fri 20:00"`)
				return nil
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

// The output formats.
const wide, jsonFormat, yamlFormat = "wide", "json", "yaml"

func validOutput(output string) error {
	switch output {
	case "", wide, jsonFormat, yamlFormat:
		return nil
	}
	return fmt.Errorf("-o %q is not an output format: use json, yaml or wide", output)
}

// rows reads the workloads with a schedule.
func (o *options) rows(all bool) ([]row, time.Time, error) {
	r, err := o.newReader()
	if err != nil {
		return nil, time.Time{}, err
	}
	namespace, err := o.namespace()
	if err != nil {
		return nil, time.Time{}, err
	}
	if all {
		r.listDefaults()
	}
	rows := []row{}
	for _, k := range kinds {
		workloads, err := r.list(k, namespace, all)
		if err != nil {
			return nil, time.Time{}, err
		}
		for _, w := range workloads {
			if w.State() != "" {
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
	saved, coreHours, gibHours := w.saved(now)
	_, isDefault := w.Annotations()
	out := row{
		Kind: w.kind.title, Namespace: w.object.GetNamespace(), Name: w.object.GetName(), State: w.State(),
		Source: "own", Cores: saved.Cpu().String(), Memory: saved.Memory().String(),
		CoreHours: coreHours, GiBHours: gibHours,
	}
	if isDefault {
		out.Source = namespaceKind
	}
	if s, _ := w.Parse(); s != nil {
		out.TimeZone = s.Zone.String()
		due := s.Due(w.Record(), w.Running(s), now)
		out.Last, out.LastEvent = described(w.lastEvent(due))
		out.Next, out.NextEvent = described(nextEvent(s, due, now))
	}
	return out
}

// saved returns the CPU and memory requests that a stop saves now, and what they add up to since the last stop.
func (w workload) saved(now time.Time) (requests corev1.ResourceList, coreHours, gibHours float64) {
	requests = w.Saved()
	if last := w.Record().Last; !last.IsZero() {
		hours := max(0, now.Sub(last).Hours())
		coreHours = requests.Cpu().AsApproximateFloat64() * hours
		gibHours = requests.Memory().AsApproximateFloat64() / (1 << 30) * hours
	}
	return requests, coreHours, gibHours
}

// nextEvent returns the next start or stop, which may be the stop at the end of an uptime. It is zero if there is none.
func nextEvent(s *schedule.Schedule, due schedule.Due, now time.Time) schedule.Event {
	regular := schedule.Event{}
	if events := s.EventsAfter(now, 1); len(events) > 0 && !due.IsUptime {
		regular = events[0]
	}
	expires := due.ExpiresIntoStop && due.Expiry.After(now)
	switch {
	case expires && (regular.At.IsZero() || due.Expiry.Before(regular.At)):
		return schedule.Event{At: due.Expiry, IsStop: true}
	case due.IsUptime && !due.ExpiresIntoStop:
		if events := s.EventsAfter(due.Expiry, 1); len(events) > 0 {
			return events[0]
		}
	}
	return regular
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

// print prints the rows in an output format: json, yaml, wide, or a table if it is empty.
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
		cells := []any{r.Kind, r.Name, r.State, ago(r.Last, r.LastEvent, now), in(r.Next, r.NextEvent, now),
			r.Source, r.Cores, r.Memory, fmt.Sprintf("%.1f", r.CoreHours), fmt.Sprintf("%.1f", r.GiBHours), r.TimeZone}
		if namespaces {
			cells = append([]any{r.Namespace}, cells...)
		}
		t.Rows = append(t.Rows, metav1.TableRow{Cells: cells})
	}
	return t
}

func ago(at *metav1.Time, event string, now time.Time) string {
	if at == nil {
		return "-"
	}
	return fmt.Sprintf("%s %s ago", event, duration.HumanDuration(now.Sub(at.Time)))
}

func in(at *metav1.Time, event string, now time.Time) string {
	if at == nil {
		return "-"
	}
	return fmt.Sprintf("%s in %s", event, duration.HumanDuration(at.Sub(now)))
}

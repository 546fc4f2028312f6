// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// manual has the annotations that docs/migrating.md translates, but the import does not. The value is a text that the
// reason of the import must contain. Some translations need an action, and some are only for new workloads.
var manual = map[string]string{
	"force-downtime": "kubectl useless sleep", "grace-period": "15m", "original-replicas": "start-replicas",
}

// TestMigrationPage compares the import with the tables and the examples of docs/migrating.md.
func TestMigrationPage(t *testing.T) {
	downscaler, greens := section(t, "kube-downscaler and GoKubeDownscaler"), section(t, "kube-green")
	t.Run("each row has the translation of its annotation", func(t *testing.T) {
		documented := map[string]bool{}
		for _, r := range rows(downscaler) {
			for _, name := range codes(r[0]) {
				if translators[name] != nil {
					documented[name] = true
					checkRow(t, name, r)
				}
			}
		}
		for name := range translators {
			if !documented[name] {
				t.Errorf("there is no row for %s", name)
			}
		}
	})
	t.Run("the rows have the translations of a SleepInfo", func(t *testing.T) { checkSleepInfoRows(t, rows(greens)) })
	t.Run("kube-downscaler before and after", func(t *testing.T) {
		before, after := blocks(t, downscaler)
		namespace, workload := before[0].Annotations, before[1].Annotations
		compare(t, Downscaler(namespace, nil, ""), after[0].Annotations)
		compare(t, Downscaler(workload, namespace, "deployments"), after[1].Annotations)
	})
	t.Run("kube-green before and after", func(t *testing.T) {
		text, _, _ := strings.Cut(greens, "\n```\n\nAfter")
		_, text, _ = strings.Cut(text, "\n```yaml\n")
		info := SleepInfo{}
		if err := yaml.Unmarshal([]byte(text), &info); err != nil {
			t.Fatal(err)
		}
		_, after := blocks(t, greens)
		compare(t, info.Translate(), after[0].Annotations)
	})
}

// checkRow translates the example of a row of the table for kube-downscaler and GoKubeDownscaler.
func checkRow(t *testing.T, name string, r []string) {
	t.Helper()
	kind := "deployments"
	if strings.Contains(r[0], "on a Namespace") {
		kind = ""
	}
	own, want := map[string]string{Prefix + name: codes(r[1])[0]}, annotationsIn(r[2])
	if name == "downtime-replicas" || name == "downscale-replicas" { // they need a schedule
		own[Prefix+"downscale-period"], want[v1beta1.StopScheduleAnnotation] = "Mon-Sun 19:00-20:00 UTC", "19:00"
	}
	got := Downscaler(own, nil, kind)
	if text, isManual := manual[name]; isManual {
		if reasons := strings.Join(got.Reasons, "\n"); len(got.Annotations) > 0 || !strings.Contains(reasons, text) {
			t.Errorf("%s: got %v and the reasons %q, want only a reason with %s", name, got.Annotations, reasons, text)
		}
		return
	}
	compare(t, got, want)
}

// checkSleepInfoRows translates one SleepInfo with the examples of all rows. It also requires a row for each field.
func checkSleepInfoRows(t *testing.T, rows [][]string) {
	t.Helper()
	info, want, documented := SleepInfo{}, map[string]string{}, map[string]bool{}
	fields := map[string]*string{"weekdays": &info.Spec.Weekdays, "sleepAt": &info.Spec.SleepAt,
		"wakeUpAt": &info.Spec.WakeUpAt, "timeZone": &info.Spec.TimeZone}
	for _, r := range rows {
		for _, name := range codes(r[0]) {
			documented[name] = true
			if field := fields[name]; field != nil {
				*field = codes(r[1])[0]
				maps.Copy(want, annotationsIn(r[2]))
			}
		}
	}
	compare(t, info.Translate(), want)
	for field := range reflect.TypeOf(info.Spec).Fields() {
		if name := field.Tag.Get("json"); !documented[name] {
			t.Errorf("there is no row for %s", name)
		}
	}
}

// compare compares a translation with annotations of the page. The schedules may be written differently, but must have
// the same starts and stops. The page does not mention the time zone UTC, because it is the default.
func compare(t *testing.T, got Translation, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(events(t, want), events(t, got.Annotations)); diff != "" {
		t.Errorf("starts and stops of %v and %v (-page +import):\n%s", want, short(got.Annotations), diff)
	}
	others := func(annotations map[string]string) map[string]string {
		rest := short(annotations)
		delete(rest, "start-schedule")
		delete(rest, "stop-schedule")
		maps.DeleteFunc(rest, func(key, value string) bool { return key == "time-zone" && value == "UTC" })
		return rest
	}
	if diff := cmp.Diff(others(want), others(got.Annotations)); diff != "" {
		t.Errorf("other annotations (-page +import):\n%s", diff)
	}
}

// events returns the next 20 starts and stops of a schedule, or nil if there is no schedule.
func events(t *testing.T, annotations map[string]string) (events []string) {
	t.Helper()
	if annotations[v1beta1.StartScheduleAnnotation]+annotations[v1beta1.StopScheduleAnnotation] == "" {
		return nil
	}
	s, problems := schedule.Parse(annotations, time.UTC)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	from := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	for _, event := range s.EventsAfter(from, 20) {
		_, cause, _ := strings.Cut(event.Cause, "/")
		events = append(events, cause+" "+event.At.UTC().Format(time.RFC3339))
	}
	return events
}

func section(t *testing.T, heading string) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("the page has no section %s", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// rows returns the cells of a table, without its heading.
func rows(section string) (rows [][]string) {
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| `") {
			rows = append(rows, strings.Split(strings.Trim(line, "|\n"), "|"))
		}
	}
	return rows
}

var code = regexp.MustCompile("`([^`]+)`")

// codes returns all texts between backquotes, without their quotation marks.
func codes(cell string) (texts []string) {
	for _, match := range code.FindAllStringSubmatch(cell, -1) {
		texts = append(texts, strings.Trim(match[1], `"`))
	}
	return texts
}

// annotationsIn returns the annotations in a cell, such as `stop-after: 8h`.
func annotationsIn(cell string) map[string]string {
	annotations := map[string]string{}
	for _, text := range codes(cell) {
		if key, value, found := strings.Cut(text, ": "); found {
			annotations["useless.container.training/"+key] = strings.Trim(value, `"`)
		}
	}
	return annotations
}

// blocks returns the objects in the two YAML blocks of a section: before and after.
func blocks(t *testing.T, section string) (before, after []metav1.ObjectMeta) {
	t.Helper()
	parts := strings.Split(section, "\n```yaml\n")
	if len(parts) != 3 {
		t.Fatalf("the section has %d YAML blocks, want 2", len(parts)-1)
	}
	for i, objects := range []*[]metav1.ObjectMeta{&before, &after} {
		text, _, _ := strings.Cut(parts[i+1], "\n```\n")
		for document := range strings.SplitSeq(text, "\n---\n") {
			var o struct{ Metadata metav1.ObjectMeta }
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				t.Fatal(err)
			}
			*objects = append(*objects, o.Metadata)
		}
	}
	return before, after
}

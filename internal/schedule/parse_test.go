// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/api/useless/v1beta1"
)

// office is a schedule from Monday to Friday, from 07:00 to 20:00.
var office = map[string]string{v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", v1beta1.StopScheduleAnnotation: "Mon-Fri 20:00"}

func TestParseRecurrence(t *testing.T) {
	for text, want := range map[string]string{
		"07:00":              "0 7 * * *",
		"7:05":               "5 7 * * *",
		"00:00":              "0 0 * * *",
		" 23:59 ":            "59 23 * * *",
		"Mon-Fri 07:00":      "0 7 * * 1,2,3,4,5",
		"mon-fri\t07:00":     "0 7 * * 1,2,3,4,5",
		"Sat-Sun 10:00":      "0 10 * * 0,6",
		"Fri-Mon,Wed 10:00":  "0 10 * * 0,1,3,5,6",
		"SUN 10:00":          "0 10 * * 0",
		"Mon-Sun 10:00":      "0 10 * * *",
		"Mon,Mon 10:00":      "0 10 * * 1",
		"0 20 * * 1-5":       "0 20 * * 1-5",
		"0  20 * * MON-FRI":  "0 20 * * MON-FRI",
		"*/15 8-17 1,15 * ?": "*/15 8-17 1,15 * ?",
		"0 0 29 2 *":         "0 0 29 2 *",
		"@daily":             "@daily",
	} {
		r, err := parseRecurrence(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if r.text != want {
			t.Errorf("%q is read as %q, want %q", text, r.text, want)
		}
	}
}

// TestBadValues parses invalid values of every annotation. The note from Explain must contain the key and the value.
// The examples in the note must be valid.
func TestBadValues(t *testing.T) {
	times := map[string]string{ // error by value
		"":                         "it is empty",
		" ":                        "it is empty",
		"24:00":                    "24:00 is not a time of day",
		"25:00":                    "25:00 is not a time of day",
		"07:60":                    "07:60 is not a time of day",
		"7:5":                      "7:5 is not a time of day",
		"07:00:00":                 "07:00:00 is not a time of day",
		"07:00 Mon-Fri":            "nor the five fields of cron",
		"Mon-Fri":                  "nor the five fields of cron",
		"Monday 07:00":             "monday is neither a day of the week",
		"Mon- 07:00":               "mon- is neither a day of the week",
		"Mon,,Tue 07:00":           "a day is missing before or after a comma",
		"1-5 07:00":                "1-5 is neither a day of the week",
		"Mon - Fri 07:00":          "nor the five fields of cron",
		"0 7 * *":                  "nor the five fields of cron",
		"0 0 7 * * *":              "nor the five fields of cron",
		"60 7 * * *":               "above maximum",
		"0 24 * * *":               "above maximum",
		"0 7 0 * *":                "below minimum",
		"0 7 * 13 *":               "above maximum",
		"0 7 * * 7":                "above maximum",
		"0 7 * * Sat-Sun":          "beyond end of range",
		"0 7 * * mon-5-6":          "too many hyphens",
		"*/0 7 * * *":              "should be a positive number",
		"-1 7 * * *":               "failed to parse int",
		"seven":                    "nor the five fields of cron",
		"TZ=UTC 0 7 * * *":         "use the annotation time-zone for a time zone",
		"CRON_TZ=UTC 0 7 * * *":    "use the annotation time-zone for a time zone",
		"TZ=UTC":                   "use the annotation time-zone for a time zone", // the cron library panics on it
		"CRON_TZ=":                 "use the annotation time-zone for a time zone",
		"@every 1h":                "it has no time of day",
		"@every":                   "unrecognized descriptor",
		"@reboot":                  "unrecognized descriptor",
		"0 0 31 2 *":               "the date does not exist",
		"0 0 30 2 *":               "the date does not exist",
		"0 0 31 4,6,9,11 *":        "the date does not exist",
		", 7 * * *":                "a list is empty",
		"0 , * * *":                "a list is empty",
		"0 7 , * *":                "a list is empty",
		"0 7 * , *":                "a list is empty",
		"0 7 1 * ,":                "a list is empty",
		strings.Repeat("0", 10000): "nor the five fields of cron",
	}
	replicas := map[string]string{
		"": "not a whole number", "two": "not a whole number", "-1": "not a whole number", "1.5": "not a whole number",
		"0x1": "not a whole number", " 1": "not a whole number", "2147483648": "not a whole number", "1e3": "not a whole number",
	}
	durations := map[string]string{
		"": "not a duration", "4": "not a duration", "4 h": "not a duration", "1.5h": "not a duration",
		"-1h": "not a duration", "30s": "not a duration from 1m", "59s999ms": "not a duration from 1m",
		"30d1ms": "to 30d", "1y": "to 30d", "99999999999999999d": "not a duration", "forever": "not a duration",
	}
	atLeastOne := maps.Clone(replicas)
	atLeastOne["0"] = "not a whole number from 1"
	bad := map[string]map[string]string{
		v1beta1.StartScheduleAnnotation: times,
		v1beta1.StopScheduleAnnotation:  times,
		v1beta1.TimeZoneAnnotation: {
			"": "not in the time zone database", "Local": "not in the time zone database", "Factory": "not in the time zone database", "localtime": "not in the time zone database",
			"posixrules": "not in the time zone database", "right/UTC": "not in the time zone database", "posix/Europe/Berlin": "not in the time zone database",
			"Europe/../UTC": "not in the time zone database", "Europe//Berlin": "not in the time zone database", "./UTC": "not in the time zone database", "UTC/": "not in the time zone database",
			"Mars/Olympus": "not in the time zone database", "CET+1": "not in the time zone database", "+01:00": "not in the time zone database",
			"../etc/passwd": "not in the time zone database", "/etc/passwd": "not in the time zone database", "europe/berlin ": "not in the time zone database",
		},
		v1beta1.StopReplicasAnnotation:  replicas,
		v1beta1.StartReplicasAnnotation: atLeastOne,
		v1beta1.SuspendAnnotation:       {"": "neither true nor false", "yes": "neither true nor false", "on": "neither true nor false"},
		v1beta1.SuspendUntilAnnotation: {
			"": "not a time", "tomorrow": "not a time", "2026-11-23": "not a time", "2026-11-23T07:00:00": "not a time",
			"2026-11-23 07:00:00Z": "not a time", "2026-13-01T00:00:00Z": "not a time",
		},
		v1beta1.ExcludeDatesAnnotation: {
			"": "neither a date nor a range", "2026-12-25,": "neither a date nor a range", "25.12.2026": "neither a date nor a range",
			"2026-12-32": "neither a date nor a range", "2026-02-29": "neither a date nor a range", "2026-12-25/": "neither a date nor a range",
			"2026-12-25/2026-12-26/2026-12-27": "neither a date nor a range", "2026-12-26/2026-12-25": "ends before it begins",
			"2026-12-25 2026-12-26": "neither a date nor a range",
		},
		v1beta1.StopAfterAnnotation: durations,
		v1beta1.StartUntilAnnotation: {
			"": "not a duration", "tomorrow": "not a duration", "2026-11-23": "not a duration",
			"2026-11-23T07:00:00": "not a duration", "-3h": "not a duration", "59s": "not a duration from 1m",
			"31d": "to 30d", "0": "not a duration",
		},
		v1beta1.DryRunAnnotation:   {"": "neither true nor false", "yes": "neither true nor false", "on": "neither true nor false"},
		v1beta1.ScheduleAnnotation: {"": "it must be none", "None": "it must be none", "off": "it must be none"},
	}
	for _, f := range fields {
		if n := len(bad[f.key]); n < 3 {
			t.Errorf("there are %d invalid values for %s, want at least 3", n, f.key)
		}
		for value, why := range bad[f.key] {
			checkBad(t, f.key, value, why)
		}
	}
}

func checkBad(t *testing.T, key, value, why string) {
	t.Helper()
	annotations := maps.Clone(office)
	annotations[key] = value
	s, problems := Parse(annotations, time.UTC)
	if s != nil || len(problems) != 1 {
		t.Errorf("%s %q: got %d problems, want 1; a schedule was returned: %t, want false",
			key, value, len(problems), s != nil)
		return
	}
	reason, note := Explain(problems)
	wantReason := v1beta1.EventInvalidSchedule
	if key == v1beta1.TimeZoneAnnotation {
		wantReason = v1beta1.EventUnknownTimeZone
	}
	// quote truncates a long value, as Explain does.
	if named := key + " " + strings.TrimSuffix(quote(value), `"`); reason != wantReason || !strings.HasPrefix(note, named) || !strings.Contains(note, why) {
		t.Errorf("%s %q: want reason %s and a note with %q and %q, got %s: %s", key, value, wantReason, named, why, reason, note)
	}
	_, forms, _ := strings.Cut(note, "; use for example ")
	checked := 0
	for i, form := range strings.Split(forms, `"`) {
		if i%2 == 0 { // between two examples
			continue
		}
		checked++
		annotations[key] = form
		if _, problems := Parse(annotations, time.UTC); len(problems) > 0 {
			t.Errorf("%s %q: the example %q is invalid: %s", key, value, form, problems[0])
		}
	}
	if checked == 0 {
		t.Errorf("%s %q: the note has no example: %s", key, value, note)
	}
}

func quote(value string) string {
	return `"` + strings.ReplaceAll(Truncate(value), "\t", `\t`) + `"`
}

func TestContradictions(t *testing.T) {
	for name, c := range map[string]struct {
		reason      string
		annotations map[string]string
		want        string
	}{
		"SameTime": {
			"a start and a stop at the same times",
			map[string]string{v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", v1beta1.StopScheduleAnnotation: "0 7 * * 1-5"},
			`useless.container.training/stop-schedule "0 7 * * 1-5": every stop has the time of a start, and the start takes precedence; use for example "Mon-Fri 20:00"`,
		},
		"SameTimeInOtherWords": {
			"the same times in different forms",
			map[string]string{v1beta1.StartScheduleAnnotation: "0 20 * * *", v1beta1.StopScheduleAnnotation: "0 20 1-31 * *"},
			`useless.container.training/stop-schedule "0 20 1-31 * *": every stop has the time of a start, and the start takes precedence; use for example "Mon-Fri 20:15"`,
		},
		"NeverAlone": {
			"a start every minute, so no other stop-schedule would help",
			map[string]string{v1beta1.StartScheduleAnnotation: "* * * * *", v1beta1.StopScheduleAnnotation: "Mon 20:00"},
			`useless.container.training/stop-schedule "Mon 20:00": every stop has the time of a start, and the start takes precedence; ` +
				`use for example "Mon-Fri 20:00" with start-schedule "Mon-Fri 07:00"`,
		},
		"ExcludedStops": {
			"excluded dates without a start-schedule",
			map[string]string{v1beta1.StopScheduleAnnotation: "20:00", v1beta1.ExcludeDatesAnnotation: "2026-12-25"},
			`useless.container.training/exclude-dates "2026-12-25": it needs a start-schedule; ` +
				`use for example start-schedule "Mon-Fri 07:00" in addition`,
		},
		"FewerOnStart": {
			"start-replicas is not more than stop-replicas",
			map[string]string{v1beta1.StopScheduleAnnotation: "20:00", v1beta1.StartReplicasAnnotation: "2", v1beta1.StopReplicasAnnotation: "2"},
			`useless.container.training/start-replicas "2": it must be more than stop-replicas, which is 2; use for example "3"`,
		},
		"NoSchedule": {
			"annotations without a schedule",
			map[string]string{v1beta1.TimeZoneAnnotation: "UTC", v1beta1.StopReplicasAnnotation: "1"},
			`useless.container.training/time-zone "UTC": there is no start-schedule, stop-schedule or stop-after; use for example stop-schedule "Mon-Fri 20:00" in addition`,
		},
		"Several": {
			"all problems are in one note",
			map[string]string{v1beta1.StartScheduleAnnotation: "7", v1beta1.TimeZoneAnnotation: "Mars", v1beta1.SuspendAnnotation: "no!"},
			`useless.container.training/start-schedule "7": it is neither a time of day, nor days and a time of day, nor the five fields of cron; use for example "Mon-Fri 07:00", "07:00" or "0 7 * * 1-5". ` +
				`useless.container.training/time-zone "Mars": it is not in the time zone database; use for example "Europe/Berlin" or "UTC". ` +
				`useless.container.training/suspend "no!": it is neither true nor false; use for example "true" or "false"`,
		},
		"Nothing": {"annotations of other programs cause no problem", map[string]string{"app": "web"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := Parse(c.annotations, time.UTC)
			if _, note := Explain(problems); note != c.want {
				t.Errorf("%s:\ngot  %s\nwant %s", c.reason, note, c.want)
			}
		})
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		text, other string
		want        bool
	}{
		{"20:00", "0 20 * * 0-6", true},
		{"0 20 * * 0-6", "20:00", true},
		{"20:00", "0 20 1-31 * *", true},
		{"20:00", "0 20 1-30 * *", false},
		{"20:00", "0 20 1-30 * 0-5", false}, // they differ on the 31st if it is a Saturday
		{"20:00", "0 20 1-30 * 0-6", true},
		{"20:00", "0 20 * 1-12 *", true},
		{"20:00", "0 20 * 1-11 *", false},
		{"0 0 29 2 *", "@daily", true},
		{"0 0 29 2 *", "0 0 * * 0-5", false}, // 2020-02-29 was a Saturday
		{"0 0 29 2 *", "0 0 28-29 2 *", true},
		{"Mon 20:00", "Mon-Fri 20:00", true},
		{"Mon-Fri 20:00", "Mon 20:00", false},
		{"Mon 20:00", "0 20 1 * 1", true}, // in cron, 1 * 1 means the first day of each month and every Monday
		{"0 20 1 * 1", "Mon 20:00", false},
		{"0 8-18/2 * * *", "0 * * * *", true},
		{"*/10 8 * * *", "*/5 8 * * *", true},
		{"*/5 8 * * *", "*/10 8 * * *", false},
		{"* * * * *", "* 0-6 * * *", false},
	} {
		r, err := parseRecurrence(c.text)
		other, otherErr := parseRecurrence(c.other)
		if err != nil || otherErr != nil {
			t.Fatal(err, otherErr)
		}
		if got := r.within(other); got != c.want {
			t.Errorf("%q within %q: got %t", c.text, c.other, got)
		}
	}
}

// TestExplainFits checks that a note is not longer than the API server accepts.
func TestExplainFits(t *testing.T) {
	for _, value := range []string{strings.Repeat("x", 1000), strings.Repeat("\x00", 1000), strings.Repeat("ü", 1000), strings.Repeat("25:00 ", 50)} {
		annotations := map[string]string{}
		for _, f := range fields {
			annotations[f.key] = value
		}
		_, problems := Parse(annotations, time.UTC)
		_, note := Explain(problems)
		if len(note) > maxNote || !strings.HasSuffix(note, " more)") || !strings.HasPrefix(note, fields[0].key) {
			t.Errorf("%d bytes: %s", len(note), note)
		}
	}
}

func TestObserved(t *testing.T) {
	base := maps.Clone(office)
	base[v1beta1.ExcludeDatesAnnotation] = "2026-12-25"
	observe := func(key, value string) string {
		annotations := maps.Clone(base)
		annotations[key] = value
		s, problems := Parse(annotations, time.UTC)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return s.Observed
	}
	is := observe(v1beta1.TimeZoneAnnotation, "UTC")
	if golden := "iv1k7qyydob5"; is != golden {
		t.Errorf("got hash %s, want %s: after an upgrade, the operator would repeat the last event of every schedule", is, golden)
	}
	for _, same := range [][2]string{
		{v1beta1.StartScheduleAnnotation, "mon-fri 7:00"}, {v1beta1.StartScheduleAnnotation, "0 7 * *  1,2,3,4,5"}, {v1beta1.StopReplicasAnnotation, "0"},
		{v1beta1.SuspendAnnotation, "true"}, {v1beta1.SuspendUntilAnnotation, "2026-11-23T07:00:00Z"}, {v1beta1.ExcludeDatesAnnotation, "2026-12-25/2026-12-25"}, {"app", "web"},
	} {
		if observe(same[0], same[1]) != is {
			t.Errorf("%s %q changes the hash", same[0], same[1])
		}
	}
	elsewhere, _ := Parse(base, zone(t, "Europe/Berlin"))
	known := map[string]bool{is: true, elsewhere.Observed: true}
	if len(known) != 2 {
		t.Error("the default time zone does not change the hash")
	}
	for _, other := range [][2]string{
		{v1beta1.StartScheduleAnnotation, "07:00"}, {v1beta1.StopScheduleAnnotation, "Mon-Fri 20:01"}, {v1beta1.TimeZoneAnnotation, "Europe/Rome"},
		{v1beta1.StopReplicasAnnotation, "1"}, {v1beta1.StartReplicasAnnotation, "1"}, {v1beta1.ExcludeDatesAnnotation, "2026-12-26"}, {v1beta1.ExcludeDatesAnnotation, "2026-12-25/2026-12-26"},
	} {
		got := observe(other[0], other[1])
		if known[got] {
			t.Errorf("%s %q does not change the hash", other[0], other[1])
		}
		known[got] = true
	}
}

func TestParseDates(t *testing.T) {
	for text, want := range map[string]string{
		"2026-12-25":                                  "12-25..12-26",
		"2026-12-28/2026-12-30":                       "12-28..12-31",
		" 2026-12-28 , 2026-12-25 ":                   "12-25..12-26 12-28..12-29",
		"2026-12-26,2026-12-25":                       "12-25..12-27",
		"2026-12-20/2026-12-30,2026-12-25":            "12-20..12-31",
		"2026-12-25/2026-12-27,2026-12-26/2026-12-30": "12-25..12-31",
		"2026-12-25,2026-12-25,2026-12-27":            "12-25..12-26 12-27..12-28",
	} {
		all, err := parseDates(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		var got []string
		for _, d := range all {
			got = append(got, d.from.Format("01-02")+".."+d.to.Format("01-02"))
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

// FuzzParse parses any annotations and computes the events of valid schedules. It must not panic or hang.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"07:00", "Mon-Fri 20:00", "0 20 * * 1-5", "@every 1h", "TZ=UTC", "0 0 31 2 *", "0 0 29 2 *", ", * * * *", "* * * * *", "59/9223372036854775807 * * * *",
		"", "Sat-Sun 24:00", "1-1,2-2/3 */5 ? jan-dec sun",
	} {
		f.Add(seed, "20:00", "Europe/Berlin", "0", "3", "true", "2026-11-23T07:00:00Z", "2026-12-25,2000-01-01/9999-12-31",
			"4h", "2026-11-23T07:00:00Z", "true", "-", int64(1_763_640_000))
	}
	f.Fuzz(func(t *testing.T, start, stop, zone, stopReplicas, startReplicas, suspend, until, exclude,
		stopAfter, startUntil, dryRun, schedule string, unix int64) {
		annotations := map[string]string{
			v1beta1.StartScheduleAnnotation: start, v1beta1.StopScheduleAnnotation: stop, v1beta1.TimeZoneAnnotation: zone,
			v1beta1.StopReplicasAnnotation: stopReplicas, v1beta1.StartReplicasAnnotation: startReplicas,
			v1beta1.SuspendAnnotation: suspend, v1beta1.SuspendUntilAnnotation: until, v1beta1.ExcludeDatesAnnotation: exclude,
			v1beta1.StopAfterAnnotation: stopAfter, v1beta1.StartUntilAnnotation: startUntil,
			v1beta1.DryRunAnnotation: dryRun, v1beta1.ScheduleAnnotation: schedule,
		}
		if len(annotations) != len(fields) {
			t.Errorf("the test sets %d annotations, want %d", len(annotations), len(fields))
		}
		maps.DeleteFunc(annotations, func(_, value string) bool { return value == "-" })
		s, problems := Parse(annotations, time.UTC)
		if _, note := Explain(problems); len(note) > maxNote {
			t.Errorf("the note has %d bytes", len(note))
		}
		if s != nil && !IsUnscheduled(annotations) {
			checkEvents(t, s, time.Unix(unix%(200*365*86400), 0)) // within two centuries of 1970
		}
	})
}

// checkEvents fails the test if the last event is in the future, or the next one is not.
func checkEvents(t *testing.T, s *Schedule, now time.Time) {
	t.Helper()
	last, next, _ := s.Events(now)
	if last.At.After(now) || !next.IsZero() && !next.After(now) {
		t.Errorf("at %s, the last event is at %s and the next one at %s", now, last.At, next)
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"archive/zip"
	"io"
	"iter"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestInstant(t *testing.T) {
	for name, c := range map[string]struct {
		reason, zone, wall, want string
	}{
		"Ordinary":      {"a time that occurs once", "Asia/Tokyo", "2026-11-20 20:00", "2026-11-20T11:00:00Z"},
		"Gap":           {"a skipped time has the instant of the change", "America/New_York", "2024-03-10 02:30", "2024-03-10T07:00:00Z"},
		"GapEnd":        {"the time to which the clock is set forward", "America/New_York", "2024-03-10 03:00", "2024-03-10T07:00:00Z"},
		"GapBegin":      {"the last minute before the skipped times", "America/New_York", "2024-03-10 01:59", "2024-03-10T06:59:00Z"},
		"Overlap":       {"a time that occurs twice has the first instant", "America/New_York", "2024-11-03 01:30", "2024-11-03T05:30:00Z"},
		"OverlapBegin":  {"the first time that occurs twice", "America/New_York", "2024-11-03 01:00", "2024-11-03T05:00:00Z"},
		"OverlapEnd":    {"the time at which the clock is set back occurs once", "America/New_York", "2024-11-03 02:00", "2024-11-03T07:00:00Z"},
		"NoMidnight":    {"midnight is skipped", "America/Sao_Paulo", "2018-11-04 00:00", "2018-11-04T03:00:00Z"},
		"HalfAnHour":    {"the clock is set back by half an hour", "Australia/Lord_Howe", "2026-04-05 01:45", "2026-04-04T14:45:00Z"},
		"NoDay":         {"a whole day is skipped", "Pacific/Apia", "2011-12-30 12:00", "2011-12-30T10:00:00Z"},
		"Ramadan":       {"a time that is skipped when the clock is set forward after Ramadan", "Africa/Casablanca", "2026-03-22 02:30", "2026-03-22T02:00:00Z"},
		"FarFuture":     {"the rules of a zone apply in the far future", "Europe/Berlin", "2099-07-01 12:00", "2099-07-01T10:00:00Z"},
		"WithoutSummer": {"a zone without clock changes", "UTC", "2026-03-29 02:30", "2026-03-29T02:30:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			wall, err := time.Parse("2006-01-02 15:04", c.wall)
			if err != nil {
				t.Fatal(err)
			}
			if got := FormatTime(instant(wall, zone(t, c.zone))); got != c.want {
				t.Errorf("%s: %s in %s is %s, want %s", c.reason, c.wall, c.zone, got, c.want)
			}
		})
	}
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := ParseZone(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// TestEveryTransition computes the occurrences of a schedule around every change of an offset in every zone from 2000
// to 2040. An occurrence must be at the first minute at which the clock shows its time or a later time. With -short, it
// tests every tenth zone.
func TestEveryTransition(t *testing.T) {
	r, err := parseRecurrence("*/30 * * * *")
	if err != nil {
		t.Fatal(err)
	}
	zones, every := allZones(t), 1
	if testing.Short() {
		every = 10
	}
	transitions := 0
	for i, name := range slices.Sorted(maps.Keys(zones)) {
		if i%every != 0 {
			continue
		}
		zone := zones[name]
		for at := range transitionsOf(zone) {
			transitions++
			from, to := at.Add(-time.Hour), at.Add(time.Hour)
			to = to.Add(max(0, offset(from, zone)-offset(to, zone))) // include all times that the clock shows twice

			if diff := cmp.Diff(halfHours(zone, from, to), walk(t, r, zone, from, to)); diff != "" {
				t.Fatalf("%s: occurrences around %s (-want +got):\n%s", name, at, diff)
			}
		}
	}
	t.Logf("%d transitions", transitions)
	if want := 10_000 / every; transitions < want {
		t.Errorf("got %d transitions, want at least %d", transitions, want)
	}
}

// walk returns the occurrences of a recurrence in a range. It computes each occurrence from the previous one.
func walk(t *testing.T, r *Recurrence, zone *time.Location, from, to time.Time) (all []time.Time) {
	t.Helper()
	for now := from; ; {
		last, next := r.around(now, zone)
		if last.At.After(now) || !next.At.After(now) || len(all) > 0 && !last.At.Equal(now) {
			t.Fatalf("in %s at %s, got last occurrence %s and next occurrence %s", zone, now, last.At, next.At)
		}
		// When the clock is set back, it shows some times again. They must not be occurrences again.
		if wait := next.At.Sub(now); wait > 30*time.Minute {
			if sameLast, sameNext := r.around(now.Add(wait/2), zone); sameLast != last || sameNext != next {
				t.Fatalf("in %s between %s and %s, got occurrences at %s and %s", zone, last.At, next.At, sameLast.At, sameNext.At)
			}
		}
		if now = next.At; now.After(to) {
			return all
		}
		all = append(all, now)
	}
}

// halfHours returns instants in a range. At each of them, the clock in a zone reaches or skips a full or half hour for
// the first time.
func halfHours(zone *time.Location, from, to time.Time) []time.Time {
	var all []time.Time
	at := from.Add(-2 * time.Hour) // the clock may have been set back just before the range
	latest := shown(at, zone)
	for ; !at.After(to); at = at.Add(time.Minute) {
		due := false
		for wall := shown(at, zone); latest.Before(wall); {
			latest = latest.Add(time.Minute)
			due = due || latest.Minute()%30 == 0
		}
		if due && at.After(from) {
			all = append(all, at)
		}
	}
	return all
}

// shown returns the wall-clock time, computed independently of wallClock.
func shown(at time.Time, zone *time.Location) time.Time {
	local := at.In(zone)
	year, month, date := local.Date()
	hour, minute, second := local.Clock()
	return time.Date(year, month, date, hour, minute, second, 0, time.UTC)
}

// transitionsOf yields the instants at which the offset of a zone changes.
func transitionsOf(zone *time.Location) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		last := time.Date(2040, 12, 31, 0, 0, 0, 0, time.UTC)
		is := offset(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), zone)
		for today := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC); today.Before(last); today = today.Add(day) {
			was := is
			if is = offset(today.Add(day), zone); is == was {
				continue
			}
			at := today
			for offset(at, zone) == was {
				at = at.Add(time.Minute)
			}
			if !yield(at) {
				return
			}
		}
	}
}

// allZones returns all zones of Go's time zone database by name. A zone with several names is included once.
func allZones(t *testing.T) map[string]*time.Location {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	zones, known := map[string]*time.Location{}, map[string]bool{}
	for _, file := range archive.File {
		if file.FileInfo().IsDir() {
			continue
		}
		content, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		if known[string(data)] { // an alias
			continue
		}
		known[string(data)] = true
		if _, err := ParseZone(file.Name); (err != nil) != (file.Name == "Factory") {
			t.Errorf("time zone %s: %v", file.Name, err)
		}
		if zones[file.Name], err = time.LoadLocationFromTZData(file.Name, data); err != nil {
			t.Fatal(err)
		}
	}
	return zones
}

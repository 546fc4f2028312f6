// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
)

func TestEnabled(t *testing.T) {
	cases := map[string]struct {
		selection  string
		byDefault  bool
		notDefault bool // whether one that is off by default runs
		reason     string
	}{
		"Star":        {selection: "*", byDefault: true, reason: "the star stands for what is on by default"},
		"Named":       {selection: "c", byDefault: true, notDefault: true, reason: "naming it turns it on"},
		"Other":       {selection: "other", reason: "naming others leaves it off"},
		"AllButOne":   {selection: "*,-c", reason: "a minus turns it off"},
		"OneMore":     {selection: "*,c", byDefault: true, notDefault: true, reason: "a name adds to the star"},
		"FirstCounts": {selection: "-c,c", reason: "the first mention counts"},
		"None":        {selection: "", reason: "an empty name selects nothing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			selection := strings.Split(c.selection, ",")
			if got := (entry{name: "c"}).enabled(selection); got != c.byDefault {
				t.Errorf("%s: on by default, it runs: %v", c.reason, got)
			}
			if got := (entry{name: "c", rights: []right{{}}}).enabled(selection); got != c.notDefault {
				t.Errorf("%s: off by default, it runs: %v", c.reason, got)
			}
		})
	}
}

func TestUnknownController(t *testing.T) {
	err := Options{Selection: []string{"*", "-machines"}}.Validate()
	if err == nil || !strings.Contains(err.Error(), `no controller "machines": choose from machine`) {
		t.Errorf("got %v", err)
	}
}

func TestCacheOptionsOfAll(t *testing.T) {
	if _, err := (Options{Selection: Names()}).CacheOptions(); err != nil {
		t.Errorf("all controllers together: %v", err)
	}
}

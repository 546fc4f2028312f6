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
		byDefault  bool // whether a controller that is on by default runs
		notDefault bool // whether a controller that is off by default runs
		reason     string
	}{
		"Star":        {selection: "*", byDefault: true, reason: "* selects the controllers that are on by default"},
		"Named":       {selection: "c", byDefault: true, notDefault: true, reason: "a name turns a controller on"},
		"Other":       {selection: "other", reason: "the name of another controller does not turn it on"},
		"AllButOne":   {selection: "*,-c", reason: "a minus turns a controller off"},
		"OneMore":     {selection: "*,c", byDefault: true, notDefault: true, reason: "a name adds a controller to *"},
		"FirstCounts": {selection: "-c,c", reason: "the first mention counts"},
		"None":        {selection: "", reason: "an empty name selects nothing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			selection := strings.Split(c.selection, ",")
			if got := (entry{name: "c"}).enabled(selection); got != c.byDefault {
				t.Errorf("%s: got %t for a controller that is on by default", c.reason, got)
			}
			if got := (entry{name: "c", rights: []right{{}}}).enabled(selection); got != c.notDefault {
				t.Errorf("%s: got %t for a controller that is off by default", c.reason, got)
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

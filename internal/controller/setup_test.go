// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"os"
	"strings"
	"testing"
)

func TestEnabled(t *testing.T) {
	cases := map[string]struct {
		selection  string
		byDefault  bool // whether a controller that is enabled by default runs
		notDefault bool // whether a controller that is disabled by default runs
		reason     string
	}{
		"Star":        {selection: "*", byDefault: true, reason: "* selects the controllers that are enabled by default"},
		"Named":       {selection: "c", byDefault: true, notDefault: true, reason: "a name enables a controller"},
		"Other":       {selection: "other", reason: "the name of another controller does not enable it"},
		"AllButOne":   {selection: "*,-c", reason: "a minus disables a controller"},
		"OneMore":     {selection: "*,c", byDefault: true, notDefault: true, reason: "a name adds a controller to *"},
		"FirstCounts": {selection: "-c,c", reason: "the first mention of a name takes effect"},
		"None":        {selection: "", reason: "an empty name selects nothing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			selection := strings.Split(c.selection, ",")
			if got := (entry{name: "c"}).enabled(selection); got != c.byDefault {
				t.Errorf("%s: got %t for a controller that is enabled by default", c.reason, got)
			}
			if got := (entry{name: "c", rights: []right{{}}}).enabled(selection); got != c.notDefault {
				t.Errorf("%s: got %t for a controller that is disabled by default", c.reason, got)
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

// TestInstallationRunsDefaults checks that dist/install.yaml runs exactly the controllers that are enabled by default.
func TestInstallationRunsDefaults(t *testing.T) {
	installation := read(t, "dist/install.yaml")
	for _, e := range (&Options{}).controllers() {
		if got := strings.Contains(installation, "- --controllers="+e.name+"\n"); got != e.enabled(nil) {
			t.Errorf("dist/install.yaml runs %s: %t, want %t", e.name, got, e.enabled(nil))
		}
	}
}

// TestControllersAreDocumented looks for the name of each controller in the documentation.
func TestControllersAreDocumented(t *testing.T) {
	for page, text := range map[string]func(name string) string{
		"docs/installing.md": func(name string) string { return "`" + name + "`" },
		"docs/reference.md":  func(name string) string { return "`" + name + "`" },
		"README.md":          func(name string) string { return "| [" + name + "](docs/" },
	} {
		content := read(t, page)
		for _, name := range Names() {
			if !strings.Contains(content, text(name)) {
				t.Errorf("%s does not contain %s", page, text(name))
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

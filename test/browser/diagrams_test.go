// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var diagram = regexp.MustCompile("(?ms)^```mermaid\n(.*?)^```$")

// TestDiagrams renders the Mermaid diagrams of the documentation, as GitHub does.
func TestDiagrams(t *testing.T) {
	t.Parallel()
	script := npmScript(t, "mermaid", "dist", "mermaid.min.js")
	tab, found := newBrowser(t).newTab(t), 0
	evaluate[bool](t, tab, script+"\n;mermaid.initialize({startOnLoad: false, suppressErrorRendering: true}) ?? true")
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		pages, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, block := range diagram.FindAllStringSubmatch(string(text), -1) {
				found++
				if got := render(t, tab, found, block[1]); !strings.HasPrefix(got, "<svg ") {
					t.Errorf("%s: %s\n%s", page, got, block[1])
				}
			}
		}
	}
	if found == 0 {
		t.Error("there is no diagram")
	}
}

// newBrowser starts a browser without a control plane, for tests that need none or start their own.
func newBrowser(t *testing.T) *environment {
	t.Helper()
	requireBrowser(t)
	e := &environment{}
	t.Cleanup(e.stop)
	if err := e.startBrowser(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	return e
}

// render returns the SVG of a diagram, or the error of Mermaid.
func render(t *testing.T, tab tab, number int, source string) string {
	t.Helper()
	quoted, err := json.Marshal(source)
	if err != nil {
		t.Fatal(err)
	}
	const script = "mermaid.render('diagram%d', %s).then(result => result.svg, String)"
	return evaluate[string](t, tab, fmt.Sprintf(script, number, quoted))
}

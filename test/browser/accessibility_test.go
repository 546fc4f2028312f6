// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// undecided lists the messages of axe for rules that it cannot decide on this page. Each value says why the page
// complies.
var undecided = map[string]string{
	"Element content is too short to determine if it is actual text content": "the label of a switch can be one digit; " +
		"longer labels have the same colors",
	"Unable to determine previous heading": "another test has created or deleted a Machine while axe ran",
}

// TestAccessibility checks the page with axe-core in both color schemes, on a narrow and on a wide screen.
func TestAccessibility(t *testing.T) {
	t.Parallel()
	script := npmScript(t, "axe-core", "axe.min.js")
	e := use(t)
	e.createMachine(t, "axe", 3)
	e.applySamples(t)
	tab := e.open(t, e.page.URL)
	await(t, tab, `document.querySelectorAll('.workload').length >= 3`)
	await(t, tab, isDown("axe-0"))
	evaluate[bool](t, tab, script+"\n;true")
	eachScreen(t, tab, func(t *testing.T) {
		t.Helper()
		do(t, tab, click("axe-1"))
		await(t, tab, wasUp("axe-1"))
		checkAccessibility(t, tab)
		await(t, tab, isDown("axe-1"))
	})
}

// TestAccessibilityOfFailures checks the page without a connection, with an error, and without objects.
func TestAccessibilityOfFailures(t *testing.T) {
	t.Parallel()
	script := npmScript(t, "axe-core", "axe.min.js")
	e := use(t)
	e.createMachine(t, "axe-failures", 1)
	c := e.connection(t)
	tab := e.open(t, c.URL)
	await(t, tab, isDown("axe-failures-0"))
	evaluate[bool](t, tab, script+"\n;true")
	c.cut()
	await(t, tab, `document.getElementById('connection').textContent === 'reconnecting'`)
	t.Run("reconnecting", func(t *testing.T) {
		eachScreen(t, tab, func(t *testing.T) { t.Helper(); checkAccessibility(t, tab) })
	})
	do(t, tab, click("axe-failures-0"))
	await(t, tab, `document.getElementById('error').innerText.includes('does not answer')`)
	t.Run("error", func(t *testing.T) {
		eachScreen(t, tab, func(t *testing.T) { t.Helper(); checkAccessibility(t, tab) })
	})
	evaluate[bool](t, tab, `apply({set: {}, gone: [...nodes.keys()]}) ?? !document.getElementById('none').hidden`)
	t.Run("empty", func(t *testing.T) {
		eachScreen(t, tab, func(t *testing.T) { t.Helper(); checkAccessibility(t, tab) })
	})
}

func eachScreen(t *testing.T, tab tab, check func(t *testing.T)) {
	t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		for name, width := range map[string]int64{"narrow": 360, "wide": 1200} {
			t.Run(scheme+" "+name, func(t *testing.T) {
				do(t, tab, prefer(scheme), chromedp.EmulateViewport(width, 800))
				check(t)
			})
		}
	}
}

// checkAccessibility runs all rules of axe-core. A rule that axe cannot decide is also an error, except for the
// messages in undecided.
func checkAccessibility(t *testing.T, tab tab) {
	t.Helper()
	await(t, tab, transitionsHaveEnded)
	type node struct{ Text, Reasons string }
	found := evaluate[map[string][]node](t, tab, `axe.run().then(results => {
		const nodes = rules => rules.flatMap(rule => rule.nodes.map(n => ({
			Text: rule.id + ': ' + n.html + ' ' + n.failureSummary,
			Reasons: [...n.any, ...n.all, ...n.none].map(check => check.message).join('\n'),
		})));
		return {violations: nodes(results.violations), incomplete: nodes(results.incomplete)};
	})`)
	for _, n := range found["violations"] {
		t.Error(n.Text)
	}
	for _, n := range found["incomplete"] {
		for reason := range strings.SplitSeq(n.Reasons, "\n") {
			if undecided[reason] == "" {
				t.Errorf("axe cannot decide %s", n.Text)
			}
		}
	}
}

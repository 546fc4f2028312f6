// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var mistakeLine = regexp.MustCompile(`(?m)^-:(\d+): `)

// FuzzCheck checks any text as a manifest. Each mistake must name a line of the text. The exit code must show whether
// there are mistakes. The order of the annotations in memory must not change the output.
func FuzzCheck(f *testing.F) {
	f.Add(namespaceWithDefault("20:00") + inDev("Deployment", `{suspend: "true"}`))
	f.Add("x: &x {kind: Deployment}\nitems: &l\n- *x\n- kind: List\n  items: *l\n")
	f.Add("x: &x\n  useless.container.training/stop-after: 5\n  useless.container.training/start-until: 3h\n" +
		"kind: Namespace\nmetadata: {annotations: {<<: *x}}\n")
	f.Add(`{"kind": "CronJob", "metadata": {"annotations": {"useless.container.training/stop-schedule": "0 20 * * 1-5"}}}`)
	f.Fuzz(func(t *testing.T, manifest string) {
		stdout, _, err := run(manifest, "schedule", "check", "-f", "-")
		lines := mistakeLine.FindAllStringSubmatch(stdout, -1)
		if found := len(lines) > 0; found != errors.Is(err, errInvalid) {
			t.Errorf("%d mistakes and the error %v:\n%s", len(lines), err, stdout)
		}
		for _, match := range lines {
			if n, err := strconv.Atoi(match[1]); err != nil || n < 1 || n > strings.Count(manifest, "\n")+1 {
				t.Errorf("%q has no line %s", manifest, match[1])
			}
		}
		if again, _, _ := run(manifest, "schedule", "check", "-f", "-"); again != stdout {
			t.Errorf("got two different outputs:\n%s\n%s", stdout, again)
		}
	})
}

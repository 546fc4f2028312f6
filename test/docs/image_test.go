// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sedCommand matches a sed command for install.yaml. In a table, a backslash precedes each vertical bar.
var sedCommand = regexp.MustCompile(`sed '([^']+)' \S*install\.yaml`)

// TestImageName runs each documented sed command for install.yaml. The command must change only the image. A command
// that replaces the registry everywhere is wrong: container.training is also the domain of the operator's API groups,
// annotations and finalizers.
func TestImageName(t *testing.T) {
	manifests, err := os.ReadFile(filepath.Join(repository, "dist", "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files := os.DirFS(repository)
	commands := map[string][]string{}
	for _, page := range pages(t, files) {
		for _, match := range sedCommand.FindAllStringSubmatch(read(t, files, page), -1) {
			commands[page] = append(commands[page], strings.ReplaceAll(match[1], `\|`, `|`))
		}
	}
	if got := len(commands["docs/installing.md"]); got != 2 {
		t.Errorf("docs/installing.md has %d sed commands, want one for the repository and one for a release", got)
	}
	image := regexp.MustCompile(`.*image: container\.training/useless-operator:\S+\n`).FindString(string(manifests))
	want := []string{strings.Replace(image, "container.training", "registry.example.com", 1)}
	for page, expressions := range commands {
		for _, expression := range expressions {
			sed := exec.CommandContext(t.Context(), "sed", expression)
			sed.Stdin = strings.NewReader(string(manifests))
			output, err := sed.Output()
			if err != nil {
				t.Fatalf("%s: sed '%s': %v", page, expression, err)
			}
			if diff := cmp.Diff(want, changed(string(manifests), string(output))); diff != "" {
				t.Errorf("%s: lines that sed '%s' changes (-want +got):\n%s", page, expression, diff)
			}
		}
	}
}

// changed returns the lines of after that differ from before.
func changed(before, after string) (lines []string) {
	old := slices.Collect(strings.Lines(before))
	for i, line := range slices.Collect(strings.Lines(after)) {
		if i >= len(old) || old[i] != line {
			lines = append(lines, line)
		}
	}
	return lines
}

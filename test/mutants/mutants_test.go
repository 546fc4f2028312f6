// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build mutants

package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// simulations are the arguments of go test that select the simulations.
const simulations = "./test/sim -run ^Test(Crashes|Missed|Random|Reordered|Stale|TimeTravel|TwoLeaders)$"

// TestMutants finds a killer for each mutant: a test that fails with the mutant and passes without it. It writes the
// killers into docs/reliability.md. The recorded killer runs first, so usually no other test has to run. With -parallel
// 4, it tests four mutants at the same time, each in its own copy of the source.
func TestMutants(t *testing.T) {
	parallel := flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int)
	copies := make(chan string, parallel)
	for i := range parallel {
		copies <- copySource(t, fmt.Sprint(i+1))
	}
	killers, found := readTable(t), make([]test, len(mutants))
	t.Cleanup(func() {
		writeTable(t, killers)
		checkWithoutMutation(t, found)
	})
	for i, m := range mutants {
		t.Run(fmt.Sprintf("%02d", i+1), func(t *testing.T) {
			t.Parallel()
			dir := <-copies
			defer func() { copies <- dir }()
			start, recorded := time.Now(), killers[i]
			killers[i] = test{} // if no test fails, the table gets no row
			var output string
			found[i], output = m.killer(t, dir, recorded)
			killers[i] = found[i]
			t.Logf("%s: %s (%s)\n%s", m.mistake, found[i], time.Since(start).Round(time.Second), excerpt(output))
		})
	}
}

// copySource copies all files that git tracks, and all new files that git does not ignore. It always uses the same
// folder, because without -trimpath the key of Go's build cache includes the folder.
func copySource(t *testing.T, name string) (dir string) {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(repository, "bin", "mutants", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	index := "GIT_INDEX_FILE=" + filepath.Join(t.TempDir(), "index")
	for _, args := range [][]string{{"add", "--all"}, {"checkout-index", "--all", "--prefix=" + dir + "/"}} {
		git := exec.CommandContext(t.Context(), "git", args...)
		git.Dir, git.Env = repository, append(os.Environ(), index)
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return dir
}

// overwrite writes the files into a copy of the source.
func overwrite(t *testing.T, dir string, contents sources) {
	t.Helper()
	for file, content := range contents {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// killer returns the first test that fails with the mutant, in a copy of the source, and its output. The recorded test
// runs first.
func (m mutant) killer(t *testing.T, dir string, recorded test) (test, string) {
	t.Helper()
	before, err := m.read(dir)
	if err != nil {
		t.Fatal(err)
	}
	after, err := m.apply(before)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(before, func(file, _ string) bool { _, changed := after[file]; return !changed })
	overwrite(t, dir, after)
	defer overwrite(t, dir, before)
	// Some tests compile ./cmd. A mutant that does not compile must not count as found.
	compile := exec.CommandContext(t.Context(), "go", "list", "-export", "./cmd")
	compile.Dir = dir
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not compile: %s", out)
	}
	for _, suite := range append(recorded.suites(), m.suites()...) {
		killer, output, err := failing(dir, suite+" -timeout=5m")
		if err != nil {
			t.Fatal(err)
		}
		if killer.name != "" {
			return killer, output
		}
	}
	t.Fatal("no test finds the mistake")
	return test{}, ""
}

// excerpt returns the first lines of the output of a test. A simulation also prints all requests.
func excerpt(output string) string {
	const lines = 10
	parts := strings.SplitAfterN(output, "\n", lines+1)
	return strings.Join(parts[:min(lines, len(parts))], "")
}

// suites returns the arguments of each run of go test. First come the edited packages below internal. Then come m.tests
// or, if m.tests is nil, the simulations.
func (m mutant) suites() []string {
	if m.tests != nil {
		return append(m.packages(), m.tests...)
	}
	return append(m.packages(), simulations)
}

// packages returns the edited packages below internal.
func (m mutant) packages() (packages []string) {
	for _, e := range m.edits {
		if pkg := "./" + e.in; strings.HasPrefix(pkg, "./internal/") && !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
	}
	return packages
}

// A test is one test or subtest. The zero value means no test.
type test struct{ folder, name string }

func (t test) String() string { return t.folder + " " + t.name }

// suites returns arguments of go test that run only this test, or nil for no test.
func (t test) suites() []string {
	if t.name == "" {
		return nil
	}
	return []string{"./" + t.folder + " -run " + t.pattern()}
}

func (t test) pattern() string {
	return "^" + strings.ReplaceAll(regexp.QuoteMeta(t.name), "/", "$/^") + "$"
}

// checkWithoutMutation checks that the tests pass with the unchanged source. It runs go test for all folders at the
// same time. There is no timeout, because only a mutant can hang.
func checkWithoutMutation(t *testing.T, tests []test) {
	t.Helper()
	byFolder := map[string][]test{}
	for _, test := range tests {
		if test.name != "" {
			byFolder[test.folder] = append(byFolder[test.folder], test)
		}
	}
	var folders sync.WaitGroup
	for folder, tests := range byFolder {
		folders.Go(func() {
			suite := "./" + folder + " -timeout=0 -run="
			for _, test := range tests {
				suite += test.pattern() + "|"
			}
			failed, output, err := failing(repository, strings.TrimSuffix(suite, "|"))
			if err != nil || failed.name != "" {
				t.Errorf("%s fails without any mutation: %v\n%s", failed, err, output)
				return
			}
			for _, test := range tests {
				if !passed(output, test.name) {
					t.Errorf("%s does not run without any mutation", test)
				}
			}
		})
	}
	folders.Wait()
}

// passed reports whether a test has passed, according to the output of go test -json.
func passed(output, name string) bool {
	for line := range strings.Lines(output) {
		var event struct{ Action, Test string }
		if json.Unmarshal([]byte(line), &event) == nil && event.Action == "pass" && event.Test == name {
			return true
		}
	}
	return false
}

// worker matches the number of a goroutine in a test's name. The number differs between runs.
var worker = regexp.MustCompile(`/runs/\d+$`)

// failing runs go test until a test fails. It returns the failed test and its output. If all tests pass, it returns no
// test, and the output of go test -json. A timeout does not count as a failed test, because the computer may be busy.
// If go test fails without a failed test, failing returns an error. Examples are a timeout and a package that does not
// compile.
func failing(dir, suite string) (failed test, output string, err error) {
	flags := []string{"test", "-json", "-failfast", "-count=1", "-vet=off"}
	// The cleanup of a test calls this function, after the context of the test is canceled.
	command := exec.CommandContext(context.Background(), "go", append(flags, strings.Fields(suite)...)...)
	command.Dir = dir
	out, err := command.Output()
	if err == nil {
		return test{}, string(out), nil
	}
	name, outputs := "", map[string]string{}
	for line := range bytes.Lines(out) {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		if strings.HasPrefix(event.Output, "panic: test timed out") {
			break
		}
		outputs[event.Test] += event.Output
		if event.Test != "" && name == "" && (event.Action == "fail" || strings.HasPrefix(event.Output, "panic: ")) {
			name = event.Test
		}
	}
	if name == "" {
		return test{}, "", fmt.Errorf("go test %s: %w, but no test failed:\n%s", suite, err, out)
	}
	folder := strings.TrimPrefix(strings.Fields(suite)[0], "./")
	return test{folder, worker.ReplaceAllString(name, "")}, outputs[name], nil
}

const (
	report     = repository + "/docs/reliability.md"
	begin, end = "<!-- make mutants writes this table -->\n", "<!-- until here -->\n"
)

var (
	table = regexp.MustCompile("(?s)" + begin + ".*" + end)
	row   = regexp.MustCompile("(?m)^\\| \\d* \\| (.+) \\| `(.+) (.+)` \\|$")
)

// readTable returns the recorded killer of each mutant. If the table has no row for a mutant, it returns no test.
func readTable(t *testing.T) []test {
	t.Helper()
	page, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	killers := make([]test, len(mutants))
	for _, cells := range row.FindAllStringSubmatch(string(page), -1) {
		if i := slices.IndexFunc(mutants, func(m mutant) bool { return m.mistake == cells[1] }); i >= 0 {
			killers[i] = test{cells[2], cells[3]}
		}
	}
	return killers
}

// writeTable writes one row for each mutant with a killer.
func writeTable(t *testing.T, killers []test) {
	t.Helper()
	rows := "\n| class | mistake | found by |\n|---|---|---|\n"
	for i, m := range mutants {
		if killers[i].name != "" {
			rows += fmt.Sprintf("| %s | %s | `%s` |\n", m.number(), m.mistake, killers[i])
		}
	}
	page, err := os.ReadFile(report)
	if err != nil || !table.Match(page) {
		t.Fatalf("%s has no table: %v", report, err)
	}
	if err := os.WriteFile(report, table.ReplaceAllLiteral(page, []byte(begin+rows+"\n"+end)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m mutant) number() string {
	if m.class == 0 {
		return ""
	}
	return fmt.Sprint(m.class)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	scorecardv1alpha3 "github.com/operator-framework/api/pkg/apis/scorecard/v1alpha3"
)

// sdkProgram returns the path of a program of operator-sdk. It skips the test if BUNDLE_TOOLS is not set. Only
// make bundle-validate sets it.
func sdkProgram(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("BUNDLE_TOOLS")
	if dir == "" {
		t.Skip("needs operator-sdk's programs; run make bundle-validate")
	}
	return filepath.Join(dir, name)
}

// TestOperatorSDK runs operator-sdk bundle validate. It must report neither errors nor warnings.
func TestOperatorSDK(t *testing.T) {
	sdk := sdkProgram(t, "operator-sdk")
	inspectable(t)
	for _, validators := range []string{"", "suite=operatorframework", "name=good-practices", "name=multiarch"} {
		t.Run(cmp.Or(validators, "default"), func(t *testing.T) {
			args := []string{"bundle", "validate", folder(), "--output=json-alpha1", "--optional-values=container-tools=none"}
			if validators != "" {
				args = append(args, "--select-optional="+validators)
			}
			var result struct {
				Passed  bool
				Outputs []output
			}
			run(t, exec.CommandContext(t.Context(), sdk, args...), &result)
			result.Outputs = slices.DeleteFunc(result.Outputs, mistaken)
			if !result.Passed || len(result.Outputs) > 0 {
				t.Errorf("got %+v", result)
			}
		})
	}
}

// An output is one finding of operator-sdk.
type output struct{ Type, Message string }

// mistakes matches the messages of false findings about permissions. A permission applies to all versions of an API,
// but operator-sdk reports it as a permission for a removed version. The newer validators of TestValidators do not have
// this bug.
var mistakes = regexp.MustCompile(`Migrate the API\(s\) for ((cronjobs|horizontalpodautoscalers): ` +
	`\(\[("ClusterServiceVersion\.Spec\.InstallStrategy\.StrategySpec\.ClusterPermissions\[\d+\]\.Rules\[\d+\]" ?)+\]\),)+$`)

// mistaken reports whether a finding is a known false positive.
func mistaken(found output) bool { return mistakes.MatchString(found.Message) }

// TestScorecard runs the tests of operator-sdk's scorecard. They need no cluster, but they read the bundle from
// /bundle, so they run with another root folder.
func TestScorecard(t *testing.T) {
	binary, err := os.ReadFile(sdkProgram(t, "scorecard-test"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	attributes := inRoot(t, root)
	err = errors.Join(
		os.WriteFile(filepath.Join(root, "scorecard-test"), binary, 0o700),
		os.CopyFS(filepath.Join(root, "bundle"), os.DirFS(folder())),
		os.Mkdir(filepath.Join(root, "tmp"), 0o700), // for files of the validators
	)
	if err != nil {
		t.Fatal(err)
	}
	var config scorecardv1alpha3.Configuration
	read(t, filepath.Join(folder(), "tests", "scorecard", "config.yaml"), &config)
	if got := len(config.Stages[0].Tests); got != 6 {
		t.Errorf("config.yaml has %d tests, want 6", got)
	}
	for _, test := range config.Stages[0].Tests {
		t.Run(test.Entrypoint[1], func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/"+test.Entrypoint[0], test.Entrypoint[1:]...)
			cmd.Dir = "/"
			cmd.SysProcAttr = attributes
			var status scorecardv1alpha3.TestStatus
			run(t, cmd, &status)
			for _, result := range status.Results {
				suggestions := result.Suggestions
				if result.Name == "olm-status-descriptors" {
					suggestions = nil // the test suggests a status in the examples, but users would have to delete it
				}
				if result.State != scorecardv1alpha3.PassState || len(result.Errors) > 0 || len(suggestions) > 0 {
					t.Errorf("%s: %s, errors %q, suggestions %q", result.Name, result.State, result.Errors, suggestions)
				}
			}
			if len(status.Results) == 0 {
				t.Errorf("no result: %+v", status)
			}
		})
	}
}

// run runs a program and decodes its JSON output.
func run(t *testing.T, cmd *exec.Cmd, into any) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(output, into)
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, output, &stderr)
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/plugin"
)

var updateDocs = flag.Bool("update-docs", false, "write the output of the plugin into docs/kubectl-useless.md")

// TestPluginDocumentation runs the commands of docs/kubectl-useless.md in their order. The clocks of the operator and
// the plugin show 22 October 2026, 22:00 in Berlin. The page must contain the output of the commands. The flag
// -update-docs writes the output into the page.
func TestPluginDocumentation(t *testing.T) {
	useExclusiveCluster(t)
	at := time.Date(2026, 10, 22, 20, 0, 0, 0, time.UTC)
	operatorClock := &adjustedClock{}
	operatorClock.set(at)
	runOperatorFor(t, operatorOptions{clock: operatorClock})
	path := filepath.Join(repository, "docs", "kubectl-useless.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	s := shell{dir: writeManifests(t, page), clock: clocktesting.NewFakePassiveClock(at)}
	useNamespace(t, "dev")
	got := consoleBlock.ReplaceAllStringFunc(page, func(block string) string { return s.replay(t, block) })
	if *updateDocs {
		err = os.WriteFile(path, []byte(got), 0o644)
	} else if diff := cmp.Diff(page, got); diff != "" {
		t.Errorf("go test ./test/integration -run %s -update-docs writes this output into docs/kubectl-useless.md:\n%s",
			t.Name(), diff)
	}
	if err != nil {
		t.Error(err)
	}
}

// useNamespace waits until the namespace does not exist, because an earlier test may have used the name. It does not
// create the namespace. When the test ends, useNamespace checks the invariants in the namespace and deletes it.
func useNamespace(t *testing.T, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace.DeepCopy())
		return apierrors.IsNotFound(err), "the namespace " + name + " still exists"
	})
	t.Cleanup(func() {
		checkInvariants(t, name)
		if err := admin(t).Delete(context.Background(), namespace); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

// manifestBlock matches a manifest that has its file name in the first line. consoleBlock matches commands that use a
// cluster or a manifest, and their output.
var (
	manifestBlock = regexp.MustCompile("(?s)\n```yaml\n(# (\\S+\\.yaml)\n.*?\n)```\n")
	consoleBlock  = regexp.MustCompile("(?s)\n```console\n\\$ kubectl (?:apply|useless (?:schedule|wake|sleep|flip)).*?\n```\n")
)

// writeManifests writes the manifests of a page into files, and returns their folder.
func writeManifests(t *testing.T, page string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, m := range manifestBlock.FindAllStringSubmatch(page, -1) {
		if err := os.WriteFile(filepath.Join(dir, m[2]), []byte(m[1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// shell runs the commands of a page.
type shell struct {
	dir   string // contains the manifests
	clock clock.PassiveClock
}

// replay runs the commands of a console block. It returns the block with their new output.
func (s shell) replay(t *testing.T, block string) string {
	t.Helper()
	var out strings.Builder
	out.WriteString("\n```console\n")
	for line := range strings.Lines(block) {
		command, found := strings.CutPrefix(line, "$ kubectl ")
		if !found {
			continue
		}
		args := strings.Fields(command)
		for i, arg := range args {
			if strings.HasSuffix(arg, ".yaml") {
				args[i] = filepath.Join(s.dir, arg)
			}
		}
		var output string
		if args[0] == "useless" {
			output = s.useless(t, args[1:])
		} else {
			output = mustKubectl(t, "", args...)
		}
		out.WriteString(line + strings.ReplaceAll(output, s.dir+string(filepath.Separator), ""))
		waitForPage(t)
	}
	out.WriteString("```\n")
	return out.String()
}

// useless returns the output of the plugin as a terminal shows it.
func (s shell) useless(t *testing.T, args []string) string {
	t.Helper()
	var out bytes.Buffer
	command := plugin.New(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &out}, s.clock)
	command.SetArgs(append(args, "--kubeconfig", clusterOf(t).Kubeconfig, "--cache-dir", t.TempDir()))
	if err := command.ExecuteContext(t.Context()); err != nil {
		fmt.Fprintln(&out, "error:", err)
	}
	return out.String()
}

// waitForPage waits until the operator has processed the workloads of the page. The Deployment must run only while it
// has the annotation start-until. The CronJob must be suspended.
func waitForPage(t *testing.T) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		web := getDeployment(t, "dev", "web")
		report := &batchv1.CronJob{}
		if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: "dev", Name: "report"}, report); err != nil {
			return false, err.Error()
		}
		_, woken := web.Annotations["useless.container.training/start-until"]
		return woken == (*web.Spec.Replicas == 3) && ptr.Deref(report.Spec.Suspend, false),
			fmt.Sprintf("replicas %d, annotations %v", *web.Spec.Replicas, web.Annotations)
	})
}

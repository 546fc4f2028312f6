// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/hack/cluster/standin"
	"container.training/useless/hack/console"
	"container.training/useless/test/internal/docexamples"
	"container.training/useless/test/internal/installer"
)

// A consoleTest describes one console block of a page.
type consoleTest struct {
	begins string // the beginning of its first command
	skip   string // why the method page does not run the block; empty if it does
	folder string // relative to the clone; "" is the clone
	before string // shell commands that run before the block
	after  string // shell commands that must succeed after the block
}

const (
	needsRegistry = "needs a registry; TestCatalog in test/e2e runs the commands"
	needsRelease  = "needs the folder of a release; TestTwoRuns in hack/release runs the block"
	needsOLM      = "needs OLM; test/e2e runs the block on a node with OLM"
	needsPods     = "needs containers that run; TestHelm in test/e2e runs the block"
)

// waitForMachines waits until the sample Machines are ready. Then it sets the flip delay of machine-2 to a minute. So
// the kubectl get of the block shows the switch that is up, even on a slow computer.
const waitForMachines = `kubectl wait machines --all --for=condition=Ready --timeout=2m
kubectl patch machine machine-2 --type=merge --patch='{"spec":{"flip":{"delaySeconds":60}}}'`

// deleteManifests deletes the first installation. The API server prepares the storage of a resource at the first
// request for the resource. No operator runs in this test, so kubectl get sends this request. Otherwise the API server
// would send it while it deletes the CustomResourceDefinition. That request can fail, and the deletion then takes five
// minutes.
const deleteManifests = `kubectl get machines,switches,virtualmachines --all-namespaces
kubectl delete --ignore-not-found -f dist/install.yaml`

const (
	otherPage     = "TestInstallationPage runs the block"
	needsInternet = "needs OLM; TestMonitoring in test/e2e adds the flags that a cluster without internet needs"
	needsClusters = "needs two clusters"
)

// stuckMachine creates a Machine with a finalizer that only the block removes. Before that, it deletes the registration
// of the admission webhooks, because no process serves them.
const stuckMachine = `kubectl delete validatingwebhookconfigurations --all
kubectl create -f - <<END
apiVersion: useless.container.training/v1beta1
kind: Machine
metadata: {name: stuck, finalizers: [example.com/stuck]}
END
kubectl delete machine stuck --wait=false`

// consoleTests has one entry for each console block of a page, in the order of the page.
var consoleTests = map[string][]consoleTest{
	"README.md": {
		{begins: "make demo", skip: ".ci/run runs these two commands in a new clone with empty caches"},
		{begins: "export KUBECONFIG=", before: waitForMachines},
		{begins: "make docker-buildx", skip: needsRegistry},
		{begins: "make deploy", skip: otherPage},
		{begins: "helm install", skip: otherPage},
		{begins: "kubectl create namespace useless-system", skip: needsInternet},
		{begins: "kubectl annotate namespace dev", before: "kubectl create namespace dev", after: "kubectl delete namespace dev --wait=false"},
	},
	"docs/faq.md": {
		{begins: "kubectl useless schedule explain"},
		{begins: "kubectl get events --all-namespaces"},
		{begins: "kubectl useless wake"},
		{begins: "kubectl useless schedule check", before: "kubectl get deployment web -o yaml > web.yaml"},
		{begins: "kubectl annotate deployment web"},
		{begins: "kubectl annotate deployment web --overwrite"},
		{begins: "kubectl get events --all-namespaces"},
		{begins: "kubectl get events --all-namespaces"},
		{begins: "kubectl get cronjob report"},
		{begins: "kubectl useless schedule list"},
		{begins: "kubectl auth can-i"},
		{begins: "for context in", skip: needsClusters},
		{begins: "kubectl get leases"},
		{begins: "export P=useless.container.training"},
	},
	"docs/installing.md": {
		{begins: "make docker-buildx", skip: needsRegistry},
		{begins: "kubectl create namespace useless-system", skip: needsOLM},
		{begins: "kubectl create clusterrolebinding"},
		{begins: "kubectl apply -f dist/install.yaml", after: "kubectl get flowschema useless-leader-election"},
		{begins: "make catalog", skip: needsOLM},
		{begins: "make deploy", after: "kubectl -n useless-system rollout status deployment useless-controller-manager"},
		{begins: "sed "},
		{begins: "kubectl -n useless-system set env", after: "kubectl -n useless-system rollout status deployment useless-controller-manager"},
		{begins: "kubectl create namespace useless-system", before: deleteManifests},
		{begins: "helm test", skip: needsPods},
		{begins: "helm upgrade"},
		{begins: "(cd /tmp/release", skip: needsRelease},
		{begins: "kubectl apply -k .", folder: "..", after: "kubectl get clusterrole useless-schedule-deployments-role"},
		{begins: "kubectl get --raw /metrics", before: "kubectl get machines.v1alpha1.useless.container.training"},
		{begins: "kubectl apply -k .", folder: "..", before: "cp ../v1beta1-only.yaml ../kustomization.yaml"},
		{begins: "kubectl get crd machines"},
		{begins: "kubectl delete machines"},
		{begins: "helm uninstall"},
		{begins: "kubectl delete clusterrole", skip: needsOLM},
		{begins: "for kind in", before: stuckMachine, after: "kubectl wait machine stuck --for=delete --timeout=1m"},
		{begins: "export SSL_CERT_FILE", skip: needsOLM},
	},
}

// TestQuickStart runs the kubectl commands of README.md. Before that, it starts the operator and creates the sample
// Machines.
func TestQuickStart(t *testing.T) {
	useExclusiveCluster(t)
	runOperatorFor(t, operatorOptions{})
	namespace := newNamespace(t)
	s := newConsoleShell(t)
	s.mustRun(t, "kubectl config set-context --current --namespace="+namespace)
	for _, sample := range []string{"v1alpha1_machine", "v1alpha1_machine_switches", "v1beta1_machine"} {
		s.mustRun(t, "kubectl apply -f config/samples/useless_"+sample+".yaml")
	}
	s.page(t, "README.md")
}

// TestQuestions runs the commands of docs/faq.md.
func TestQuestions(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the plugin: make test-all runs this test")
	}
	useExclusiveCluster(t)
	runOperatorFor(t, operatorOptions{})
	namespace := newNamespace(t)
	waitForReplicas(t, createDeployment(t, namespace, "web", nil), 0)
	s := newConsoleShell(t)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(s.bin, "kubectl-useless"), "./cmd/kubectl-useless")
	build.Dir = repository
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.mustRun(t, "kubectl config set-context --current --namespace="+namespace)
	s.mustRun(t, "kubectl create cronjob report --image=registry.example.com/report:1 --schedule='0 0 * * *'")
	s.page(t, "docs/faq.md")
}

// TestInstallationPage runs the commands of docs/installing.md, and then those of README.md that install the operator.
// A simulated node reports the operator's Pods as running, but no operator runs.
func TestInstallationPage(t *testing.T) {
	t.Parallel()
	c := newEmptyCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	node, err := standin.Start(ctx, c.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); node.Wait() })
	s := newConsoleShell(t)
	s.page(t, "docs/installing.md")
	s.readme(t, consoleTest{begins: "helm install", after: "helm uninstall useless --namespace useless-system"})
	s.readme(t, consoleTest{begins: "make deploy", after: "kubectl -n useless-system rollout status deployment useless-controller-manager"})
}

// A consoleShell runs the commands of a page in a copy of the files that users need from a clone.
type consoleShell struct {
	clone, bin  string
	environment []string
	exports     string // all export commands until now
}

func newConsoleShell(t *testing.T) *consoleShell {
	t.Helper()
	dir := t.TempDir()
	s := &consoleShell{clone: filepath.Join(dir, "useless-operator"), bin: filepath.Join(dir, "bin")}
	kubeconfig := filepath.Join(s.clone, ".local", "kubeconfig")
	helm := installer.Helm(t, kubeconfig)
	original, err := os.ReadFile(clusterOf(t).Kubeconfig)
	err = errors.Join(err, os.MkdirAll(s.bin, 0o700), os.MkdirAll(filepath.Dir(kubeconfig), 0o700))
	for _, folder := range []string{"config", "dist", "charts", "hack/tools"} {
		err = errors.Join(err, os.CopyFS(filepath.Join(s.clone, folder), os.DirFS(filepath.Join(repository, folder))))
	}
	for _, file := range []string{"Makefile", "go.mod", "go.sum", "hack/tool"} {
		content, readErr := os.ReadFile(filepath.Join(repository, file))
		err = errors.Join(err, readErr, os.WriteFile(filepath.Join(s.clone, file), content, 0o700))
	}
	kubectl := programs.Path("kubectl")
	err = errors.Join(err,
		os.WriteFile(kubeconfig, original, 0o600),
		os.Symlink(kubectl, filepath.Join(s.bin, "kubectl")),
		os.Symlink(kubectl, filepath.Join(filepath.Dir(kubeconfig), "kubectl")),
		os.Symlink(helm.Path, filepath.Join(s.bin, "helm")),
		os.WriteFile(filepath.Join(s.clone, "values.yaml"), []byte(docexamples.Block(t, "installing.md", "image:")), 0o600),
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(docexamples.Block(t, "installing.md", "resources:")), 0o600),
		os.WriteFile(filepath.Join(dir, "v1beta1-only.yaml"), []byte(docexamples.Block(t, "installing.md", "components:")), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	s.environment = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(dir, "cache"), "LC_ALL=C", "MAKEFLAGS=", "MAKELEVEL=",
		"KUBECONFIG="+kubeconfig, "PATH="+s.bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	for _, name := range []string{"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"} {
		s.environment = append(s.environment, name+"="+filepath.Join(dir, "helm"))
	}
	return s
}

// page runs the blocks of a page, in the order of the page.
func (s *consoleShell) page(t *testing.T, page string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, page))
	if err != nil {
		t.Fatal(err)
	}
	tests, blocks := consoleTests[page], console.Blocks(string(text))
	if problem := unlisted(blocks, tests); problem != "" {
		t.Fatalf("%s:%s", page, problem)
	}
	for i, block := range blocks {
		if tests[i].skip == "" {
			s.block(t, block, tests[i])
		}
	}
}

// readme runs one block of README.md.
func (s *consoleShell) readme(t *testing.T, test consoleTest) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range console.Blocks(string(text)) {
		if strings.HasPrefix(block.Commands[0].Text, test.begins) {
			s.block(t, block, test)
			return
		}
	}
	t.Errorf("README.md has no block that begins with %q", test.begins)
}

// unlisted describes the first difference between the blocks of a page and their tests. It returns "" if there is none.
func unlisted(blocks []console.Block, tests []consoleTest) string {
	for i, block := range blocks {
		if command := block.Commands[0].Text; i >= len(tests) || !strings.HasPrefix(command, tests[i].begins) {
			return fmt.Sprintf("%d: the block with %q is not in consoleTests", block.Line, command)
		}
	}
	if len(tests) > len(blocks) {
		return fmt.Sprintf(" no block begins with %q", tests[len(blocks)].begins)
	}
	return ""
}

func TestUnlisted(t *testing.T) {
	t.Parallel()
	blocks := console.Blocks("```console\n$ one 1\n```\n```console\n$ two\n```\n")
	for want, tests := range map[string][]consoleTest{
		"": {{begins: "one"}, {begins: "two"}},
		`5: the block with "two" is not in consoleTests`:   {{begins: "one"}},
		`2: the block with "one 1" is not in consoleTests`: {{begins: "two"}, {begins: "one"}},
		` no block begins with "three"`:                    {{begins: "one"}, {begins: "two"}, {begins: "three"}},
	} {
		if got := unlisted(blocks, tests); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func (s *consoleShell) block(t *testing.T, block console.Block, test consoleTest) {
	t.Helper()
	s.mustRun(t, test.before)
	for _, c := range block.Commands {
		s.command(t, test.folder, c)
	}
	s.mustRun(t, test.after)
}

// command runs a command of a page. If the page shows output of the command, the command must print the same output, up
// to a line "...". Otherwise, the command must succeed.
func (s *consoleShell) command(t *testing.T, folder string, c console.Command) {
	t.Helper()
	text := strings.ReplaceAll(c.Text, "NAMESPACE:NAME", "default:default") // the only placeholder of the blocks
	if strings.HasPrefix(text, "export ") {
		s.exports += text + "\n"
	}
	if folder != "" {
		text = "cd " + folder + "\n" + text
	}
	if c.Output == "" {
		s.mustRun(t, text)
		return
	}
	want := normalized(c.Output)
	attempt := func() (bool, string) {
		got, err := s.run(t, text)
		got, isError := normalized(got), strings.HasPrefix(c.Output, "Error: ")
		if before, _, cut := strings.Cut(want, "\n...\n"); cut && strings.HasPrefix(got, before+"\n") {
			got = want
		}
		return got == want && isError == (err != nil), "$ " + text + "\n" + cmp.Diff(want, got)
	}
	if strings.Contains(text, "kubectl get ") { // the output changes while the operator works
		eventually(t, defaultTimeout, attempt)
	} else if ok, diff := attempt(); !ok {
		t.Errorf("(-page +got)\n%s", diff)
	}
}

var (
	ages         = regexp.MustCompile(`(?m) \d+[smh](\d+s)?$`)
	deployedAt   = regexp.MustCompile(`(?m)^LAST DEPLOYED: .*$`)
	columnSpaces = regexp.MustCompile(` +`)
)

// normalized replaces times and repeated spaces in an output, and removes empty lines at the end. After that, the
// outputs of two runs are equal.
func normalized(output string) string {
	output = columnSpaces.ReplaceAllString(strings.TrimRight(output, "\n")+"\n", " ")
	return deployedAt.ReplaceAllString(ages.ReplaceAllString(output, " AGE"), "LAST DEPLOYED: TIME")
}

// run runs shell commands and returns the output that a terminal shows.
func (s *consoleShell) run(t *testing.T, commands string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*defaultTimeout) // make deploy may build kustomize
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-ec", s.exports+commands)
	shell.Dir, shell.Env = s.clone, s.environment
	out, err := shell.CombinedOutput()
	return string(out), err
}

func (s *consoleShell) mustRun(t *testing.T, commands string) {
	t.Helper()
	if out, err := s.run(t, commands); err != nil {
		t.Fatalf("%s\n%v\n%s", commands, err, out)
	}
}

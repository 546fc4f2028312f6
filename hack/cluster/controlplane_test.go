// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// childVariable is set in the child process that TestParentEnds starts.
const childVariable = "CLUSTER_TEST_PROGRAMS"

func TestMain(m *testing.M) {
	if programs := os.Getenv(childVariable); programs != "" {
		if err := child(Programs(programs)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child uses the package as other programs do: it starts a control plane, waits for Ctrl-C, and stops the control
// plane.
func child(programs Programs) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	cp, err := Start(ctx, programs, Options{Disposable: true})
	if err != nil {
		return err
	}
	fmt.Println("started")
	<-ctx.Done()
	return cp.Stop()
}

// skipShort skips a test in short mode. It is for tests that start another API server, which takes seconds of CPU time.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts another API server; make test-all runs it")
	}
}

func TestControlPlane(t *testing.T) {
	w := recordPrograms(t)
	var beforeErr error
	cp, err := Start(t.Context(), w.programs, Options{
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			_, beforeErr = newClient(t, config).CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return nil
		},
		AuditPolicy: writeAuditPolicy(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cp.Stop() })
	if !apierrors.IsNotFound(beforeErr) {
		t.Errorf("ServiceAccount default before the controllers start: error %v, want not found", beforeErr)
	}

	client := newClient(t, cp.Config)
	t.Run("version", func(t *testing.T) { testVersion(t, cp, client) })
	t.Run("etcd", func(t *testing.T) { testEtcd(t, cp) })
	t.Run("in parallel", func(t *testing.T) { // because the deletion of a namespace takes five seconds
		t.Run("namespace", func(t *testing.T) { t.Parallel(); testNamespace(t, client) })
		t.Run("garbage", func(t *testing.T) { t.Parallel(); testGarbage(t, client) })
		t.Run("quota", func(t *testing.T) { t.Parallel(); testQuota(t, client) })
		t.Run("service account", func(t *testing.T) { t.Parallel(); testServiceAccount(t, cp, client) })
		t.Run("install", func(t *testing.T) { t.Parallel(); testInstall(t, cp, client) })
	})
	t.Run("restart", func(t *testing.T) { testRestart(t, cp, client) })
	t.Run("audit log", func(t *testing.T) { testAuditLog(t, cp, client) })
	t.Run("state", func(t *testing.T) { testState(t, cp, client) })

	for range 2 {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	}
	started := 7 // three programs, two restarted ones, and at least etcd and the API server of testState
	if testing.Short() {
		started = 3
	}
	w.checkNothingLeft(t, started)
}

// testRestart checks that the API server and the controllers are new processes, and that objects survive.
func testRestart(t *testing.T, cp *ControlPlane, client kubernetes.Interface) {
	skipShort(t)
	before := cp.Processes()
	if err := errors.Join(cp.RestartAPIServer(t.Context()), cp.RestartControllers()); err != nil {
		t.Fatal(err)
	}
	after := cp.Processes()
	for i, restarted := range []bool{false, true, true} {
		if isDone(before[i].done) != restarted || isDone(after[i].done) || after[i].Name() != before[i].Name() {
			t.Errorf("%s has ended: %t, want %t; then %s has ended: %t, want false", before[i].Name(),
				isDone(before[i].done), restarted, after[i].Name(), isDone(after[i].done))
		}
	}
	if _, err := client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// writeAuditPolicy writes an audit policy that selects only requests for Secrets.
func writeAuditPolicy(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "audit-policy.yaml")
	const policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, resources: [{resources: [secrets]}]}]\n"
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func testAuditLog(t *testing.T, cp *ControlPlane, client kubernetes.Interface) {
	namespace := newNamespace(t, client)
	if _, err := client.CoreV1().Secrets(namespace).Get(t.Context(), "audited", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	var log []byte
	await(t, "the request in the audit log", func() bool {
		log, _ = os.ReadFile(cp.AuditLog())
		return bytes.Contains(log, []byte("/secrets/audited"))
	})
	if bytes.Contains(log, []byte("/configmaps")) {
		t.Errorf("the audit log contains requests that the policy does not select")
	}
}

// testState starts a second control plane with a copy of the state of cp. The etcd of cp is suspended until the end of
// testState, so that it does not write during the copy.
func testState(t *testing.T, cp *ControlPlane, client kubernetes.Interface) {
	skipShort(t)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "copied"}, Data: map[string]string{"key": "value"}}
	want, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), config, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	etcd := cp.Processes()[0]
	if err := etcd.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := etcd.Signal(syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}()
	other, err := Start(t.Context(), cp.Programs, Options{Disposable: true, State: cp.State()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Stop() })
	got, err := newClient(t, other.Config).CoreV1().ConfigMaps("default").Get(t.Context(), "copied", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the object in the second control plane (-want +got):\n%s", diff)
	}
	if err := other.Stop(); err != nil {
		t.Error(err)
	}
}

// TestTwoControlPlanes starts two control planes at the same time.
func TestTwoControlPlanes(t *testing.T) {
	skipShort(t)
	w := recordPrograms(t)
	var group errgroup.Group
	for range 2 {
		group.Go(func() error {
			cp, err := Start(t.Context(), w.programs, Options{Disposable: true})
			if err != nil {
				return err
			}
			return cp.Stop()
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	w.checkNothingLeft(t, 4) // the controllers are stopped immediately
}

func TestFailedStart(t *testing.T) {
	for _, test := range []struct {
		reason  string
		program string
		script  string
		want    []string
		started int // the minimum number of programs that start before the failure
	}{{
		reason:  "if the last program fails, the others are stopped",
		program: controllerManager,
		script:  "#!/bin/sh\necho the controllers fail >&2\nexit 1\n",
		want:    []string{"start a control plane: kube-controller-manager: exit status 1", "\tthe controllers fail"},
		started: 2,
	}, {
		reason:  "a program that ends with status 0 is a failure",
		program: etcd,
		script:  "#!/bin/sh\necho nothing to do\n",
		want:    []string{"start a control plane: etcd: exit status 0", "\tnothing to do"},
	}, {
		reason:  "the error has the reason why a program cannot be executed",
		program: apiServer,
		script:  "no program",
		want:    []string{"start a control plane: start kube-apiserver: ", "exec format error"},
	}} {
		t.Run(test.reason, func(t *testing.T) {
			if test.program == controllerManager {
				skipShort(t) // the controllers start after the API server
			}
			w := recordPrograms(t)
			writeProgram(t, w.programs.Path(test.program), test.script)
			_, err := Start(t.Context(), w.programs, Options{Disposable: true})
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got error %v, want one with %q", err, want)
				}
			}
			w.checkNothingLeft(t, test.started)
		})
	}
}

// TestInterruptedStart cancels the context, as Ctrl-C does, before the controllers start.
func TestInterruptedStart(t *testing.T) {
	skipShort(t)
	w := recordPrograms(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Start(ctx, w.programs, Options{Disposable: true, BeforeControllers: func(context.Context, *rest.Config) error {
		cancel()
		return nil
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	w.checkNothingLeft(t, 2)
}

// TestParentEnds ends a process that runs a control plane, once with Ctrl-C and once with SIGKILL.
func TestParentEnds(t *testing.T) {
	skipShort(t)
	for _, test := range []struct {
		reason string
		signal os.Signal
		want   string // the state of the ended process
	}{{
		reason: "Ctrl-C stops all programs and removes the files",
		signal: os.Interrupt,
		want:   "exit status 0",
	}, {
		reason: "no program outlives a crash",
		signal: os.Kill,
		want:   "signal: killed",
	}} {
		t.Run(test.reason, func(t *testing.T) {
			if test.signal == os.Kill && runtime.GOOS != "linux" {
				t.Skip("only on Linux, the programs end with their parent")
			}
			w := recordPrograms(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childVariable+"="+string(w.programs))
			cmd.Stderr = t.Output()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "started\n" {
				t.Errorf("output of the process: %q, error %v", line, err)
			}
			if err := cmd.Process.Signal(test.signal); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.String(); got != test.want {
				t.Errorf("the process ended with %s, want %s", got, test.want)
			}
			if test.signal == os.Kill { // a killed process cannot remove its folder
				awaitGone(t, w.pids(t, 3))
				return
			}
			w.checkNothingLeft(t, 3)
		})
	}
}

func testVersion(t *testing.T, cp *ControlPlane, client kubernetes.Interface) {
	b := selected(t)
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(assetsVariable) == "" && version.GitVersion != b.version { // these programs may have any version
		t.Errorf("got version %s, want %s", version, b.version)
	}
	t.Setenv("KUBERC", filepath.Join(t.TempDir(), "missing")) // kubectl fails if it uses this missing file
	out, err := cp.Kubectl(t.Context(), "auth", "whoami", "-o", "name").CombinedOutput()
	if err != nil {
		t.Errorf("kubectl: %v: %s", err, out)
	}
	if log := cp.Logs(apiServer); !strings.Contains(log, "kube-apiserver") {
		t.Errorf("log of kube-apiserver: %q", log)
	}
}

// testEtcd requests etcd's version.
func testEtcd(t *testing.T, cp *ControlPlane) {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://etcd/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := cp.Etcd().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("etcd answers %s", response.Status)
	}
}

func testNamespace(t *testing.T, client kubernetes.Interface) {
	ctx := t.Context()
	namespace := newNamespace(t, client)
	create(t, client.CoreV1().ConfigMaps(namespace), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "content"}})
	if err := client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the namespace", func() bool {
		_, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func testGarbage(t *testing.T, client kubernetes.Interface) {
	ctx := t.Context()
	configMaps := client.CoreV1().ConfigMaps(newNamespace(t, client))
	owner := create(t, configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}})
	create(t, configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "dependent",
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner,
			corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
	}})
	if err := configMaps.Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the garbage collector", func() bool {
		_, err := configMaps.Get(ctx, "dependent", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func testQuota(t *testing.T, client kubernetes.Interface) {
	ctx := t.Context()
	namespace := newNamespace(t, client)
	secrets := client.CoreV1().Secrets(namespace)
	create(t, secrets, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "first"}})
	create(t, client.CoreV1().ResourceQuotas(namespace), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "one-secret"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/secrets": resource.MustParse("1")}},
	})
	// The API server enforces a quota when its own cache contains the quota controller's numbers. A client can read
	// these numbers earlier. So the test tries to create a Secret.
	await(t, "the quota controller", func() bool {
		second := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "second"}}
		_, err := secrets.Create(ctx, second, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: one-secret")
	})
}

// testServiceAccount uses the kubeconfig of a ServiceAccount that may only list ConfigMaps.
func testServiceAccount(t *testing.T, cp *ControlPlane, admin kubernetes.Interface) {
	ctx := t.Context()
	namespace := newNamespace(t, admin)
	create(t, admin.CoreV1().ServiceAccounts(namespace),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reader"}})
	create(t, admin.RbacV1().Roles(namespace), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""},
			Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	})
	create(t, admin.RbacV1().RoleBindings(namespace), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "reader", Namespace: namespace}},
	})
	path, err := cp.ServiceAccountKubeconfig(ctx, namespace, "reader")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	reader := newClient(t, config)
	await(t, "the role to apply", func() bool {
		_, err := reader.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		return err == nil
	})
	if _, err := reader.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets: got error %v, want forbidden", err)
	}
	if _, err := cp.ServiceAccountKubeconfig(ctx, namespace, "missing"); !apierrors.IsNotFound(err) {
		t.Errorf("kubeconfig of a missing ServiceAccount: got error %v, want not found", err)
	}
}

// recordedPrograms are scripts that replace the built programs. Each script, except kubectl, writes its process id to
// pidFile. Then it executes the program. The programs write their temporary files to the folder temporary.
type recordedPrograms struct {
	programs  Programs
	temporary string
	pidFile   string
}

// recordPrograms returns programs of the control plane that write their process ids to a file. Until the end of the
// test, this process uses another folder for temporary files.
func recordPrograms(t *testing.T) recordedPrograms {
	t.Helper()
	built, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// This path is longer than the limit for a socket's path. A start must still succeed.
	temporary := filepath.Join(t.TempDir(), strings.Repeat("long", 25))
	if err := os.Mkdir(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	w := recordedPrograms{programs: Programs(dir), temporary: temporary, pidFile: filepath.Join(dir, "pids")}
	for _, name := range controlPlane {
		note := fmt.Sprintf("echo $$ >> '%s'\n", w.pidFile)
		if name == kubectl {
			note = ""
		}
		writeProgram(t, w.programs.Path(name), "#!/bin/sh\n"+note+fmt.Sprintf("exec '%s' \"$@\"\n", built.Path(name)))
	}
	t.Setenv("TMPDIR", w.temporary)
	return w
}

// pids returns the ids of the processes that were started. It fails the test if there are fewer than atLeast. A process
// that is stopped immediately may not have written its id. So atLeast can be lower than the number of starts.
func (w recordedPrograms) pids(t *testing.T, atLeast int) []int {
	t.Helper()
	noted, err := os.ReadFile(w.pidFile)
	pids := numbers(string(noted))
	if len(pids) < atLeast {
		t.Errorf("%d programs were started, want at least %d (%v)", len(pids), atLeast, err)
	}
	return pids
}

// checkNothingLeft checks that no process and no file remains. It does not wait, because all programs have ended.
func (w recordedPrograms) checkNothingLeft(t *testing.T, atLeast int) {
	t.Helper()
	for _, pid := range w.pids(t, atLeast) {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d still exists (%v)", pid, err)
		}
	}
	left, err := os.ReadDir(w.temporary)
	if err != nil || len(left) > 0 {
		t.Errorf("the temporary folder contains %v, error %v", left, err)
	}
}

func numbers(text string) (found []int) {
	for field := range strings.FieldsSeq(text) {
		if n, err := strconv.Atoi(field); err == nil {
			found = append(found, n)
		}
	}
	return found
}

func newClient(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func newNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	return create(t, client.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}).Name
}

// create creates an object of any kind.
func create[T any](t *testing.T, client interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
}, object T) T {
	t.Helper()
	created, err := client.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

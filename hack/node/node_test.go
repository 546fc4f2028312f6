// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"container.training/useless/hack/cluster"
)

const (
	// commandVariable is set in processes of this test binary that run the node command.
	commandVariable = "NODE_TEST_COMMAND"
	// nodeTestsVariable enables the tests that start nodes. These tests need root and the programs of make
	// cluster-build.
	nodeTestsVariable = "USELESS_NODE_TESTS"
)

// warmUp is the maximum duration of up on two cores if all programs are built.
const warmUp = 2 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(commandVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestNames checks that nodes with different names share no files, and that a name cannot contain a path.
func TestNames(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	for _, test := range []struct {
		reason string
		name   string
		want   string // the folder; empty means an error
	}{
		{"the default node has no name", "", "node"},
		{"a name selects another folder", "plain", "node-plain"},
		{"a path is refused, because down would remove that folder", "/../images", ""},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Setenv(nameVariable, test.name)
			n, err := newNode()
			if test.want == "" {
				if err == nil {
					t.Errorf("got a node in %s, want an error", n.dir)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := filepath.Join(cache, "useless-operator", test.want)
			if n.dir != want || n.lock.path != want+".lock" {
				t.Errorf("got %s and %s, want %s", n.dir, n.lock.path, want)
			}
		})
	}
}

// machine is the environment of a test node. Its cache folder contains the programs. A test can replace programs with
// scripts.
type machine struct {
	cache  string
	mounts []string // mounts before the test
	cgroup string   // name of the node's cgroup
}

func newMachine(t *testing.T, cache string, changes map[string]string) *machine {
	t.Helper()
	skipWithoutNodes(t)
	links, err := cluster.LinkNode(filepath.Join(t.TempDir(), "bin"))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{cache: cache, mounts: mounts(t)}
	entries, err := os.ReadDir(string(links))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		built, err := os.Readlink(links.Path(entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(m.cache, "useless-operator", filepath.Base(filepath.Dir(built)))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, entry.Name())
		if script, changed := changes[entry.Name()]; changed {
			err = os.WriteFile(path, []byte(script), 0o755)
		} else {
			err = os.Symlink(built, path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if out, err := m.command(context.Background(), "down").CombinedOutput(); err != nil {
			t.Errorf("stop the node: %v\n%s", err, out)
		}
	})
	return m
}

func skipWithoutNodes(t *testing.T) {
	t.Helper()
	if os.Getenv(nodeTestsVariable) == "" {
		t.Skipf("set %s=1 and run as root to start nodes", nodeTestsVariable)
	}
}

// overlay returns a folder on overlayfs, as in a container.
func overlay(t *testing.T) string {
	t.Helper()
	skipWithoutNodes(t)
	dir, upper, work := t.TempDir(), t.TempDir(), t.TempDir()
	if err := unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+m.cache, commandVariable+"=1")
	return cmd
}

// start starts cmd, which must run node up, and records the name of the node's cgroups.
func (m *machine) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.cgroup = fmt.Sprint(cgroupPrefix, cmd.Process.Pid)
}

// run runs a node command. It returns its output and exit code. If the command has failed, the output includes the
// standard error.
func (m *machine) run(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	cmd := m.command(t.Context(), args...)
	var text, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &problems
	if args[0] == "up" {
		cmd.Stdout, cmd.Stderr = io.MultiWriter(&text, t.Output()), io.MultiWriter(&problems, t.Output())
	}
	if args[0] == "up" && m.cgroup == "" {
		m.start(t, cmd)
		_ = cmd.Wait()
	} else {
		_ = cmd.Run()
	}
	if code = cmd.ProcessState.ExitCode(); code != 0 {
		return text.String() + problems.String(), code
	}
	return text.String(), 0
}

// must runs a node command and fails the test unless it succeeds.
func (m *machine) must(t *testing.T, args ...string) string {
	t.Helper()
	output, code := m.run(t, args...)
	if code != 0 {
		t.Fatalf("node %s: exit code %d: %s", strings.Join(args, " "), code, output)
	}
	return output
}

// holder returns the id of the node's first process.
func (m *machine) holder(t *testing.T) int {
	t.Helper()
	l := lock{path: filepath.Join(m.cache, "useless-operator", "node.lock")}
	pid, err := l.holder()
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// checkNothingRuns checks that no process and no mount of the node remains. All processes of a node are in its cgroups.
// The kernel takes a moment to kill them, so checkNothingRuns waits until the cgroups are empty.
func (m *machine) checkNothingRuns(t *testing.T) {
	t.Helper()
	var pids []string
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		pids = nil
		for _, dir := range m.cgroups(t) {
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			pids = append(pids, strings.Fields(string(text))...)
		}
		return len(pids) == 0, nil
	})
	if err != nil {
		t.Errorf("processes remain in the node's cgroups: %q", pids)
	}
	for _, mount := range mounts(t) {
		if !slices.Contains(m.mounts, mount) {
			t.Errorf("a mount remains: %s", mount)
		}
	}
}

func (m *machine) checkNothingLeft(t *testing.T) {
	t.Helper()
	m.checkNothingRuns(t)
	if left := m.cgroups(t); len(left) > 0 {
		t.Errorf("cgroups remain: %q", left)
	}
	if _, err := os.Stat(filepath.Join(m.cache, "useless-operator", "node")); err == nil {
		t.Error("the node's folder remains")
	}
}

// cgroups returns the folders of the node's cgroups and their children.
func (m *machine) cgroups(t *testing.T) (found []string) {
	t.Helper()
	err := filepath.WalkDir(cgroupRoot, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && slices.Contains(strings.Split(path, "/"), m.cgroup) {
			found = append(found, path)
		}
		return nil // cgroups of other programs may disappear at the same time
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// mounts returns the mounts at the mount points that a node uses.
func mounts(t *testing.T) (found []string) {
	t.Helper()
	for line := range strings.Lines(read(t, "/proc/self/mounts")) {
		where := strings.Fields(line)[1]
		if strings.Contains(where, "useless-operator") || strings.Contains(where, cgroupRoot) ||
			slices.Contains([]string{"/proc", "/run", "/sys", "/var"}, where) {
			found = append(found, line)
		}
	}
	return found
}

// netns returns the network namespaces of all processes.
func netns(t *testing.T) (found []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if ns, err := os.Readlink(link); err == nil {
			found = append(found, ns)
		}
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNode starts a node, uses it and stops it.
func TestNode(t *testing.T) {
	m := newMachine(t, t.TempDir(), nil)
	m.must(t, "down") // without a node
	// No proxy listens on this port. So if a program used the proxy, it would fail.
	for _, name := range proxies {
		t.Setenv(name, "http://127.0.0.1:9")
		t.Setenv(strings.ToLower(name), "http://127.0.0.1:9")
	}
	start := time.Now()
	m.must(t, "up")
	if took := time.Since(start); took > warmUp {
		t.Errorf("up took %.0f s, want at most %.0f s", took.Seconds(), warmUp.Seconds())
	}
	if output := m.must(t, "up"); output != "the node is already up\n" {
		t.Errorf("output of a second up: %q", output)
	}
	t.Run("exec", func(t *testing.T) { testExec(t, m) })
	t.Run("metrics", func(t *testing.T) { testMetrics(t, m) })
	t.Run("restart", func(t *testing.T) { testRestart(t, m) })
	t.Run("logs", func(t *testing.T) { testLogs(t, m) })
	t.Run("tunables", func(t *testing.T) { testTunables(t, m) })
	m.must(t, "down")
	m.checkNothingLeft(t)
	m.must(t, "down")
}

// testTunables checks that the kubelet cannot change the real kernel settings. In the node, an ordinary file must cover
// each setting in tunables.
func testTunables(t *testing.T, m *machine) {
	for name := range tunables {
		var kernel, file unix.Stat_t
		proc := fmt.Sprintf("/proc/%d/root/proc/sys", m.holder(t))
		if err := errors.Join(unix.Stat(proc, &kernel), unix.Stat(filepath.Join(proc, name), &file)); err != nil {
			t.Error(err)
		}
		if file.Dev == kernel.Dev {
			t.Errorf("%s is the real kernel setting", name)
		}
	}
}

func testExec(t *testing.T, m *machine) {
	for _, test := range []struct {
		reason string
		script string
		want   string
		code   int
	}{{
		reason: "kubectl needs no flags",
		script: "kubectl get node node -o name",
		want:   "node/node\n",
	}, {
		reason: "the exit code of the command is returned",
		script: "exit 7",
		code:   7,
	}, {
		reason: "the command replaces the process of node exec",
		script: "kill -TERM $$; echo not reached",
		code:   -1,
	}, {
		reason: "a test can restart a program",
		script: "$USELESS_NODE restart coredns && echo restarted",
		want:   "restarted\n",
	}, {
		reason: "the registry's certificate is trusted",
		script: "opm render $REGISTRY/operator-framework/opm:" + version(t, "opm"),
	}} {
		t.Run(test.reason, func(t *testing.T) {
			output, code := m.run(t, "exec", "sh", "-c", test.script)
			if output != test.want || code != test.code {
				t.Errorf("got %q and exit code %d, want %q and %d", output, code, test.want, test.code)
			}
		})
	}
}

func version(t *testing.T, file string) string {
	t.Helper()
	version, err := cluster.Version(file)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// testRestart restarts programs of the node one after the other. Objects must not disappear, and containers
// must not restart.
func testRestart(t *testing.T, m *machine) {
	m.must(t, "exec", "kubectl", "create", "configmap", "survivor")
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "containerd", "kubelet"} {
		m.must(t, "restart", name)
	}
	m.must(t, "exec", "kubectl", "get", "configmap", "survivor")
	restarts := "jsonpath={.items[*].status.containerStatuses[*].restartCount}"
	if got := m.must(t, "exec", "kubectl", "get", "pods", "--namespace", olmNamespace, "--output", restarts); got != "0 0 0" {
		t.Errorf("restarts of OLM's containers: %q, want none", got)
	}
	output, code := m.run(t, "restart", "docker")
	if code != 1 || !strings.Contains(output, `the node has no program "docker"; it has etcd, kube-apiserver`) {
		t.Errorf("restart of an unknown program: exit code %d, output %q", code, output)
	}
}

// testMetrics waits until metrics-server returns the usage of all Pods of OLM. metrics-server needs two measurements of
// each container.
func testMetrics(t *testing.T, m *machine) {
	var output string
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, time.Minute, true, func(context.Context) (bool, error) {
		output, _ = m.run(t, "exec", "kubectl", "top", "pods", "--namespace", olmNamespace, "--no-headers")
		return strings.Count(output, "\n") == 3, nil
	})
	if err != nil {
		t.Errorf("%v: usage of OLM's three Pods: %s", err, output)
	}
}

func testLogs(t *testing.T, m *machine) {
	if output := m.must(t, "logs"); !slices.Contains(strings.Fields(output), "kubelet") {
		t.Errorf("names of the logs: %q, want kubelet among them", output)
	}
	for _, p := range programs(&node{}, &administrator{}) {
		if m.must(t, "logs", p.name) == "" {
			t.Errorf("logs %s: no output", p.name)
		}
	}
	if output, code := m.run(t, "logs", "docker"); code != 1 {
		t.Errorf("logs of an unknown program: exit code %d, output %q", code, output)
	}
}

// TestFailedUp starts a node with a kubelet that fails. The kubelet is one of the last programs to start.
func TestFailedUp(t *testing.T) {
	t.Parallel()
	m := newMachine(t, t.TempDir(), map[string]string{"kubelet": "#!/bin/sh\necho the kubelet fails\nexit 3\n"})
	output, code := m.run(t, "up")
	if code != 1 || !strings.Contains(output, "kubelet: exit status 3; the end of its log:\n\tthe kubelet fails\n") {
		t.Errorf("up: exit code %d, want 1 and the kubelet's log; output %q", code, output)
	}
	m.checkNothingLeft(t)
	const noNode = "node: no node is running: start one with make cluster-up\n"
	if output, code := m.run(t, "exec", "true"); code != 1 || output != noNode {
		t.Errorf("exec without a node: exit code %d, output %q", code, output)
	}
}

// TestInterruptedUp ends the command up with a signal while the node's programs start.
func TestInterruptedUp(t *testing.T) {
	for _, test := range []struct {
		reason string
		signal syscall.Signal
		left   bool // files and cgroups remain until the next command removes them
	}{{
		reason: "Ctrl-C removes all files and cgroups",
		signal: syscall.SIGINT,
	}, {
		reason: "a crash ends the node too",
		signal: syscall.SIGKILL,
		left:   true,
	}} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, t.TempDir(), nil)
			cmd := m.command(t.Context(), "up")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = t.Output()
			m.start(t, cmd)
			started := false
			for lines := bufio.NewScanner(out); !started && lines.Scan(); {
				started = strings.HasSuffix(lines.Text(), " containerd")
			}
			if !started {
				t.Error("the node did not start")
			}
			if err := cmd.Process.Signal(test.signal); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			if test.left {
				m.checkNothingRuns(t)
				m.must(t, "down")
			}
			m.checkNothingLeft(t)
		})
	}
}

// TestKilledNode kills the node's first process, as a crash does. The node's files are on overlayfs, as in a container.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	m := newMachine(t, overlay(t), nil)
	m.must(t, "up")
	first := m.holder(t)
	network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", first))
	if err != nil || !slices.Contains(netns(t), network) {
		t.Fatalf("no process has the node's network namespace %q (%v)", network, err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.checkNothingRuns(t)
	if slices.Contains(netns(t), network) {
		t.Error("the node's network namespace remains")
	}
	m.must(t, "down")
	m.checkNothingLeft(t)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"container.training/useless/hack/cluster"
)

// systemPath is Debian's PATH for root. It is added to the user's PATH.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// downGrace is the time between SIGTERM and SIGKILL. A process that starts a node needs this time to clean up.
const downGrace = 15 * time.Second

// downTimeout limits the wait until the kernel has ended all processes of the node. It is long enough for a busy
// computer.
const downTimeout = time.Minute

// nameVariable is the environment variable for the name of a node. On one computer, a user can run one node of each
// name. The default node has no name.
const nameVariable = "USELESS_NODE_NAME"

// node is a user's node on this computer.
type node struct {
	dir  string // contains all files of the node
	lock *lock  // held while the node exists
}

func newNode() (*node, error) {
	cache, err := cluster.CacheDir()
	if err != nil {
		return nil, err
	}
	folder := "node"
	if name := os.Getenv(nameVariable); name != "" {
		folder += "-" + name
	}
	if filepath.Base(folder) != folder {
		return nil, fmt.Errorf("%s=%s is not a file name", nameVariable, os.Getenv(nameVariable))
	}
	return &node{dir: filepath.Join(cache, folder), lock: &lock{path: filepath.Join(cache, folder+".lock")}}, nil
}

func (n *node) path(elements ...string) string {
	return filepath.Join(n.dir, filepath.Join(elements...))
}

// ready reports whether the node has become ready. It still returns true if a program of the node fails later.
func (n *node) ready() bool {
	_, err := os.Stat(n.path(readyFile))
	return err == nil
}

// up starts the node in the background. If this process ends before the node is ready, for example after Ctrl-C, the
// node ends too.
func (n *node) up(ctx context.Context) (err error) {
	if err := requirements(); err != nil {
		return err
	}
	switch holder, err := n.lock.acquire(); {
	case err != nil:
		return err
	case holder != 0 && n.ready():
		fmt.Println("the node is already up")
		return nil
	case holder != 0:
		return fmt.Errorf("process %d is starting or stopping the node: try again when it has finished", holder)
	}
	defer n.lock.release()
	if err := n.clean(); err != nil { // a killed node leaves files and cgroups
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.clean())
		}
	}()
	if err := n.prepare(ctx); err != nil {
		return err
	}
	return n.start(ctx)
}

// requirements checks for root and for the needed programs. Its error names the packages to install.
func requirements() error {
	if err := requireRoot(); err != nil {
		return err
	}
	if err := os.Setenv("PATH", systemPath+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	if packages := missingPackages(); len(packages) > 0 {
		return fmt.Errorf("programs are missing: apt-get install -y %s", strings.Join(packages, " "))
	}
	return nil
}

// missingPackages returns the Debian packages of the programs that are not in PATH.
func missingPackages() (packages []string) {
	for _, program := range []struct{ name, pkg string }{
		{"runc", "runc"}, {"nft", "nftables"}, {"mount", "mount"}, {busybox, "busybox-static"},
	} {
		if path, err := exec.LookPath(program.name); err != nil || program.name == busybox && !isStatic(path) {
			packages = append(packages, program.pkg)
		}
	}
	return packages
}

func requireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root: use sudo")
	}
	return nil
}

// isStatic reports whether a program needs no shared libraries. Images contain no libraries.
func isStatic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// build compiles and downloads everything that takes a long time at the first start.
func build(ctx context.Context) error {
	if err := cluster.BuildNode(ctx, os.Stdout); err != nil {
		return err
	}
	_, err := cluster.Source(ctx, olmSource)
	return err
}

// prepare runs the steps that need the go command. The go command needs the user's network.
func (n *node) prepare(ctx context.Context) error {
	for _, dir := range []string{"", "log", "tmp"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return fmt.Errorf("prepare the node: %w", err)
		}
	}
	if err := build(ctx); err != nil {
		return err
	}
	if _, err := cluster.LinkNode(n.path("bin")); err != nil {
		return err
	}
	return writeOLM(ctx, n.path(olmManifests))
}

// start runs the node's first process in new namespaces and returns when the node is ready.
func (n *node) start(ctx context.Context) error {
	if err := n.makeCgroups(); err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	stay, hold, err := os.Pipe() // hold is closed when this process ends
	if err != nil {
		return err
	}
	defer hold.Close()
	cmd := exec.Command(executable, initCommand)
	cmd.Stdin = stay
	cmd.ExtraFiles = []*os.File{n.lock.file}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS,
	}
	progress, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	_ = stay.Close()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := n.lock.setHolder(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	_, _ = io.Copy(os.Stdout, progress) // returns when the node is ready or has failed
	if !n.ready() || ctx.Err() != nil {
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); ctx.Err() == nil {
			return fmt.Errorf("the node did not start (%w)", err)
		}
		return context.Cause(ctx)
	}
	if _, err := hold.Write([]byte{'.'}); err != nil { // the node now outlives this process
		return fmt.Errorf("detach from the node: %w", err)
	}
	fmt.Printf("the node is up; try %[1]s exec kubectl get pods -A, or %[1]s exec sh; stop it with %[1]s down\n",
		os.Args[0])
	return nil
}

// down stops the node in any state and removes its files and cgroups.
func (n *node) down(ctx context.Context) error {
	if err := requireRoot(); err != nil {
		return err
	}
	holder, err := n.lock.acquire()
	if err != nil {
		return err
	}
	if holder != 0 {
		if err := end(ctx, holder, downGrace); err != nil {
			return err
		}
		// Another process may have been starting the node. It may still be cleaning up.
		if err := n.lock.wait(ctx); err != nil {
			return err
		}
	}
	defer n.lock.release()
	if err := n.clean(); err != nil {
		return err
	}
	fmt.Println("the node is down")
	return nil
}

// end sends SIGTERM to a process, and SIGKILL after the grace period. It waits until the process has ended. When the
// first process of a node ends, all processes of the node end. A node's first process ignores SIGTERM until it has
// installed its handler.
func end(ctx context.Context, pid int, grace time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for _, step := range []struct {
		signal unix.Signal
		time   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, downTimeout}} {
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop process %d: %w", pid, err)
		}
		for deadline := time.Now().Add(step.time); time.Now().Before(deadline) && ctx.Err() == nil; {
			events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if ready, err := unix.Poll(events, 100); err == nil && ready == 1 {
				return nil
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(fmt.Errorf("process %d has not ended", pid), context.Cause(ctx))
}

// clean removes the cgroups and files of a node. They remain after its processes have ended.
func (n *node) clean() error {
	if err := n.removeCgroups(); err != nil {
		return err
	}
	if err := os.RemoveAll(n.dir); err != nil {
		return fmt.Errorf("remove the node's files: %w", err)
	}
	return nil
}

// exec replaces this process with a command in the node's network namespace.
func (n *node) exec(args []string) error {
	pid, err := n.running()
	if err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	if err := forgetProxies(); err != nil {
		return err
	}
	for name, value := range map[string]string{
		"KUBECONFIG":    n.path("admin.kubeconfig"),
		"KUBECACHEDIR":  n.path("kubectl"), // the user's cache may contain data of another node with the same address
		"SSL_CERT_FILE": n.path("ca.crt"),
		"REGISTRY":      registryAddress,
		"USELESS_NODE":  executable,
		"PATH":          n.path("bin") + ":" + os.Getenv("PATH"),
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	netns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("enter the node's network: %w", err)
	}
	runtime.LockOSThread() // Setns applies to the thread, and exec keeps only the calling thread
	if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the node's network: %w", err)
	}
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, args, os.Environ()))
}

// running returns the process id of the node's first process. It fails if no node is ready.
func (n *node) running() (int, error) {
	if err := requireRoot(); err != nil {
		return 0, err
	}
	pid, err := n.lock.holder()
	if err != nil {
		return 0, err
	}
	if pid == 0 || !n.ready() {
		return 0, errors.New("no node is running: start one with make cluster-up")
	}
	return pid, nil
}

// restart sends the name of a program to the supervisor, which restarts the program.
func (n *node) restart(program string) error {
	if _, err := n.running(); err != nil {
		return err
	}
	if err := os.Chdir(n.dir); err != nil { // the path of a socket has a length limit
		return err
	}
	conn, err := net.Dial("unix", controlSocket)
	if err != nil {
		return fmt.Errorf("ask the node to restart %s: %w", program, err)
	}
	defer conn.Close()
	fmt.Fprintln(conn, program)
	failure, err := io.ReadAll(conn)
	if err != nil {
		return fmt.Errorf("ask the node to restart %s: %w", program, err)
	}
	if len(failure) > 0 {
		return errors.New(string(failure))
	}
	return nil
}

// logs prints a log, or the names of all logs.
func (n *node) logs(args []string) error {
	entries, err := os.ReadDir(n.path("log"))
	if err != nil {
		return errors.New("no node is running: start one with make cluster-up")
	}
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".log"))
	}
	if len(args) == 0 {
		fmt.Println(strings.Join(names, "\n"))
		return nil
	}
	if !slices.Contains(names, args[0]) {
		return fmt.Errorf("the node has no log of %s; it has logs of %s", args[0], strings.Join(names, ", "))
	}
	f, err := os.Open(n.path("log", args[0]+".log"))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(os.Stdout, f)
	return err
}

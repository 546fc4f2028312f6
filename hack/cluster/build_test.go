// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// fakeGo is a fake go command. It waits until the file $FAKE_GO_HOLD is removed, and then writes the programs.
const fakeGo = `#!/bin/sh
echo "$1" >> "$FAKE_GO_CALLS"
case $1 in
list) echo example.test/one; exit ;;
esac
while [ "$1" != -o ]; do shift; done
while [ -e "$FAKE_GO_HOLD" ]; do sleep 0.01; done
into=$2
shift 2
for pkg in "$@"; do
	case $pkg in -*) continue ;; esac
	pkg=${pkg%/v3}
	pkg=${pkg%.go}
	echo $$ > "$into${pkg##*/}"
done
`

// useFakeGo makes the script the first go command in PATH, and uses an empty cache. If the script is empty, there is no
// go command. It returns the file that records the script's calls.
func useFakeGo(t *testing.T, script string) (calls string) {
	t.Helper()
	cache, bin := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin)
	if script != "" {
		writeProgram(t, filepath.Join(bin, "go"), script)
		t.Setenv("PATH", bin+":/bin:/usr/bin")
	}
	calls = filepath.Join(bin, "calls")
	t.Setenv("FAKE_GO_CALLS", calls)
	t.Setenv(assetsVariable, "")
	t.Setenv("HOME", cache) // macOS
	t.Setenv("XDG_CACHE_HOME", cache)
	return calls
}

func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestBuildTogether runs two builds at the same time. One builds, and the other waits for it. Then a third build finds
// all programs.
func TestBuildTogether(t *testing.T) {
	calls := useFakeGo(t, fakeGo)
	hold := filepath.Join(t.TempDir(), "hold")
	writeProgram(t, hold, "")
	t.Setenv("FAKE_GO_HOLD", hold)
	var programs [2]Programs
	progress := [2]waitWriter{{hold: hold}, {hold: hold}}
	var group sync.WaitGroup
	for i := range programs {
		group.Go(func() {
			var err error
			if programs[i], err = Build(t.Context(), &progress[i]); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if programs[0] != programs[1] || len(programs[0].missing(controlPlane)) > 0 {
		t.Errorf("got the folders %q and %q, want one folder; it lacks the programs %q",
			programs[0], programs[1], programs[0].missing(controlPlane))
	}
	output := progress[0].String() + progress[1].String()
	for _, want := range []string{"building Kubernetes v1.", "waiting for another build", "built Kubernetes v1."} {
		if strings.Count(output, want) != 1 {
			t.Errorf("progress does not contain %q exactly once:\n%s", want, output)
		}
	}
	if got := read(t, calls); got != "list\nbuild\n" {
		t.Errorf("calls of go, want list and build once:\n%s", got)
	}

	var again bytes.Buffer
	if _, err := Build(t.Context(), &again); err != nil || again.Len() > 0 {
		t.Errorf("the third build: got error %v, want nil; got progress, want none:\n%s", err, again.String())
	}
}

// waitWriter records the progress of a build. When the build waits for another build, waitWriter removes the file hold.
type waitWriter struct {
	bytes.Buffer

	hold string
}

// Write implements io.Writer.
func (w *waitWriter) Write(text []byte) (int, error) {
	if bytes.Contains(text, []byte("waiting for another build")) {
		if err := os.Remove(w.hold); err != nil {
			return 0, err
		}
	}
	return w.Buffer.Write(text)
}

// TestBuildNode builds a node's programs after the programs of the control plane. BuildNode must not build the programs
// of the control plane again.
func TestBuildNode(t *testing.T) {
	calls := useFakeGo(t, fakeGo)
	plane, err := Build(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	before := read(t, plane.Path(apiServer))
	node := filepath.Join(t.TempDir(), "bin")
	const notBuilt = "is not built: run make cluster-build"
	if programs, err := LinkNode(node); err == nil || !strings.HasSuffix(err.Error(), notBuilt) {
		t.Errorf("before the build: got programs %q and error %v", programs, err)
	}
	for range 2 { // the second time, there is nothing to build
		if err := BuildNode(t.Context(), t.Output()); err != nil {
			t.Fatal(err)
		}
		programs, err := LinkNode(node)
		if err != nil {
			t.Fatal(err)
		}
		if missing := programs.missing([]string{etcd, apiServer, "kubelet", "containerd", "operator-sdk"}); len(missing) > 0 {
			t.Errorf("missing %q", missing)
		}
		if after := read(t, programs.Path(apiServer)); after != before {
			t.Error("kube-apiserver was built again")
		}
	}
	if got, want := read(t, calls), strings.Repeat("list\nbuild\n", 2+len(otherReleases)); got != want {
		t.Errorf("calls of go:\n%swant:\n%s", got, want)
	}
}

// TestSharedVersions compares the modules of metrics-server with the modules of the newest Kubernetes. Go's build cache
// can share a package only between programs that require the same version.
func TestSharedVersions(t *testing.T) {
	newest := releases(t)[0]
	kubernetes := versions(t, "kubernetes-"+newest)
	shared := 0
	for module, version := range versions(t, "metrics-server") {
		want, found := kubernetes[module]
		if found && version != want {
			t.Errorf("metrics-server.mod requires %s %s, kubernetes-%s.mod %s", module, version, newest, want)
		}
		if found {
			shared++
		}
	}
	if shared < 50 {
		t.Errorf("metrics-server and Kubernetes share only %d modules, want 50 or more", shared)
	}
}

// versions returns the versions of the indirect requirements in hack/tools/FILE.mod, by module.
func versions(t *testing.T, file string) map[string]string {
	t.Helper()
	required := map[string]string{}
	mod := read(t, filepath.Join("..", "tools", file+".mod"))
	for _, match := range regexp.MustCompile(`(?m)^\t(\S+) (v\S+) // indirect$`).FindAllStringSubmatch(mod, -1) {
		required[match[1]] = match[2]
	}
	return required
}

func TestBuildFails(t *testing.T) {
	for _, test := range []struct {
		reason string
		script string
		want   string
	}{{
		reason: "the go command is missing",
		want:   "build Kubernetes: the go command is not in PATH",
	}, {
		reason: "a full disk is reported in one line that names the file",
		script: "#!/bin/sh\n[ $1 = list ] || { echo link; echo write /cache/x: no space left on device; echo; exit 1; }\n",
		want: "build Kubernetes: write /cache/x: no space left on device " +
			"(a first build needs up to 5 GiB in Go's caches and CACHE)",
	}, {
		reason: "other errors contain the output of the go command",
		script: "#!/bin/sh\necho 'go: no such module'\nexit 1\n",
		want:   "build Kubernetes: go list: exit status 1; the end of its log:\n\tgo: no such module",
	}} {
		t.Run(test.reason, func(t *testing.T) {
			useFakeGo(t, test.script)
			cache, err := os.UserCacheDir()
			if err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(test.want, "CACHE", filepath.Join(cache, "useless-operator"))
			programs, err := Build(t.Context(), t.Output())
			if err == nil || err.Error() != want {
				t.Errorf("got programs %q and error %v, want %s", programs, err, want)
			}
		})
	}
}

// TestBuildInterrupted cancels a build while a child process of the go command runs.
func TestBuildInterrupted(t *testing.T) {
	calls := useFakeGo(t, `#!/bin/sh
[ $1 = list ] && exit
echo $$ >> "$FAKE_GO_CALLS"
sh -c 'echo $$ >> "$FAKE_GO_CALLS"; exec sleep 600'
`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var pids []int
	go func() {
		defer cancel()
		pids = awaitPIDs(t, calls, 2)
	}()
	_, err := Build(ctx, t.Output())
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got error %v, want %v", err, context.Canceled)
	}
	awaitGone(t, pids)
	b := selected(t)
	left, _ := filepath.Glob(string(b.folder) + "*")
	for _, path := range left {
		if ext := filepath.Ext(path); ext != ".lock" && ext != ".log" {
			t.Errorf("the build did not remove %s", path)
		}
	}
}

func TestBuildUsesAssets(t *testing.T) {
	useFakeGo(t, fakeGo)
	t.Setenv(releaseVariable, "")
	built, err := Build(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	complete := t.TempDir()
	for _, name := range controlPlane {
		writeProgram(t, filepath.Join(complete, name), "")
	}
	incomplete := t.TempDir() // like the folders of setup-envtest, which have no kube-controller-manager
	for _, name := range []string{etcd, apiServer, kubectl} {
		writeProgram(t, filepath.Join(incomplete, name), "")
	}
	for _, test := range []struct {
		reason   string
		assets   string
		release  string
		want     Programs
		progress string
		err      string
	}{{
		reason: "a complete folder is used",
		assets: complete,
		want:   Programs(complete),
	}, {
		reason:   "an incomplete folder is reported and not used",
		assets:   incomplete,
		want:     built,
		progress: "KUBEBUILDER_ASSETS=" + incomplete + " has no kube-controller-manager: building Kubernetes instead\n",
	}, {
		reason:  "a folder and a release must not both be set",
		assets:  complete,
		release: "1.35",
		err:     "KUBEBUILDER_ASSETS=" + complete + " and KUBERNETES=1.35 both select programs: unset one of them",
	}} {
		t.Run(test.reason, func(t *testing.T) {
			t.Setenv(assetsVariable, test.assets)
			t.Setenv(releaseVariable, test.release)
			var progress strings.Builder
			got, err := Build(t.Context(), &progress)
			if (err != nil || test.err != "") && fmt.Sprint(err) != test.err || got != test.want || progress.String() != test.progress {
				t.Errorf("got %q, error %v, progress %q; want %q, progress %q",
					got, err, progress.String(), test.want, test.progress)
			}
		})
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// awaitPIDs waits until a file contains exactly count process IDs, and returns them.
func awaitPIDs(t *testing.T, path string, count int) (pids []int) {
	t.Helper()
	await(t, "process ids in "+path, func() bool {
		text, _ := os.ReadFile(path)
		pids = numbers(string(text))
		return len(pids) == count
	})
	return pids
}

// awaitGone waits until none of the processes exists. A process that is killed with its parent may end after it.
func awaitGone(t *testing.T, pids []int) {
	t.Helper()
	await(t, "the end of the processes", func() bool {
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil {
				return false
			}
		}
		return true
	})
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	if err != nil {
		t.Errorf("wait for %s: %v", what, err)
	}
}

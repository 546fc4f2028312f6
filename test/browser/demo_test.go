// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"errors"
	"io"
	"io/fs"
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

// TestDemo does what the quick start of README.md says: it runs make demo in a terminal, opens the page that the demo
// prints, and clicks a switch. Ctrl-C then stops the demo.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the demo: make test-all runs this test")
	}
	t.Parallel()
	e := newBrowser(t)
	demo := startDemo(t)
	tab := e.open(t, demo.url(t))
	const name = "machine-2-0"
	await(t, tab, isDown(name))
	do(t, tab, click(name))
	await(t, tab, wasUp(name))
	await(t, tab, isDown(name))
	demo.stop(t)
	if _, err := os.Stat(filepath.Join(demo.clone, ".local", "kubeconfig")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Ctrl-C, the demo's kubeconfig is still there: %v", err)
	}
}

// A terminal runs make demo, and keeps its output.
type terminal struct {
	clone    string // the folder of the demo's source
	keyboard io.Writer
	ended    chan struct{}
	mutex    sync.Mutex
	screen   strings.Builder
}

// startDemo runs make demo in a copy of this tree, because another demo may run in the tree itself.
func startDemo(t *testing.T) *terminal {
	t.Helper()
	if _, err := exec.LookPath("script"); err != nil {
		missing(t, "no script: to run this test on Linux, install util-linux")
	}
	const command = "stty columns 120 rows 40 && exec make demo"
	run := exec.CommandContext(context.WithoutCancel(t.Context()), "script", "--quiet", "--flush", "--return", "--command", command, os.DevNull)
	run.Dir = copyTree(t)
	run.Env = append(os.Environ(), "CI=", "MAKEFLAGS=", "MAKELEVEL=") // with CI=true, the demo has no screen
	keyboard, err := run.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	demo := &terminal{clone: run.Dir, keyboard: keyboard, ended: make(chan struct{})}
	run.Stdout, run.Stderr = demo, demo
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = run.Wait() // make reports that it was interrupted
		close(demo.ended)
	}()
	t.Cleanup(func() { demo.stop(t) })
	return demo
}

// Write adds output to the screen.
func (d *terminal) Write(output []byte) (int, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.screen.Write(output)
}

func (d *terminal) text() string {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.screen.String()
}

var pageURL = regexp.MustCompile(`the page is (http://\S+)\s`)

// url returns the URL of the page when the demo has printed it.
func (d *terminal) url(t *testing.T) string {
	t.Helper()
	for deadline := time.Now().Add(5 * patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if match := pageURL.FindStringSubmatch(d.text()); match != nil {
			return match[1]
		}
		select {
		case <-d.ended:
			t.Fatalf("the demo has ended:\n%s", d.text())
		default:
		}
	}
	t.Fatalf("the demo does not print the URL of its page:\n%s", d.text())
	return ""
}

// stop presses Ctrl-C, and waits for the end of the demo.
func (d *terminal) stop(t *testing.T) {
	t.Helper()
	_, _ = io.WriteString(d.keyboard, "\x03") // fails if the demo has already ended
	select {
	case <-d.ended:
	case <-time.After(patience):
		t.Errorf("the demo does not end:\n%s", d.text())
	}
}

// copyTree copies this tree without the folders of git, of a demo and of compiled programs. It returns the new folder.
func copyTree(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir(repository)
	copied := t.TempDir()
	for _, entry := range entries {
		from, to := filepath.Join(repository, entry.Name()), filepath.Join(copied, entry.Name())
		switch {
		case slices.Contains([]string{".git", ".local", "bin"}, entry.Name()):
		case entry.IsDir():
			err = errors.Join(err, os.CopyFS(to, os.DirFS(from)))
		default:
			content, readErr := fs.ReadFile(os.DirFS(repository), entry.Name())
			err = errors.Join(err, readErr, os.WriteFile(to, content, 0o600))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

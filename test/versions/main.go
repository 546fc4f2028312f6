// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command versions runs the user stories of test/integration on each release of Kubernetes that hack/tools pins. It
// writes the results into docs/versions.md. The environment variable KUBERNETES can select one release. The arguments
// are passed to go test. With arguments, it does not write the results.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"container.training/useless/hack/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
}

// run tests each release. If tests fail on a release, it continues with the next release. If it cannot run the tests,
// it stops.
func run(ctx context.Context, args []string) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	all, err := cluster.KubernetesReleases()
	if err != nil {
		return err
	}
	// KUBEBUILDER_ASSETS would replace the programs that are built for each release.
	if err := os.Unsetenv("KUBEBUILDER_ASSETS"); err != nil {
		return err
	}
	releases := all
	if selected := os.Getenv(releaseVariable); selected != "" {
		releases = []string{selected}
	}
	var failed error
	for _, release := range releases {
		result, err := test(ctx, root, release, args)
		if err != nil {
			return fmt.Errorf("test Kubernetes %s: %w", release, err)
		}
		fmt.Fprintf(os.Stderr, "Kubernetes %s: %s\n", result.version, result.counts())
		if result.failed > 0 {
			failed = errors.Join(failed, fmt.Errorf("test Kubernetes %s: %s", result.version, result.counts()))
		}
		if len(args) > 0 {
			continue
		}
		if err := update(filepath.Join(root, report), all, result); err != nil {
			return err
		}
	}
	return failed
}

// releaseVariable is the environment variable that selects a release for all programs of this source tree.
const releaseVariable = "KUBERNETES"

// test builds a release and runs the user stories on it.
func test(ctx context.Context, root, release string, args []string) (*result, error) {
	if err := os.Setenv(releaseVariable, release); err != nil {
		return nil, err
	}
	if _, err := cluster.Build(ctx, os.Stderr); err != nil {
		return nil, err
	}
	version, err := cluster.Version("kubernetes-" + release)
	if err != nil {
		return nil, err
	}
	r := &result{version: version, date: time.Now().UTC().Format(time.DateOnly)}

	command := append([]string{"test", "-json", "-short", "-count=1", "-timeout=1h"}, args...)
	cmd := exec.CommandContext(ctx, "go", append(command, "./test/integration")...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := r.read(out, os.Stderr); err != nil {
		return nil, errors.Join(err, cmd.Wait())
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err() // an interrupted run has no result
	case err != nil && r.failed == 0:
		return nil, fmt.Errorf("go test: %w, but no test failed", err)
	}
	return r, nil
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
)

const repository = "../.."

// command runs the go command in the repository's root.
func command(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stderr, cmd.Env = repository, t.Output(), append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// inputs makes the cached result of go test depend on the operator's source. go test notices only changes of files that
// the test process itself opens or inspects. In this test, only the go command reads the source, so inputs inspects all
// its files.
func inputs(t *testing.T) {
	t.Helper()
	for _, path := range []string{"api", "cmd", "internal", "go.mod", "go.sum"} {
		err := filepath.WalkDir(filepath.Join(repository, path), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestOperator compares the listed modules with the output of go list, and checks that each module except std has a
// hash. A module that two programs contain must be in the list once. The build uses the flags of the other tests, so
// Go's cache already contains all packages. The flags of make build give the same modules.
func TestOperator(t *testing.T) {
	t.Parallel()
	inputs(t)
	program := filepath.Join(t.TempDir(), "manager")
	command(t, "build", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "./cmd")
	want := strings.Fields(command(t, "list", "-buildvcs=false", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}{{end}}{{end}}", "./cmd"))
	want = append(want, "std@"+strings.TrimPrefix(strings.TrimSpace(command(t, "env", "GOVERSION")), "go"))
	slices.Sort(want)
	want = slices.Compact(want)

	var list bytes.Buffer
	if err := write(&list, "", "v1.2.3", program, program); err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(&list, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if main := bom.Metadata.Component; main.PackageURL != "pkg:golang/container.training/useless@v1.2.3" {
		t.Errorf("unexpected program %+v", main)
	}
	got := make([]string, 0, len(want))
	for _, component := range *bom.Components {
		got = append(got, component.Name+"@"+component.Version)
		if component.Name != "std" && component.Hashes == nil {
			t.Errorf("%s has no hash", component.Name)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 10 {
		t.Errorf("modules (-built +listed):\n%s", diff)
	}
}

func TestNoProgram(t *testing.T) {
	t.Parallel()
	if err := write(&bytes.Buffer{}, "", "", "main.go"); err == nil {
		t.Error("no error for a file that is not a program")
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keda has KEDA's CustomResourceDefinition of ScaledObjects.
package keda

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// CRD returns the path of the CustomResourceDefinition at the version that hack/tools pins. repository is the path of
// the repository's root, relative to the test.
func CRD(t testing.TB, repository string) string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "-modfile=keda.mod", "github.com/kedacore/keda/v2")
	download.Dir = filepath.Join(repository, "hack", "tools")
	out, err := download.Output()
	if err != nil {
		t.Fatalf("download KEDA: %v\n%s", err, out) // with -json, go prints errors on stdout
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(module.Dir, "config", "crd", "bases", "keda.sh_scaledobjects.yaml")
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"archive/tar"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// TestPush pushes an image, pulls it, and checks its configuration and files.
func TestPush(t *testing.T) {
	bin := t.TempDir()
	for name, text := range map[string]string{busybox: "shell", "opm": "program"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	server := httptest.NewTLSServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host, transport := strings.TrimPrefix(server.URL, "https://"), server.Client().Transport

	pushed := image{
		name:   "framework/opm:v1",
		files:  map[string]string{"usr/bin/opm": filepath.Join(bin, "opm"), "configs/.keep": os.DevNull},
		links:  []string{busybox, "sh"},
		entry:  []string{"/usr/bin/opm"},
		labels: map[string]string{"configs": "/configs"},
	}
	if err := pushed.push(t.Context(), host, transport); err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(host + "/framework/opm:v1")
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(reference, remote.WithTransport(transport))
	if err != nil {
		t.Fatal(err)
	}
	config, err := pulled.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	wantConfig := v1.Config{
		Entrypoint: []string{"/usr/bin/opm"},
		Env:        []string{"PATH=/usr/local/bin:/bin"},
		Labels:     map[string]string{"configs": "/configs"},
		User:       "1001",
		WorkingDir: "/",
	}
	if diff := cmp.Diff(wantConfig, config.Config); diff != "" {
		t.Error(diff)
	}
	wantFiles := map[string]string{
		"tmp": "", "bin/busybox": "shell", "bin/sh": "-> busybox", "configs/.keep": "", "usr/bin/opm": "program",
	}
	if diff := cmp.Diff(wantFiles, readFiles(t, pulled)); diff != "" {
		t.Error(diff)
	}
}

// readFiles returns an image's files by path: the content of a file, or "-> " and the target of a link.
func readFiles(t *testing.T, i v1.Image) map[string]string {
	t.Helper()
	found := map[string]string{}
	all := mutate.Extract(i)
	defer all.Close()
	for files := tar.NewReader(all); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeSymlink {
			text = []byte("-> " + header.Linkname)
		}
		found[filepath.Clean(header.Name)] = string(text)
	}
}

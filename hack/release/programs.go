// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// program is a Go program that a release contains.
type program struct {
	name, pkg string
	module    string // name of a .mod file in hack/tools; empty for the programs of this repository
}

// opm and probe are programs of other projects, for the image of the catalog. They have the same module versions as in
// the tests.
var (
	manager = program{"manager", "./cmd", ""}
	plugin  = program{"kubectl-useless", "./cmd/kubectl-useless", ""}
	opm     = program{"opm", "github.com/operator-framework/operator-registry/cmd/opm", "opm.mod"}
	probe   = program{"grpc_health_probe", "github.com/grpc-ecosystem/grpc-health-probe", "grpc-health-probe.mod"}
)

// file returns the path of a compiled program. The format of platform is linux/amd64 or linux-amd64.
func (r *release) file(p program, platform string) string {
	return filepath.Join(r.programs, p.name+"-"+strings.ReplaceAll(platform, "/", "-"))
}

// compile compiles the plugin for pluginPlatforms, and all other programs for platforms.
func (r *release) compile(ctx context.Context) error {
	for _, part := range []struct {
		platforms []string
		programs  []program
	}{{r.platforms, []program{manager, opm, probe}}, {r.pluginPlatforms, []program{plugin}}} {
		for _, p := range part.programs {
			for _, platform := range part.platforms {
				build := func() error { return r.build(ctx, p, platform, r.file(p, platform)) }
				if err := r.timed("compile "+p.name+" for "+platform, build); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// goBuild compiles a program. For the programs of this repository, the flags have the same effect as the flags in the
// Dockerfile and in the Makefile.
func (r *release) goBuild(ctx context.Context, p program, platform, file string) error {
	system, architecture, _ := strings.Cut(strings.ReplaceAll(platform, "/", "-"), "-")
	args := []string{"build", "-buildvcs=false", "-trimpath", "-gcflags=all=-dwarf=false", "-o", file}
	flags := "-s -w"
	switch {
	case p.module != "":
		args = append(args, "-modfile=hack/tools/"+p.module, "-tags=containers_image_openpgp")
	case p == manager, p == plugin:
		flags += " -X main.version=v" + r.version
	}
	environment := append(slices.Clone(goSettings), "GOOS="+system, "GOARCH="+architecture)
	return r.run(ctx, nil, environment, "go", append(args, "-ldflags", flags, p.pkg)...)
}

// goSettings are Go's default settings, except that cgo is disabled. They replace the user's settings, which must not
// change a release. For example, a program for GOAMD64=v3 does not start on an older processor.
var goSettings = []string{
	"GOFLAGS=-mod=readonly", "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOPPC64=power8", "GOFIPS140=off",
}

// run runs a command in the root of the repository. The command gets the variables in environment in addition to the
// variables of this process. If stdout is nil, the output is discarded.
func (r *release) run(ctx context.Context, stdout io.Writer, environment []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, stdout, r.log
	cmd.Env = append(os.Environ(), environment...)
	return cmd.Run()
}

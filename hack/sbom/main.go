// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sbom prints the modules of Go programs in the CycloneDX format. It reads them from the build information of
// the programs. For the same programs, it always prints the same list.
//
//	sbom -name NAME -version VERSION PROGRAM...
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	name := flag.String("name", "",
		"name of the component that consists of all programs; by default, the path of the first program's module")
	version := flag.String("version", "", "version of the programs")
	flag.Parse()
	if err := write(os.Stdout, *name, *version, flag.Args()...); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// write prints the modules of all programs in files. In the metadata of the list, all programs together are one
// component with this name and version. If name is empty, the component has the name of the first program's module.
func write(out io.Writer, name, version string, files ...string) error {
	root := cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: name + "@" + version, Name: name, Version: version}
	modules := map[string]cdx.Component{}
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the build information of a program: %w", err)
		}
		if root.Name == "" {
			root = component(cdx.ComponentTypeApplication, debug.Module{Path: info.Main.Path, Version: version})
		}
		for _, module := range modulesOf(info) {
			c := component(cdx.ComponentTypeLibrary, module)
			modules[c.BOMRef] = c
		}
	}
	components := slices.Collect(maps.Values(modules))
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &root}
	bom.Components = &components
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// modulesOf returns Go's standard library, and the modules of a program. The list does not contain the module of this
// repository, because the build information has no checksum of it.
func modulesOf(info *debug.BuildInfo) []debug.Module {
	modules := []debug.Module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	if info.Main.Sum != "" {
		modules = append(modules, info.Main)
	}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		modules = append(modules, *module)
	}
	return modules
}

// component describes a module. The hash is the one in go.sum, in hexadecimal. It covers all files of the
// module.
func component(kind cdx.ComponentType, module debug.Module) cdx.Component {
	purl := "pkg:golang/" + module.Path + "@" + url.QueryEscape(module.Version)
	c := cdx.Component{Type: kind, BOMRef: purl, Name: module.Path, Version: module.Version, PackageURL: purl}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil && len(sum) > 0 {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}

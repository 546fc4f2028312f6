// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sbom prints the modules of a Go program in the CycloneDX format. It reads them from the program's build
// information. For the same program, it always prints the same list.
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "the program's version")
	flag.Parse()
	if err := write(os.Stdout, flag.Arg(0), *version); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// write prints the modules of the program in file.
func write(out io.Writer, file, version string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the build information of a program: %w", err)
	}
	program := component(cdx.ComponentTypeApplication, debug.Module{Path: info.Main.Path, Version: version})
	std := debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}
	components := []cdx.Component{component(cdx.ComponentTypeLibrary, std)}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		components = append(components, component(cdx.ComponentTypeLibrary, *module))
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &program}
	bom.Components = &components
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// component describes a module. The hash is the same as in go.sum, and covers all files of the module.
func component(kind cdx.ComponentType, module debug.Module) cdx.Component {
	purl := "pkg:golang/" + module.Path + "@" + url.QueryEscape(module.Version)
	c := cdx.Component{Type: kind, BOMRef: purl, Name: module.Path, Version: module.Version, PackageURL: purl}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil && len(sum) > 0 {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// The libraries of this program are requirements of hack/tools/code-generator.mod, not of the operator's module.
//go:build ignore

// Command client-gen is Kubernetes' client-gen, and also supports kinds whose lower-case names are Go keywords.
// Upstream's client-gen names a parameter after its kind, but Go does not allow a parameter with the name switch.
package main

import (
	"github.com/spf13/pflag"
	"k8s.io/code-generator/cmd/client-gen/args"
	"k8s.io/code-generator/cmd/client-gen/generators"
	"k8s.io/gengo/v2"
	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/types"
	"k8s.io/klog/v2"
)

// names has the parameter names for kinds whose lower-case names are keywords.
var names = map[string]string{"Switch": "sw"}

func main() {
	args := args.New()
	args.AddFlags(pflag.CommandLine, "")
	pflag.Parse()
	if err := run(args); err != nil {
		klog.Fatal(err)
	}
}

func run(args *args.Args) error {
	if err := args.Validate(); err != nil {
		return err
	}
	var packages []string
	for _, group := range args.Groups {
		for _, version := range group.Versions {
			packages = append(packages, version.Package)
		}
	}
	systems := generators.NameSystems(nil)
	private := systems["private"].(*generators.ExceptionNamer)
	private.Exceptions, private.KeyFunc = names, func(t *types.Type) string { return t.Name.Name }
	targets := func(context *generator.Context) []generator.Target { return generators.GetTargets(context, args) }
	return gengo.Execute(systems, generators.DefaultNameSystem(), targets, gengo.StdBuildTag, packages)
}

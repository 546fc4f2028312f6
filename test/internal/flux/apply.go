// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// The libraries of this program are requirements of hack/tools/flux.mod, not of the operator's module.
//go:build ignore

// Command apply applies a manifest as Flux's kustomize-controller does, with the same library. It reads the manifest
// from standard input. Its arguments are the paths of a kubeconfig and of a Kustomization.
package main

import (
	"context"
	"fmt"
	"os"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"github.com/fluxcd/pkg/ssa/normalize"
	"github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := apply(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func apply(ctx context.Context, kubeconfig, kustomization string) error {
	options, err := optionsOf(kustomization)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	objects, err := utils.ReadObjects(os.Stdin)
	if err != nil {
		return err
	}
	if err := normalize.UnstructuredList(objects); err != nil {
		return err
	}
	owner := ssa.Owner{Field: "kustomize-controller", Group: kustomizev1.GroupVersion.Group}
	changes, err := ssa.NewResourceManager(c, nil, owner).ApplyAllStaged(ctx, objects, options)
	if err != nil {
		return err
	}
	fmt.Println(changes)
	return nil
}

// optionsOf returns options to apply the objects of a Kustomization. It sets IfNotPresentSelector and DriftIgnoreRules,
// as kustomize-controller's function apply does. It sets no other option of that function. For example, it does not
// clean up other field managers. Of the target of an ignore rule, it uses only the group and the kind.
func optionsOf(kustomization string) (ssa.ApplyOptions, error) {
	options := ssa.DefaultApplyOptions()
	options.IfNotPresentSelector = map[string]string{
		kustomizev1.GroupVersion.Group + "/ssa": kustomizev1.IfNotPresentValue,
	}
	text, err := os.ReadFile(kustomization)
	if err != nil {
		return options, err
	}
	k := &kustomizev1.Kustomization{}
	if err := yaml.UnmarshalStrict(text, k); err != nil {
		return options, err
	}
	for _, rule := range k.Spec.Ignore {
		options.DriftIgnoreRules = append(options.DriftIgnoreRules, jsondiff.IgnoreRule{
			Paths:    rule.Paths,
			Selector: &jsondiff.Selector{Group: rule.Target.Group, Kind: rule.Target.Kind},
		})
	}
	return options, nil
}

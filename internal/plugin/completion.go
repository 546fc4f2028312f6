// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/resource"
)

const noFiles = cobra.ShellCompDirectiveNoFileComp

// completeWorkload completes KIND/NAME, or KIND and NAME, with the scheduled workloads of the cluster.
func (o *options) completeWorkload(_ *cobra.Command, args []string, typed string) (
	[]cobra.Completion, cobra.ShellCompDirective,
) {
	name, separated := typed, len(args) == 1
	kindName := strings.Join(args, "/")
	if !separated {
		kindName, name, separated = strings.Cut(typed, "/")
	}
	switch {
	case len(args) > 1 || len(args) == 1 && strings.Contains(args[0], "/"):
		return nil, noFiles
	case !separated:
		return completeKind(typed), noFiles | cobra.ShellCompDirectiveNoSpace
	}
	before := strings.TrimSuffix(typed, name)
	var completions []cobra.Completion
	for _, found := range o.scheduledNames(kindName) {
		if strings.HasPrefix(found, name) {
			completions = append(completions, before+found)
		}
	}
	return completions, noFiles
}

// completeKind returns the kinds that begin with a text, each with a slash.
func completeKind(typed string) (completions []cobra.Completion) {
	for _, k := range kinds {
		if strings.HasPrefix(k.singular, strings.ToLower(typed)) {
			completions = append(completions, k.singular+"/")
		}
	}
	return completions
}

// scheduledNames returns the names of the scheduled workloads of a kind. Completion ignores errors.
func (o *options) scheduledNames(kindName string) (names []string) {
	k, err := kindNamed(kindName)
	if err != nil {
		return nil
	}
	quiet := *o
	quiet.ErrOut = io.Discard
	r, err := quiet.newReader()
	if err != nil {
		return nil
	}
	namespace, err := o.namespace()
	if err != nil {
		return nil
	}
	workloads, err := r.list(k, namespace, false)
	if err != nil {
		return nil
	}
	for _, w := range workloads {
		if w.State() != "" {
			names = append(names, w.object.GetName())
		}
	}
	return names
}

// completeMachine completes the name of a Machine.
func (o *options) completeMachine(_ *cobra.Command, args []string, typed string) (
	[]cobra.Completion, cobra.ShellCompDirective,
) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return o.names(machines, typed), noFiles
}

// completeNamespace completes the value of the flag --namespace.
func (o *options) completeNamespace(_ *cobra.Command, _ []string, typed string) (
	[]cobra.Completion, cobra.ShellCompDirective,
) {
	return o.names("namespaces", typed), noFiles
}

// names returns the names of a resource that begin with a text. Completion ignores errors.
func (o *options) names(resourceType, typed string) (names []string) {
	namespace, err := o.namespace()
	if err != nil {
		return nil
	}
	infos, err := resource.NewBuilder(o.config).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceTypes(resourceType).SelectAllParam(true).RequestChunksOf(500).Flatten().Do().Infos()
	if err != nil {
		return nil
	}
	for _, info := range infos {
		names = append(names, info.Name)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, typed) })
}

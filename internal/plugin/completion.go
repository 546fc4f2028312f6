// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

const noFiles = cobra.ShellCompDirectiveNoFileComp

// completeWorkload completes KIND/NAME, or KIND and NAME, with the scheduled workloads of the namespace.
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
	quiet := *o
	quiet.ErrOut = io.Discard
	k, kindErr := kindNamed(kindName)
	r, err := quiet.newReader()
	if kindErr != nil || err != nil {
		return nil
	}
	workloads, _ := r.workloads(k, false)
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
	infos, _ := o.list(resourceType, false)
	for _, info := range infos {
		if strings.HasPrefix(info.Name, typed) {
			names = append(names, info.Name)
		}
	}
	return names
}

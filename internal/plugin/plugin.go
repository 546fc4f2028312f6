// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin has the commands of the kubectl plugin "kubectl useless".
package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"container.training/useless/internal/schedule"
)

// options are shared by all commands.
type options struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
	clock  clock.PassiveClock
	zone   string // the time zone of schedules without one
}

// New returns the command "kubectl useless".
func New(streams genericiooptions.IOStreams, clock clock.PassiveClock) *cobra.Command {
	o := &options{IOStreams: streams, clock: clock, config: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:           "kubectl-useless",
		Short:         "Show and change the schedules and Machines of useless-operator",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl useless"},
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return needsCommand(c, args)
		},
	}
	root.SetFlagErrorFunc(flagError)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	o.config.AddFlags(root.PersistentFlags())
	root.PersistentFlags().StringVar(&o.zone, "default-time-zone", "UTC",
		"the time zone of schedules without one; use the value of the operator's flag --default-time-zone")
	schedules := &cobra.Command{Use: "schedule", Short: "Show and check schedules", RunE: needsCommand}
	schedules.AddCommand(o.newList(), o.newExplain(), o.newCheck(), o.newImport())
	root.AddCommand(schedules, o.newWake(), o.newSleep(), o.newFlip())
	_ = root.RegisterFlagCompletionFunc("namespace", o.completeNamespace) // fails only for a flag that does not exist
	o.adviseAll(root)
	return root
}

// location returns the default time zone.
func (o *options) location() (*time.Location, error) {
	zone, err := schedule.ParseZone(o.zone)
	if err != nil {
		return nil, fmt.Errorf("--default-time-zone %q: %w; use for example Europe/Berlin", o.zone, err)
	}
	return zone, nil
}

// find returns the object with a name in the namespace of the command. The resource type has the format
// plural.version.group. The argument absent is the text of the error if the cluster does not have the kind. If the
// object does not exist, the error suggests kubectl get. The argument others describes the objects that this command
// lists.
func (o *options) find(resourceType, name, absent, others string) (*resource.Info, error) {
	namespace, err := o.namespace()
	if err != nil {
		return nil, err
	}
	infos, err := resource.NewBuilder(o.config).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceNames(resourceType, name).Latest().Do().Infos()
	switch {
	case isAbsent(err):
		return nil, errors.New(absent)
	case apierrors.IsNotFound(err):
		if err := o.checkNamespace(namespace); err != nil {
			return nil, err
		}
		plural, _, _ := strings.Cut(resourceType, ".")
		return nil, fmt.Errorf("%w in namespace %s: kubectl get %s -n %[2]s lists %[4]s; -n selects another namespace",
			err, namespace, plural, others)
	case err != nil:
		return nil, err
	}
	return infos[0], nil
}

// checkNamespace returns an error if a namespace does not exist.
func (o *options) checkNamespace(name string) error {
	_, err := resource.NewBuilder(o.config).Unstructured().ResourceNames("namespaces", name).Latest().Do().Infos()
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: kubectl get namespaces lists them", err)
	}
	return nil // another error, such as a missing permission, does not mean that the namespace is missing
}

// list returns all objects of a resource, in the namespace of the command or in all namespaces.
func (o *options) list(resourceType string, all bool) ([]*resource.Info, error) {
	namespace, err := o.namespace()
	if err != nil {
		return nil, err
	}
	return resource.NewBuilder(o.config).Unstructured().NamespaceParam(namespace).DefaultNamespace().AllNamespaces(all).
		ResourceTypes(resourceType).SelectAllParam(true).RequestChunksOf(500).Flatten().Do().Infos()
}

// isAbsent reports whether the cluster does not have a kind. If the builder does not know a resource, its error has no
// type, so isAbsent compares the text.
func isAbsent(err error) bool {
	return err != nil && (meta.IsNoMatchError(err) || strings.Contains(err.Error(), "have a resource type"))
}

// namespace returns the namespace of the command line or of the kubeconfig.
func (o *options) namespace() (string, error) {
	namespace, _, err := o.config.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

// advise adds advice to an error of the cluster or of the kubeconfig. It returns other errors unchanged.
func (o *options) advise(err error) error {
	var network *url.Error
	var path *fs.PathError
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: kubectl auth can-i --list shows what you may do; %s", err, otherScope(err))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: log in to the cluster, or select another context with --context", err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: run the command again", err)
	case clientcmd.IsConfigurationInvalid(err), clientcmd.IsContextNotFound(err), isMissing(err, "context "):
		return fmt.Errorf("%w: kubectl config get-contexts lists the contexts; select one with --context", err)
	case isMissing(err, "auth info "):
		return fmt.Errorf("%w: kubectl config get-users lists the users; select one with --user", err)
	case errors.As(err, &path) && path.Path == *o.config.KubeConfig:
		return fmt.Errorf("%w: use --kubeconfig with an existing file", err)
	case strings.HasPrefix(err.Error(), "error loading config file"):
		return fmt.Errorf("%w: use --kubeconfig with a valid file", err)
	case errors.As(err, &network):
		return fmt.Errorf("cannot reach the cluster: %w: check it with kubectl cluster-info, or select another one "+
			"with --context or --kubeconfig", err)
	}
	return err
}

// otherScope says how to select a namespace after the API server has rejected a request.
func otherScope(forbidden error) string {
	if strings.Contains(forbidden.Error(), "at the cluster scope") {
		return "use -n NAMESPACE instead of -A"
	}
	return "-n selects another namespace"
}

// isMissing reports whether an error means that the kubeconfig does not have an entry of a kind. These errors have no
// type, so isMissing compares the text.
func isMissing(err error, kind string) bool {
	return strings.HasPrefix(err.Error(), kind) && strings.Contains(err.Error(), "does not exist")
}

// adviseAll lets a command and its subcommands return errors with advice.
func (o *options) adviseAll(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error { return o.advise(run(c, args)) }
	}
	for _, sub := range c.Commands() {
		o.adviseAll(sub)
	}
}

// flagError names the command that shows the flags. If a command is unknown, its flags are unknown, too.
func flagError(c *cobra.Command, err error) error {
	if args := c.Flags().Args(); c.HasSubCommands() && len(args) > 0 {
		return needsCommand(c, args)
	}
	return fmt.Errorf("%w: %s --help shows the flags", err, c.CommandPath())
}

// needsCommand returns an error that shows similar commands, or all subcommands.
func needsCommand(c *cobra.Command, args []string) error {
	names := make([]string, 0, len(c.Commands()))
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	if len(args) == 0 {
		return fmt.Errorf("a command is missing: add one of: %s", strings.Join(names, " "))
	}
	if similar := similarCommands(c, args[0]); len(similar) > 0 {
		return fmt.Errorf("unknown command %q: do you mean %s?", args[0], strings.Join(similar, " or "))
	}
	return fmt.Errorf("unknown command %q: use one of: %s", args[0], strings.Join(names, " "))
}

// similarCommands returns the commands with a name that is similar to the argument: subcommands of c, their
// subcommands, and siblings of c.
func similarCommands(c *cobra.Command, name string) (similar []string) {
	parents := append([]*cobra.Command{c}, c.Commands()...)
	if c.HasParent() {
		parents = append(parents, c.Parent())
	}
	for _, parent := range parents {
		if parent.Name() == "completion" {
			continue // the names of shells are too short
		}
		parent.SuggestionsMinimumDistance = 2
		for _, found := range parent.SuggestionsFor(name) {
			similar = append(similar, parent.CommandPath()+" "+found)
		}
	}
	return similar
}

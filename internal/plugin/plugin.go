// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin has the commands of the kubectl plugin "kubectl useless".
package plugin

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"container.training/useless/internal/schedule"
)

// options are shared by all commands.
type options struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
	clock  clock.PassiveClock
	zone   string // of schedules without a time zone
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

// namespace returns the namespace of the command line or of the kubeconfig.
func (o *options) namespace() (string, error) {
	namespace, _, err := o.config.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

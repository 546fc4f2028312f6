// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
)

// advise returns an error of the cluster or of the kubeconfig together with what to type next.
func (o *options) advise(err error) error {
	var network *url.Error
	var path *fs.PathError
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: kubectl auth can-i --list shows what you may do; -n selects another namespace", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w: log in to the cluster, or select another context with --context", err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: run the command again", err)
	case clientcmd.IsConfigurationInvalid(err), clientcmd.IsContextNotFound(err),
		strings.Contains(err.Error(), "does not exist") && strings.HasPrefix(err.Error(), "context "):
		return fmt.Errorf("%w: kubectl config get-contexts lists the contexts; select one with --context", err)
	case errors.As(err, &path) && path.Path == *o.config.KubeConfig:
		return fmt.Errorf("%w: use --kubeconfig with an existing file", err)
	case errors.As(err, &network):
		return fmt.Errorf("cannot reach the cluster: %w: check it with kubectl cluster-info, or select another one "+
			"with --context or --kubeconfig", err)
	}
	return err
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

// flagError names the command that shows the flags.
func flagError(c *cobra.Command, err error) error {
	return fmt.Errorf("%w: %s --help shows the flags", err, c.CommandPath())
}

// needsCommand returns an error that shows the subcommands.
func needsCommand(c *cobra.Command, args []string) error {
	names := make([]string, 0, len(c.Commands()))
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	if len(args) == 0 {
		return fmt.Errorf("a command is missing: add one of: %s", strings.Join(names, " "))
	}
	return fmt.Errorf("unknown command %q: use one of: %s", args[0], strings.Join(names, " "))
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

// checkTimeout limits the check of the webhooks. It is longer than the timeouts of the conversion webhook and of the
// admission webhook together.
const checkTimeout = 45 * time.Second

// check returns nil if the API server calls the webhooks, and otherwise an error. It skips v1alpha1 if the API server
// does not serve it. It creates Machines in a dry run, so that no object remains even if the process is killed.
func check(ctx context.Context, namespace string) error {
	if namespace == "" {
		return errors.New("--check-webhooks needs --namespace: it creates Machines there, in a dry run")
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("load the kubeconfig: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	// The API server converts a v1alpha1 Machine before it calls the admission webhook. So v1alpha1 uses both webhooks.
	for _, machine := range []client.Object{&v1alpha1.Machine{}, &v1beta1.Machine{}} {
		kind, err := c.GroupVersionKindFor(machine)
		if err != nil {
			return err
		}
		err = checkVersion(ctx, client.NewNamespacedClient(c, namespace), machine)
		if meta.IsNoMatchError(err) && kind.Version == v1alpha1.GroupVersion.Version {
			fmt.Printf("Machine in %s: the API server does not serve this version\n", kind.Version)
			continue
		}
		if err != nil {
			return fmt.Errorf("create a Machine in %s: %w", kind.Version, err)
		}
		fmt.Printf("Machine in %s: the webhooks accept a valid Machine and reject an invalid one\n", kind.Version)
	}
	return nil
}

// checkVersion creates a valid Machine, and an invalid Machine that only the admission webhook rejects.
func checkVersion(ctx context.Context, c client.Client, machine client.Object) error {
	invalid := machine.DeepCopyObject().(client.Object)
	machine.SetGenerateName("check-")
	if err := c.Create(ctx, machine, client.DryRunAll); err != nil {
		return err
	}
	invalid.SetName(strings.Repeat("x", v1beta1.MaxMachineNameLength+1))
	err := c.Create(ctx, invalid, client.DryRunAll)
	if err == nil {
		return errors.New("the API server does not call the admission webhook: it accepts a name that is too long")
	}
	if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "admission webhook") {
		return nil
	}
	return err
}

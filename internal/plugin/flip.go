// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/resource"

	"container.training/useless/api/useless/v1beta1"
)

const machines = "machines.v1beta1.useless.container.training"

func (o *options) newFlip() *cobra.Command {
	return &cobra.Command{
		Use: "flip MACHINE", Short: "Turn all switches of a Machine up, so that the operator turns them down again",
		Example:           "  kubectl useless flip machine-1",
		ValidArgsFunction: o.completeMachine,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return errors.New("write the name of one Machine, for example: kubectl useless flip machine-1")
			}
			namespace, err := o.namespace()
			if err != nil {
				return err
			}
			infos, err := resource.NewBuilder(o.config).Unstructured().NamespaceParam(namespace).DefaultNamespace().
				ResourceNames(machines, args[0]).Latest().Do().Infos()
			switch {
			case isAbsent(err):
				return errors.New("the cluster has no kind Machine: install the operator first")
			case apierrors.IsNotFound(err):
				return fmt.Errorf("%w in namespace %s: kubectl get machines -n %[2]s lists the Machines; "+
					"-n selects another namespace", err, namespace)
			case err != nil:
				return err
			}
			up := map[string]any{"spec": map[string]any{"position": v1beta1.PositionUp}}
			return o.patch(infos[0], up, "turned up")
		},
	}
}

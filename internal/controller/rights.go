// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A right is what a controller that is off by default may have to be given.
type right struct {
	schema.GroupResource
	verbs string // with spaces in between
}

// checkRights returns an error that says what to do where the operator has not been given the rights of a controller. One
// that cannot fill its caches would take the whole operator down with it, again and again, two minutes after each start.
func checkRights(ctx context.Context, c client.Writer, name string, rights []right) error {
	for _, right := range rights {
		for verb := range strings.FieldsSeq(right.verbs) {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: right.Group, Resource: right.Resource, Verb: verb},
			}}
			if err := c.Create(ctx, review); err != nil {
				return fmt.Errorf("ask for the right to %s %s: %w", verb, right, err)
			}
			if !review.Status.Allowed {
				return fmt.Errorf("no right to %s %s: bind its ClusterRole before you turn it on, with %s", verb, right, binding(name))
			}
		}
	}
	return nil
}

// binding is the command that gives a controller its rights where the operator is installed as its documentation says.
func binding(name string) string {
	return strings.ReplaceAll("kubectl create clusterrolebinding useless-NAME --clusterrole useless-NAME-role "+
		"--serviceaccount useless-system:useless-controller-manager", "NAME", name)
}

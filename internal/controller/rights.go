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

// right is a permission on a resource.
type right struct {
	schema.GroupResource
	verbs string // separated by spaces
}

// checkRights returns an error that says what to do if the operator does not have the rights of a controller. Without this
// check, its caches would never fill, and the whole operator would exit two minutes after each start.
func checkRights(ctx context.Context, c client.Writer, name string, rights []right) error {
	for _, right := range rights {
		for verb := range strings.FieldsSeq(right.verbs) {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: right.Group, Resource: right.Resource, Verb: verb},
			}}
			// A review is not stored, so no cache can wait for it.
			if err := c.Create(ctx, review, client.DisableReadYourWritesConsistency); err != nil {
				return fmt.Errorf("ask for the right to %s %s: %w", verb, right, err)
			}
			if !review.Status.Allowed {
				return fmt.Errorf("no right to %s %s: bind its ClusterRole before you turn it on, with %s", verb, right, binding(name))
			}
		}
	}
	return nil
}

// binding returns the command that grants a controller its rights, with the names of the default installation.
func binding(name string) string {
	return strings.ReplaceAll("kubectl create clusterrolebinding useless-NAME --clusterrole useless-NAME-role "+
		"--serviceaccount useless-system:useless-controller-manager", "NAME", name)
}

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

// right is an RBAC permission on a resource.
type right struct {
	schema.GroupResource
	verbs string // separated by spaces
}

// checkRights returns an error with a solution if the operator lacks permissions of a controller. Without this check,
// the caches would never sync, and the whole operator would exit two minutes after each start.
func checkRights(ctx context.Context, c client.Writer, name string, rights []right) error {
	for _, right := range rights {
		for verb := range strings.FieldsSeq(right.verbs) {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: right.Group, Resource: right.Resource, Verb: verb},
			}}
			// The API server does not store a review, so the review never appears in a cache.
			if err := c.Create(ctx, review, client.DisableReadYourWritesConsistency); err != nil {
				return fmt.Errorf("check the permission to %s %s: %w", verb, right, err)
			}
			if !review.Status.Allowed {
				return fmt.Errorf("no permission to %s %s: bind the ClusterRole of the controller before you enable it, with %s",
					verb, right, binding(name))
			}
		}
	}
	return nil
}

// binding returns the command that grants the permissions, with the names of the default installation.
func binding(name string) string {
	return strings.ReplaceAll("kubectl create clusterrolebinding useless-NAME --clusterrole useless-NAME-role "+
		"--serviceaccount useless-system:useless-controller-manager", "NAME", name)
}

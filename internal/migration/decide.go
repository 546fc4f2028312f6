// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A resource is one whose objects are migrated.
type resource struct {
	crd       string // its CustomResourceDefinition's name
	converted bool   // its versions differ, so that a webhook has to convert between them
}

// resources are all there are. The markers at Migrator.Start name them, too.
var resources = []resource{
	{crd: "machines.useless.container.training", converted: true},
	{crd: "switches.useless.container.training"},
	{crd: "virtualmachines.cloudnative.tw"},
}

// Resources returns the names of the CustomResourceDefinitions whose objects are migrated, and whether a webhook has to
// convert those.
func Resources() map[string]bool {
	converted := make(map[string]bool, len(resources))
	for _, r := range resources {
		converted[r.crd] = r.converted
	}
	return converted
}

// A migration is what to do about the objects of a CustomResourceDefinition.
type migration struct {
	crd *apiextensionsv1.CustomResourceDefinition // as it was read
	to  schema.GroupVersionKind                   // what to rewrite the objects as
}

// decide returns what to do about the objects of a CustomResourceDefinition: nil for nothing. An error says why they
// cannot be migrated as things are.
func decide(r resource, crd *apiextensionsv1.CustomResourceDefinition) (*migration, error) {
	storage, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %s: %w", crd.Name, err)
	}
	switch conversion := crd.Spec.Conversion; {
	case !crd.DeletionTimestamp.IsZero() || slices.Equal(crd.Status.StoredVersions, []string{storage}):
		return nil, nil
	case r.converted && (conversion == nil || conversion.Strategy != apiextensionsv1.WebhookConverter):
		// The API server would take an old object for a new one as it is, and drop what the new version does not know.
		return nil, fmt.Errorf("CustomResourceDefinition %s has no conversion webhook, without which a rewrite would lose fields: install it anew", crd.Name)
	}
	return &migration{crd, schema.GroupVersionKind{Group: crd.Spec.Group, Version: storage, Kind: crd.Spec.Names.Kind}}, nil
}

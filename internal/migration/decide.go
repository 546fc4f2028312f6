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

// resource is a kind of object that is migrated.
type resource struct {
	crd       string // the name of its CustomResourceDefinition
	converted bool   // whether a webhook must convert between its versions
}

// resources has all migrated resources. The RBAC markers of Migrator.Start must name the same ones.
var resources = []resource{
	{crd: "machines.useless.container.training", converted: true},
	{crd: "switches.useless.container.training"},
	{crd: "virtualmachines.cloudnative.tw"},
}

// Resources returns the names of the migrated CustomResourceDefinitions, and whether a webhook must convert their
// objects.
func Resources() map[string]bool {
	converted := make(map[string]bool, len(resources))
	for _, r := range resources {
		converted[r.crd] = r.converted
	}
	return converted
}

// migration is the pending rewrite of all objects of a CustomResourceDefinition.
type migration struct {
	crd *apiextensionsv1.CustomResourceDefinition // as read before the first pass
	to  schema.GroupVersionKind                   // the storage version
}

// decide returns the migration that a CustomResourceDefinition needs, or nil. It returns an error if the migration
// would fail or lose data.
func decide(r resource, crd *apiextensionsv1.CustomResourceDefinition) (*migration, error) {
	storage, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %s: %w", crd.Name, err)
	}
	switch conversion := crd.Spec.Conversion; {
	case !crd.DeletionTimestamp.IsZero() || slices.Equal(crd.Status.StoredVersions, []string{storage}):
		return nil, nil
	case r.converted && (conversion == nil || conversion.Strategy != apiextensionsv1.WebhookConverter):
		// The API server would only change the apiVersion, and drop the fields that the new version does not have.
		return nil, fmt.Errorf("CustomResourceDefinition %s has no conversion webhook, and a rewrite would lose fields: "+
			"apply its manifest again", crd.Name)
	}
	to := schema.GroupVersionKind{Group: crd.Spec.Group, Version: storage, Kind: crd.Spec.Names.Kind}
	return &migration{crd, to}, nil
}

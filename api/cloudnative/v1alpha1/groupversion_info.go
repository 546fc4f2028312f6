// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the cloudnative.tw API. Each of its VirtualMachines runs one Pod.
//
// +kubebuilder:object:generate=true
// +groupName=cloudnative.tw
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the types in this package.
	GroupVersion = schema.GroupVersion{Group: "cloudnative.tw", Version: "v1alpha1"}

	// SchemeGroupVersion is the name that generated clients use for GroupVersion.
	SchemeGroupVersion = GroupVersion
)

// Resource adds the group of this package to the name of a resource. Generated listers use it in their errors.
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme registers the types of this package in a scheme. The error is always nil.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &VirtualMachine{}, &VirtualMachineList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

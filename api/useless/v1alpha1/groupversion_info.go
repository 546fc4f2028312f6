// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the deprecated first version of the useless.container.training API.
//
// It has all fields of v1beta1, but some fields of MachineSpec have other names. The package declares its own kinds and
// its own MachineSpec. It uses the other types of v1beta1.
//
// +kubebuilder:object:generate=true
// +groupName=useless.container.training
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the types in this package.
	GroupVersion = schema.GroupVersion{Group: "useless.container.training", Version: "v1alpha1"}

	// SchemeGroupVersion is the name that generated clients use for GroupVersion.
	SchemeGroupVersion = GroupVersion
)

// Resource adds the group of this package to the name of a resource. Generated listers use it in their errors.
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme registers the types of this package in a scheme. The error is always nil.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &Machine{}, &MachineList{}, &Switch{}, &SwitchList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/object"
)

// decide returns what the label of a ReplicaSet with so many Pods is to say, and whether that has to be written.
func decide(rs client.Object, label string, pods int) (value string, write bool) {
	value = strconv.Itoa(pods)
	return value, rs.GetDeletionTimestamp().IsZero() && !object.Paused(rs) && rs.GetLabels()[label] != value
}

// A replicaSet is one that a Pod names as its controller.
type replicaSet struct {
	types.NamespacedName
	types.UID
}

// owner returns the ReplicaSet that a Pod counts for: the one that controls it, until the Pod is being deleted. The UID is
// empty where there is none, or no Pod.
func owner(pod client.Object) (rs replicaSet) {
	if pod == nil || !pod.GetDeletionTimestamp().IsZero() {
		return rs
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil || controller.Kind != replicaSetKind.Kind || !strings.HasPrefix(controller.APIVersion, replicaSetKind.Group+"/") {
		return rs
	}
	// An owner is in the same namespace, whatever an ownerReference says.
	return replicaSet{types.NamespacedName{Namespace: pod.GetNamespace(), Name: controller.Name}, controller.UID}
}

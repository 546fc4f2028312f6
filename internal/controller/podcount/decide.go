// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/pause"
)

// decide returns the value of the label for a ReplicaSet with a number of Pods, and whether it has to be written.
func decide(rs client.Object, label string, pods int) (value string, write bool) {
	value = strconv.Itoa(pods)
	return value, rs.GetDeletionTimestamp().IsZero() && !pause.IsPaused(rs) && rs.GetLabels()[label] != value
}

// replicaSet is the ReplicaSet that controls a Pod.
type replicaSet struct {
	types.NamespacedName
	types.UID
}

// owner returns the ReplicaSet that controls a Pod. The UID is empty if there is none, if the Pod is being deleted, and
// if pod is nil.
func owner(pod client.Object) (rs replicaSet) {
	if pod == nil || !pod.GetDeletionTimestamp().IsZero() {
		return rs
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil || controller.Kind != replicaSetKind.Kind ||
		!strings.HasPrefix(controller.APIVersion, replicaSetKind.Group+"/") {
		return rs
	}
	// An owner must be in the same namespace.
	return replicaSet{types.NamespacedName{Namespace: pod.GetNamespace(), Name: controller.Name}, controller.UID}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/podcount"
)

// TestHostileTenant is a negative test. A user of one namespace creates objects that refer to objects in another
// namespace. They use every kind of reference in the API: owner, label, selector, target and name. The operator may
// write in all namespaces, but must not send a request for the other namespace.
func TestHostileTenant(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, podcount.Name)
	grantPermissions(t, ingress.Name)
	requests := newRequestCounter()
	runOperatorFor(t, operatorOptions{
		transport: func(config *rest.Config) { config.Wrap(requests.wrap) },
		controllers: func(options *controller.Options) {
			options.Selection = []string{"*", podcount.Name, ingress.Name}
			options.Ingress.Annotations = fooBar
		},
	})
	victim, tenant := newNamespace(t), newNamespace(t)
	owners := victimOf(t, victim)
	requests.waitUntilIdle(t)
	before := everythingIn(t, victim)
	requests.reset()

	createHostileObjects(t, tenant, victim, owners)
	requests.waitUntilIdle(t)
	mustKubectl(t, "", "delete", "namespace", tenant, "--timeout=110s")
	requests.waitUntilIdle(t)
	if diff := cmp.Diff(map[string]int(nil), requests.of(victim)); diff != "" {
		t.Errorf("requests for the victim's namespace (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, everythingIn(t, victim)); diff != "" {
		t.Errorf("objects in the victim's namespace (-before +after):\n%s", diff)
	}
}

// victimOf creates objects for every controller in a namespace and waits until the operator has processed them. It
// returns ownerReferences to some of them, by kind.
func victimOf(t *testing.T, namespace string) map[string]metav1.OwnerReference {
	t.Helper()
	slowMachine(t, namespace, "m", 2)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	createSwitch(t, namespace, "orphan", "missing", v1beta1.PositionUp, nil)
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[v1beta1.StopScheduleAnnotation] = timeOfDayIn(time.Hour)
	})
	rs := createReplicaSet(t, namespace, "rs", 1)
	createIngress(t, namespace, "ingress", nil)

	m := waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	turnUp(t, namespace, "m-0")
	waitForPositions(t, namespace, "m", "ud", defaultTimeout)
	waitForActive(t, vm)
	waitForCondition(t, vm, cloudnativev1alpha1.ConditionUsageAvailable, metav1.ConditionUnknown, cloudnativev1alpha1.ReasonMetricsAPIUnavailable)
	waitForPodCount(t, namespace, "rs", "1")
	waitForAnnotations(t, namespace, "ingress", fooBar)
	eventually(t, defaultTimeout, func() (bool, string) {
		d = getDeployment(t, namespace, "d")
		return d.Annotations[v1beta1.NextScheduleTimeAnnotation] != "" && d.Status.ReadyReplicas == 3, fmt.Sprintf("%v %+v", d.Annotations, d.Status)
	})
	return map[string]metav1.OwnerReference{
		"Machine":        *metav1.NewControllerRef(m, v1beta1.GroupVersion.WithKind("Machine")),
		"VirtualMachine": *metav1.NewControllerRef(vm, cloudnativev1alpha1.GroupVersion.WithKind("VirtualMachine")),
		"ReplicaSet":     *metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")),
	}
}

// createHostileObjects fills a namespace with objects that refer to the victim's objects. It returns when the operator
// has processed all of them.
func createHostileObjects(t *testing.T, namespace, victim string, owners map[string]metav1.OwnerReference) {
	t.Helper()
	owned := func(object client.Object, kind string) client.Object {
		object.SetOwnerReferences([]metav1.OwnerReference{owners[kind]})
		return object
	}
	mine := createSwitch(t, namespace, "mine", "m", v1beta1.PositionUp, nil)
	// The garbage collector deletes these objects, because their owners are not in their namespace.
	for _, object := range []client.Object{
		owned(newSwitch(namespace, "m-0"), "Machine"),
		owned(newPod(namespace, "vm-vm", map[string]string{cloudnativev1alpha1.VirtualMachineLabel: "vm"}), "VirtualMachine"),
		owned(newPod(namespace, "web", map[string]string{"app": "web"}), "ReplicaSet"),
		owned(newReplicaSet(namespace, "rs", 1), "ReplicaSet"),
	} {
		eventually(t, defaultTimeout, func() (bool, string) {
			err := admin(t).Create(t.Context(), object)
			return err == nil || apierrors.IsAlreadyExists(err), fmt.Sprint(err)
		})
	}
	for name, labels := range map[string]map[string]v1beta1.LabelValue{
		"m": {v1beta1.MachineLabel: "m"}, "orphans": {v1beta1.MachineLabel: "missing"},
		"elsewhere": {corev1.LabelMetadataName: v1beta1.LabelValue(victim)},
	} {
		m := newMachine(namespace, name)
		m.Spec.Switches.Selector = &v1beta1.LabelSelector{MatchLabels: labels}
		m.Spec.Switches.Template.Metadata.Labels = labels
		m.Spec.Position = v1beta1.PositionUp
		m.Spec.Flip.DelaySeconds, m.Spec.Flip.IntervalSeconds = new(int32(0)), new(int32(0))
		if err := admin(t).Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[v1beta1.StopScheduleAnnotation] = timeOfDayIn(-time.Hour)
	})
	createAutoscaler(t, d)
	createIngress(t, namespace, "ingress", map[string]string{v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled})

	for _, name := range []string{"m", "orphans", "elsewhere"} {
		waitForPositions(t, namespace, name, "d", defaultTimeout)
	}
	waitForReplicas(t, d, 0)
	waitForActive(t, vm)
	if owner := metav1.GetControllerOf(getSwitch(t, namespace, mine.Name)); owner == nil || owner.UID == owners["Machine"].UID {
		t.Errorf("the tenant's switch has the owner %v, want the tenant's Machine", owner)
	}
}

// everythingIn returns the metadata of all objects in a namespace that the operator could change. Other controllers
// change the status of Kubernetes' own kinds. So everythingIn omits the resourceVersion and managedFields of these
// kinds.
func everythingIn(t *testing.T, namespace string) map[string]metav1.ObjectMeta {
	t.Helper()
	found := map[string]metav1.ObjectMeta{}
	for _, kind := range []schema.GroupVersionKind{
		v1beta1.GroupVersion.WithKind("Machine"), v1beta1.GroupVersion.WithKind("Switch"),
		cloudnativev1alpha1.GroupVersion.WithKind("VirtualMachine"), corev1.SchemeGroupVersion.WithKind("Pod"),
		appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		networkingv1.SchemeGroupVersion.WithKind("Ingress"), autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
		eventsv1.SchemeGroupVersion.WithKind("Event"),
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if err := admin(t).List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			object := item.ObjectMeta
			if kind.GroupVersion() != v1beta1.GroupVersion && kind.GroupVersion() != cloudnativev1alpha1.GroupVersion {
				object.ResourceVersion, object.ManagedFields = "", nil
			}
			found[kind.Kind+" "+item.Name] = object
		}
	}
	return found
}

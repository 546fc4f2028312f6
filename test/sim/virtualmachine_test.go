// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/internal/controller/virtualmachine"
)

// briefServer is a life of few writes, for what has to be done with each two of them.
var briefServer = life{
	name: "virtual machine, briefly", controller: virtualmachine.Name, kinds: serverKinds, steps: []step{
		createServer,
		runServer(1),
		resizeServer,
		deleteServer,
		letServerGo,
	},
}

var serverKinds = []string{"VirtualMachine", "Pod"}

var serverLives = []life{{
	name: "virtual machine", controller: virtualmachine.Name, kinds: serverKinds, steps: []step{
		createServer,
		runServer(1),
		resizeServer,
		{what: "the node has no room", do: patchStatus(server, `{"status":{"conditions":[{"type":"PodResizePending","status":"True","reason":"Deferred"}]}}`)},
		runServer(2),
		{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
		letServerGo,
		{what: "start", do: patch(vm(), `{"spec":{"action":"active"}}`)},
		runServer(2),
		deleteServer,
		letServerGo,
	},
}, {
	name: "a server that is lost", controller: virtualmachine.Name, kinds: serverKinds, steps: []step{
		createServer,
		runServer(1),
		{what: "delete the server", do: remove(server)},
		letServerGo,
		runServer(1),
		{what: "the server fails", do: patchStatus(server, `{"status":{"phase":"Failed","reason":"Evicted"}}`)},
		runServerForLong,
		{what: "take its label away", do: patch(server, `{"metadata":{"labels":null}}`)},
		letServerGo,
		runServerForLong,
		deleteServer,
		letServerGo,
	},
}, {
	name: "a server that cannot be", controller: virtualmachine.Name, kinds: serverKinds, refused: true, steps: []step{
		{what: "take its name", do: create(server)},
		createServer,
		{what: "give it back", do: remove(server)},
		runServer(1),
		{what: "a quota", do: create(podQuota())},
		{what: "lose the server", do: remove(server)},
		letServerGo,
		{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
		{what: "no quota", do: remove(podQuota())},
		{what: "start", do: patch(vm(), `{"spec":{"action":"active"}}`)},
		deleteServer,
	},
}, {
	name: "a server that is kept", controller: virtualmachine.Name, kinds: serverKinds, steps: []step{
		createServer,
		runServer(1),
		{what: "pause", do: patch(vm(), `{"metadata":{"annotations":{"useless.container.training/paused":"true"}}}`)},
		{what: "resize meanwhile", do: resizeServer.do},
		{what: "go on", do: patch(vm(), `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`)},
		{what: "delete, and keep the server", do: remove(vm(), client.PropagationPolicy(metav1.DeletePropagationOrphan))},
		letServerGo,
	},
}, {
	name: "a server that is taken away, and resized", controller: virtualmachine.Name, kinds: serverKinds, refused: true, steps: []step{
		createServer,
		runServer(1),
		takeServerAway,
		resizeServer,
		letServerGo,
		deleteServer,
	},
}, {
	name: "a server that is taken away, and stopped", controller: virtualmachine.Name, kinds: serverKinds, refused: true, steps: []step{
		createServer,
		runServer(1),
		takeServerAway,
		{what: "stop", do: patch(vm(), `{"spec":{"action":"inactive"}}`)},
		deleteServer,
	},
}}

// server is the Pod of the only VirtualMachine.
var server = pod("vm-vm")

func vm() *cloudnativev1alpha1.VirtualMachine {
	vm := &cloudnativev1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vm"}}
	vm.Spec.Resource.CPU, vm.Spec.Resource.Memory = resource.MustParse("1"), resource.MustParse("1Gi")
	return vm
}

// What happens to servers more than once.
var (
	createServer = step{what: "create", do: create(vm())}
	resizeServer = step{what: "resize", do: patch(vm(), `{"spec":{"resource":{"cpu":2}}}`)}
	// The failures of servers before are forgotten then.
	runServerForLong = step{"the server runs for long", runServer(1).do, 10 * time.Minute}

	takeServerAway = step{what: "take the server away", do: patch(server, `{"metadata":{"ownerReferences":null}}`)}

	letServerGo  = step{what: "the node lets the server go", do: remove(server, client.GracePeriodSeconds(0))}
	deleteServer = step{what: "delete", do: remove(vm())}
)

// runServer has a node run the server with so many CPUs.
func runServer(cpu int) step {
	return step{what: fmt.Sprintf("the server runs with %d CPUs", cpu), do: func(ctx context.Context, c client.Client) error {
		now, pod := metav1.Now().UTC().Format(time.RFC3339), server.DeepCopy()
		if err := c.Get(ctx, client.ObjectKeyFromObject(server), pod); err != nil {
			return err
		}
		if pod.Status.Phase == corev1.PodFailed { // it never runs again, and the next one is not there yet
			return apierrors.NewNotFound(corev1.Resource("pods"), server.Name)
		}
		err := patch(server, `{"spec":{"nodeName":"node"}}`)(ctx, c) // there is no scheduler, and it is not checked
		synctest.Wait()                                              // which is seen before the rest in every run
		return errors.Join(err, patchStatus(server, fmt.Sprintf(`{"status":{"phase":"Running",
				"conditions":[{"type":"Ready","status":"True","lastTransitionTime":%[1]q}],
				"containerStatuses":[{"name":"server","state":{"running":{"startedAt":%[1]q}},
					"resources":{"limits":{"cpu":"%[2]d","memory":"1Gi"}}}]}}`, now, cpu))(ctx, c))
	}}
}

func podQuota() *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "quota"}}
	q.Spec.Hard = corev1.ResourceList{"count/pods": *resource.NewQuantity(0, resource.DecimalSI)}
	return q
}

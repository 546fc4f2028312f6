// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/client/informers"
	"container.training/useless/client/versioned"
)

// This program watches the VirtualMachines of a namespace. Meanwhile, it creates a VirtualMachine, stops it and deletes
// it.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	// The current context in $KUBECONFIG or ~/.kube/config selects the cluster.
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		log.Fatal(err)
	}
	clientset, err := versioned.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}

	// The clientset sends requests to the API server.
	vms := clientset.CloudnativeV1alpha1().VirtualMachines(metav1.NamespaceDefault)
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "test-vm"}, Spec: v1alpha1.VirtualMachineSpec{
		Resource: v1alpha1.ResourceSpec{CPU: resource.MustParse("2"), Memory: resource.MustParse("4G")},
	}}
	if _, err := vms.Create(ctx, vm, metav1.CreateOptions{}); err != nil {
		log.Fatal(err)
	}

	// The informer keeps a copy of all objects. It calls the handler for one change after the other. All informers and
	// listers of a factory share one watch for each kind. Without WithNamespace, they watch all namespaces.
	factory := informers.NewSharedInformerFactoryWithOptions(clientset, 0, informers.WithNamespace(metav1.NamespaceDefault))
	watched := factory.Cloudnative().V1alpha1().VirtualMachines()
	gone := make(chan struct{})
	handler, err := watched.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(added any) {
			fmt.Println("added", added.(*v1alpha1.VirtualMachine).Name)
		},
		UpdateFunc: func(before, now any) { // also called for changes of the status
			if before, now := before.(*v1alpha1.VirtualMachine), now.(*v1alpha1.VirtualMachine); before.Generation != now.Generation {
				fmt.Println("changed", now.Name, "to", now.Spec.Action)
			}
		},
		DeleteFunc: func(deleted any) { // deleted is a DeletedFinalStateUnknown if the watch missed the deletion
			name, _ := cache.DeletionHandlingObjectToName(deleted)
			fmt.Println("deleted", name.Name)
			close(gone)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		log.Fatal(ctx.Err())
	}

	// The lister reads the informer's copy and sends no request. Do not change the returned object, because other
	// callers share it.
	found, err := watched.Lister().VirtualMachines(metav1.NamespaceDefault).Get("test-vm")
	if err != nil {
		log.Fatal(err)
	}
	resources := found.Spec.Resource.DeepCopy() // printing a quantity changes it
	fmt.Println("it has", &resources.CPU, "CPUs and", &resources.Memory, "of memory")

	if _, err := vms.Patch(ctx, "test-vm", types.MergePatchType, []byte(`{"spec":{"action":"inactive"}}`), metav1.PatchOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := vms.Delete(ctx, "test-vm", metav1.DeleteOptions{}); err != nil {
		log.Fatal(err)
	}
	select {
	case <-gone:
	case <-ctx.Done():
		log.Fatal(ctx.Err())
	}
	// Output:
	// added test-vm
	// it has 2 CPUs and 4G of memory
	// changed test-vm to inactive
	// deleted test-vm
}

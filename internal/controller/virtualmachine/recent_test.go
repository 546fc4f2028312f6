// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
)

func TestRecent(t *testing.T) {
	at := func(version string, change ...func(*v1alpha1.VirtualMachine)) *v1alpha1.VirtualMachine {
		vm := aMachine(change...)
		vm.ResourceVersion = version
		return vm
	}
	held := func(vm *v1alpha1.VirtualMachine) { vm.Finalizers = []string{v1alpha1.VirtualMachineFinalizer} }
	another := func(vm *v1alpha1.VirtualMachine) { vm.UID = "another" }
	cases := map[string]struct {
		reason          string
		written, cached *v1alpha1.VirtualMachine
		want            bool
	}{
		"Nothing":     {reason: "the cache is right where nothing was written", cached: at("5")},
		"Behind":      {reason: "the cache does not show it yet", written: at("10"), cached: at("9"), want: true},
		"Same":        {reason: "the cache shows it", written: at("10"), cached: at("10")},
		"Ahead":       {reason: "the cache shows what came after it", written: at("10"), cached: at("11")},
		"Unreadable":  {reason: "the cache is believed where nothing can be told", written: at("x"), cached: at("9")},
		"LetGo":       {reason: "the end has no version of its own", written: at("9", deleted), cached: at("9", deleted, held), want: true},
		"Held":        {reason: "one that is being deleted still has to be let go", written: at("9", deleted, held), cached: at("9", deleted, held)},
		"LetGoBefore": {reason: "that was another one of the same name", written: at("9", deleted), cached: at("10", another)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := &recent{}
			if c.written != nil {
				r.wrote(c.written)
			}
			if got := r.outdates(c.cached); got != c.want {
				t.Errorf("%s: outdated: %v", c.reason, got)
			}
			r.forget(client.ObjectKeyFromObject(c.cached))
			if r.outdates(c.cached) {
				t.Error("it is outdated by what was forgotten")
			}
		})
	}
}

func TestRecentPod(t *testing.T) {
	at := func(version string, change ...func(*corev1.Pod)) *corev1.Pod {
		pod := aPod(change...)
		pod.ResourceVersion = version
		return pod
	}
	another := func(pod *corev1.Pod) { pod.UID = "another" }
	foreign := func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = "another" }
	cases := map[string]struct {
		reason          string
		written, cached *corev1.Pod
		seen            string
		believed        bool
	}{
		"Nothing":     {reason: "the cache is right where nothing was written", cached: at("5"), seen: "5"},
		"Created":     {reason: "the cache does not show it yet", written: at("10"), seen: "9", believed: true},
		"Gone":        {reason: "the cache has seen it come and go", written: at("10"), seen: "11"},
		"Resized":     {reason: "the cache shows it as it was before", written: at("10"), cached: at("9"), seen: "9", believed: true},
		"Shown":       {reason: "the cache shows it", written: at("10"), cached: at("10"), seen: "10"},
		"Deleted":     {reason: "a deletion has no version of its own", written: at("9", going), cached: at("9"), seen: "9", believed: true},
		"Going":       {reason: "the cache shows it", written: at("9", going), cached: at("10", going), seen: "10"},
		"Replaced":    {reason: "that was another one of the same name", written: at("9", going), cached: at("10", another), seen: "10"},
		"Replacement": {reason: "the cache shows the one before", written: at("10", another), cached: at("9", going), seen: "9", believed: true},
		"Unreadable":  {reason: "the cache is believed where nothing can be told", written: at("x"), seen: "9"},
		"Unlabelled":  {reason: "what never comes to the cache is not waited for", written: at("10", unlabelled), seen: "9"},
		"Foreign":     {reason: "that was the one of another virtual machine of the same name", written: at("10", foreign), seen: "9"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r, vm, want := &recent{}, aMachine(), c.cached
			if c.written != nil {
				r.wrotePod(vm, c.written)
			}
			if c.believed {
				want = c.written
			}
			if got := r.latestPod(vm, c.cached, c.seen); got != want {
				t.Errorf("%s: the Pod is %+v", c.reason, got)
			}
			r.forget(client.ObjectKeyFromObject(vm))
			if got := r.latestPod(vm, c.cached, c.seen); got != c.cached {
				t.Errorf("it is what was forgotten: %+v", got)
			}
		})
	}
}

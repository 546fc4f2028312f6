// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"testing"

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

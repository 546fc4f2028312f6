// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	toolscache "k8s.io/client-go/tools/cache"

	"container.training/useless/api/useless/v1beta1"
)

// TestMissingNames has a plan that creates two Switches and knows only m-0. After the decision, the cache has received
// m-1.
func TestMissingNames(t *testing.T) {
	for _, c := range []struct {
		reason string
		unseen *v1beta1.Switch
		want   []string
	}{
		{"the API server must reject a Switch that exists already", newTestSwitch("m-1"), []string{"m-1", "m-2"}},
		{"a Switch that is being deleted must be replaced", newTestSwitch("m-1", terminating), []string{"m-2", "m-3"}},
		{"the name of another owner's Switch is taken", newTestSwitch("m-1", func(sw *v1beta1.Switch) {
			sw.OwnerReferences = nil
		}), []string{"m-2", "m-3"}},
	} {
		known := newTestSwitch("m-0")
		switches := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, switchIndexers)
		for _, sw := range []*v1beta1.Switch{known, c.unseen} {
			if err := switches.Add(sw); err != nil {
				t.Fatal(err)
			}
		}
		a := &action{Controller: &Controller{switches: switches}, machine: newMachine(3)}
		var got []string
		for _, sw := range a.missing(plan{mine: []*v1beta1.Switch{known}, create: 2}) {
			got = append(got, sw.Name)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: names (-want +got):\n%s", c.reason, diff)
		}
	}
}

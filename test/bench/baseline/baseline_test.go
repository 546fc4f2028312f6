// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"container.training/useless/api/useless/v1beta1"
)

func TestSlowStart(t *testing.T) {
	for _, test := range []struct {
		n, allowed int // allowed is the number of requests that succeed
		requests   int
	}{
		{n: 0},
		{n: 1, allowed: 1, requests: 1},
		{n: 10, allowed: 10, requests: 10},
		{n: 10, allowed: 0, requests: 1},
		{n: 10, allowed: 2, requests: 3},
		{n: 10, allowed: 4, requests: 7},
	} {
		var requests atomic.Int32
		succeeded, err := slowStart(test.n, func() error {
			if int(requests.Add(1)) > test.allowed {
				return errors.New("refused")
			}
			return nil
		})
		if succeeded != test.allowed || int(requests.Load()) != test.requests || (err == nil) != (test.allowed == test.n) {
			t.Errorf("%+v: got %d successes, %d requests and error %v", test, succeeded, requests.Load(), err)
		}
	}
}

func TestPending(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	p := pending{creations: map[string]int{}, versions: map[write]string{}}
	w := write{"default/m", store}
	var got []bool
	check := func() { got = append(got, p.satisfied(w.machine), p.cached(w)) }
	check()
	p.expect(w.machine, 2)
	p.wrote(w, "10")
	p.wrote(w, "9")
	store.Bookmark("9")
	check()
	p.observe(w.machine, 2)
	store.Bookmark("10")
	check()
	if diff := cmp.Diff([]bool{true, true, false, false, true, true}, got); diff != "" {
		t.Errorf("satisfied and cached before, during and after the writes (-want +got):\n%s", diff)
	}
}

func TestStatusOf(t *testing.T) {
	m := &v1beta1.Machine{Spec: v1beta1.MachineSpec{Switches: v1beta1.SwitchesSpec{Count: 2}}}
	for n, want := range map[int32]map[string]metav1.ConditionStatus{
		1: {v1beta1.ConditionScaled: "False", v1beta1.ConditionResting: "True", v1beta1.ConditionReady: "False"},
		2: {v1beta1.ConditionScaled: "True", v1beta1.ConditionResting: "True", v1beta1.ConditionReady: "True"},
	} {
		m.Status = statusOf(m, n)
		got := map[string]metav1.ConditionStatus{}
		for _, condition := range m.Status.Conditions {
			got[condition.Type] = condition.Status
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("conditions with %d switches (-want +got):\n%s", n, diff)
		}
		if diff := cmp.Diff(m.Status, statusOf(m, n)); diff != "" {
			t.Errorf("the status with %d switches changes again (-first +second):\n%s", n, diff)
		}
	}
}

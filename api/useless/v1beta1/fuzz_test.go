// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// FuzzSelector reads any selector. It means what Kubernetes' own type makes of the same text, and new switches are selected
// by what selects nothing but their labels.
func FuzzSelector(f *testing.F) {
	f.Add([]byte(`{"matchLabels":{"machine":"m"}}`), "m")
	f.Add([]byte(`{"matchExpressions":[{"key":"a","operator":"In","values":["b","c"]},{"key":"d","operator":"DoesNotExist"}]}`), "m")
	f.Add([]byte(`{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"a","operator":"Is"}]}`), "")
	f.Add([]byte(`null`), "m")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		m, want := &Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}, &metav1.LabelSelector{}
		if json.Unmarshal(text, &m.Spec.Switches.Selector) != nil || json.Unmarshal(text, want) != nil {
			t.Skip("no selector")
		}
		selector, problem := metav1.LabelSelectorAsSelector(want)
		if m.Spec.Switches.Selector == nil { // a name that is too long is no label, and the webhook refuses it
			selector, problem = labels.SelectorFromValidatedSet(labels.Set{MachineLabel: name}), nil
		}
		got, err := m.SwitchSelector()
		if (err == nil) != (problem == nil) {
			t.Fatalf("%s is read with %v, and by Kubernetes with %v", text, err, problem)
		}
		if err == nil {
			checkSelector(t, m, got, selector)
		}
	})
}

func checkSelector(t *testing.T, m *Machine, got, want labels.Selector) {
	t.Helper()
	if got.String() != want.String() || got.Empty() != want.Empty() {
		t.Errorf("selects %q, and for Kubernetes %q", got, want)
	}
	selector := m.Spec.Switches.Selector
	if (selector == nil || len(selector.MatchExpressions) == 0) && !got.Matches(labels.Set(m.SwitchLabels())) {
		t.Errorf("%s does not select %v", got, m.SwitchLabels())
	}
}

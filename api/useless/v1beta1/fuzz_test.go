// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// FuzzSelector compares a LabelSelector with a metav1.LabelSelector of the same JSON. A selector without expressions
// must select the labels of new switches.
func FuzzSelector(f *testing.F) {
	f.Add([]byte(`{"matchLabels":{"machine":"m"}}`), "m")
	f.Add([]byte(`{"matchExpressions":[{"key":"a","operator":"In","values":["b","c"]},{"key":"d","operator":"DoesNotExist"}]}`), "m")
	f.Add([]byte(`{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"a","operator":"Is"}]}`), "")
	f.Add([]byte(`null`), "m")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		m, want := &Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}, &metav1.LabelSelector{}
		if json.Unmarshal(text, &m.Spec.Switches.Selector) != nil || json.Unmarshal(text, want) != nil {
			t.Skip("not a selector")
		}
		selector, problem := metav1.LabelSelectorAsSelector(want)
		if m.Spec.Switches.Selector == nil { // the webhook rejects a name that is no valid label value
			selector, problem = labels.SelectorFromValidatedSet(labels.Set{MachineLabel: name}), nil
		}
		got, err := m.SwitchSelector()
		if (err == nil) != (problem == nil) {
			t.Fatalf("%s: got error %v, Kubernetes returns %v", text, err, problem)
		}
		if err == nil {
			checkSelector(t, m, got, selector)
		}
	})
}

func checkSelector(t *testing.T, m *Machine, got, want labels.Selector) {
	t.Helper()
	if got.String() != want.String() || got.Empty() != want.Empty() {
		t.Errorf("got selector %q, Kubernetes returns %q", got, want)
	}
	selector := m.Spec.Switches.Selector
	if (selector == nil || len(selector.MatchExpressions) == 0) && !got.Matches(labels.Set(m.SwitchLabels())) {
		t.Errorf("%s does not select %v", got, m.SwitchLabels())
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCopyOf(t *testing.T) {
	p := &prototype{uids: []string{"01234567-a", "89abcdef-b"}, perNamespace: 30}
	pairs := []etcdPair{{
		Key: []byte(registry + "switches/default/machine-00000-3"),
		Value: []byte(`{"metadata":{"labels":{"mark":""},"name":"machine-00000-3","namespace":"default",` +
			`"ownerReferences":[{"name":"machine-00000","uid":"01234567-a"}],"uid":"89abcdef-b"},"kind":"default"}`),
		Version: 7,
	}}
	got := p.copyOf(pairs, 60, unmarked, `"mark":"1"`)
	want := []etcdPair{{
		Key: []byte(registry + "switches/bench-0002/machine-00060-3"),
		Value: []byte(`{"metadata":{"labels":{"mark":"1"},"name":"machine-00060-3","namespace":"bench-0002",` +
			`"ownerReferences":[{"name":"machine-00060","uid":"0000003c-a"}],"uid":"0000003c-b"},"kind":"default"}`),
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("copy (-want +got):\n%s", diff)
	}
}

func TestNamespace(t *testing.T) {
	for _, test := range []struct {
		perNamespace, machine int
		want                  string
	}{
		{0, 0, "default"},
		{0, 100, "default"},
		{30, 0, "default"},
		{30, 1, "bench-0000"},
		{30, 29, "bench-0000"},
		{30, 29_999, "bench-0999"},
	} {
		p := &prototype{perNamespace: test.perNamespace}
		if got := p.namespace(test.machine); got != test.want {
			t.Errorf("Machine %d with %d in a namespace: got %s, want %s", test.machine, test.perNamespace, got, test.want)
		}
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestAwaitScaled(t *testing.T) {
	event := func(name string, replicas int32) watch.Event {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}}
		d.Spec.Replicas = &replicas
		return watch.Event{Type: watch.Modified, Object: d}
	}
	expired := watch.Event{Type: watch.Error, Object: &metav1.Status{Message: "too old"}}
	for _, test := range []struct {
		reason string
		events []watch.Event
		want   string // part of the error; empty for none
	}{
		{"all", []watch.Event{event("a", 1), event("b", 1), event("b", 0), event("a", 0)}, ""},
		{"one twice", []watch.Event{event("a", 0), event("a", 0)}, "1 of 2 Deployments"},
		{"error", []watch.Event{event("a", 0), expired}, "too old"},
	} {
		events := make(chan watch.Event, len(test.events))
		for _, e := range test.events {
			events <- e
		}
		close(events)
		scaled, err := awaitScaled(events, 0, 2)
		if test.want == "" && (err != nil || len(scaled) != 2) {
			t.Errorf("%s: got %d times and error %v, want 2 times", test.reason, len(scaled), err)
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got error %v, want %q", test.reason, err, test.want)
		}
	}
}

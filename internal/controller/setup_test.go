// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

func TestEnabled(t *testing.T) {
	cases := map[string]struct {
		selection  string
		byDefault  bool
		notDefault bool // whether one that is off by default runs
		reason     string
	}{
		"Star":        {selection: "*", byDefault: true, reason: "the star stands for what is on by default"},
		"Named":       {selection: "c", byDefault: true, notDefault: true, reason: "naming it turns it on"},
		"Other":       {selection: "other", reason: "naming others leaves it off"},
		"AllButOne":   {selection: "*,-c", reason: "a minus turns it off"},
		"OneMore":     {selection: "*,c", byDefault: true, notDefault: true, reason: "a name adds to the star"},
		"FirstCounts": {selection: "-c,c", reason: "the first mention counts"},
		"None":        {selection: "", reason: "an empty selection selects nothing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			selection := strings.Split(c.selection, ",")
			if got := enabled("c", true, selection); got != c.byDefault {
				t.Errorf("%s: on by default, it runs: %v", c.reason, got)
			}
			if got := enabled("c", false, selection); got != c.notDefault {
				t.Errorf("%s: off by default, it runs: %v", c.reason, got)
			}
		})
	}
}

func TestSetupKnowsItsControllers(t *testing.T) {
	err := Setup(t.Context(), nil, Options{Selection: []string{"*", "-machines"}}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), `no controller "machines": choose from machine`) {
		t.Errorf("got %v", err)
	}
}

func TestCacheOptionsNeedNoCustomResources(t *testing.T) {
	for object := range CacheOptions().ByObject {
		if _, _, err := clientgoscheme.Scheme.ObjectKinds(object); err != nil {
			t.Errorf("%T: a manager with options for it does not start where it is not served, whichever controllers it runs: %v", object, err)
		}
	}
}

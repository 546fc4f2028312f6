// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func parse(t *testing.T, text string) labels.Selector {
	t.Helper()
	selector, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

func TestOverlap(t *testing.T) {
	for name, test := range map[string]struct {
		reason string
		a, b   string
		want   bool
	}{
		"Same":             {reason: "the same selector twice", a: "tier=front", b: "tier=front", want: true},
		"OtherValue":       {reason: "a label has one value", a: "tier=front", b: "tier=back"},
		"OtherLabel":       {reason: "selectors without a common label rarely select the same objects", a: "tier=front", b: "colour=red"},
		"OneOfTwoDiffers":  {reason: "selectors do not overlap if one label cannot have both values", a: "tier=front,colour=red", b: "tier=front,colour=blue"},
		"OneOfTwoIsShared": {reason: "an object can have all three labels", a: "tier=front,colour=red", b: "tier=front,size=big", want: true},
		"Narrower":         {reason: "the wider selector matches all objects of the narrower one", a: "tier=front", b: "tier in (front,back)", want: true},
		"Everything":       {reason: "a selector that matches everything has no label in common", a: "", b: "tier=front"},
		"Nothing":          {reason: "a selector that contradicts itself selects nothing", a: "tier=front,tier=back", b: "tier=front"},
		"NothingElsewhere": {reason: "the contradiction is in a label that only one selector has", a: "tier=front", b: "tier=front,colour,!colour"},

		"InIn":           {reason: "a value in common", a: "tier in (front,middle)", b: "tier in (middle,back)", want: true},
		"InInApart":      {reason: "no value in common", a: "tier in (front)", b: "tier in (middle,back)"},
		"InNotIn":        {reason: "a value that is not excluded", a: "tier in (front,middle)", b: "tier notin (front)", want: true},
		"InNotInApart":   {reason: "all values excluded", a: "tier in (front,middle)", b: "tier notin (front,middle,back)"},
		"InExists":       {reason: "a label with any value exists", a: "tier in (front)", b: "tier", want: true},
		"InDoesNotExist": {reason: "an object with the value has the label", a: "tier in (front)", b: "!tier"},

		"NotInNotIn":        {reason: "an object with a third value, or without the label", a: "tier notin (front)", b: "tier notin (back)", want: true},
		"NotInExists":       {reason: "an object with another value", a: "tier notin (front)", b: "tier", want: true},
		"NotInDoesNotExist": {reason: "NotIn also matches an object without the label", a: "tier notin (front)", b: "!tier", want: true},

		"ExistsExists":             {reason: "an object with any value", a: "tier", b: "tier", want: true},
		"ExistsDoesNotExist":       {reason: "a label cannot be both present and absent", a: "tier", b: "!tier"},
		"DoesNotExistDoesNotExist": {reason: "an object without the label", a: "!tier", b: "!tier", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := parse(t, test.a), parse(t, test.b)
			if got := overlap(a, b); got != test.want {
				t.Errorf("%s: overlap(%q, %q) = %v", test.reason, test.a, test.b, got)
			}
			if got := overlap(b, a); got != test.want {
				t.Errorf("%s: overlap(%q, %q) = %v", test.reason, test.b, test.a, got)
			}
		})
	}
}

// TestOverlapFindsWhatObjectsShow matches pairs of selectors against example objects. Two selectors must overlap if and
// only if the same object matches both.
func TestOverlapFindsWhatObjectsShow(t *testing.T) {
	texts := []string{
		"a=1", "a==2", "a!=1", "a in (1,2)", "a in (2,3)", "a notin (1,2)", "a notin (1,2,3)", "a", "!a",
		"a in (1,2),a!=2", "a=1,a!=1", "a notin (1),a", "a!=1,!a",
	}
	objects := []labels.Set{{}, {"a": "1"}, {"a": "2"}, {"a": "3"}, {"a": "4"}}
	for _, left := range texts {
		for _, right := range texts {
			a, b := parse(t, left), parse(t, right)
			want := false
			for _, object := range objects {
				want = want || a.Matches(object) && b.Matches(object)
			}
			if got := overlap(a, b); got != want {
				t.Errorf("overlap(%q, %q) = %v", left, right, got)
			}
			all := slices.Concat(requirements(a), requirements(b))
			if got := satisfiable("a", all); got != want {
				t.Errorf("satisfiable(%v) = %v", all, got)
			}
		}
	}
}

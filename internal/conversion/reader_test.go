// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// TestErrorAfterOthers has decoders read something of every length before the same mistake: their buffers are of all sizes
// then, and the error has to say the same.
func TestErrorAfterOthers(t *testing.T) {
	const mistake = `{"uid":"7","objects":[{"kind":"Machine","spec":{},"apiVersion":"useless.containe` + "\t" + `r.training/v1alpha1"}]}`
	said := map[string][]int{}
	for length := range 300 {
		in := reader{Decoder: &jsontext.Decoder{}}
		in.reset(io.MultiReader(strings.NewReader(fmt.Sprintf("%q", strings.Repeat("x", length))))) // not a kind that the decoder knows
		in.text()
		in.reset(io.MultiReader(strings.NewReader(mistake)))
		for range in.members() {
			in.value()
		}
		said[fmt.Sprint(in.err)] = append(said[fmt.Sprint(in.err)], length)
	}
	if len(said) != 1 {
		t.Errorf("errors, and the lengths of what was read before: %v", said)
	}
}

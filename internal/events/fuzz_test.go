// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzTruncate truncates random text. The result must have at most maxLength bytes, and must be valid UTF-8 if the text
// is valid. Text of at most maxLength bytes must not change. The result of a longer text is its beginning and "…".
func FuzzTruncate(f *testing.F) {
	f.Add("", 0)
	f.Add("exceeded quota", 1)
	f.Add("ä€😀", 2000)
	f.Fuzz(func(t *testing.T, word string, times int) {
		text := strings.Repeat(word, max(times, 0)%2000)
		cut := Truncate(text)
		if len(cut) > maxLength || utf8.ValidString(text) && !utf8.ValidString(cut) {
			t.Errorf("%d bytes are truncated to %d bytes: %q", len(text), len(cut), cut)
		}
		switch beginning := strings.TrimSuffix(cut, "…"); {
		case len(text) <= maxLength && cut != text:
			t.Errorf("a text that is short enough has changed: got %q, want %q", cut, text)
		case len(text) > maxLength && utf8.ValidString(text) && !strings.HasPrefix(text, beginning):
			t.Errorf("the result %q is not the beginning of %q", cut, text)
		}
	})
}

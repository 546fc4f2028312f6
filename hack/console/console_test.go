// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBlocks parses commands with output, remarks, lines that continue, input (<<END) and loops. Code blocks of another
// language must be ignored.
func TestBlocks(t *testing.T) {
	page := "# Page\n\n```yaml\n$ not a command\n```\n\n" +
		"```console\n$ one   # a remark\nout  1\n\nout 2\n$ two \\\n    more\nout\n```\n\nText.\n\n" +
		"```console\n$ apply -f - <<END\n$ line: of the input\nEND\napplied\n" +
		"$ for kind in a b; do\n    get |\n    while read x; do\n      y\n    done\n  done\nout\n$ last\n```\n"
	want := []Block{
		{Line: 8, Commands: []Command{
			{Text: "one   # a remark", Output: "out  1\n\nout 2\n"},
			{Text: "two \\\n    more", Output: "out\n"},
		}},
		{Line: 20, Commands: []Command{
			{Text: "apply -f - <<END\n$ line: of the input\nEND", Output: "applied\n"},
			{Text: "for kind in a b; do\n    get |\n    while read x; do\n      y\n    done\n  done", Output: "out\n"},
			{Text: "last"},
		}},
	}
	if diff := cmp.Diff(want, Blocks(page)); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	if text := want[0].Commands[0].WithoutRemark(); text != "one" {
		t.Errorf("the command without its remark is %q", text)
	}
}

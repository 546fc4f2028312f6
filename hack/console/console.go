// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package console reads commands and their output from the console blocks of the documentation.
package console

import (
	"regexp"
	"strings"
)

// A Block is a console block of a page.
type Block struct {
	Line     int // the number of the first line in the block; the first line of the page is 1
	Commands []Command
}

// A Command is a shell command, and the output that the page shows. Both can have several lines.
type Command struct {
	Text   string
	Output string // "" or lines that end with a line feed
}

const prompt = "$ "

var (
	block   = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	heredoc = regexp.MustCompile(`<<(\w+)`)
	remark  = regexp.MustCompile(`(?m) {2,}# .*$`)
	loop    = regexp.MustCompile(`(?m)\bdo$`)
	loopEnd = regexp.MustCompile(`(?m)^ *done$`)
)

// Blocks returns all console blocks of a Markdown page. A line that begins with "$ " is a command.
func Blocks(page string) (blocks []Block) {
	for _, match := range block.FindAllStringSubmatchIndex(page, -1) {
		blocks = append(blocks, Block{
			Line:     strings.Count(page[:match[2]], "\n") + 1,
			Commands: commands(page[match[2]:match[3]]),
		})
	}
	return blocks
}

// WithoutRemark returns the text of a command without remarks. A remark is a comment at the end of a line, after at
// least two spaces.
func (c Command) WithoutRemark() string { return remark.ReplaceAllString(c.Text, "") }

// commands splits the text of a block. Lines before the first command are ignored.
func commands(text string) (found []Command) {
	for line := range strings.Lines(text) {
		start, isCommand := strings.CutPrefix(line, prompt)
		var last *Command
		if len(found) > 0 {
			last = &found[len(found)-1]
		}
		switch {
		case last != nil && !complete(last.Text):
			last.Text += "\n" + strings.TrimSuffix(line, "\n")
		case isCommand:
			found = append(found, Command{Text: strings.TrimSuffix(start, "\n")})
		case last != nil:
			last.Output += line
		}
	}
	return found
}

// complete reports whether a command is complete. The next line belongs to the command if its here-document or a loop
// has not ended, or if its last line ends with a backslash.
func complete(text string) bool {
	if input := heredoc.FindStringSubmatch(text); input != nil {
		return strings.HasSuffix(text, "\n"+input[1])
	}
	loops := len(loop.FindAllString(text, -1)) - len(loopEnd.FindAllString(text, -1))
	return loops == 0 && !strings.HasSuffix(text, `\`)
}

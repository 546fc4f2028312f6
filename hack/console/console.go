// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package console reads the commands and their output in the console blocks of the documentation.
package console

import (
	"regexp"
	"strings"
)

// A Block is a console block of a page.
type Block struct {
	Line     int // the line of the page with the first command
	Commands []Command
}

// A Command is a shell command, and the output that the page shows. Both can have several lines.
type Command struct {
	Text   string
	Output string // "" or lines that end with a line feed
}

const prompt = "$ "

var (
	block    = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	heredoc  = regexp.MustCompile(`<<-?'?(\w+)'?`)
	remark   = regexp.MustCompile(`(?m) {2,}# .*$`)
	loop     = regexp.MustCompile(`^for .* do$`)
	loopEnds = "done"
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

// WithoutRemark returns the text of a command without the comment at the end of a line.
func (c Command) WithoutRemark() string { return remark.ReplaceAllString(c.Text, "") }

// commands splits the text of a block. Lines before the first command are ignored.
func commands(text string) (found []Command) {
	until := "" // the line that ends the command, or "" if the command has ended
	for line := range strings.Lines(text) {
		start, isCommand := strings.CutPrefix(line, prompt)
		switch {
		case until == "" && isCommand:
			found = append(found, Command{Text: start})
		case len(found) == 0:
			continue
		case until != "":
			found[len(found)-1].Text += line
		default:
			found[len(found)-1].Output += line
			continue
		}
		until = next(until, strings.TrimSuffix(strings.TrimPrefix(line, prompt), "\n"))
	}
	for i := range found {
		found[i].Text = strings.TrimSuffix(found[i].Text, "\n")
	}
	return found
}

const anyLine = "\x00"

// next returns the line that ends a command, given the line that should end it so far, and the present line.
func next(until, line string) string {
	switch {
	case until != "" && until != anyLine:
		if strings.TrimSpace(line) == until {
			return ""
		}
		return until
	case heredoc.MatchString(line):
		return heredoc.FindStringSubmatch(line)[1]
	case loop.MatchString(line):
		return loopEnds
	case strings.HasSuffix(line, `\`):
		return anyLine
	}
	return ""
}

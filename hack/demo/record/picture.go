// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A frame is the content that a terminal shows until its next frame.
type frame struct {
	at       time.Duration // since the start of the recording
	terminal int           // the index in terminals
	lines    []string
}

// terminals are drawn one below the other.
var terminals = []struct {
	title string
	rows  int
}{{"make demo", 26}, {"second terminal", 14}}

// Sizes in pixels.
const (
	fontSize, columnWidth, lineHeight = 13, 7.9, 17
	margin, titleHeight               = 12, 26
	width                             = columns*columnWidth + 2*margin
)

const (
	longestPause = 1200 * time.Millisecond // the longest time between two frames; shorten reduces longer times to it
	end          = 4 * time.Second         // how long the last frame is visible before the picture starts again
)

// style uses the colors of a dark terminal, which are readable on a light and on a dark page. If the reader's system
// asks for reduced motion, the picture shows only the last frames.
const style = `text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d4d7dc;` +
	`white-space:pre}.b{font-weight:bold;fill:#fff}.y{font-weight:bold;fill:#ffd33d}.t{fill:#9aa0a8}` +
	`@media (prefers-reduced-motion:reduce){.m{animation:none!important}}`

// picture returns the frames as an animated SVG.
func picture(frames []frame) string {
	frames = slices.Clone(frames)
	slices.SortStableFunc(frames, func(a, b frame) int { return int(a.at - b.at) })
	length := shorten(frames) + end
	var rules, body strings.Builder
	fmt.Fprintf(&rules, style, fontSize)
	y := margin / 2
	for i, terminal := range terminals {
		own := slices.DeleteFunc(slices.Clone(frames), func(f frame) bool { return f.terminal != i })
		own = changes(own)
		height := terminal.rows * lineHeight
		fmt.Fprintf(&body, `<rect y="%d" width="100%%" height="%d" fill="#2d333b"/>`, y, titleHeight-4)
		fmt.Fprintf(&body, `<text class="t" x="%d" y="%d">%s</text>`+"\n", margin, y+16, html.EscapeString(terminal.title))
		fmt.Fprintf(&body, `<svg x="%d" y="%d" width="%d" height="%d">`+"\n", margin, y+titleHeight, columns*8, height)
		fmt.Fprintf(&body, "<g class=\"m\" id=\"s%d\">\n%s</g></svg>\n", i, filmStrip(own, i, height))
		fmt.Fprintf(&rules, "\n%s", animation(own, i, height, length))
		y += titleHeight + height + margin/2
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d">`+
		"\n<style>%[3]s</style>\n"+`<rect width="100%%" height="100%%" rx="8" fill="#1c2128"/>`+"\n%[4]s</svg>\n",
		int(width), y, rules.String(), body.String())
}

// shorten changes the times of the frames, so that no time between two frames is longer than longestPause. It returns
// the new time of the last frame. The frames must be sorted by time.
func shorten(frames []frame) time.Duration {
	var before, removed time.Duration
	for i := range frames {
		frames[i].at -= removed
		if pause := frames[i].at - before; pause > longestPause {
			removed += pause - longestPause
			frames[i].at = before + longestPause
		}
		before = frames[i].at
	}
	return before
}

// changes returns the frames that differ from the previous frame.
func changes(frames []frame) []frame {
	return slices.CompactFunc(frames, func(a, b frame) bool { return slices.Equal(a.lines, b.lines) })
}

// filmStrip returns all frames of a terminal, one below the other. Each different line is written once.
func filmStrip(frames []frame, terminal, height int) string {
	var lines, uses strings.Builder
	ids := map[string]string{"": ""}
	for i, f := range frames {
		fmt.Fprintf(&uses, `<g transform="translate(0,%d)">`, i*height)
		rows := terminals[terminal].rows
		for row, line := range f.lines[max(0, len(f.lines)-rows):] {
			id, known := ids[line]
			if !known {
				id = fmt.Sprintf("%c%d", 'a'+terminal, len(ids))
				ids[line] = id
				fmt.Fprintf(&lines, "<text id=\"%s\">%s</text>\n", id, spans(line))
			}
			if id != "" {
				fmt.Fprintf(&uses, `<use href="#%s" y="%d"/>`, id, row*lineHeight+fontSize)
			}
		}
		uses.WriteString("</g>\n")
	}
	return "<defs>\n" + lines.String() + "</defs>\n" + uses.String()
}

// animation returns the CSS rules that show one frame after the other.
func animation(frames []frame, terminal, height int, length time.Duration) string {
	var keys strings.Builder
	for i, f := range frames {
		at := 100 * f.at.Seconds() / length.Seconds()
		if i == 0 {
			at = 0
		}
		fmt.Fprintf(&keys, "%.2f%%{transform:translateY(%dpx)}", at, -i*height)
	}
	last := -(len(frames) - 1) * height
	return fmt.Sprintf("#s%[1]d{transform:translateY(%[2]dpx);animation:k%[1]d %.1[3]fs step-end infinite}"+
		"@keyframes k%[1]d{%[4]s100%%{transform:translateY(%[2]dpx)}}", terminal, last, length.Seconds(), keys.String())
}

// code matches the codes that hack/demo uses for bold and highlighted text.
var code = regexp.MustCompile("\x1b\\[(1|1;33)m(.*?)\x1b\\[0m")

// spans returns a line as the content of an SVG text.
func spans(line string) string {
	class := map[string]string{"1": "b", "1;33": "y"}
	var out strings.Builder
	from := 0
	for _, m := range code.FindAllStringSubmatchIndex(line, -1) {
		out.WriteString(html.EscapeString(line[from:m[0]]))
		fmt.Fprintf(&out, `<tspan class="%s">%s</tspan>`, class[line[m[2]:m[3]]], html.EscapeString(line[m[4]:m[5]]))
		from = m[1]
	}
	return out.String() + html.EscapeString(line[from:])
}

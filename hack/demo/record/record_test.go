// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/hack/console"
)

const repository = "../../.."

// TestPictureIsCurrent checks that the picture shows the commands of the quick start, and the output in README.md. The
// column AGE may differ.
func TestPictureIsCurrent(t *testing.T) {
	picture, page := read(t, "docs/images/demo.svg"), read(t, "README.md")
	shown := texts(t, picture)
	start, others, err := quickStart(page)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"$ " + start}
	for _, c := range others {
		want = append(want, "$ "+c)
	}
	for _, c := range console.Blocks(page)[1].Commands {
		for line := range strings.Lines(c.Output) {
			want = append(want, withoutAge(line))
		}
	}
	want = append(want, "machine-2 3 ddd True") // after the operator has turned the switch down
	for i := range shown {
		shown[i] = withoutAge(shown[i])
	}
	for _, line := range want {
		if !slices.Contains(shown, withoutAge(line)) {
			t.Errorf("the picture does not show %q: run make recording", line)
		}
	}
	if local := regexp.MustCompile(`/(home|root|tmp|Users)/`).FindString(picture); local != "" {
		t.Errorf("the picture shows a path of the computer that recorded it: %s", local)
	}
	const limit = 300_000 // readers load the picture with the README
	if len(picture) > limit {
		t.Errorf("the picture has %d bytes, more than %d", len(picture), limit)
	}
}

var age = regexp.MustCompile(` +\d+[smh](\d+s)?$`)

// withoutAge returns a line with single spaces and without the column AGE.
func withoutAge(line string) string {
	return strings.Join(strings.Fields(age.ReplaceAllString(strings.TrimSpace(line), "")), " ")
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(repository + "/" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// texts returns the text elements of an SVG. The test fails if the SVG is not XML.
func texts(t *testing.T, svg string) (found []string) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(svg))
	inText := false
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "text" {
				inText, found = true, append(found, "")
			}
		case xml.EndElement:
			inText = inText && token.Name.Local != "text"
		case xml.CharData:
			if inText {
				found[len(found)-1] += string(token)
			}
		}
	}
}

// TestPicture requires one element for each different line, and the times at which the first terminal changes.
func TestPicture(t *testing.T) {
	svg := picture([]frame{
		{at: 0, terminal: 0, lines: []string{"$ make demo"}},
		{at: time.Second, terminal: 1, lines: []string{"$ echo '<&>'"}},
		{at: time.Minute, terminal: 0, lines: []string{"\x1b[1mMACHINE\x1b[0m  \x1b[1;33mu\x1b[0m d", "$ make demo"}},
		{at: time.Minute + time.Second, terminal: 0, lines: []string{"\x1b[1mMACHINE\x1b[0m  \x1b[1;33mu\x1b[0m d", "$ make demo"}},
	})
	want := []string{"make demo", "$ make demo", "MACHINE  u d", "second terminal", "$ echo '<&>'"}
	if diff := cmp.Diff(want, texts(t, svg)); diff != "" {
		t.Errorf("texts (-want +got):\n%s", diff)
	}
	// The last change is at 2.2 s, which is 1 s plus longestPause. The last frame is at 3.2 s, and the picture ends at
	// 7.2 s.
	for _, part := range []string{
		"k0 7.2s", "0.00%{transform:translateY(0px)}30.56%{transform:translateY(-442px)}100%",
		`<tspan class="b">MACHINE</tspan>  <tspan class="y">u</tspan> d`,
	} {
		if !strings.Contains(svg, part) {
			t.Errorf("the picture does not contain %s:\n%s", part, svg)
		}
	}
}

// TestScreens reads the output of a demo in small parts.
func TestScreens(t *testing.T) {
	output := "building\r\n\x1b[?25l\x1b[2J\x1b[Hfirst\x1b[K\r\nline\x1b[J\x1b[Hsecond\x1b[K\r\n\x1b[J"
	r := &recording{root: "/src"}
	visible := make(chan struct{})
	if err := r.screens(&parts{text: output}, "make demo", visible); err != nil {
		t.Fatal(err)
	}
	<-visible
	var got []string
	for _, f := range changes(r.frames) {
		got = append(got, strings.Join(f.lines, "\n"))
	}
	want := []string{"$ make demo\nbuilding\n", "first\nline", "second\n"}
	if diff := cmp.Diff(want, got[len(got)-len(want):]); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
}

// parts is a reader that returns three bytes at a time.
type parts struct{ text string }

func (p *parts) Read(buffer []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(buffer, p.text[:min(3, len(p.text))])
	p.text = p.text[n:]
	return n, nil
}

// TestShell records two commands. The recording must replace the path of the clone. A third command fails.
func TestShell(t *testing.T) {
	r := &recording{root: t.TempDir()}
	s := shell{recording: r}
	for _, command := range []string{"export X=$PWD/x", "echo $X"} {
		if err := s.run(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"$ export X=$PWD/x", "$ echo $X", clone + "/x", "$ "}
	if diff := cmp.Diff(want, r.frames[len(r.frames)-1].lines); diff != "" {
		t.Errorf("last frame (-want +got):\n%s", diff)
	}
	if err := s.run(t.Context(), "false"); err == nil {
		t.Error("a failed command returns no error")
	}
}

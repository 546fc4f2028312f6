// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command record runs the quick start of README.md, and writes a moving picture of both terminals to standard output,
// as SVG. It needs Linux, and the command script of util-linux, which provides a terminal for the demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"container.training/useless/hack/cluster"
	"container.training/useless/hack/console"
)

const (
	columns   = 100
	clone     = "~/useless-operator" // replaces the path of the clone in the picture
	interrupt = "\x03"               // Ctrl-C
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	picture, err := record(ctx)
	if err == nil {
		_, err = io.WriteString(os.Stdout, picture)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

// record returns the picture.
func record(ctx context.Context) (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		return "", err
	}
	start, others, err := quickStart(string(page))
	if err != nil {
		return "", err
	}
	r := &recording{root: root, begin: time.Now()}
	if err := r.demo(ctx, start, others); err != nil {
		return "", err
	}
	return picture(r.frames), nil
}

// quickStart returns the command that starts the demo, and the commands for the second terminal.
func quickStart(page string) (start string, others []string, err error) {
	blocks := console.Blocks(page)
	if len(blocks) < 2 {
		return "", nil, errors.New("README.md has fewer than two console blocks")
	}
	for _, c := range blocks[1].Commands {
		others = append(others, c.WithoutRemark())
	}
	return blocks[0].Commands[0].WithoutRemark(), others, nil
}

// A recording collects the frames of both terminals.
type recording struct {
	root   string
	begin  time.Time
	paused atomic.Bool // while true, new screens of the demo are not recorded
	mutex  sync.Mutex
	frames []frame
}

// add adds a frame.
func (r *recording) add(terminal int, text string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	lines := strings.Split(strings.ReplaceAll(text, r.root, clone), "\n")
	r.frames = append(r.frames, frame{at: time.Since(r.begin), terminal: terminal, lines: lines})
}

// demo records the demo. When the demo shows its first screen, demo also records the other commands.
func (r *recording) demo(ctx context.Context, start string, others []string) error {
	command := fmt.Sprintf("stty columns %d rows %d && exec %s", columns, terminals[0].rows, start)
	run := exec.CommandContext(ctx, "script", "--quiet", "--flush", "--return", "--command", command, os.DevNull)
	run.Dir = r.root
	run.Env = append(os.Environ(), "CI=", "MAKEFLAGS=", "MAKELEVEL=") // with CI=true, the demo has no screen
	keyboard, err := run.StdinPipe()
	if err != nil {
		return err
	}
	output, err := run.StdoutPipe()
	if err != nil {
		return err
	}
	if err := run.Start(); err != nil {
		return err
	}
	visible := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- r.screens(output, start, visible) }()
	select {
	case <-visible:
		err = r.others(ctx, others)
	case err = <-ended:
		return errors.Join(errors.New("the demo has ended before its first screen"), err, run.Wait())
	}
	r.paused.Store(true)
	_, interrupted := io.WriteString(keyboard, interrupt)
	read := <-ended
	_ = run.Wait() // make reports that it was interrupted
	return errors.Join(err, interrupted, read)
}

// others records the commands in the second terminal. It begins shortly before a full minute, because the schedule of a
// sample Deployment has a start or a stop in every minute. The recording then contains this start or stop.
func (r *recording) others(ctx context.Context, commands []string) error {
	time.Sleep(4 * time.Second) // show the samples
	r.paused.Store(true)
	toMinute := time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))
	time.Sleep((toMinute + 42*time.Second) % time.Minute) // until 18 s before the next minute
	r.paused.Store(false)
	shell := shell{recording: r}
	for _, c := range commands {
		if err := shell.run(ctx, c); err != nil {
			return err
		}
	}
	time.Sleep(6 * time.Second) // longer than the operator needs to turn a switch down
	if err := shell.run(ctx, commands[len(commands)-1]); err != nil {
		return err
	}
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 4*time.Second)))
	return nil
}

// A shell is the second terminal.
type shell struct {
	recording *recording
	text      string
	exports   string
}

// run records how a user types a command, and its output.
func (s *shell) run(ctx context.Context, command string) error {
	const perFrame = 5 // characters
	for n := 0; n < len(command); n += perFrame {
		s.recording.add(1, s.text+"$ "+command[:n])
		time.Sleep(50 * time.Millisecond)
	}
	s.recording.add(1, s.text+"$ "+command)
	time.Sleep(500 * time.Millisecond)
	if strings.HasPrefix(command, "export ") {
		s.exports += command + "\n"
	}
	run := exec.CommandContext(ctx, "sh", "-ec", s.exports+command)
	run.Dir = s.recording.root
	output, err := run.CombinedOutput()
	s.text += "$ " + command + "\n" + string(output)
	s.recording.add(1, s.text+"$ ")
	time.Sleep(time.Second)
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, output)
	}
	return nil
}

// These codes divide the demo's output into screens, see hack/demo.
const (
	clearScreen = "\x1b[2J"
	firstLine   = "\x1b[H"
	endOfScreen = "\x1b[J"
	endOfLine   = "\x1b[K"
)

// screens records the demo's terminal. It closes visible when the first screen is complete.
func (r *recording) screens(output io.Reader, command string, visible chan<- struct{}) error {
	lines := "$ " + command + "\n"
	r.add(0, lines)
	buffer, text, cleared := make([]byte, 64<<10), "", false
	for {
		n, err := output.Read(buffer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text += strings.ReplaceAll(string(buffer[:n]), "\r", "")
		if before, after, found := strings.Cut(text, clearScreen); found {
			text, cleared = after, true
			r.add(0, lines+visibleText(before))
		}
		if !cleared {
			r.add(0, lines+text[:strings.LastIndex(text, "\n")+1])
			continue
		}
		for {
			screen, rest, complete := strings.Cut(text, endOfScreen)
			if !complete {
				break
			}
			text = rest
			if !r.paused.Load() {
				r.add(0, visibleText(screen))
			}
			if visible != nil {
				close(visible)
				visible = nil
			}
		}
	}
}

// visibleText removes the codes that move or hide the cursor.
func visibleText(text string) string {
	return strings.NewReplacer(firstLine, "", endOfLine, "", "\x1b[?25l", "").Replace(text)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release makes all files of a release from the commit in the working folder. For the same commit and the same
// version of Go, it writes identical files. It writes its progress to standard error, and the table of the files to
// standard output.
//
//	release make -version 0.1.0 -out FOLDER -platforms linux/amd64,linux/arm64 -plugin-platforms linux-amd64 -url URL
//	release push FOLDER REGISTRY
//
// The folder appears only when it is complete. release push pushes the images in the folder to a registry.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 3 && args[0] == "push":
		return push(ctx, args[1], args[2], os.Stdout)
	case len(args) > 0 && args[0] == "make":
		return makeRelease(ctx, args[1:])
	}
	return errors.New("usage: release make FLAGS, or release push FOLDER REGISTRY")
}

func makeRelease(ctx context.Context, args []string) error {
	r := release{root: ".", log: os.Stderr}
	flags := flag.NewFlagSet("make", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "version of the release, such as 0.1.0")
	out := flags.String("out", "", "folder of the release; it must be new or empty")
	platforms := flags.String("platforms", "", "platforms of the images, such as linux/amd64,linux/arm64")
	pluginPlatforms := flags.String("plugin-platforms", "", "platforms of the kubectl plugin, such as linux-amd64,darwin-arm64")
	flags.StringVar(&r.url, "url", "", "URL of the folder with the published archives of the kubectl plugin")
	if err := flags.Parse(args); err != nil {
		return err
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return errors.New("the variable SOURCE_DATE_EPOCH must be the time of the commit; make release sets it")
	}
	r.created = time.Unix(epoch, 0).UTC()
	r.platforms = strings.Split(*platforms, ",")
	r.pluginPlatforms = strings.Split(*pluginPlatforms, ",")
	r.build = r.goBuild
	if err := r.publish(ctx, *out); err != nil {
		return err
	}
	return printTable(os.Stdout, *out)
}

// release describes a release and the folders for its files.
type release struct {
	root, version   string
	platforms       []string // of the images: linux/amd64
	pluginPlatforms []string // of the kubectl plugin: linux-amd64
	url             string   // of the published archives
	created         time.Time
	log             io.Writer
	build           func(ctx context.Context, p program, platform, file string) error

	out      string // files of the release
	programs string // compiled programs
}

// publish makes the release in a temporary folder next to out. It then renames this folder, so that out is never
// incomplete.
func (r *release) publish(ctx context.Context, out string) (err error) {
	if err := r.check(ctx, out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), ".release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if work, err = filepath.Abs(work); err != nil {
		return err
	}
	r.out, r.programs = filepath.Join(work, "files"), filepath.Join(work, "programs")
	for _, folder := range []string{r.out, r.programs} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
	}
	for _, step := range r.steps() {
		if err := r.timed(step.name, func() error { return step.do(ctx) }); err != nil {
			return err
		}
	}
	if err := os.Remove(out); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Rename(r.out, out)
}

type step struct {
	name string
	do   func(context.Context) error
}

// steps returns the steps in the order in which they run. A later step reads the files of earlier ones.
func (r *release) steps() []step {
	return []step{
		{"compile the programs", r.compile},
		{"make the images", r.images},
		{"package the Helm chart", r.chart},
		{"copy the manifests, the bundle and the catalog", r.manifests},
		{"package the kubectl plugin", r.plugin},
		{"list the modules of the programs", r.sboms},
		{"write the notes", r.notes},
		{"write the checksums", r.checksums},
	}
}

// timed runs a part of the release, and logs its name and its duration.
func (r *release) timed(name string, do func() error) error {
	start := time.Now()
	fmt.Fprintln(r.log, "release:", name)
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if took := time.Since(start).Round(time.Second); took > 0 {
		fmt.Fprintf(r.log, "release: %s took %s\n", name, took)
	}
	return nil
}

// printTable prints the files of a release with their sizes.
func printTable(out io.Writer, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FILE\tSIZE")
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%s\t%s\n", entry.Name(), size(info.Size()))
	}
	return table.Flush()
}

// size formats a number of bytes.
func size(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
)

// versions are the places in the tree that contain the version. The first group of each pattern is the version.
var versions = []struct{ file, pattern, fix string }{
	{"config/manager/kustomization.yaml", `newTag: v(\S+)`, "set newTag"},
	{"charts/useless-operator/Chart.yaml", `^version: (\S+)`, "set version"},
	{"charts/useless-operator/Chart.yaml", `^appVersion: v(\S+)`, "set appVersion"},
	{"dist/install.yaml", `image: \S+/useless-operator:v(\S+)`, "run make build-installer"},
	{"bundle/manifests/useless-operator.clusterserviceversion.yaml", `^  version: (\S+)`, "run make bundle"},
	{"catalog/useless-operator/catalog.yaml", `^name: useless-operator\.v(\S+)`, "run make catalog"},
}

// check returns an error if the release would differ from the commit, or would overwrite files in out. It also returns
// an error if the version is invalid, or if the tree or CHANGELOG.md does not contain it.
func (r *release) check(ctx context.Context, out string) error {
	if _, err := semver.Parse(r.version); err != nil {
		return fmt.Errorf("version %q: %w; for example, use VERSION=0.1.0", r.version, err)
	}
	if err := checkEmpty(out); err != nil {
		return err
	}
	if err := r.checkClean(ctx); err != nil {
		return err
	}
	for _, place := range versions {
		if err := r.checkVersion(place.file, place.pattern, place.fix); err != nil {
			return err
		}
	}
	return r.checkChangelog(ctx)
}

func checkEmpty(out string) error {
	if out == "" {
		return errors.New("no folder for the release; for example, use OUT=/tmp/release")
	}
	entries, err := os.ReadDir(out)
	if len(entries) > 0 {
		return fmt.Errorf("the folder %s is not empty; use a new folder, or remove its files", out)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (r *release) checkClean(ctx context.Context) error {
	changes, err := r.git(ctx, "status", "--porcelain", "--untracked-files=normal")
	if err != nil {
		return err
	}
	if changes != "" {
		return fmt.Errorf("the working tree has changes; commit or remove them:\n%s", strings.TrimRight(changes, "\n"))
	}
	return nil
}

// checkVersion checks that a file names the version of the release. The catalog also has the versions of earlier
// releases.
func (r *release) checkVersion(file, pattern, fix string) error {
	data, err := os.ReadFile(filepath.Join(r.root, file))
	if err != nil {
		return err
	}
	var found []string
	for _, match := range regexp.MustCompile("(?m)"+pattern).FindAllStringSubmatch(string(data), -1) {
		found = append(found, match[1])
	}
	if !slices.Contains(found, r.version) {
		return fmt.Errorf("%s has version %s, not %s; %s, and commit the change", file, strings.Join(found, ", "), r.version, fix)
	}
	return nil
}

var sectionHeading = regexp.MustCompile(`(?m)^## (.*)\n`)

// section returns the heading and the text of the version in CHANGELOG.md.
func (r *release) section() (heading, text string, err error) {
	data, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return "", "", err
	}
	rest := string(data)
	for {
		next := sectionHeading.FindStringSubmatchIndex(rest)
		if next == nil {
			return "", "", fmt.Errorf("CHANGELOG.md has no version %[1]s; add the heading \"## %[1]s - DATE\" above its changes", r.version)
		}
		heading, rest = rest[next[2]:next[3]], rest[next[1]:]
		if version, _, _ := strings.Cut(heading, " "); version != r.version {
			continue
		}
		if end := sectionHeading.FindStringIndex(rest); end != nil {
			rest = rest[:end[0]]
		}
		return heading, strings.TrimSpace(rest) + "\n", nil
	}
}

var dated = regexp.MustCompile(` - \d{4}-\d{2}-\d{2}$`)

// checkChangelog checks that CHANGELOG.md has the version. If the commit has the tag of the version, the heading must
// have a date. A release without a tag and a date is only a rehearsal.
func (r *release) checkChangelog(ctx context.Context) error {
	heading, _, err := r.section()
	if err != nil || dated.MatchString(heading) {
		return err
	}
	tags, err := r.git(ctx, "tag", "--points-at", "HEAD")
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(tags), "v"+r.version) {
		return fmt.Errorf("the commit has the tag v%s, but CHANGELOG.md has the heading %q; replace Unreleased with a date",
			r.version, heading)
	}
	fmt.Fprintf(r.log, "release: rehearsal: the commit has no tag v%s, and its heading in CHANGELOG.md has no date\n", r.version)
	return nil
}

func (r *release) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Stderr = r.root, r.log
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w; a release needs a clone with git", args[0], err)
	}
	return string(output), nil
}

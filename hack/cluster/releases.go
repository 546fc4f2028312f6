// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// releaseVariable selects a minor release of Kubernetes, such as 1.35.
const releaseVariable = "KUBERNETES"

// KubernetesReleases returns the minor releases of Kubernetes that can be built, such as 1.35. The newest release is
// first. Each release has a module, such as hack/tools/kubernetes-1.35.mod.
func KubernetesReleases() ([]string, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root, "hack", "tools", kubernetesUpstream.file+"-1.*.mod"))
	if err != nil {
		return nil, fmt.Errorf("find the releases of Kubernetes: %w", err)
	}
	releases := make([]string, 0, len(files))
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".mod")
		releases = append(releases, strings.TrimPrefix(name, kubernetesUpstream.file+"-"))
	}
	slices.SortFunc(releases, func(a, b string) int { return cmp.Compare(minor(b), minor(a)) })
	return releases, nil
}

// minor returns 35 for the release 1.35.
func minor(release string) int {
	number, _ := strconv.Atoi(strings.TrimPrefix(release, "1."))
	return number
}

// kubernetesRelease returns the release that the environment variable KUBERNETES selects, or the newest one.
func kubernetesRelease() (upstream, error) {
	releases, err := KubernetesReleases()
	if err != nil {
		return upstream{}, err
	}
	selected := cmp.Or(os.Getenv(releaseVariable), releases[0])
	if !slices.Contains(releases, selected) {
		return upstream{}, fmt.Errorf("%s=%s is not a release that can be built: choose one of %s",
			releaseVariable, selected, strings.Join(releases, ", "))
	}
	release := kubernetesUpstream
	release.file += "-" + selected
	return release, nil
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"
)

// olderThan reports whether the API server is older than a minor release of Kubernetes, such as 33 for 1.33. If the API
// server is older, olderThan records difference, which is a text for users. make test-versions writes this text into
// the row of the API server's release in docs/versions.md.
func olderThan(t *testing.T, minor int, difference string) bool {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(clusterOf(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	running, err := strconv.Atoi(version.Minor)
	if err != nil {
		t.Fatal(err)
	}
	if running >= minor {
		return false
	}
	t.Attr("different", difference)
	return true
}

// wording describes how the error messages of an older API server differ.
const wording = "Before 1.36, some validation errors of the API server have another wording: they add the type of a " +
	"value, and leave out the format of a number and the unit of a length."

// newerWordings maps parts of messages from before 1.36 to the wording of 1.36.
var newerWordings = []struct {
	older *regexp.Regexp
	newer string
}{
	{regexp.MustCompile(`Invalid value: "number"`), `Invalid value: "float64"`},
	{regexp.MustCompile(`must be of type integer: "number"`), `must be of type int32: "float64"`},
	{regexp.MustCompile(`may not be longer than (\d+)`), `may not be more than $1 bytes`},
	{regexp.MustCompile(`Invalid value: "(?:object|string)": `), `Invalid value: `},
}

// hasWording reports whether a message contains a text. The text has the wording of 1.36. If the API server is older
// than 1.36, the message may have the older wording.
func hasWording(t *testing.T, message, text string) bool {
	t.Helper()
	if strings.Contains(message, text) {
		return true
	}
	if !olderThan(t, 36, wording) {
		return false
	}
	for _, w := range newerWordings {
		message = w.older.ReplaceAllString(message, w.newer)
	}
	return strings.Contains(message, text)
}

// noMutatingPolicies describes an API server without MutatingAdmissionPolicy in admissionregistration.k8s.io/v1.
const noMutatingPolicies = "Before 1.36, there is no MutatingAdmissionPolicy v1. " +
	"The test with a policy that removes the label of a Pod is skipped."

// noStreams describes an API server that does not stream lists.
const noStreams = "Before 1.34, except in 1.32, the API server does not stream lists. The operator fills its caches " +
	"of built-in kinds with ordinary lists. It logs this for each kind."

// noResize describes an API server without the subresource resize of Pods.
const noResize = "Before 1.33, a Pod cannot be resized in place. If the CPU or memory of a VirtualMachine changes, " +
	"its condition Resizing has the reason ResizeRefused. The next restart applies the new size."

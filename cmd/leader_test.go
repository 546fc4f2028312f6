// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// TestPodIdentity asks for the identity of a Pod several times. Only the first call may get it, because the first
// caller may lead. A garbage collection must not change this.
func TestPodIdentity(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has network namespaces and abstract sockets")
	}
	podUID := string(uuid.NewUUID())
	identity, err := podIdentity(podUID)
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	place, ok := strings.CutPrefix(identity, host+"_"+podUID+"_")
	if !ok || !regexp.MustCompile(`^[0-9a-f-]{36}_\d+$`).MatchString(place) {
		t.Errorf("the identity is %q, want HOST_UID_BOOTID_NAMESPACE", identity)
	}
	for range 3 {
		runtime.GC()
		if identity, err := podIdentity(podUID); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("got the identity %q again, and the error %v", identity, err)
		}
	}
	if _, err := podIdentity(string(uuid.NewUUID())); err != nil {
		t.Errorf("another Pod in the same network namespace got no identity: %v", err)
	}
}

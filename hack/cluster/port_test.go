// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import "testing"

// TestFreePort checks that ports are different and that outgoing connections do not use them.
func TestFreePort(t *testing.T) {
	const lowestOutgoing = 32768 // the default of net.ipv4.ip_local_port_range
	seen := map[int]bool{}
	for range 100 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port <= 1024 || port >= lowestOutgoing {
			t.Errorf("port %d, want a new port between 1024 and %d", port, lowestOutgoing)
		}
		seen[port] = true
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// firstPort and portCount define the range of FreePort. The range ends below 32768, because Linux by default uses the
// ports from 32768 for outgoing connections.
const firstPort, portCount = 10000, 22000

// nextPort starts at a random port, so that two processes seldom try the same ports.
var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(portCount)) }

// FreePort returns a TCP port of 127.0.0.1 on which no process listens. Within one process, it repeats a port only
// after it has tried the whole range. Outgoing connections do not use the port. So the caller can listen on it later,
// and again after a restart.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := firstPort + int(nextPort.Add(1)%portCount)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

// holdPort reserves a port of 127.0.0.1 until the returned socket is closed. The socket is bound with SO_REUSEPORT and
// does not listen. kube-apiserver runs with --permit-port-sharing, so it can bind the port too. Other processes cannot
// bind it, because they do not set SO_REUSEPORT.
func holdPort() (port, socket int, err error) {
	syscall.ForkLock.RLock()
	socket, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, 0, fmt.Errorf("hold a port: %w", err)
	}
	port, err = bindShared(socket)
	if err != nil {
		_ = unix.Close(socket)
		return 0, 0, fmt.Errorf("hold a port: %w", err)
	}
	return port, socket, nil
}

func bindShared(socket int) (port int, err error) {
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	address, err := unix.Getsockname(socket)
	if err != nil {
		return 0, err
	}
	return address.(*unix.SockaddrInet4).Port, nil
}

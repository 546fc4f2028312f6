// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/leaderelection"
)

const (
	leaseName = "leader.useless.container.training"

	// renewDeadline is the time for which a leader continues if it cannot renew its Lease. It is shorter than the
	// Lease's duration of 15 s.
	renewDeadline = 10 * time.Second
)

// newManager creates the manager. With --pod-uid, the holder of the Lease is the Pod. Without --pod-uid, or if
// podIdentity fails, the holder is this process: controller-runtime then generates a random identity.
func (o *options) newManager(config *rest.Config, managerOptions ctrl.Options) (ctrl.Manager, error) {
	if !o.leaderElect || o.podUID == "" {
		return ctrl.NewManager(config, managerOptions)
	}
	identity, err := podIdentity(o.podUID)
	if err != nil {
		ctrl.Log.Error(err, "Cannot lead as the Pod. After a crash, the next leader waits until the Lease expires")
		return ctrl.NewManager(config, managerOptions)
	}
	lock := &podLock{}
	managerOptions.LeaderElectionResourceLockInterface = lock
	mgr, err := ctrl.NewManager(config, managerOptions)
	if err != nil {
		return nil, err
	}
	return mgr, lock.setup(mgr, identity, managerOptions)
}

// A podLock is the lock of the leader election, with the identity of a Pod. The manager's options need the lock, but
// the lock needs the manager to emit events. Therefore setup initializes the lock after the manager exists.
type podLock struct {
	*resourcelock.LeaseLock
}

func (l *podLock) setup(mgr ctrl.Manager, identity string, managerOptions ctrl.Options) error {
	lock, err := leaderelection.NewResourceLock(mgr.GetConfig(), mgr, leaderelection.Options{
		LeaderElection:          true,
		LeaderElectionNamespace: managerOptions.LeaderElectionNamespace,
		LeaderElectionID:        managerOptions.LeaderElectionID,
		RenewDeadline:           *managerOptions.RenewDeadline,
	})
	if err != nil {
		return fmt.Errorf("create the lock of the leader election: %w", err)
	}
	lease, ok := lock.(*resourcelock.LeaseLock)
	if !ok {
		return fmt.Errorf("create the lock of the leader election: got a %T, want a Lease", lock)
	}
	lease.LockConfig.Identity = identity
	l.LeaseLock = lease
	return nil
}

// podIdentity returns the identity of the Pod for the leader election. It returns an error if another process of the
// Pod has called podIdentity and is still alive.
//
// A process with the identity of the Lease's holder takes the Lease immediately. If two processes had the same
// identity, both would lead. The kubelet starts a container only after its predecessor has ended. But a user can start
// a second process in the container. And a container runtime that lost its state can forget a container that still
// runs. Therefore the kernel must exclude a second process:
//
//   - The identity contains the kernel's boot ID and the network namespace. The kernel gives each namespace its own
//     number while a process uses it. Two processes with the same identity are therefore in the same network namespace.
//     Containers in virtual machines, such as Kata Containers, have different boot IDs.
//   - In each network namespace, only one socket can have the UID of the Pod in its name. The process never closes
//     this socket. The kernel closes it after the last thread has ended, so a process that is suspended or hangs still
//     has it.
//
// The API server may still execute a request that the predecessor sent before it was killed. This is safe, because each
// request contains a resourceVersion, a UID, or a name for a new object.
func podIdentity(podUID string) (string, error) {
	host, err := os.Hostname() // the name of the Pod, or of its node with hostNetwork
	if err != nil {
		return "", err
	}
	namespace, err := os.Readlink("/proc/self/ns/net") // for example net:[4026531840]
	if err != nil {
		return "", err
	}
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	if err := bindForever("@useless-operator/" + podUID); err != nil {
		return "", fmt.Errorf("exclude other processes of the Pod %s: %w", podUID, err)
	}
	place := strings.TrimSpace(string(bootID)) + "_" + strings.Trim(namespace, "net:[]")
	return host + "_" + podUID + "_" + place, nil
}

// bindForever gives the name to a socket that the process never closes. A name that starts with @ is in the abstract
// namespace of Linux. This namespace has no files, and belongs to the network namespace. The socket is not a net.Conn,
// because Go's garbage collector closes a net.Conn that is no longer used.
func bindForever(name string) error {
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	syscall.CloseOnExec(socket)
	if err := syscall.Bind(socket, &syscall.SockaddrUnix{Name: name}); err != nil {
		_ = syscall.Close(socket)
		return fmt.Errorf("bind %s: %w", name, err)
	}
	return nil
}

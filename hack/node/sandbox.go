// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"container.training/useless/hack/cluster"
)

// address is the node's only IP address. It cannot be in use, because the node has its own network namespace.
const address = "172.30.0.1"

// mount mounts a virtual file system of the kernel.
func mount(source, target, fstype, options string) error {
	if err := unix.Mount(source, target, fstype, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", fstype, target, err)
	}
	return nil
}

// enter sets up the namespaces of this process: mounts, host name and network. These changes do not affect the
// computer, except for changes in the node's own folder.
func enter(dir string) error {
	cgroups, err := hierarchies() // before the mounts change
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Sethostname([]byte(nodeName)); err != nil {
		return fmt.Errorf("set the name: %w", err)
	}
	err = errors.Join(
		mount("proc", "/proc", "proc", ""),
		mount("sysfs", "/sys", "sysfs", ""),
		mountCgroups(cgroups),
	)
	if err != nil {
		return err
	}
	if err := coverVar(dir); err != nil {
		return err
	}
	if err := coverTunables(); err != nil {
		return err
	}
	return configureNetwork()
}

// proxies are the environment variables for HTTP proxies. Programs also read the lower-case variables.
var proxies = []string{"ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}

// forgetProxies unsets the proxy variables for this process and its children. The node's network has no proxy.
func forgetProxies() error {
	for _, name := range proxies {
		if err := errors.Join(os.Unsetenv(name), os.Unsetenv(strings.ToLower(name))); err != nil {
			return err
		}
	}
	return nil
}

// coverVar mounts a separate /run, and an overlay on /var. Programs can read /var, but their changes stay in the node.
// Some programs write to /var even if another folder is configured.
func coverVar(dir string) error {
	own, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer own.Close()
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	upper, work := "/run/var/upper", "/run/var/work"
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("overlay", "/var", "overlay", 0, "lowerdir=/var,upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mount /var: %w", err)
	}
	// If the node's folder is in /var, the overlay must not hide it: programs outside the node read its files.
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", own.Fd()), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// tunables lists the kernel settings that a kubelet changes for the whole computer, and the values that it sets.
var tunables = map[string]int{
	"kernel/keys/root_maxbytes": 25000000,
	"kernel/keys/root_maxkeys":  1000000,
	"kernel/panic":              10,
	"kernel/panic_on_oops":      1,
	"vm/overcommit_memory":      1,
	"vm/panic_on_oom":           0,
}

// coverTunables mounts files with the expected values over the kernel settings. So the kubelet does not change the real
// settings.
func coverTunables() error {
	for name, value := range tunables {
		wanted := filepath.Join("/run/sys", name)
		if err := os.MkdirAll(filepath.Dir(wanted), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(wanted, fmt.Appendln(nil, value), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(wanted, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover /proc/sys/%s: %w", name, err)
		}
	}
	return nil
}

// configureNetwork gives the node its address. It also adds a route to the IP range of Services, for connections from
// the node's own processes. kube-proxy translates the addresses of these connections. There is no other route, so a
// connection to the internet fails immediately.
func configureNetwork() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("configure the network: %w", err)
	}
	_, services, err := net.ParseCIDR(cluster.ServiceRange)
	if err != nil {
		return err
	}
	own := &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(32, 32)}
	for _, step := range []func() error{
		func() error { return netlink.LinkSetUp(lo) },
		func() error { return netlink.AddrAdd(lo, &netlink.Addr{IPNet: own}) },
		func() error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: services, Src: own.IP})
		},
		func() error { return os.WriteFile(filepath.Join("/proc/sys/net/ipv4/ip_forward"), []byte("1"), 0) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("configure the network: %w", err)
		}
	}
	return nil
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Names of the control plane's programs.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	kubectl           = "kubectl"
)

// assetsVariable names the folder of programs that somebody else has built.
const assetsVariable = "KUBEBUILDER_ASSETS"

// upstream is a release of somebody else's programs, pinned by a module of its own in hack/tools.
type upstream struct {
	title  string
	file   string // without .mod
	module string // whose version is the release's
	tags   string
	// stamp says where the linker puts the version, for a release that behaves otherwise without it.
	stamp func(version string) string
	// packages are those of the main functions, by the names of their programs.
	packages map[string]string
}

// controlPlane is what tests and the demo run on.
var controlPlane = []string{etcd, apiServer, controllerManager, kubectl}

var kubernetesRelease = upstream{
	title: "Kubernetes", file: "kubernetes", module: "k8s.io/kubernetes",
	stamp: kubernetesVersion,
	packages: map[string]string{
		etcd:              "go.etcd.io/etcd/server/v3",
		apiServer:         "k8s.io/kubernetes/cmd/kube-apiserver",
		controllerManager: "k8s.io/kubernetes/cmd/kube-controller-manager",
		"kube-proxy":      "k8s.io/kubernetes/cmd/kube-proxy",
		"kube-scheduler":  "k8s.io/kubernetes/cmd/kube-scheduler",
		kubectl:           "k8s.io/kubernetes/cmd/kubectl",
		"kubelet":         "k8s.io/kubernetes/cmd/kubelet",
	},
}

// nodeReleases are all that a node with OLM runs, and what its users type.
var nodeReleases = []upstream{kubernetesRelease, {
	title: "containerd", file: "containerd", module: "github.com/containerd/containerd/v2",
	tags: "no_btrfs,no_devmapper,no_zfs",
	packages: map[string]string{
		"containerd":              "github.com/containerd/containerd/v2/cmd/containerd",
		"containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
	},
}, {
	title: "the network plugins", file: "cni", module: "github.com/containernetworking/plugins",
	packages: map[string]string{
		"bridge":     "github.com/containernetworking/plugins/plugins/main/bridge",
		"host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
		"loopback":   "github.com/containernetworking/plugins/plugins/main/loopback",
		"portmap":    "github.com/containernetworking/plugins/plugins/meta/portmap",
		"ptp":        "github.com/containernetworking/plugins/plugins/main/ptp",
	},
}, {
	title: "CoreDNS", file: "coredns", module: "github.com/coredns/coredns",
	packages: map[string]string{"coredns": "github.com/coredns/coredns"},
}, {
	title: "OLM", file: "olm", module: "github.com/operator-framework/operator-lifecycle-manager",
	packages: map[string]string{
		"catalog":        "github.com/operator-framework/operator-lifecycle-manager/cmd/catalog",
		"copy-content":   "github.com/operator-framework/operator-lifecycle-manager/cmd/copy-content",
		"cpb":            "github.com/operator-framework/operator-lifecycle-manager/util/cpb",
		"olm":            "github.com/operator-framework/operator-lifecycle-manager/cmd/olm",
		"package-server": "github.com/operator-framework/operator-lifecycle-manager/cmd/package-server",
	},
}, {
	title: "opm", file: "opm", module: "github.com/operator-framework/operator-registry",
	tags:     "containers_image_openpgp",
	packages: map[string]string{"opm": "github.com/operator-framework/operator-registry/cmd/opm"},
}, {
	title: "operator-sdk", file: "operator-sdk", module: "github.com/operator-framework/operator-sdk",
	tags: "containers_image_openpgp",
	packages: map[string]string{
		"operator-sdk":   "github.com/operator-framework/operator-sdk/cmd/operator-sdk",
		"scorecard-test": "github.com/operator-framework/operator-sdk/images/scorecard-test",
	},
}, {
	title: "the gRPC probe", file: "grpc-health-probe", module: "github.com/grpc-ecosystem/grpc-health-probe",
	packages: map[string]string{"grpc-health-probe": "github.com/grpc-ecosystem/grpc-health-probe"},
}}

// kubernetesVersion keeps an API server from calling itself v0.0.0, and so from being refused by who asks for a newer one.
func kubernetesVersion(version string) string {
	part := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return fmt.Sprintf("-X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
		"k8s.io/component-base/version", version, part[0], part[1])
}

// Programs is a folder that has etcd, kube-apiserver, kube-controller-manager and kubectl, and may have others.
type Programs string

// Path is where a program is.
func (p Programs) Path(name string) string { return filepath.Join(string(p), name) }

// missing names those of the programs that are not there.
func (p Programs) missing(names []string) (missing []string) {
	for _, name := range names {
		if info, err := os.Stat(p.Path(name)); err != nil || !info.Mode().IsRegular() {
			missing = append(missing, name)
		}
	}
	return missing
}

// Build returns the programs of a control plane. It takes those in the folder that KUBEBUILDER_ASSETS names where all
// of them are there, and otherwise compiles the release that hack/tools/kubernetes.mod pins, once: the programs stay
// in the user's cache folder. While it works it says so, in lines that it writes to progress.
func Build(ctx context.Context, progress io.Writer) (Programs, error) {
	if assets := Programs(os.Getenv(assetsVariable)); assets != "" {
		missing := assets.missing(controlPlane)
		if len(missing) == 0 {
			return assets, nil
		}
		fmt.Fprintf(progress, "%s=%s has no %s: building Kubernetes instead\n",
			assetsVariable, assets, strings.Join(missing, ", "))
	}
	return kubernetesRelease.build(ctx, progress, controlPlane)
}

// BuildNode compiles everything that a node with OLM runs, once, as Build does, and fills the folder dir with links to
// the programs. What KUBEBUILDER_ASSETS names is of no use here: all parts of a node are of one release.
func BuildNode(ctx context.Context, progress io.Writer, dir string) (Programs, error) {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", fmt.Errorf("link the programs of a node: %w", err)
	}
	for _, release := range nodeReleases {
		names := slices.Sorted(maps.Keys(release.packages))
		built, err := release.build(ctx, progress, names)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			if err := os.Symlink(built.Path(name), filepath.Join(dir, name)); err != nil {
				return "", fmt.Errorf("link the programs of a node: %w", err)
			}
		}
	}
	return Programs(dir), nil
}

// Version is which release hack/tools/FILE.mod pins of what it is there for.
func Version(file string) (string, error) {
	b, err := nodeBuild(file)
	if err != nil {
		return "", err
	}
	return b.version, nil
}

// Source is the folder with the source of what hack/tools/FILE.mod pins.
func Source(ctx context.Context, file string) (string, error) {
	b, err := nodeBuild(file)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "-modfile="+file+".mod", b.module)
	cmd.Dir, cmd.Env = b.tools, append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download %s %s: %w: %s", b.title, b.version, err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", fmt.Errorf("download %s %s: %w", b.title, b.version, err)
	}
	return module.Dir, nil
}

func nodeBuild(file string) (*build, error) {
	i := slices.IndexFunc(nodeReleases, func(u upstream) bool { return u.file == file })
	if i < 0 {
		return nil, fmt.Errorf("no node needs hack/tools/%s.mod", file)
	}
	return nodeReleases[i].newBuild(io.Discard)
}

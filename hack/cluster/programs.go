// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Names of the control plane's programs, and of kubectl.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	kubectl           = "kubectl"
)

// assetsVariable is the environment variable for a folder with prebuilt programs, as in envtest.
const assetsVariable = "KUBEBUILDER_ASSETS"

// upstream is a release of another project. A .mod file in hack/tools pins it.
type upstream struct {
	name   string // in messages
	file   string // the name of the .mod file, without .mod
	module string // the Go module that has the version of the release
	tags   string
	// gigabytes is the approximate disk space that a first build needs. It includes compiled and downloaded packages in
	// Go's caches, the programs, and temporary files.
	gigabytes int
	// stamp returns linker flags that set the version. It is nil if the release does not need the version.
	stamp func(version string) string
	// packages are the main packages: import paths, or the path of a single Go file relative to hack/tools.
	packages []string
}

// controlPlane lists the programs that tests and the demo need.
var controlPlane = []string{etcd, apiServer, controllerManager, kubectl}

// kubernetesUpstream has a .mod file for each minor release. kubernetesRelease selects one.
var kubernetesUpstream = upstream{
	name: "Kubernetes", file: "kubernetes", module: "k8s.io/kubernetes", gigabytes: 5,
	stamp: kubernetesVersion,
	packages: []string{
		"go.etcd.io/etcd/server/v3",
		"k8s.io/kubernetes/cmd/kube-apiserver",
		"k8s.io/kubernetes/cmd/kube-controller-manager",
		"k8s.io/kubernetes/cmd/kube-proxy",
		"k8s.io/kubernetes/cmd/kube-scheduler",
		"k8s.io/kubernetes/cmd/kubectl",
		"k8s.io/kubernetes/cmd/kubelet",
	},
}

// otherReleases are the releases that a node with OLM needs besides Kubernetes. Some are command line tools for users
// of OLM.
var otherReleases = []upstream{{
	name: "metrics-server", file: "metrics-server", module: "sigs.k8s.io/metrics-server", gigabytes: 1,
	packages: []string{"sigs.k8s.io/metrics-server/cmd/metrics-server"},
}, {
	name: "containerd", file: "containerd", module: "github.com/containerd/containerd/v2", gigabytes: 2,
	tags: "no_btrfs,no_devmapper,no_zfs",
	packages: []string{
		"github.com/containerd/containerd/v2/cmd/containerd",
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
	},
}, {
	name: "the CNI plugins", file: "cni", module: "github.com/containernetworking/plugins", gigabytes: 1,
	packages: []string{
		"github.com/containernetworking/plugins/plugins/ipam/host-local",
		"github.com/containernetworking/plugins/plugins/main/loopback",
		"github.com/containernetworking/plugins/plugins/main/ptp",
		"github.com/containernetworking/plugins/plugins/meta/portmap",
	},
}, {
	name: "CoreDNS", file: "coredns", module: "github.com/coredns/coredns", gigabytes: 1,
	packages: []string{"../coredns/coredns.go"},
}, {
	name: "OLM", file: "olm", module: "github.com/operator-framework/operator-lifecycle-manager", gigabytes: 3,
	packages: []string{
		"github.com/operator-framework/operator-lifecycle-manager/cmd/catalog",
		"github.com/operator-framework/operator-lifecycle-manager/cmd/copy-content",
		"github.com/operator-framework/operator-lifecycle-manager/cmd/olm",
		"github.com/operator-framework/operator-lifecycle-manager/cmd/package-server",
		"github.com/operator-framework/operator-lifecycle-manager/util/cpb",
	},
}, {
	name: "opm", file: "opm", module: "github.com/operator-framework/operator-registry", gigabytes: 2,
	tags:     pureGo,
	packages: []string{"github.com/operator-framework/operator-registry/cmd/opm"},
}, {
	name: "operator-sdk", file: "operator-sdk", module: "github.com/operator-framework/operator-sdk", gigabytes: 3,
	tags: pureGo,
	packages: []string{
		"github.com/operator-framework/operator-sdk/cmd/operator-sdk",
		"github.com/operator-framework/operator-sdk/images/scorecard-test",
	},
}, {
	name: "the gRPC probe", file: "grpc-health-probe", module: "github.com/grpc-ecosystem/grpc-health-probe", gigabytes: 1,
	packages: []string{"github.com/grpc-ecosystem/grpc-health-probe"},
}}

// prometheusRelease is only for tests. The build tag removes the optional service discoveries. Tests do not need them,
// because they write their targets into a file.
var prometheusRelease = upstream{
	name: "Prometheus", file: "prometheus", module: "github.com/prometheus/prometheus", gigabytes: 2,
	tags:     "remove_all_sd",
	packages: []string{"github.com/prometheus/prometheus/cmd/prometheus"},
}

// nodeReleases returns all releases that a node with OLM needs.
func nodeReleases() ([]upstream, error) {
	release, err := kubernetesRelease()
	if err != nil {
		return nil, err
	}
	return append([]upstream{release}, otherReleases...), nil
}

// pureGo is the build tag for image signature checks without a C library.
const pureGo = "containers_image_openpgp"

// kubernetesVersion returns the linker flags that set the version of Kubernetes. Without them, an API server reports
// v0.0.0, and clients that require a minimum version reject it.
func kubernetesVersion(version string) string {
	part := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return fmt.Sprintf("-X %[1]s.gitVersion=%[2]s "+
		"-X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s -X %[1]s.gitTreeState=clean",
		"k8s.io/component-base/version", version, part[0], part[1])
}

// programs returns the names of all programs of the release.
func (u upstream) programs() (names []string) {
	for _, pkg := range u.packages {
		names = append(names, programName(pkg))
	}
	return names
}

// programName returns the name of a package's program. It is the name that the go command chooses, except for etcd,
// whose package is called server.
func programName(pkg string) string {
	if name := defaultName(pkg); name != "server" {
		return name
	}
	return etcd
}

// goFile is the suffix of a package that is a single Go file.
const goFile = ".go"

var majorVersion = regexp.MustCompile(`/v\d+$`)

// defaultName returns the name that the go command gives to a package's program.
func defaultName(pkg string) string {
	return strings.TrimSuffix(path.Base(majorVersion.ReplaceAllString(pkg, "")), goFile)
}

// Programs is the path of a folder with programs. Build returns a folder with the programs of a control plane.
type Programs string

// Path returns the path of a program.
func (p Programs) Path(name string) string { return filepath.Join(string(p), name) }

// missing returns the names of the programs that are not in the folder.
func (p Programs) missing(names []string) (missing []string) {
	for _, name := range names {
		if info, err := os.Stat(p.Path(name)); err != nil || !info.Mode().IsRegular() {
			missing = append(missing, name)
		}
	}
	return missing
}

// Build returns the programs of a control plane. If the environment variable KUBEBUILDER_ASSETS names a folder with all
// of them, Build returns that folder. Otherwise it compiles a release of Kubernetes, which the environment variable
// KUBERNETES can select. It keeps the programs in the user's cache folder. It writes its progress to progress. If both
// variables are set, Build returns an error.
func Build(ctx context.Context, progress io.Writer) (Programs, error) {
	if assets := Programs(os.Getenv(assetsVariable)); assets != "" {
		if release := os.Getenv(releaseVariable); release != "" {
			return "", fmt.Errorf("%s=%s and %s=%s both select programs: unset one of them",
				assetsVariable, assets, releaseVariable, release)
		}
		missing := assets.missing(controlPlane)
		if len(missing) == 0 {
			return assets, nil
		}
		fmt.Fprintf(progress, "%s=%s has no %s: building Kubernetes instead\n",
			assetsVariable, assets, strings.Join(missing, ", "))
	}
	release, err := kubernetesRelease()
	if err != nil {
		return "", err
	}
	return release.build(ctx, progress, controlPlane)
}

// BuildPrometheus returns the path of a Prometheus server. It compiles the server if necessary, and writes its progress
// to progress.
func BuildPrometheus(ctx context.Context, progress io.Writer) (path string, err error) {
	name := programName(prometheusRelease.packages[0])
	programs, err := prometheusRelease.build(ctx, progress, []string{name})
	if err != nil {
		return "", err
	}
	return programs.Path(name), nil
}

// oldestNode is the oldest minor release for a node. The node needs kube-proxy with nftables, and resizes Pods in place.
const oldestNode = "1.33"

// BuildNode compiles the missing programs of a node with OLM. It writes its progress to progress. It ignores
// KUBEBUILDER_ASSETS, because all programs of a node come from the pinned releases.
func BuildNode(ctx context.Context, progress io.Writer) error {
	releases, err := nodeReleases()
	if err != nil {
		return err
	}
	selected := strings.TrimPrefix(releases[0].file, kubernetesUpstream.file+"-")
	if minor(selected) < minor(oldestNode) {
		return fmt.Errorf("%s=%s: a node needs %s or later", releaseVariable, selected, oldestNode)
	}
	for _, release := range releases {
		if _, err := release.build(ctx, progress, release.programs()); err != nil {
			return err
		}
	}
	return nil
}

// LinkNode replaces the folder dir with a new folder of links to the programs that BuildNode has compiled. It fails if
// a program is missing.
func LinkNode(dir string) (Programs, error) {
	releases, err := nodeReleases()
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", fmt.Errorf("link the programs of a node: %w", err)
	}
	for _, release := range releases {
		b, err := release.newBuild(io.Discard)
		if err != nil {
			return "", err
		}
		names := release.programs()
		if missing := b.folder.missing(names); len(missing) > 0 {
			return "", fmt.Errorf("%s of %s %s is not built: run make cluster-build",
				strings.Join(missing, ", "), b.name, b.version)
		}
		for _, name := range names {
			if err := os.Symlink(b.folder.Path(name), filepath.Join(dir, name)); err != nil {
				return "", fmt.Errorf("link the programs of a node: %w", err)
			}
		}
	}
	return Programs(dir), nil
}

// Version returns the version that hack/tools/FILE.mod pins, where FILE is the argument. It fails if no program of a
// node comes from this file.
func Version(file string) (string, error) {
	b, err := nodeBuild(file)
	if err != nil {
		return "", err
	}
	return b.version, nil
}

// Source downloads the source of the release that hack/tools/FILE.mod pins, and returns its folder.
func Source(ctx context.Context, file string) (string, error) {
	b, err := nodeBuild(file)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "-modfile="+file+".mod", b.module)
	cmd.Dir, cmd.Env = b.tools, append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download %s %s: %w: %s", b.name, b.version, err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", fmt.Errorf("download %s %s: %w", b.name, b.version, err)
	}
	return module.Dir, nil
}

// nodeBuild returns the build of the release that hack/tools/FILE.mod pins.
func nodeBuild(file string) (*build, error) {
	releases, err := nodeReleases()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(releases, func(u upstream) bool { return u.file == file })
	if i < 0 {
		return nil, fmt.Errorf("no program of a node comes from hack/tools/%s.mod", file)
	}
	return releases[i].newBuild(io.Discard)
}

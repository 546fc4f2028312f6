// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"container.training/useless/hack/cluster"
)

const (
	coreDNS       = "coredns"
	metricsServer = "metrics-server"
	nodeName      = "node"
	apiServerURL  = "https://" + address + ":6443"
	serviceIP     = "10.96.0.1" // of the API server's Service: the first address of cluster.ServiceRange
	podRange      = "10.244.0.0/16"
	pauseImage    = "pause:3.10.1" // also the default image of VirtualMachines
	clusterDomain = "cluster.local"
	runtimeSocket = "/run/containerd/containerd.sock"
	metricsPort   = "4443"
)

// check returns nil if a program is ready. Otherwise it returns the reason.
type check = func(context.Context) error

// program is a program of the node.
type program struct {
	name  string
	args  []string
	check check
}

// administrator is a client with the permissions of cluster-admin.
type administrator struct {
	config *rest.Config
	client kubernetes.Interface
}

func (a *administrator) apiServer(ctx context.Context) error {
	return a.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// kubelet checks that the node is Ready.
func (a *administrator) kubelet(ctx context.Context) error {
	node, err := a.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		switch {
		case condition.Type != corev1.NodeReady:
		case condition.Status == corev1.ConditionTrue:
			return nil
		default:
			return errors.New(condition.Message)
		}
	}
	return errors.New("the kubelet has not reported the condition Ready yet")
}

// listening returns a check. The check succeeds when a program listens on the address.
func listening(network, address string) check {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// started is the check of a program that needs no readiness check.
func started(context.Context) error { return nil }

// programs returns all programs in start order. Their working folder is the node's folder, so their arguments contain
// relative paths.
func programs(n *node, admin *administrator) []program {
	return []program{
		{name: "etcd", check: started, args: cluster.EtcdArgs(false)},
		{name: "kube-apiserver", check: admin.apiServer, args: append(cluster.APIServerArgs(),
			"--advertise-address="+address,
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--kubelet-preferred-address-types=InternalIP",
			"--kubelet-certificate-authority=ca.crt",
			"--kubelet-client-certificate=kubelet-client.crt", "--kubelet-client-key=kubelet-client.key",
		)},
		{name: "kube-controller-manager", check: started, args: append(cluster.ControllerManagerArgs(),
			"--allocate-node-cidrs", "--cluster-cidr="+podRange,
			"--cluster-signing-cert-file=signer.crt", "--cluster-signing-key-file=signer.key",
			"--flex-volume-plugin-dir="+n.path("plugins"),
		)},
		{name: "kube-scheduler", check: started, args: []string{
			"--kubeconfig=kube-scheduler.kubeconfig", "--leader-elect=false", "--secure-port=0",
		}},
		{name: coreDNS, check: listening("tcp", address+":53"), args: []string{"-conf=Corefile"}},
		{name: "containerd", check: listening("unix", runtimeSocket), args: []string{"--config=containerd.toml"}},
		{name: "kube-proxy", check: started, args: []string{
			"--kubeconfig=kube-proxy.kubeconfig", "--hostname-override=" + nodeName, "--cluster-cidr=" + podRange,
			"--proxy-mode=nftables",
			// With 0, kube-proxy does not change these settings. In a network namespace, the maximum is read-only.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
		}},
		{name: "kubelet", check: admin.kubelet, args: []string{
			"--config=kubelet.yaml", "--kubeconfig=kubelet.kubeconfig", "--root-dir=" + n.path("kubelet"),
			"--hostname-override=" + nodeName, "--node-ip=" + address,
		}},
		{name: metricsServer, check: started, args: []string{
			"--kubeconfig=metrics-server.kubeconfig",
			"--authentication-kubeconfig=metrics-server.kubeconfig", "--authorization-kubeconfig=metrics-server.kubeconfig",
			"--bind-address=" + address, "--secure-port=" + metricsPort, "--cert-dir=" + n.path(metricsServer),
			"--kubelet-preferred-address-types=InternalIP",
			"--metric-resolution=10s", "--kubelet-request-timeout=5s", // 10s is the shortest possible interval
		}},
	}
}

// writeFiles writes the configuration files of the programs.
func writeFiles(n *node) (*administrator, error) {
	admin, err := writeIdentities(n)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"certs.d/_default", "cni.d", "pods", "plugins"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return nil, err
		}
	}
	snapshotter, err := snapshotter(n.dir)
	if err != nil {
		return nil, err
	}
	replace := strings.NewReplacer(
		"${SNAPSHOTTER}", snapshotter,
		"${DIR}", n.dir, "${ADDRESS}", address, "${DOMAIN}", clusterDomain, "${REGISTRY}", registryAddress,
		"${METRICS_PORT}", metricsPort, "${PAUSE}", pauseImage, "${SOCKET}", runtimeSocket, "${PODS}", podRange)
	for name, text := range files {
		if err := os.WriteFile(n.path(name), []byte(replace.Replace(text)), 0o644); err != nil {
			return nil, err
		}
	}
	return admin, nil
}

// snapshotter returns the name of containerd's snapshotter. In a container, dir is usually on overlayfs. The kernel
// does not allow a folder on overlayfs as the writable layer of another overlayfs. On overlayfs, the snapshotter is
// native, which copies files.
func snapshotter(dir string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", fmt.Errorf("find the file system type of %s: %w", dir, err)
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native", nil
	}
	return "overlayfs", nil
}

func writeIdentities(n *node) (*administrator, error) {
	ca, config, err := cluster.WriteIdentities(n.dir, apiServerURL, address, serviceIP,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc."+clusterDomain)
	if err != nil {
		return nil, err
	}
	masters := []string{"system:masters"}
	for _, user := range []struct {
		name    string
		subject pkix.Name
	}{
		{"kube-scheduler", pkix.Name{CommonName: "system:kube-scheduler"}},
		{"kube-proxy", pkix.Name{CommonName: "system:kube-proxy"}},
		{"kubelet", pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}}},
		// These users have no roles of their own, so they are cluster administrators.
		{coreDNS, pkix.Name{CommonName: coreDNS, Organization: masters}},
		{metricsServer, pkix.Name{CommonName: metricsServer, Organization: masters}},
	} {
		if _, err := ca.WriteKubeconfig(n.path(user.name+".kubeconfig"), apiServerURL, user.subject); err != nil {
			return nil, err
		}
	}
	err = errors.Join(
		ca.WriteKey(n.dir, "signer"),
		ca.WriteCert(n.dir, "registry", pkix.Name{CommonName: "registry"}, address),
		ca.WriteCert(n.dir, "kubelet", pkix.Name{CommonName: "system:node:" + nodeName}, nodeName, address),
		ca.WriteCert(n.dir, "kubelet-client", pkix.Name{CommonName: "kube-apiserver", Organization: masters}),
	)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &administrator{config: config, client: client}, nil
}

// files are the configuration files, by name.
var files = map[string]string{
	"Corefile": `.:53 {
  bind ${ADDRESS}
  errors
  kubernetes ${DOMAIN} in-addr.arpa {
    kubeconfig coredns.kubeconfig
  }
}
`,
	// Every registry name refers to the node's own registry, so images keep their published names.
	"certs.d/_default/hosts.toml": `server = "https://${REGISTRY}"
[host."https://${REGISTRY}"]
  capabilities = ["pull", "resolve"]
  ca = "${DIR}/ca.crt"
`,
	// Without CAP_SYS_RESOURCE, runc cannot lower an OOM score. With restrict_oom_score_adj, containerd does not try.
	"containerd.toml": `version = 3
root = "${DIR}/containerd"
state = "/run/containerd"
temp = "${DIR}/tmp"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "${SOCKET}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "${SNAPSHOTTER}"
  use_local_image_pull = true # otherwise the transfer service pulls, with its own snapshotter setting
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "${REGISTRY}/${PAUSE}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "${DIR}/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["${DIR}/bin"]
  conf_dir = "${DIR}/cni.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
`,
	"cni.d/10-node.conflist": `{
  "cniVersion": "1.0.0",
  "name": "node",
  "plugins": [{
    "type": "ptp",
    "ipam": {
      "type": "host-local",
      "dataDir": "/run/cni",
      "ranges": [[{"subnet": "10.244.0.0/24"}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }, {
    "type": "portmap",
    "backend": "nftables",
    "capabilities": {"portMappings": true}
  }]
}
`,
	"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: ca.crt}
authorization: {mode: Webhook}
tlsCertFile: kubelet.crt
tlsPrivateKeyFile: kubelet.key
containerRuntimeEndpoint: unix://${SOCKET}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: ["${ADDRESS}"]
clusterDomain: ${DOMAIN}
resolvConf: ""
podLogsDir: ${DIR}/pods
volumePluginDir: ${DIR}/plugins
serializeImagePulls: false
# The user's other files can fill the disk. A full disk must not evict Pods.
imageGCHighThresholdPercent: 100
evictionHard: {nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
`,
	// These objects register metrics-server with the API server.
	metricsManifests: `apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics-server, namespace: kube-system, labels: {kubernetes.io/service-name: metrics-server}}
addressType: IPv4
endpoints: [{addresses: ["${ADDRESS}"]}]
ports: [{name: https, port: ${METRICS_PORT}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  service: {name: metrics-server, namespace: kube-system}
  insecureSkipTLSVerify: true # its certificate is self-signed
  groupPriorityMinimum: 100
  versionPriority: 100
`,
}

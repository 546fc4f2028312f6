// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a Kubernetes control plane from source, as ordinary processes on 127.0.0.1: etcd, kube-apiserver
// and kube-controller-manager. It needs the go command, and neither root nor containers.
package cluster

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// startTimeout is for each of the two steps of a start, on a machine that is busy with other things.
const startTimeout = 2 * time.Minute

// stopGrace is how long a program may take to stop. kube-apiserver would wait a minute for clients that watch; nothing
// of what it could still write matters, as the state goes with it.
const stopGrace = 2 * time.Second

// etcdDir is the folder of etcd's state.
const etcdDir = "etcd"

// etcdSocket is where etcd listens, and etcdURL where kube-apiserver finds it.
const (
	etcdSocket = "etcd.sock:0"
	etcdURL    = "unix://" + etcdSocket
)

// auditLog is where kube-apiserver writes its audit log, if it does.
const auditLog = "audit.log"

// admin is the kubeconfig that may do everything.
const admin = "admin.kubeconfig"

// ServiceRange has the addresses of Services.
const ServiceRange = "10.96.0.0/16"

// Options change how a control plane runs.
type Options struct {
	// UnsafeNoFsync keeps etcd from waiting for the disk. It is faster than any real cluster.
	UnsafeNoFsync bool
	// BeforeControllers is called when the API server is ready and before the controllers start. They know the custom
	// resources that are there by then; later ones the garbage collector and the resource quotas notice only after
	// half a minute.
	BeforeControllers func(context.Context, *rest.Config) error
	// Controllers are those that kube-controller-manager runs, by its own names; DefaultControllers if there are none.
	// The one of ServiceAccounts has to be among them.
	Controllers []string
	// EagerControllers have kube-controller-manager make as many requests as it can. It allows itself twenty a second otherwise.
	EagerControllers bool
	// State is a folder that etcd's state is copied from, such as a copy of what State() names; none for a new cluster.
	// Nobody writes to it meanwhile.
	State string
	// AuditPolicy is the absolute path of a file that says which requests the API server writes to the file that AuditLog()
	// names; none for no such file.
	AuditPolicy string
}

// DefaultControllers are what a control plane needs that has no nodes: all of them together take five seconds to start,
// and most of them need nodes.
var DefaultControllers = []string{
	"clusterrole-aggregation-controller", "deployment-controller", "endpointslice-controller", "garbage-collector-controller",
	"namespace-controller", "replicaset-controller", "resourcequota-controller", "root-ca-certificate-publisher-controller",
	"serviceaccount-controller", "serviceaccount-token-controller",
}

// ControlPlane is a running control plane. Its state is in a temporary folder and ends with it.
type ControlPlane struct {
	// Config is for a client that may do everything (group system:masters), without a limit on its requests.
	Config *rest.Config
	// Kubeconfig is the file that says the same to other programs.
	Kubeconfig string
	// Dir is the temporary folder.
	Dir string
	// Programs are what runs.
	Programs Programs

	processes []*Process                  // in the order of their start
	ready     func(context.Context) error // asks the API server
	socket    int                         // holds the port
	stop      sync.Once
	stopErr   error
}

// Start starts a control plane and returns when it can be used: the API server is ready, and the controllers have made
// the ServiceAccount of the namespace default. A start that fails leaves nothing behind; its error has the end of the
// log of the program that failed.
func Start(ctx context.Context, programs Programs, options Options) (*ControlPlane, error) {
	dir, err := os.MkdirTemp("", "useless-cluster-")
	if err != nil {
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	port, socket, err := holdPort()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cp := &ControlPlane{Dir: dir, Programs: programs, Kubeconfig: filepath.Join(dir, admin), socket: socket}
	if err := cp.start(ctx, port, options); err != nil {
		return nil, errors.Join(fmt.Errorf("start a control plane: %w", err), cp.Stop())
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context, port int, options Options) error {
	var err error
	if _, cp.Config, err = WriteIdentities(cp.Dir, fmt.Sprintf("https://127.0.0.1:%d", port)); err != nil {
		return err
	}
	if options.State != "" {
		if err := os.CopyFS(cp.State(), os.DirFS(options.State)); err != nil {
			return fmt.Errorf("copy etcd's state: %w", err)
		}
	}
	if err := cp.run(etcd, EtcdArgs(options.UnsafeNoFsync)); err != nil {
		return err
	}
	if err := cp.run(apiServer, append(localAPIServerArgs(port), auditArgs(options.AuditPolicy)...)); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cp.Config)
	if err != nil {
		return err
	}
	cp.ready = func(ctx context.Context) error { return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() }
	if err := Await(ctx, cp.processes, cp.ready); err != nil {
		return err
	}
	if options.BeforeControllers != nil {
		if err := options.BeforeControllers(ctx, cp.Config); err != nil {
			return err
		}
	}
	if err := cp.run(controllerManager, localControllerManagerArgs(options)); err != nil {
		return err
	}
	return Await(ctx, cp.processes, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// WriteIdentities writes what the programs of a control plane, which is at url, know each other by into the folder dir:
// the certificates and kubeconfigs of one authority. The returned configuration may do everything, as may
// admin.kubeconfig. The hosts are names and addresses of the API server.
func WriteIdentities(dir, url string, hosts ...string) (*Authority, *rest.Config, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca.pem, 0o600); err != nil {
		return nil, nil, err
	}
	_, tokenKey, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "service-accounts.key"), tokenKey, 0o600); err != nil {
		return nil, nil, err
	}
	hosts = append(hosts, "localhost", "127.0.0.1", "kubernetes.default.svc")
	err = errors.Join(
		ca.WriteCert(dir, apiServer, pkix.Name{CommonName: apiServer}, hosts...),
		ca.WriteCert(dir, "front-proxy", pkix.Name{CommonName: "front-proxy"}),
	)
	if err != nil {
		return nil, nil, err
	}
	config, err := ca.WriteKubeconfig(filepath.Join(dir, admin), url, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}})
	if err != nil {
		return nil, nil, err
	}
	_, err = ca.WriteKubeconfig(filepath.Join(dir, controllerManager+".kubeconfig"), url, pkix.Name{CommonName: "system:" + controllerManager})
	return ca, config, err
}

// EtcdArgs are the arguments of etcd. As those of the others they name files in the working folder.
func EtcdArgs(unsafeNoFsync bool) []string {
	// Sockets in the folder, which is private, need neither free ports nor certificates. Their paths are relative because
	// the system limits their length, and have a colon because etcd insists on it.
	const peer = "unix://peer.sock:0"
	return []string{
		"--data-dir=" + etcdDir,
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		"--unsafe-no-fsync=" + strconv.FormatBool(unsafeNoFsync),
	}
}

func localAPIServerArgs(port int) []string {
	return append(APIServerArgs(),
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--permit-port-sharing",
		// Nothing in here reaches the API server through its Service, and an endpoint may not be 127.0.0.1.
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--authorization-mode=RBAC",
	)
}

// auditArgs make kube-apiserver write an audit log by a policy, if there is one.
func auditArgs(policy string) []string {
	if policy == "" {
		return nil
	}
	// One file, whatever its size, for who reads it meanwhile.
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + auditLog, "--audit-log-maxsize=0"}
}

// APIServerArgs are those arguments of kube-apiserver that do not depend on where it is and on who uses it.
func APIServerArgs() []string {
	return []string{
		"--etcd-servers=" + etcdURL,
		"--service-cluster-ip-range=" + ServiceRange,
		"--tls-cert-file=" + apiServer + ".crt", "--tls-private-key-file=" + apiServer + ".key",
		"--client-ca-file=ca.crt",
		"--allow-privileged",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=service-accounts.key", "--service-account-signing-key-file=service-accounts.key",
		"--requestheader-client-ca-file=ca.crt", "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=front-proxy.crt", "--proxy-client-key-file=front-proxy.key",
	}
}

func localControllerManagerArgs(options Options) []string {
	controllers := options.Controllers
	if controllers == nil {
		controllers = DefaultControllers
	}
	args := append(ControllerManagerArgs(), "--controllers="+strings.Join(controllers, ","))
	if options.EagerControllers {
		args = append(args, "--kube-api-qps=1000", "--kube-api-burst=1000")
	}
	return args
}

// ControllerManagerArgs are the arguments of a kube-controller-manager that runs the default controllers.
func ControllerManagerArgs() []string {
	return []string{
		"--kubeconfig=" + controllerManager + ".kubeconfig",
		"--secure-port=0", // serves nothing
		"--leader-elect=false",
		"--use-service-account-credentials",
		"--service-account-private-key-file=service-accounts.key", "--root-ca-file=ca.crt",
	}
}

func (cp *ControlPlane) run(name string, args []string) error {
	p, err := StartProcess(Command{Name: name, Path: cp.Programs.Path(name), Args: args, Dir: cp.Dir, Log: cp.log(name)})
	if err != nil {
		return err
	}
	cp.processes = append(cp.processes, p)
	return nil
}

// RestartAPIServer kills kube-apiserver, starts it again and returns when it is ready. Nobody may stop the control plane
// meanwhile.
func (cp *ControlPlane) RestartAPIServer(ctx context.Context) error {
	started, err := cp.restart(apiServer)
	if err != nil {
		return err
	}
	if err := Await(ctx, started, cp.ready); err != nil {
		return fmt.Errorf("restart %s: %w", apiServer, err)
	}
	return nil
}

// RestartControllers kills kube-controller-manager and starts it again, which then looks at everything anew. Nobody may stop
// the control plane meanwhile.
func (cp *ControlPlane) RestartControllers() error {
	_, err := cp.restart(controllerManager)
	return err
}

// restart kills a program, starts it again, and returns it as the last of those that are started no later than it.
func (cp *ControlPlane) restart(name string) (started []*Process, err error) {
	i := slices.IndexFunc(cp.processes, func(p *Process) bool { return p.name == name })
	old := cp.processes[i]
	old.Kill()
	p, err := StartProcess(Command{Name: name, Path: old.cmd.Path, Args: old.cmd.Args[1:], Dir: cp.Dir, Log: old.log})
	if err != nil {
		return nil, fmt.Errorf("restart %s: %w", name, err)
	}
	cp.processes[i] = p
	return cp.processes[:i+1], nil
}

// Etcd is a client of etcd, which also answers in JSON: POST http://etcd/v3/kv/range, for example.
func (cp *ControlPlane) Etcd() *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		dir, err := os.Open(cp.Dir)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		return (&net.Dialer{}).DialContext(ctx, "unix", shortPath(dir, etcdSocket))
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

// State is the folder with etcd's state.
func (cp *ControlPlane) State() string { return filepath.Join(cp.Dir, etcdDir) }

// AuditLog is the file of the API server's audit log, a line for each event.
func (cp *ControlPlane) AuditLog() string { return filepath.Join(cp.Dir, auditLog) }

// Processes are the control plane's programs, in the order of their start.
func (cp *ControlPlane) Processes() []*Process { return slices.Clone(cp.processes) }

// Await waits until the last of the processes does what check asks of it, or any of them ends.
func Await(ctx context.Context, processes []*Process, check func(context.Context) error) error {
	var unready error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		for _, p := range processes {
			if isDone(p.done) {
				return false, p.ended()
			}
		}
		unready = check(ctx)
		return unready == nil, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		last := processes[len(processes)-1]
		return fmt.Errorf("%s is not ready after %s: %w; the end of its log:\n%s", last.name, startTimeout, unready, last.quoteLog())
	}
	return err
}

// Stop ends the programs, waits for their end and removes the temporary folder. It may be called more than once. Whoever
// has clients running stops them first: kube-apiserver waits for them, and then has to be killed.
func (cp *ControlPlane) Stop() error {
	cp.stop.Do(func() {
		for _, p := range slices.Backward(cp.processes) {
			p.Stop(stopGrace)
		}
		_ = unix.Close(cp.socket)
		if err := os.RemoveAll(cp.Dir); err != nil {
			cp.stopErr = fmt.Errorf("stop a control plane: %w", err)
		}
	})
	return cp.stopErr
}

// Logs is the end of what a program (etcd, kube-apiserver or kube-controller-manager) has written, at most 64 KiB.
func (cp *ControlPlane) Logs(name string) string { return tail(cp.log(name), logTail) }

// Kubectl is a kubectl command that may do everything. It ignores the user's kuberc file, which can change the defaults of
// flags.
func (cp *ControlPlane) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, cp.Programs.Path(kubectl), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cp.Kubeconfig, "KUBECACHEDIR="+filepath.Join(cp.Dir, "kubectl"), "KUBERC=off")
	return cmd
}

func (cp *ControlPlane) log(name string) string { return filepath.Join(cp.Dir, name+".log") }

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a Kubernetes control plane: etcd, kube-apiserver and kube-controller-manager. It builds them
// from source with the go command, unless KUBEBUILDER_ASSETS names a folder with them. They are ordinary processes, and
// need neither root nor containers. Only kube-apiserver listens on a TCP port, and only on 127.0.0.1.
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

// startTimeout is the time limit of Await. It is long enough for a start at a low priority on a busy computer. If a
// program ends, the wait ends at once.
const startTimeout = 5 * time.Minute

// stopGrace is the time between SIGTERM and SIGKILL. kube-apiserver would wait up to a minute for clients with open
// watches. There is no need to wait, because its state is deleted.
const stopGrace = 2 * time.Second

// etcdDir is the folder of etcd's state.
const etcdDir = "etcd"

// etcdSocket is the socket that etcd listens on. kube-apiserver connects to etcdURL.
const (
	etcdSocket = "etcd.sock:0"
	etcdURL    = "unix://" + etcdSocket
)

// auditLog is the file of kube-apiserver's audit log.
const auditLog = "audit.log"

// admin is the kubeconfig file of a cluster administrator.
const admin = "admin.kubeconfig"

// ServiceRange is the IP range of Services.
const ServiceRange = "10.96.0.0/16"

// Options configure a control plane.
type Options struct {
	// Disposable is for tests. etcd does not wait for the disk, and all programs have the environment LessGC. So the
	// control plane needs less processor time and is faster. If the computer crashes, the state can be lost.
	Disposable bool
	// BeforeControllers is called when the API server is ready, before the controllers start. Install
	// CustomResourceDefinitions in it. If they are installed later, the garbage collector and the resource quota
	// controller notice them up to half a minute late.
	BeforeControllers func(context.Context, *rest.Config) error
	// Controllers are the controllers of kube-controller-manager, by their names in the flag --controllers. nil means
	// DefaultControllers. The list must contain serviceaccount-controller.
	Controllers []string
	// EagerControllers raises the request limit of kube-controller-manager to 1000 per second. The default is 20.
	EagerControllers bool
	// State is a folder with etcd's state, such as State() of another control plane. Start copies the folder. During
	// the copy, no process may write to it. Empty means a new cluster.
	State string
	// AuditPolicy is the absolute path of an audit policy file. The API server writes the requests that the policy
	// selects to the file AuditLog(). Empty means no audit log.
	AuditPolicy string
}

// DefaultControllers are the controllers that a control plane without nodes needs. The start of all controllers would
// take five seconds, and most of them need nodes.
var DefaultControllers = []string{
	"clusterrole-aggregation-controller", "deployment-controller", "endpointslice-controller",
	"garbage-collector-controller",
	"namespace-controller", "replicaset-controller", "resourcequota-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller", "serviceaccount-token-controller",
}

// LessGC is an environment that makes a Go program collect garbage less often. kube-apiserver then needs about a fifth
// less processor time, but more memory. Near GOMEMLIMIT, Go collects garbage more often again.
var LessGC = []string{"GOGC=400", "GOMEMLIMIT=1GiB"}

// noMutationDetector disables client-go's mutation detector, which compares all cached objects every second. Tests
// enable the detector for the operator. Without this variable, the programs would inherit that setting.
const noMutationDetector = "KUBE_CACHE_MUTATION_DETECTOR=false"

// ControlPlane is a running control plane. Its state is in a temporary folder, which Stop removes.
type ControlPlane struct {
	// Config is the configuration of a cluster administrator (group system:masters), without a client-side rate
	// limit.
	Config *rest.Config
	// Kubeconfig is the path of a kubeconfig file with the same content as Config.
	Kubeconfig string
	// Dir is the temporary folder.
	Dir string
	// Programs is the folder of the programs.
	Programs Programs

	env       []string                    // additional environment variables of the programs
	processes []*Process                  // in the order of their start
	ready     func(context.Context) error // checks the API server's /readyz
	socket    int                         // reserves the port of the API server
	stop      sync.Once
	stopErr   error
}

// Start starts a control plane and returns when it is usable: the API server is ready, and the ServiceAccount
// default/default exists. If the start fails, Start leaves no process and no file. If a program has failed, the error
// contains the end of its log.
func Start(ctx context.Context, programs Programs, options Options) (*ControlPlane, error) {
	dir, err := os.MkdirTemp("", "useless-cluster-")
	if err != nil {
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	port, socket, err := holdPort()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cp := &ControlPlane{
		Dir: dir, Programs: programs, Kubeconfig: filepath.Join(dir, admin), socket: socket,
		env: []string{noMutationDetector},
	}
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
	if options.Disposable {
		cp.env = append(cp.env, LessGC...)
	}
	if err := cp.run(etcd, EtcdArgs(options.Disposable)); err != nil {
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

// WriteIdentities writes the certificates, keys and kubeconfigs of a control plane at url into the folder dir. One
// authority signs all certificates. hosts are additional names and addresses of the API server. The returned
// configuration and admin.kubeconfig belong to a cluster administrator.
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
	config, err := ca.WriteKubeconfig(filepath.Join(dir, admin), url,
		pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}})
	if err != nil {
		return nil, nil, err
	}
	_, err = ca.WriteKubeconfig(filepath.Join(dir, controllerManager+".kubeconfig"), url,
		pkix.Name{CommonName: "system:" + controllerManager})
	return ca, config, err
}

// EtcdArgs returns the arguments of etcd. The arguments of all programs contain paths relative to the working folder.
// With unsafeNoFsync, etcd does not wait for the disk.
func EtcdArgs(unsafeNoFsync bool) []string {
	// Unix sockets need neither free ports nor certificates. The paths are relative, because the system limits the
	// length of a socket's path. They contain a colon, because etcd requires it.
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
		// No client in the control plane uses the API server's Service. The Service has no endpoint, because Kubernetes
		// does not accept 127.0.0.1 as an endpoint.
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--authorization-mode=RBAC",
	)
}

// auditArgs returns the arguments of kube-apiserver for an audit log, or nil if policy is empty.
func auditArgs(policy string) []string {
	if policy == "" {
		return nil
	}
	// A test reads the file while the API server writes to it. Since Kubernetes 1.36, 0 disables the rotation. Before,
	// the API server rotates the log at 100 MB.
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + auditLog, "--audit-log-maxsize=0"}
}

// APIServerArgs returns the common arguments of kube-apiserver. The caller adds the address and the authorization.
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

// ControllerManagerArgs returns the arguments of kube-controller-manager without --controllers. Without --controllers,
// kube-controller-manager runs more controllers than DefaultControllers.
func ControllerManagerArgs() []string {
	return []string{
		"--kubeconfig=" + controllerManager + ".kubeconfig",
		"--secure-port=0", // no HTTPS server
		"--leader-elect=false",
		"--use-service-account-credentials",
		"--service-account-private-key-file=service-accounts.key", "--root-ca-file=ca.crt",
	}
}

func (cp *ControlPlane) run(name string, args []string) error {
	p, err := StartProcess(Command{
		Name: name, Path: cp.Programs.Path(name), Args: args, Env: cp.env, Dir: cp.Dir, Log: cp.log(name),
	})
	if err != nil {
		return err
	}
	cp.processes = append(cp.processes, p)
	return nil
}

// RestartAPIServer kills kube-apiserver, starts it again, and returns when it is ready. Stop must not run at the same
// time.
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

// RestartControllers kills kube-controller-manager and starts it again. The controllers then process all objects again.
// Stop must not run at the same time.
func (cp *ControlPlane) RestartControllers() error {
	_, err := cp.restart(controllerManager)
	return err
}

// restart kills a program and starts it again. It returns the processes in start order, up to and including the new
// one.
func (cp *ControlPlane) restart(name string) (started []*Process, err error) {
	i := slices.IndexFunc(cp.processes, func(p *Process) bool { return p.name == name })
	old := cp.processes[i]
	old.Kill()
	p, err := StartProcess(Command{
		Name: name, Path: old.cmd.Path, Args: old.cmd.Args[1:], Env: cp.env, Dir: cp.Dir, Log: old.log,
	})
	if err != nil {
		return nil, fmt.Errorf("restart %s: %w", name, err)
	}
	cp.processes[i] = p
	return cp.processes[:i+1], nil
}

// Etcd returns an HTTP client for etcd's JSON gateway, for example POST http://etcd/v3/kv/range.
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

// State returns the folder of etcd's state.
func (cp *ControlPlane) State() string { return filepath.Join(cp.Dir, etcdDir) }

// AuditLog returns the path of the API server's audit log. The log has one line for each event.
func (cp *ControlPlane) AuditLog() string { return filepath.Join(cp.Dir, auditLog) }

// Processes returns the control plane's programs in start order.
func (cp *ControlPlane) Processes() []*Process { return slices.Clone(cp.processes) }

// Await waits until check succeeds. It fails if one of the processes ends, after startTimeout, or when ctx is done. The
// error quotes the log of the process that ended or, after startTimeout, of the last process in the list.
func Await(ctx context.Context, processes []*Process, check func(context.Context) error) error {
	var lastErr error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		for _, p := range processes {
			if isDone(p.done) {
				return false, p.ended()
			}
		}
		lastErr = check(ctx)
		return lastErr == nil, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		last := processes[len(processes)-1]
		return fmt.Errorf("%s is not ready after %s: %w; the end of its log:\n%s",
			last.name, startTimeout, lastErr, last.quoteLog())
	}
	return err
}

// Stop ends the programs, waits for their end and removes the temporary folder. It may be called several times. Close
// open watches first. Otherwise kube-apiserver waits for them until Stop kills it.
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

// Logs returns the last 64 KiB of the log of etcd, kube-apiserver or kube-controller-manager.
func (cp *ControlPlane) Logs(name string) string { return tail(cp.log(name), logTail) }

// Kubectl returns a kubectl command with the permissions of a cluster administrator. It ignores the user's kuberc file,
// because that file can change the defaults of flags.
func (cp *ControlPlane) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, cp.Programs.Path(kubectl), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cp.Kubeconfig,
		"KUBECACHEDIR="+filepath.Join(cp.Dir, "kubectl"), "KUBERC=off")
	return cmd
}

func (cp *ControlPlane) log(name string) string { return filepath.Join(cp.Dir, name+".log") }

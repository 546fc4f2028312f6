// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/test/internal/executable"
)

const (
	repository = "../.."

	operatorNamespace = "useless-system"
	operatorAccount   = "useless-controller-manager"

	// patience is the time limit for operations. On an idle computer they are fast, but on a busy computer they may be
	// slow.
	patience = 2 * time.Minute
)

// A world is a control plane with the operator installed. Two proxies connect the operator and the API server. Users
// connect directly, so that they reach the API server during network faults.
type world struct {
	plane     *cluster.ControlPlane
	admin     client.WithWatch // cluster-admin
	manifests []*unstructured.Unstructured
	server    cluster.WebhookServer

	api      *proxy // from the operator to the API server
	webhooks *proxy // from the API server to the operator
	certs    string // folder of the webhooks' certificate
	manager  string // the operator's program
	key      string // path of a kubeconfig that connects through the proxy api as the operator's ServiceAccount
	logs     string // folder of the logs
	replicas []*replica
	starts   int // number of starts of all replicas
}

// newWorld starts a control plane and installs the operator's manifests. It starts no replica of the operator.
func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := t.Context()
	w := &world{certs: t.TempDir(), logs: t.ArtifactDir()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	programs, err := cluster.Build(ctx, os.Stderr)
	must(err)
	w.manager, err = executable.BuildManager()
	must(err)
	w.manifests, err = cluster.ReadManifests(filepath.Join(repository, "dist", "install.yaml"))
	must(err)
	w.webhooks, err = startProxy()
	must(err)
	t.Cleanup(w.webhooks.stop)
	ca, err := cluster.ServingCert(w.certs)
	must(err)
	w.server = cluster.WebhookServer{URL: "https://" + w.webhooks.address(), CA: ca}
	policy, err := filepath.Abs(filepath.Join(repository, "test", "internal", "invariants", "audit-policy.yaml"))
	must(err)
	w.plane, err = cluster.Start(ctx, programs, cluster.Options{
		AuditPolicy: policy,
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			return cluster.Install(ctx, config, w.manifests, w.server)
		},
	})
	must(err)
	t.Cleanup(func() {
		end := []byte(w.plane.Logs("kube-apiserver"))
		if err := errors.Join(os.WriteFile(filepath.Join(w.logs, "kube-apiserver.log"), end, 0o644), w.plane.Stop()); err != nil {
			t.Error(err)
		}
	})
	config := rest.CopyConfig(w.plane.Config)
	config.WarningHandler = rest.NoWarnings{} // v1alpha1 is deprecated
	w.admin, err = client.NewWithWatch(config, client.Options{Scheme: newScheme()})
	must(err)
	w.api, err = startProxy()
	must(err)
	t.Cleanup(w.api.stop)
	w.api.to(strings.TrimPrefix(w.plane.Config.Host, "https://"))
	w.key, err = w.keyThroughProxy(ctx)
	must(err)
	t.Cleanup(func() { w.stopReplicas(t) })
	return w
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, cloudnativev1alpha1.AddToScheme, v1alpha1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	log.SetLogger(logr.Discard()) // clients also return each error that they log
	return m.Run()
}

func (w *world) keyThroughProxy(ctx context.Context) (string, error) {
	path, err := w.plane.ServiceAccountKubeconfig(ctx, operatorNamespace, operatorAccount)
	if err != nil {
		return "", err
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return "", err
	}
	for _, server := range config.Clusters {
		server.Server = "https://" + w.api.address()
	}
	return path, clientcmd.WriteToFile(*config, path)
}

// A replica is a process of the operator. If it exits, the test restarts it, as a kubelet does.
type replica struct {
	*cluster.Process

	world                   *world
	command                 cluster.Command
	webhooks, probes, gauge string // addresses of the webhooks, the health probes and the metrics
	starts                  int
}

// addReplica starts another replica.
func (w *world) addReplica(args ...string) (*replica, error) {
	name := fmt.Sprintf("replica-%d", len(w.replicas)+1)
	r := &replica{world: w}
	for _, address := range []*string{&r.webhooks, &r.probes, &r.gauge} {
		port, err := cluster.FreePort()
		if err != nil {
			return nil, err
		}
		*address = fmt.Sprintf("127.0.0.1:%d", port)
	}
	_, port, _ := strings.Cut(r.webhooks, ":")
	r.command = cluster.Command{
		Name: name, Log: filepath.Join(w.logs, name+".log"),
		Args: append([]string{
			"--kubeconfig=" + w.key, "--namespace=" + operatorNamespace,
			"--webhook-host=127.0.0.1", "--webhook-port=" + port, "--webhook-cert-dir=" + w.certs,
			"--metrics-secure=false", "--metrics-bind-address=" + r.gauge, "--health-probe-bind-address=" + r.probes,
		}, args...),
	}
	w.replicas = append(w.replicas, r)
	return r, r.start()
}

func (r *replica) start() (err error) {
	r.starts++
	r.world.starts++
	name := fmt.Sprintf("%s.%d", r.command.Name, r.world.starts)
	if r.command.Path, err = executable.Name(r.world.manager, r.world.plane.Dir, name); err != nil {
		return err
	}
	r.Process, err = cluster.StartProcess(r.command)
	return err
}

// revive restarts a replica that has exited.
func (r *replica) revive() error {
	select {
	case <-r.Done():
		return r.start()
	default:
		return nil
	}
}

// awaitReady waits until a replica is ready, and directs the API server's webhook calls to it.
func (r *replica) awaitReady(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		_, err := r.fetch(ctx, r.probes, "/readyz")
		return err == nil, r.revive()
	})
	if err != nil {
		return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", r.Name(), err, r.Log())
	}
	r.world.webhooks.to(r.webhooks)
	return nil
}

// leads reports whether the replica is the leader.
func (r *replica) leads(ctx context.Context) bool {
	text, err := r.fetch(ctx, r.gauge, "/metrics")
	return err == nil && strings.Contains(text, `leader_election_master_status{name="leader.useless.container.training"} 1`)
}

func (r *replica) fetch(ctx context.Context, address, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}

// stopReplicas kills all replicas and checks their logs for data races and panics.
func (w *world) stopReplicas(t *testing.T) {
	t.Helper()
	for _, r := range w.replicas {
		r.Kill() // Stop would wait for a suspended replica
		text, err := os.ReadFile(r.command.Log)
		if err != nil {
			t.Error(err)
		}
		for _, trouble := range []string{"DATA RACE", "panic"} {
			if _, after, found := strings.Cut(string(text), trouble); found {
				t.Errorf("%s: %s%.3000s", r.Name(), trouble, after)
			}
		}
		if t.Failed() {
			t.Logf("%s was started %d times; the end of its log:\n%s", r.Name(), r.starts, r.Log())
		}
	}
	w.replicas = nil
}

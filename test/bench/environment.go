// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
)

// installedLimit and containerLimit are GOMEMLIMIT and the container's memory limit in config/manager, in bytes.
const installedLimit, containerLimit = 200 << 20, 256 << 20

// An environment is a control plane with the CustomResourceDefinitions, permissions and webhooks of a revision. Its
// etcd uses fsync.
type environment struct {
	plane *cluster.ControlPlane
	admin client.WithWatch // a cluster administrator
	raw   rest.Interface   // a client with the same permissions, for requests to a path
	key   string           // path of a kubeconfig for the operator's ServiceAccount
	rev   *revision
	port  int    // port of the webhooks
	certs string // folder of the webhooks' certificate

	memoryLimit int // GOMEMLIMIT in bytes

	processes []*cluster.Process // processes other than the control plane's
}

// newEnvironment starts a control plane. A separate process serves the webhooks, so that the measured programs use no
// CPU time for them. Only in the experiment large, the measured operator serves the webhooks itself.
func newEnvironment(ctx context.Context, programs cluster.Programs, rev *revision) (*environment, error) {
	manifests, err := cluster.ReadManifests(filepath.Join(rev.dir, "dist", "install.yaml"))
	if err != nil {
		return nil, err
	}
	e := &environment{rev: rev, memoryLimit: installedLimit}
	if e.port, err = cluster.FreePort(); err != nil {
		return nil, err
	}
	if e.certs, err = os.MkdirTemp("", "useless-bench-"); err != nil {
		return nil, err
	}
	ca, err := cluster.ServingCert(e.certs)
	if err != nil {
		return nil, errors.Join(err, e.stop())
	}
	server := cluster.WebhookServer{URL: fmt.Sprintf("https://127.0.0.1:%d", e.port), CA: ca}
	e.plane, err = cluster.Start(ctx, programs, cluster.Options{
		Controllers: withoutDeployments(),
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			return cluster.Install(ctx, config, manifests, server)
		},
	})
	if err == nil {
		err = e.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, e.stop())
	}
	return e, nil
}

// withoutDeployments returns the default controllers without the two that create Pods for Deployments. In the experiment
// schedules, they would use processor time.
func withoutDeployments() []string {
	return slices.DeleteFunc(slices.Clone(cluster.DefaultControllers), func(name string) bool {
		return name == "replicaset-controller" || name == "deployment-controller"
	})
}

// connect creates the clients. It also starts an operator that serves the webhooks. This operator runs no controllers,
// because its flag --controllers has no *.
func (e *environment) connect(ctx context.Context) (err error) {
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(clientgoscheme.AddToScheme, v1beta1.AddToScheme)
	if err := builder.AddToScheme(scheme); err != nil {
		return err
	}
	if e.admin, err = client.NewWithWatch(e.plane.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(e.plane.Config)
	if err != nil {
		return err
	}
	e.raw = clientset.RESTClient()
	e.key, err = e.plane.ServiceAccountKubeconfig(ctx, "useless-system", "useless-controller-manager")
	if err != nil {
		return err
	}
	p, err := e.startManager("converter", "--controllers=-machine", "--webhooks")
	if err != nil {
		return err
	}
	return p.awaitReady(ctx)
}

// A process is a running operator, or another controller.
type process struct {
	*cluster.Process

	metrics, ready string // URLs of an operator; empty for another controller
}

// startManager starts the operator of the environment's revision, with the operator's ServiceAccount. Later flags
// override earlier ones, so args can change the defaults. By default, the operator serves no webhooks.
func (e *environment) startManager(name string, args ...string) (*process, error) {
	metricsPort, err := cluster.FreePort()
	if err != nil {
		return nil, err
	}
	probePort, err := cluster.FreePort()
	if err != nil {
		return nil, err
	}
	all := append([]string{
		"--kubeconfig=" + e.key, "--namespace=useless-system", "--max-switches=1000", "--webhooks=false",
		"--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", e.port), "--webhook-cert-dir=" + e.certs,
		"--metrics-secure=false", fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", metricsPort),
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", probePort),
	}, args...)
	p, err := e.run(name, e.rev.manager, all...)
	p.metrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort)
	p.ready = fmt.Sprintf("http://127.0.0.1:%d/readyz", probePort)
	return p, err
}

// awaitReady waits until the operator is ready.
func (p *process) awaitReady(ctx context.Context) error {
	return cluster.Await(ctx, []*cluster.Process{p.Process}, func(ctx context.Context) error {
		_, err := fetch(ctx, p.ready)
		return err
	})
}

// run starts a program. The program ends with the environment.
func (e *environment) run(name, path string, args ...string) (*process, error) {
	p, err := cluster.StartProcess(cluster.Command{
		Name: name, Path: path, Args: args, Dir: e.plane.Dir, Log: filepath.Join(e.plane.Dir, name+".log"),
		Env: []string{fmt.Sprintf("GOMEMLIMIT=%d", e.memoryLimit)}, // as in config/manager
	})
	if err == nil {
		e.processes = append(e.processes, p)
	}
	return &process{Process: p}, err
}

// all returns all processes of the environment, including the control plane's.
func (e *environment) all() []*cluster.Process { return append(e.plane.Processes(), e.processes...) }

// killProcesses ends all processes except the control plane.
func (e *environment) killProcesses() {
	for _, p := range e.processes {
		p.Kill()
	}
	e.processes = nil
}

// stop ends all processes and removes their files.
func (e *environment) stop() error {
	var err error
	if e.plane != nil {
		for _, p := range e.all() {
			p.Kill() // a suspended process does not react to SIGTERM
		}
		err = e.plane.Stop()
	}
	return errors.Join(err, os.RemoveAll(e.certs))
}

// awaitQuiet waits until the processes of all environments are almost idle: for half a second, they use at most a tenth
// of a core for each environment. API servers need this time, because they fill their watch caches after a change.
func awaitQuiet(ctx context.Context, environments ...*environment) error {
	const interval, most = 500 * time.Millisecond, 0.05 // most is in CPU seconds
	for before := math.Inf(-1); ; {
		now := 0.
		for _, e := range environments {
			for _, p := range e.all() {
				seconds, err := cpuSeconds(p)
				if err != nil {
					return err
				}
				now += seconds
			}
		}
		if now-before <= most*float64(len(environments)) {
			return nil
		}
		before = now
		if err := pause(ctx, interval); err != nil {
			return err
		}
	}
}

// pause waits for d. If the context ends earlier, pause returns the context's error.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

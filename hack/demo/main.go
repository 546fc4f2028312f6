// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo runs the operator on its own control plane. It builds missing programs, installs the operator as users
// do, and runs it with the RBAC permissions of its ServiceAccount. It applies the samples, serves a web page, and shows
// the state until Ctrl-C. Without a terminal, it ends when every sample is at rest. A sample is at rest when the
// operator has nothing left to do for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"container.training/useless/hack/cluster"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/hack/demo/page"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/podcount"
)

// local is the folder for the operator's log. While the demo runs, it also contains the files that users need in a
// second terminal.
const local = ".local"

const operatorNamespace = "useless-system"

// The annotation that the controller ingress sets.
const annotationKey, annotationValue = "foo", "bar"

// startTimeout is the time limit for the start of the operator. It is long enough for a busy computer.
const startTimeout = time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log.SetLogger(logr.Discard()) // logs would disturb the screen
	klog.SetLogger(logr.Discard())
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	programs, err := cluster.Build(ctx, os.Stdout)
	if err != nil {
		return err
	}
	d := &demo{root: root, programs: programs}
	defer func() { err = errors.Join(err, d.stop()) }()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"building the operator", d.buildOperator},
		{"starting Kubernetes", d.startKubernetes},
		{"starting the operator", d.startOperator},
		{"applying the samples", d.applySamples},
		{"starting the page", d.startPage},
	} {
		fmt.Println(step.name)
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	if term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("CI") != "true" {
		return d.draw(ctx)
	}
	return d.report(ctx)
}

// demo holds the parts of a running demo.
type demo struct {
	root        string
	programs    cluster.Programs
	plane       *cluster.ControlPlane
	node        *standin.Node
	stopNode    func()
	page        *page.Page
	stopPage    func()
	webhookPort int
	operator    *cluster.Process
	samples     []*unstructured.Unstructured
}

// path returns the path of a file in the source tree.
func (d *demo) path(elements ...string) string {
	return filepath.Join(d.root, filepath.Join(elements...))
}

func (d *demo) buildOperator(ctx context.Context) error {
	// Without -buildvcs=false, go build runs git, which refuses a clone that belongs to another user.
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", d.path("bin", "manager"), "./cmd")
	cmd.Dir, cmd.Stdout, cmd.Stderr = d.root, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the operator: %w", err)
	}
	return nil
}

// startKubernetes starts a control plane with the operator's manifests. The operator itself does not run yet.
func (d *demo) startKubernetes(ctx context.Context) error {
	manifests, err := d.manifests()
	if err != nil {
		return err
	}
	ca, err := cluster.ServingCert(d.path(local, "webhook"))
	if err != nil {
		return err
	}
	if d.webhookPort, err = cluster.FreePort(); err != nil {
		return err
	}
	server := cluster.WebhookServer{URL: fmt.Sprintf("https://127.0.0.1:%d", d.webhookPort), CA: ca}
	d.plane, err = cluster.Start(ctx, d.programs, cluster.Options{
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			return cluster.Install(ctx, config, manifests, server)
		},
	})
	if err != nil {
		return err
	}
	d.plane.Config.WarningHandler = rest.NoWarnings{} // some samples use the deprecated version on purpose
	ctx, d.stopNode = context.WithCancel(ctx)
	if d.node, err = standin.Start(ctx, d.plane.Config); err != nil {
		return err
	}
	return errors.Join(
		link(d.plane.Kubeconfig, d.path(local, "kubeconfig")),
		link(d.programs.Path("kubectl"), d.path(local, "kubectl")),
	)
}

// manifests returns the operator's manifests. They include the RBAC permissions of the controllers that are disabled by
// default.
func (d *demo) manifests() (manifests []*unstructured.Unstructured, err error) {
	permissions := func(name, file string) string {
		return d.path("config", "components", name, "permissions", file)
	}
	files := []string{
		d.path("dist", "install.yaml"),
		permissions(podcount.Name, "role.yaml"), permissions(podcount.Name, "bindings.yaml"),
		permissions(ingress.Name, "role.yaml"), permissions(ingress.Name, "bindings.yaml"),
	}
	for _, file := range files {
		more, err := cluster.ReadManifests(file)
		if err != nil {
			return nil, err
		}
		manifests = append(manifests, more...)
	}
	return manifests, nil
}

// link creates a symbolic link. It replaces a link that a killed demo has left.
func link(target, path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

// startOperator runs the operator with the permissions of its ServiceAccount, and waits until it is ready.
func (d *demo) startOperator(ctx context.Context) error {
	kubeconfig, err := d.plane.ServiceAccountKubeconfig(ctx, operatorNamespace, "useless-controller-manager")
	if err != nil {
		return err
	}
	healthPort, err := cluster.FreePort()
	if err != nil {
		return err
	}
	log := d.path(local, "operator.log")
	if err := os.RemoveAll(log); err != nil {
		return err
	}
	d.operator, err = cluster.StartProcess(cluster.Command{
		Name: "the operator",
		Path: d.path("bin", "manager"),
		Args: []string{
			"--kubeconfig=" + kubeconfig,
			"--controllers=*," + podcount.Name + "," + ingress.Name,
			"--ingress-annotation=" + annotationKey + "=" + annotationValue,
			"--webhook-host=127.0.0.1",
			fmt.Sprintf("--webhook-port=%d", d.webhookPort),
			"--webhook-cert-dir=" + d.path(local, "webhook"),
			"--metrics-bind-address=0",
			fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", healthPort),
		},
		Log: log,
	})
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/readyz", healthPort)
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(context.Context) (bool, error) {
		select {
		case <-d.operator.Done():
			return false, d.operator.Err()
		default:
		}
		if response, err := http.Get(url); err == nil {
			return response.StatusCode == http.StatusOK, response.Body.Close()
		}
		return false, nil // the operator does not listen yet
	})
	if err != nil {
		return fmt.Errorf("wait until the operator is ready (its log is %s): %w", log, err)
	}
	return nil
}

// applySamples applies all samples. The sample Switch is not in the kustomization, because it has a generateName
// instead of a name.
func (d *demo) applySamples(ctx context.Context) error {
	dir := d.path("config", "samples")
	for _, path := range []string{dir, filepath.Join(dir, "useless_v1alpha1_switch.yaml")} {
		samples, err := cluster.ReadManifests(path)
		if err != nil {
			return err
		}
		d.samples = append(d.samples, samples...)
	}
	return cluster.Install(ctx, d.plane.Config, d.samples, cluster.WebhookServer{})
}

// startPage starts the web page, and prints its URL.
func (d *demo) startPage(ctx context.Context) (err error) {
	ctx, d.stopPage = context.WithCancel(ctx)
	if d.page, err = page.Start(ctx, d.plane.Config); err != nil {
		return err
	}
	fmt.Println("the page is " + d.page.URL)
	return nil
}

// stop stops all parts of the demo, the operator before the API server. It removes the demo's files in .local, except
// the operator's log.
func (d *demo) stop() (err error) {
	if d.plane != nil {
		fmt.Println("stopping the operator and Kubernetes")
	}
	if d.operator != nil {
		d.operator.Stop(5 * time.Second)
	}
	if d.page != nil {
		d.stopPage()
		err = d.page.Wait()
	}
	if d.node != nil {
		d.stopNode()
		d.node.Wait()
	}
	if d.plane != nil {
		err = errors.Join(err, d.plane.Stop())
	}
	for _, name := range []string{"kubeconfig", "kubectl", "webhook"} {
		err = errors.Join(err, os.RemoveAll(d.path(local, name)))
	}
	return err
}

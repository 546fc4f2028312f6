// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
)

// A revision is a state of the repository that is measured.
type revision struct {
	name    string // "ours", or "base"
	dir     string // its source
	manager string // its program, compiled
}

// newRevision compiles the operator in dir.
func newRevision(ctx context.Context, name, dir, bin string) (*revision, error) {
	r := &revision{name: name, dir: dir, manager: filepath.Join(bin, "manager-"+name)}
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", r.manager, "./cmd")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the operator in %s: %w\n%s", dir, err, out)
	}
	return r, nil
}

// checkOut takes the source of a commit out of the repository, and compiles it as "base".
func checkOut(ctx context.Context, commit, out string) (*revision, error) {
	dir := filepath.Join(out, "base")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	archive := dir + ".tar"
	if _, err := output(ctx, "git", "archive", "--output="+archive, commit); err != nil {
		return nil, fmt.Errorf("take %s as the base: %w", commit, err)
	}
	if _, err := output(ctx, "tar", "-xf", archive, "-C", dir); err != nil {
		return nil, err
	}
	return newRevision(ctx, "base", dir, out)
}

// output is what a command prints.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", name, err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// A world is a control plane with a revision's CustomResourceDefinitions, rights and webhooks. etcd waits for the disk.
type world struct {
	plane *cluster.ControlPlane
	admin client.WithWatch // may do everything
	raw   rest.Interface   // the same, for what has no type
	key   string           // path of a kubeconfig with the rights of the operator's ServiceAccount
	rev   *revision
	port  int    // of the webhooks
	certs string // folder of the webhooks' certificate

	processes []*cluster.Process // beside the control plane's
	copied    string             // folder with the state that copyState has found
	edits     int                // how often users have asked for one switch more

	judging sync.Mutex
	faults  []error // what must not have happened
}

// worldOptions are what experiments change about a world.
type worldOptions struct {
	controllers []string // of kube-controller-manager; the usual ones if nil
	noConverter bool     // the experiment runs operators that serve the webhooks themselves
	state       string   // that the world begins with, as copyState leaves it; a new cluster if empty
}

// newWorld starts a control plane and, unless told otherwise, a process that serves the webhooks, so that whoever writes
// Machines pays the same for them.
func newWorld(ctx context.Context, programs cluster.Programs, rev *revision, options worldOptions) (*world, error) {
	manifests, err := cluster.ReadManifests(filepath.Join(rev.dir, "dist", "install.yaml"))
	if err != nil {
		return nil, err
	}
	w := &world{rev: rev}
	if w.port, err = cluster.FreePort(); err != nil {
		return nil, err
	}
	if w.certs, err = os.MkdirTemp("", "useless-bench-"); err != nil {
		return nil, err
	}
	ca, err := cluster.ServingCert(w.certs)
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	server := cluster.WebhookServer{URL: fmt.Sprintf("https://127.0.0.1:%d", w.port), CA: ca}
	w.plane, err = cluster.Start(ctx, programs, cluster.Options{
		Controllers: options.controllers,
		State:       options.state,
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			return cluster.Install(ctx, config, manifests, server)
		},
	})
	if err == nil {
		err = w.connect(ctx, options)
	}
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

// copyState copies all that there is, so that other worlds can begin with it. It is what etcd would find after a crash.
func (w *world) copyState(ctx context.Context) error {
	etcd := w.plane.Processes()[0]
	if err := halt(ctx, etcd); err != nil {
		return err
	}
	w.copied = filepath.Join(w.plane.Dir, "copied")
	copying := os.CopyFS(w.copied, os.DirFS(w.plane.State()))
	return errors.Join(copying, etcd.Signal(syscall.SIGCONT))
}

func (w *world) connect(ctx context.Context, options worldOptions) (err error) {
	if w.admin, err = client.NewWithWatch(w.plane.Config, client.Options{Scheme: newScheme()}); err != nil {
		return err
	}
	config := rest.CopyConfig(w.plane.Config)
	config.WarningHandler = rest.NoWarnings{} // v1alpha1 is deprecated
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	w.raw = clientset.RESTClient()
	if w.key, err = w.plane.ServiceAccountKubeconfig(ctx, "useless-system", "useless-controller-manager"); err != nil {
		return err
	}
	if options.noConverter {
		return nil
	}
	return w.serveWebhooks(ctx)
}

// serveWebhooks starts a process that serves the webhooks and does nothing else.
func (w *world) serveWebhooks(ctx context.Context) error {
	o, err := w.startManager("converter", "--controllers=-machine", "--webhooks")
	if err != nil {
		return err
	}
	return o.await(ctx)
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

// An operator is a running manager.
type operator struct {
	*cluster.Process

	metrics string // URL
	ready   string // URL
}

// startManager starts the operator of the world's revision as its ServiceAccount, without webhooks unless the arguments
// say so.
func (w *world) startManager(name string, args ...string) (*operator, error) {
	metricsPort, err := cluster.FreePort()
	if err != nil {
		return nil, err
	}
	probePort, err := cluster.FreePort()
	if err != nil {
		return nil, err
	}
	o := &operator{
		metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort),
		ready:   fmt.Sprintf("http://127.0.0.1:%d/readyz", probePort),
	}
	all := append([]string{
		"--kubeconfig=" + w.key, "--namespace=useless-system", "--max-switches=1000",
		"--webhooks=false", "--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", w.port), "--webhook-cert-dir=" + w.certs,
		"--metrics-secure=false", fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", metricsPort),
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", probePort),
	}, args...)
	o.Process, err = w.run(name, w.rev.manager, all...)
	return o, err
}

// await waits until the operator says that it is ready.
func (o *operator) await(ctx context.Context) error {
	return cluster.Await(ctx, []*cluster.Process{o.Process}, func(ctx context.Context) error {
		_, err := fetch(ctx, o.ready)
		return err
	})
}

// run starts a program, which stops with the world.
func (w *world) run(name, path string, args ...string) (*cluster.Process, error) {
	p, err := cluster.StartProcess(cluster.Command{
		Name: name, Path: path, Args: args, Dir: w.plane.Dir, Log: filepath.Join(w.plane.Dir, name+".log"),
		Env: []string{"GOMEMLIMIT=200MiB"}, // what config/manager gives the operator
	})
	if err == nil {
		w.processes = append(w.processes, p)
	}
	return p, err
}

// all are all processes of the world.
func (w *world) all() []*cluster.Process { return append(w.plane.Processes(), w.processes...) }

// blame makes note of what must not have happened.
func (w *world) blame(faults []error) {
	w.judging.Lock()
	defer w.judging.Unlock()
	w.faults = append(w.faults, faults...)
}

// blamed fails the experiment for it.
func (w *world) blamed() error {
	w.judging.Lock()
	defer w.judging.Unlock()
	if len(w.faults) == 0 {
		return nil
	}
	return fmt.Errorf("%d things that must not be, the first of them: %w", len(w.faults), w.faults[0])
}

// stop ends all that runs and removes what is left of it. It fails where something has happened that must not.
func (w *world) stop() error {
	var err error
	if w.plane != nil {
		for _, p := range w.all() {
			p.Kill() // it may be stopped, and nothing that it has is needed
		}
		err = w.plane.Stop()
	}
	return errors.Join(err, os.RemoveAll(w.certs), w.blamed())
}

// allowUpdates gives the operator's ServiceAccount rights that the operator does without: naive controllers update.
func (w *world) allowUpdates(ctx context.Context) error {
	role := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1beta1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"update"},
	}}}
	role.Name = "updates"
	binding := &rbacv1.ClusterRoleBinding{
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "useless-system", Name: "useless-controller-manager"}},
	}
	binding.Name = role.Name
	return errors.Join(w.admin.Create(ctx, role), w.admin.Create(ctx, binding))
}

// A kind is what has children: Machines have switches, and ReplicaSets have Pods.
type kind struct {
	parent    func(name string, children int) client.Object
	parents   func() client.ObjectList
	children  string // path of their list
	converged func(client.Object) bool
}

var machines = kind{
	parent: func(name string, switches int) client.Object {
		m := &v1beta1.Machine{Spec: v1beta1.MachineSpec{Switches: v1beta1.SwitchesSpec{Count: int32(switches)}}}
		m.Namespace, m.Name = metav1.NamespaceDefault, name
		return m
	},
	parents:  func() client.ObjectList { return &v1beta1.MachineList{} },
	children: "/apis/useless.container.training/v1beta1/switches",
	converged: func(object client.Object) bool {
		m := object.(*v1beta1.Machine)
		return m.Status.Switches.Total >= m.Spec.Switches.Count
	},
}

var replicaSets = kind{
	parent: func(name string, pods int) client.Object {
		rs := &appsv1.ReplicaSet{}
		rs.Namespace, rs.Name = metav1.NamespaceDefault, name
		labels := map[string]string{"app": name}
		rs.Spec.Replicas, rs.Spec.Selector = new(int32(pods)), &metav1.LabelSelector{MatchLabels: labels}
		rs.Spec.Template.Labels = labels
		rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "pause", Image: "registry.k8s.io/pause"}}
		return rs
	},
	parents:  func() client.ObjectList { return &appsv1.ReplicaSetList{} },
	children: "/api/v1/namespaces/default/pods",
	converged: func(object client.Object) bool {
		rs := object.(*appsv1.ReplicaSet)
		return rs.Status.Replicas >= *rs.Spec.Replicas
	},
}

// populate makes so many parents, which are to have so many children each.
func (w *world) populate(ctx context.Context, k kind, parents, children int) error {
	if err := w.admin.Create(ctx, k.parent(nameOf(0), children)); err != nil {
		return err
	}
	return w.multiply(ctx, parents)
}

func nameOf(i int) string { return fmt.Sprintf("machine-%05d", i) }

// inParallel does something n times, 32 at a time.
func inParallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// count is how many children there are. It asks for one, and for how many more there would be.
func (w *world) count(ctx context.Context, k kind) (int, error) {
	data, err := w.raw.Get().AbsPath(k.children).Param("limit", "1").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	list := &metav1.PartialObjectMetadataList{}
	if err := json.Unmarshal(data, list); err != nil {
		return 0, err
	}
	return len(list.Items) + int(ptr.Deref(list.RemainingItemCount, 0)), nil
}

// missing are the parents that are not what they should be, by name, and the version of the list that says so.
func (w *world) missing(ctx context.Context, k kind) (missing sets.Set[string], version string, err error) {
	list := k.parents()
	if err := w.admin.List(ctx, list); err != nil {
		return nil, "", err
	}
	missing = sets.New[string]()
	err = meta.EachListItem(list, func(item runtime.Object) error {
		if object := item.(client.Object); !k.converged(object) {
			missing.Insert(object.GetName())
		}
		return nil
	})
	return missing, list.GetResourceVersion(), err
}

// awaitConverged waits until all parents are what they should be.
func (w *world) awaitConverged(ctx context.Context, k kind) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	missing, version, err := w.missing(ctx, k)
	if err != nil || missing.Len() == 0 {
		return err
	}
	watcher, err := changes(ctx, version, func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		return w.admin.Watch(ctx, k.parents(), &client.ListOptions{Raw: &options})
	})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, ok := event.Object.(client.Object)
		if err := apierrors.FromObject(event.Object); !ok && apierrors.IsResourceExpired(err) {
			return w.awaitConverged(ctx, k) // the API server has filled its cache since, and knows nothing older
		} else if !ok {
			return fmt.Errorf("watch what becomes of %T: %w", k.parents(), err)
		}
		if k.converged(object) {
			missing.Delete(object.GetName())
		} else {
			missing.Insert(object.GetName())
		}
		if missing.Len() == 0 {
			return nil
		}
	}
	return fmt.Errorf("watch what becomes of %T: %d have not converged", k.parents(), missing.Len())
}

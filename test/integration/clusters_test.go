// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/test/internal/invariants"
)

// programs is the directory with the binaries of the control planes: etcd, kube-apiserver and others.
var programs cluster.Programs

// testCluster is a control plane for tests. startCluster also installs the operator's manifests, but newEmptyCluster
// does not.
type testCluster struct {
	*cluster.ControlPlane
	admin              client.WithWatch // has all permissions
	webhookPort        int
	webhookDir         string               // directory with the webhooks' certificate
	operatorKubeconfig string               // path of a kubeconfig with the permissions of the operator's ServiceAccount
	ledger             *invariants.Recorder // records all revisions of Switches, and of Machines in v1beta1, in every namespace

	node           func() (*standin.Node, error) // starts the simulated node at the first call, and returns it
	sharedOperator func() error                  // starts the operator that tests share, at the first call
	requests       *requestCounter               // counts the requests of the shared operator
	beforeStop     []func() error                // functions that stop clients of the control plane; called in reverse order
}

// clusters has the control planes that startCluster has started. free has control planes for the next test.
var clusters struct {
	sync.Mutex
	all, free []*testCluster
}

// sharedCluster returns the control plane that tests share. The first call starts it.
var sharedCluster = sync.OnceValues(startCluster)

// assigned maps the names of tests to their control planes. useSharedCluster, useExclusiveCluster and newEmptyCluster
// add their tests.
var assigned sync.Map

// useSharedCluster lets a test run in parallel with other tests. All these tests share one control plane, on which the
// operator runs.
func useSharedCluster(t *testing.T) {
	t.Helper()
	t.Parallel()
	c, err := sharedCluster()
	if err != nil {
		t.Fatal("start a control plane: ", err)
	}
	assigned.Store(t.Name(), c)
	if err := c.sharedOperator(); err != nil {
		t.Fatal(err)
	}
}

// useExclusiveCluster lets a test run in parallel with other tests, and gives it an exclusive control plane. No
// operator runs there. Benchmarks do not run in parallel.
func useExclusiveCluster(t testing.TB) {
	t.Helper()
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
	c, err := takeCluster()
	if err != nil {
		t.Fatal("start a control plane: ", err)
	}
	t.Cleanup(func() {
		if err := c.clean(); err != nil {
			t.Errorf("clean the control plane for the next test: %v", err)
			return
		}
		clusters.Lock()
		defer clusters.Unlock()
		clusters.free = append(clusters.free, c)
	})
	assigned.Store(t.Name(), c)
}

// leftovers returns lists of the kinds that the operator processes, except ScaledObjects, which need the CRD of KEDA.
func leftovers() []client.ObjectList {
	return []client.ObjectList{
		&v1beta1.MachineList{}, &cloudnativev1alpha1.VirtualMachineList{},
		&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &batchv1.CronJobList{},
		&autoscalingv2.HorizontalPodAutoscalerList{}, &appsv1.ReplicaSetList{}, &networkingv1.IngressList{},
	}
}

// clean deletes the objects that the operator processes. If any remained, the next test's operator would process them
// and count them in its metrics. The namespace of a test is deleted, but no controller deletes the objects in it. No
// operator runs now, so clean removes the finalizers. It sends several requests at the same time. One after the other,
// the requests for 200 Machines can take a minute on a busy computer.
func (c *testCluster) clean() error {
	ctx := context.Background()
	remaining := ""
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, defaultTimeout, true, func(ctx context.Context) (bool, error) {
		remaining = ""
		for _, list := range leftovers() {
			if err := c.admin.List(ctx, list); err != nil {
				return false, err
			}
			requests := errgroup.Group{}
			requests.SetLimit(16)
			err := meta.EachListItem(list, func(item runtime.Object) error {
				object := item.(client.Object)
				remaining = fmt.Sprintf("%T %s/%s remains", object, object.GetNamespace(), object.GetName())
				requests.Go(func() error { return c.purge(ctx, object) })
				return nil
			})
			if err := errors.Join(err, requests.Wait()); err != nil {
				return false, err
			}
		}
		return remaining == "", nil
	})
	if err != nil {
		return fmt.Errorf("delete the objects of the test: %w: %s", err, remaining)
	}
	return nil
}

// purge deletes an object without its finalizers.
func (c *testCluster) purge(ctx context.Context, object client.Object) error {
	if len(object.GetFinalizers()) > 0 {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := c.admin.Patch(ctx, object, patch); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return client.IgnoreNotFound(c.admin.Delete(ctx, object))
}

// takeCluster returns a control plane that no test uses. If there is none, it starts a new one. Tests reuse control
// planes. So there are never more exclusive control planes than tests that run at the same time.
func takeCluster() (*testCluster, error) {
	clusters.Lock()
	if last := len(clusters.free) - 1; last >= 0 {
		c := clusters.free[last]
		clusters.free = clusters.free[:last]
		clusters.Unlock()
		return c, nil
	}
	clusters.Unlock()
	return startCluster()
}

// clusterOf returns the control plane of a test. A subtest uses the control plane of its parent, unless the subtest has
// called useSharedCluster or useExclusiveCluster.
func clusterOf(t testing.TB) *testCluster {
	t.Helper()
	for name := t.Name(); name != "."; name = path.Dir(name) {
		if c, ok := assigned.Load(name); ok {
			return c.(*testCluster)
		}
	}
	t.Fatal("the test has no control plane: call useSharedCluster or useExclusiveCluster first")
	return nil
}

// admin returns a client that has all permissions on the control plane of a test.
func admin(t testing.TB) client.WithWatch {
	t.Helper()
	return clusterOf(t).admin
}

func startCluster() (*testCluster, error) {
	c := &testCluster{requests: newRequestCounter()}
	c.node = sync.OnceValues(c.startNode)
	c.sharedOperator = sync.OnceValue(c.startSharedOperator)
	return c, c.start(context.Background())
}

func (c *testCluster) start(ctx context.Context) (err error) {
	if c.webhookPort, err = cluster.FreePort(); err != nil {
		return err
	}
	if c.webhookDir, err = os.MkdirTemp("", "useless-webhook-"); err != nil {
		return err
	}
	ca, err := cluster.ServingCert(c.webhookDir, webhookService)
	if err != nil {
		return err
	}
	manifests, err := cluster.ReadManifests(installation)
	if err != nil {
		return err
	}
	auditPolicy, err := filepath.Abs(filepath.Join(repository, "test", "internal", "invariants", "audit-policy.yaml"))
	if err != nil {
		return err
	}
	// The results in go test's cache depend only on what tests read, and not on what TestMain reads. With this call, they
	// depend on the release of Kubernetes.
	if _, err := cluster.Build(ctx, os.Stderr); err != nil {
		return err
	}
	server := cluster.WebhookServer{URL: fmt.Sprintf("https://127.0.0.1:%d", c.webhookPort), CA: ca}
	c.ControlPlane, err = cluster.Start(ctx, programs, cluster.Options{
		AuditPolicy: auditPolicy,
		Disposable:  true,
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			return cluster.Install(ctx, config, manifests, server)
		},
	})
	if err != nil {
		return errors.Join(err, os.RemoveAll(c.webhookDir))
	}
	clusters.Lock()
	clusters.all = append(clusters.all, c)
	clusters.Unlock()
	if c.admin, err = client.NewWithWatch(c.Config, client.Options{Scheme: newScheme()}); err != nil {
		return err
	}
	c.ledger, err = invariants.Record(ctx, c.Etcd(), invariants.AuditLog{Log: c.AuditLog(), Operator: operatorUser})
	if err != nil {
		return err
	}
	c.operatorKubeconfig, err = c.ServiceAccountKubeconfig(ctx, operatorNamespace, operatorAccount)
	return err
}

func (c *testCluster) startNode() (*standin.Node, error) {
	ctx, cancel := context.WithCancel(context.Background())
	node, err := standin.Start(ctx, c.Config)
	if err != nil {
		cancel()
		return nil, err
	}
	c.stopFirst(func() error {
		cancel()
		node.Wait()
		return nil
	})
	return node, nil
}

func (c *testCluster) startSharedOperator() error {
	stop, err := c.runOperator(operatorOptions{transport: func(config *rest.Config) { config.Wrap(c.requests.wrap) }})
	if err != nil {
		return err
	}
	c.stopFirst(stop)
	return nil
}

// stopFirst registers a function that is called before the control plane stops.
func (c *testCluster) stopFirst(stop func() error) {
	clusters.Lock()
	defer clusters.Unlock()
	c.beforeStop = append(c.beforeStop, stop)
}

// stopClients stops the clients of the control planes: the shared operator and the simulated nodes.
func stopClients() (err error) {
	clusters.Lock()
	defer clusters.Unlock()
	for _, c := range clusters.all {
		for _, stop := range slices.Backward(c.beforeStop) {
			err = errors.Join(err, stop())
		}
		c.beforeStop = nil
	}
	return err
}

// stopClusters stops the clients, and then all control planes in parallel.
func stopClusters() error {
	err := stopClients()
	clusters.Lock()
	defer clusters.Unlock()
	errs := make([]error, len(clusters.all))
	var stopping sync.WaitGroup
	for i, c := range clusters.all {
		stopping.Go(func() { errs[i] = errors.Join(c.Stop(), os.RemoveAll(c.webhookDir)) })
	}
	stopping.Wait()
	return errors.Join(append(errs, err)...)
}

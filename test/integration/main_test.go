// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests the operator's user stories on real control planes.
//
// All tests run in parallel. A test that needs a control plane first calls one of these functions:
//
//   - useSharedCluster: the tests share one control plane and one operator, like the users of a cluster. Each test has
//     its own namespace.
//   - useExclusiveCluster: no other test uses the control plane at the same time. Tests that start, stop or configure
//     an operator need this.
//   - newEmptyCluster: a new control plane for one test, without the operator's manifests.
package integration

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	operatorsv2 "github.com/operator-framework/api/pkg/operators/v2"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/virtualmachine"
	"container.training/useless/internal/events"
	"container.training/useless/internal/informer"
	"container.training/useless/internal/webhook/admission"
	"container.training/useless/internal/webhook/conversion"
	_ "container.training/useless/test/internal/cachemutation" // fails a test that changes a cached object
)

const repository = "../.."

// installation is the manifest that make deploy applies.
var installation = filepath.Join(repository, "dist", "install.yaml")

func TestMain(m *testing.M) {
	flag.Parse()
	if url := os.Getenv(abusiveClientsVariable); url != "" {
		os.Exit(runAbusiveClients(url))
	}
	setParallelism()
	os.Exit(testMain(m))
}

// setParallelism sets the number of parallel tests to six, unless the command line sets -parallel. The default of go
// test is the number of processors. These tests mostly wait, so more of them can run at the same time.
func setParallelism() {
	const name = "test.parallel"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		if err := flag.Set(name, "6"); err != nil {
			panic(err)
		}
	}
}

func testMain(m *testing.M) (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := zap.New(zap.UseDevMode(true), zap.WriteTo(logFile{}))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	var err error
	if programs, err = cluster.Build(ctx, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cannot build the control plane:", err)
		return 1
	}
	// Ctrl-C also stops the control planes and deletes their files. Without this function, the kernel would only kill
	// the processes when the test process has ended (Pdeathsig).
	interrupted := context.AfterFunc(ctx, func() {
		_ = stopClusters()
		os.Exit(130)
	})
	defer interrupted()
	defer func() {
		if err := stopClusters(); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: stop the control planes:", err)
			code = 1
		}
	}()
	if code = m.Run(); code != 0 {
		return code
	}
	if err := stopClients(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: the shared operator:", err)
		return 1
	}
	if allTestsSelected() {
		if err := checkPermissions(); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: permissions of the operator:", err)
			return 1
		}
	}
	return 0
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, operatorsv2.AddToScheme,
		v1alpha1.AddToScheme, v1beta1.AddToScheme, cloudnativev1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

// logFile writes the operator's log to the file that the environment variable USELESS_TEST_LOG names. Without the
// variable, the log is discarded.
type logFile struct{}

var openLog = sync.OnceValue(func() *os.File {
	path := os.Getenv("USELESS_TEST_LOG")
	if path == "" {
		return nil
	}
	file, err := os.Create(path)
	if err != nil {
		panic(err)
	}
	return file
})

func (logFile) Write(line []byte) (int, error) {
	if file := openLog(); file != nil {
		return file.Write(line)
	}
	return len(line), nil
}

// operatorOptions configures an operator that runs within the test process.
type operatorOptions struct {
	maxSwitches int32                     // the value of --max-switches; 100 if zero
	noWebhooks  bool                      // this operator serves no webhooks
	transport   func(*rest.Config)        // wraps the transport to the API server
	clock       clock.PassiveClock        // the real clock if nil
	registry    *prometheus.Registry      // for the operator's metrics; a new registry if nil
	controllers func(*controller.Options) // changes the default options of the controllers

	leaderElection string        // name of the Lease for leader election; no leader election if empty
	usageInterval  time.Duration // time between two requests to the metrics API; five seconds if zero
}

// runOperatorFor runs an operator on the control plane of a test that has called useExclusiveCluster. The operator
// stops when the test ends, or earlier when the test calls stop. The test fails if the operator ends with an error.
func runOperatorFor(t testing.TB, options operatorOptions) (stop func()) {
	t.Helper()
	end, err := clusterOf(t).runOperator(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return func() { _ = end() } // the cleanup reports the error
}

// operatorCount counts the operators that were started, both in separate processes and in the test process.
var operatorCount atomic.Int64

// processName returns a unique name for the next operator. The operator uses it as its user agent.
func processName() string { return fmt.Sprintf("operator-%d", operatorCount.Add(1)) }

// runOperator runs the operator in the test process, with the permissions of its ServiceAccount. It returns when the
// operator is ready. stop stops the operator and returns the error with which it ended.
func (c *testCluster) runOperator(options operatorOptions) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	mgr, ready, err := c.newOperator(ctx, options)
	if err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		if err := <-ended; err != nil {
			return fmt.Errorf("the operator ended: %w", err)
		}
		return nil
	})
	// This is longer than the controllers' CacheSyncTimeout (2 min), after which the manager ends with an error.
	const within = 3 * time.Minute
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, within, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-ended:
			ended <- nil
			return false, errors.Join(errors.New("the operator ended"), err)
		default:
			return ready(nil) == nil && mgr.GetCache().WaitForCacheSync(ctx), nil
		}
	})
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func (c *testCluster) newOperator(ctx context.Context, options operatorOptions) (mgr ctrl.Manager, ready healthz.Checker, err error) {
	if options.clock == nil {
		options.clock = clock.RealClock{}
	}
	if options.registry == nil {
		options.registry = prometheus.NewRegistry()
	}
	restConfig, err := clientcmd.BuildConfigFromFlags("", c.operatorKubeconfig)
	if err != nil {
		return nil, nil, err
	}
	restConfig.QPS, restConfig.UserAgent = -1, processName()
	events.Defer(restConfig)
	if options.transport != nil {
		options.transport(restConfig)
	}
	controllers := controller.Options{
		Selection:      []string{"*"},
		VirtualMachine: virtualmachine.Options{UsageInterval: cmp.Or(options.usageInterval, 5*time.Second)},
	}
	if options.controllers != nil {
		options.controllers(&controllers)
	}
	scheme := newScheme()
	caches, err := controllers.CacheOptions(scheme)
	if err != nil {
		return nil, nil, err
	}
	mgr, err = ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:         scheme,
		Cache:          caches,
		NewCache:       informer.NewCache,
		Client:         controller.ClientOptions(),
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: new(true), EnableWarmup: new(true)},
		LeaderElection: options.leaderElection != "", LeaderElectionID: options.leaderElection, LeaderElectionNamespace: operatorNamespace,
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{
			Host: "127.0.0.1", Port: c.webhookPort, CertDir: c.webhookDir,
		}),
	})
	if err != nil {
		return nil, nil, err
	}
	if err := controllers.Setup(ctx, mgr, options.clock, options.registry); err != nil {
		return nil, nil, err
	}
	if options.noWebhooks {
		return mgr, healthz.Ping, nil
	}
	err = errors.Join(admission.Setup(ctx, mgr, cmp.Or(options.maxSwitches, 100)), conversion.Setup(mgr))
	return mgr, mgr.GetWebhookServer().StartedChecker(), err
}

// newNamespace creates a namespace for one test. When the test ends, newNamespace checks the invariants of all
// revisions of the Machines and Switches in the namespace. Then it starts the deletion of the namespace.
func newNamespace(t testing.TB) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := admin(t).Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		checkInvariants(t, namespace.Name)
		if err := admin(t).Delete(context.Background(), namespace); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	return namespace.Name
}

// kubectl runs kubectl as an administrator, with manifest as its standard input. It returns kubectl's standard output
// and standard error. Some kubectl commands can wait for days, so it ends kubectl after two minutes.
func kubectl(t *testing.T, manifest string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*defaultTimeout)
	defer cancel()
	command := clusterOf(t).Kubectl(ctx, args...)
	var out, problems strings.Builder
	// An older kubectl parses a manifest that begins with a brace as JSON. The first line "---" prevents that.
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader("---\n"+manifest), &out, &problems
	err = command.Run()
	return out.String(), problems.String(), errors.Join(err, ctx.Err())
}

// mustKubectl runs kubectl and returns its standard output. The test fails if kubectl fails.
func mustKubectl(t *testing.T, manifest string, args ...string) string {
	t.Helper()
	stdout, stderr, err := kubectl(t, manifest, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

// polling is the time between two polls of a condition. It grows, because the polls of all tests together load the API
// server.
var polling = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1.2, Steps: 20, Cap: 250 * time.Millisecond}

// eventually polls condition until ok is true. If this takes longer than within, the test fails with the last value of
// got.
func eventually(t testing.TB, within time.Duration, condition func() (ok bool, got string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var got string
	err := polling.DelayFunc().Until(ctx, true, true, func(context.Context) (ok bool, _ error) {
		ok, got = condition()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("timed out after %s: %s", within, got)
	}
}

// eventuallyWithProgress calls condition once a second until ok is true. The test fails if got does not change for
// defaultTimeout. This is for work on many objects, whose duration depends on the speed of the computer.
func eventuallyWithProgress(t testing.TB, condition func() (ok bool, got string)) {
	t.Helper()
	for last, since := "", time.Now(); ; time.Sleep(time.Second) {
		ok, got := condition()
		if ok {
			return
		}
		if got != last {
			last, since = got, time.Now()
		}
		if time.Since(since) > defaultTimeout {
			t.Fatalf("no progress within %s: %s", defaultTimeout, got)
		}
	}
}

// createMachine creates a v1beta1 Machine. If change is not nil, it changes the spec before the creation.
func createMachine(t *testing.T, namespace, name string, change func(*v1beta1.MachineSpec)) *v1beta1.Machine {
	t.Helper()
	m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if change != nil {
		change(&m.Spec)
	}
	if err := admin(t).Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func getMachine(t *testing.T, namespace, name string) *v1beta1.Machine {
	t.Helper()
	m := &v1beta1.Machine{}
	if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, m); err != nil {
		t.Fatal(err)
	}
	return m
}

func getSwitch(t *testing.T, namespace, name string) *v1beta1.Switch {
	t.Helper()
	sw := &v1beta1.Switch{}
	if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, sw); err != nil {
		t.Fatal(err)
	}
	return sw
}

// switchesOf lists the Switches that a Machine controls. It reads them from the API server, not from a cache.
func switchesOf(t *testing.T, m *v1beta1.Machine) []v1beta1.Switch {
	t.Helper()
	list := &v1beta1.SwitchList{}
	if err := admin(t).List(t.Context(), list, client.InNamespace(m.Namespace)); err != nil {
		t.Fatal(err)
	}
	var own []v1beta1.Switch
	for _, sw := range list.Items {
		if metav1.IsControlledBy(&sw, m) {
			own = append(own, sw)
		}
	}
	return own
}

// turnUp sets the position of a Switch to up, as a user would.
func turnUp(t *testing.T, namespace, name string) {
	t.Helper()
	sw := &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"position":"up"}}`))
	if err := admin(t).Patch(t.Context(), sw, patch); err != nil {
		t.Fatal(err)
	}
}

// waitForPositions waits until a Machine's status shows these positions and has observed the current generation. It
// returns the Machine.
func waitForPositions(t *testing.T, namespace, name, positions string, within time.Duration) *v1beta1.Machine {
	t.Helper()
	var m *v1beta1.Machine
	eventually(t, within, func() (bool, string) {
		m = getMachine(t, namespace, name)
		return m.Status.Positions == positions && m.Status.ObservedGeneration == m.Generation,
			fmt.Sprintf("positions are %q, want %q; status %+v", m.Status.Positions, positions, m.Status)
	})
	return m
}

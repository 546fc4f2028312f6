// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests the operator's user stories on real control planes.
//
// All tests run in parallel. A test begins with shared or alone, which choose its control plane. Tests that call shared
// use one control plane and one operator, like the users of a cluster, and have a namespace each. A test that starts,
// stops or configures an operator calls alone: no other test uses its control plane at the same time.
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
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/internal/controller/virtualmachine"
	"container.training/useless/internal/webhook"
	_ "container.training/useless/test/mutation" // no test may change an object of a cache
)

const repository = "../.."

// installation is what make deploy applies.
var installation = filepath.Join(repository, "dist", "install.yaml")

func TestMain(m *testing.M) {
	flag.Parse()
	if url := os.Getenv(siegeVariable); url != "" {
		os.Exit(besiege(url))
	}
	runSideBySide()
	os.Exit(testMain(m))
}

// runSideBySide lets more tests run at the same time than there are processors, unless the command line says how many:
// tests wait more than they compute.
func runSideBySide() {
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
	// Ctrl-C ends the tests' processes, too: go test forwards nothing and would leave them to Pdeathsig.
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
	if everythingRan() {
		if err := judgeRights(); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: rights:", err)
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

// logFile writes the operator's log to the file that USELESS_TEST_LOG names, for whoever looks into a failure.
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

// operatorOptions are what tests change about an operator.
type operatorOptions struct {
	maxSwitches int32                     // 100 if zero
	noWebhooks  bool                      // somebody else serves them, or nobody
	transport   func(*rest.Config)        // wraps what goes to the API server
	clock       clock.PassiveClock        // the real one if nil
	registry    *prometheus.Registry      // for its metrics; one of its own if nil
	controllers func(*controller.Options) // says which run, and how

	leaderElection string        // name of the lease that it waits for; none if empty
	usageInterval  time.Duration // five seconds if zero
}

// exclusive runs an operator on the control plane of a test that has called alone. The operator stops with the test, or
// earlier by the function that is returned.
func exclusive(t testing.TB, options operatorOptions) (stop func()) {
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
	return func() { _ = end() } // which the cleanup judges
}

// processes are as many as there were of the operator, those within this process included.
var processes atomic.Int64

// processName is by what the next one is known to the API server.
func processName() string { return fmt.Sprintf("operator-%d", processes.Add(1)) }

// runOperator runs the operator within this process, as its ServiceAccount, and waits until it serves. Whoever stops it learns
// what it ended with.
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
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
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
	if options.transport != nil {
		options.transport(restConfig)
	}
	mgr, err = ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:         newScheme(),
		Cache:          controller.CacheOptions(),
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
	controllers := controller.Options{
		Selection:      []string{"*"},
		Machine:        machine.Options{ConcurrentSyncs: machine.DefaultConcurrentSyncs},
		VirtualMachine: virtualmachine.Options{Image: virtualmachine.DefaultImage, UsageInterval: cmp.Or(options.usageInterval, 5*time.Second)},
		PodCount:       podcount.Options{Label: podcount.DefaultLabel},
	}
	if options.controllers != nil {
		options.controllers(&controllers)
	}
	if err := controller.Setup(ctx, mgr, controllers, options.clock, options.registry); err != nil {
		return nil, nil, err
	}
	if options.noWebhooks {
		return mgr, healthz.Ping, nil
	}
	return mgr, mgr.GetWebhookServer().StartedChecker(), webhook.Setup(ctx, mgr, cmp.Or(options.maxSwitches, 100))
}

// newNamespace makes a namespace for one test. At the end it judges all that has become of Machines and switches there, and
// deletes it without waiting.
func newNamespace(t testing.TB) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := admin(t).Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		judgeHistory(t, namespace.Name)
		if err := admin(t).Delete(context.Background(), namespace); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	return namespace.Name
}

// kubectl runs kubectl as an administrator, with a manifest on its standard input if there is one, and returns what it
// prints on standard output, and on standard error. It ends kubectl after two minutes: of itself, that waits for days.
func kubectl(t *testing.T, manifest string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	command := clusterOf(t).Kubectl(ctx, args...)
	var out, problems strings.Builder
	// With this line, an older kubectl does not take a manifest that begins with a brace for JSON.
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader("---\n"+manifest), &out, &problems
	err = command.Run()
	return out.String(), problems.String(), errors.Join(err, ctx.Err())
}

// mustKubectl is kubectl for what must succeed.
func mustKubectl(t *testing.T, manifest string, args ...string) string {
	t.Helper()
	stdout, stderr, err := kubectl(t, manifest, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

// polling asks often at first. Later it asks less often, because the questions of all tests together are a load.
var polling = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1.2, Steps: 20, Cap: 250 * time.Millisecond}

// eventually waits until a condition holds. If it does not hold in time, the test fails with what the condition said last.
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
		t.Fatalf("not within %s: %s", within, got)
	}
}

// createMachine creates a v1beta1 Machine.
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

// switchesOf lists the switches that a Machine controls, by the API server's account.
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

// turnUp turns a switch up, as a user does.
func turnUp(t *testing.T, namespace, name string) {
	t.Helper()
	sw := &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"position":"up"}}`))
	if err := admin(t).Patch(t.Context(), sw, patch); err != nil {
		t.Fatal(err)
	}
}

// waitForPositions waits until a Machine's status has the positions and describes its current spec, and returns it.
func waitForPositions(t *testing.T, namespace, name, positions string, within time.Duration) *v1beta1.Machine {
	t.Helper()
	var m *v1beta1.Machine
	eventually(t, within, func() (bool, string) {
		m = getMachine(t, namespace, name)
		return m.Status.Positions == positions && m.Status.ObservedGeneration == m.Generation,
			fmt.Sprintf("positions are %q, not %q; status %+v", m.Status.Positions, positions, m.Status)
	})
	return m
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package browser tests the web page of the demo in a browser, with the operator on a control plane.
//
// The tests need Chromium or Chrome in PATH. Some also need axe-core or mermaid, which make axe downloads.
// Tests are skipped if a program that they need is missing. With USELESS_BROWSER=required they fail instead.
package browser

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/hack/demo/page"
	"container.training/useless/test/internal/executable"
)

const repository = "../.."

// patience is the time limit for operations. On an idle computer they are fast, but on a busy computer they may be
// slow.
const patience = 2 * time.Minute

// delay is the minimum time that a switch stays up.
const delay = 2 * time.Second

// environment is a control plane with the operator, the page and a browser. The function use returns the shared one.
type environment struct {
	plane   *cluster.ControlPlane
	admin   client.WithWatch
	page    *page.Page
	browser context.Context
	stops   []func() // called in reverse order
}

func TestMain(m *testing.M) {
	flag.Parse()
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	code := m.Run()
	started.stop()
	os.Exit(code)
}

var (
	started environment
	shared  = sync.OnceValue(func() error { return started.start() })
)

func (e *environment) stop() {
	for _, stop := range slices.Backward(e.stops) {
		stop()
	}
}

// findBrowser returns the path of the browser, or "".
func findBrowser() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// missing ends a test that cannot run. The test fails with USELESS_BROWSER=required, otherwise it is skipped.
func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("USELESS_BROWSER") == "required" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func requireBrowser(t *testing.T) {
	t.Helper()
	if findBrowser() == "" {
		missing(t, "no browser: to run this test, install chromium, or add its folder to PATH")
	}
}

// npmScript returns the content of a file in an npm package that make axe has downloaded. If the package is missing,
// npmScript calls missing.
func npmScript(t *testing.T, path ...string) string {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(append([]string{repository, "bin", "axe", "node_modules"}, path...)...))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		missing(t, "no "+path[0]+": to run this test, run make axe")
	case err != nil:
		t.Fatal(err)
	}
	return string(script)
}

// use returns the environment. If there is no browser, use calls missing.
func use(t *testing.T) *environment {
	t.Helper()
	requireBrowser(t)
	if err := shared(); err != nil {
		t.Fatal(err)
	}
	return &started
}

func (e *environment) start() error {
	ctx, cancel := context.WithCancel(context.Background())
	e.stops = append(e.stops, cancel)
	dir, err := os.MkdirTemp("", "useless-browser-")
	if err != nil {
		return err
	}
	e.stops = append(e.stops, func() { _ = os.RemoveAll(dir) })
	if err := e.startOperator(ctx, dir); err != nil {
		return err
	}
	if e.page, err = page.Start(ctx, e.plane.Config); err != nil {
		return err
	}
	e.stops = append(e.stops, func() { cancel(); _ = e.page.Wait() })
	return e.startBrowser(ctx)
}

// startOperator starts a control plane and the operator.
func (e *environment) startOperator(ctx context.Context, dir string) error {
	programs, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	manager, err := executable.BuildManager()
	if err != nil {
		return err
	}
	manifests, err := cluster.ReadManifests(filepath.Join(repository, "dist", "install.yaml"))
	if err != nil {
		return err
	}
	ca, err := cluster.ServingCert(dir)
	if err != nil {
		return err
	}
	port, err := cluster.FreePort()
	if err != nil {
		return err
	}
	server := cluster.WebhookServer{URL: fmt.Sprintf("https://127.0.0.1:%d", port), CA: ca}
	e.plane, err = cluster.Start(ctx, programs, cluster.Options{
		Disposable: true,
		BeforeControllers: func(ctx context.Context, config *rest.Config) error {
			return cluster.Install(ctx, config, manifests, server)
		},
	})
	if err != nil {
		return err
	}
	e.stops = append(e.stops, func() { _ = e.plane.Stop() })
	e.plane.Config.WarningHandler = rest.NoWarnings{} // some samples use the deprecated version on purpose
	kubeconfig, err := e.plane.ServiceAccountKubeconfig(ctx, "useless-system", "useless-controller-manager")
	if err != nil {
		return err
	}
	operator, err := cluster.StartProcess(cluster.Command{
		Name: "the operator", Path: manager, Log: filepath.Join(dir, "operator.log"),
		Args: []string{
			"--kubeconfig=" + kubeconfig, "--metrics-bind-address=0", "--health-probe-bind-address=0",
			"--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", port), "--webhook-cert-dir=" + dir,
		},
	})
	if err != nil {
		return err
	}
	e.stops = append(e.stops, func() { operator.Stop(5 * time.Second) })
	return e.awaitWebhooks(ctx)
}

// awaitWebhooks returns when the operator's webhooks accept a Machine.
func (e *environment) awaitWebhooks(ctx context.Context) error {
	scheme := runtime.NewScheme()
	err := errors.Join(appsv1.AddToScheme(scheme), corev1.AddToScheme(scheme), v1beta1.AddToScheme(scheme))
	if err != nil {
		return err
	}
	if e.admin, err = client.NewWithWatch(e.plane.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	const interval = 50 * time.Millisecond
	return wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
		m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "first"}}
		return e.admin.Create(ctx, m, client.DryRunAll) == nil, nil
	})
}

// startBrowser starts the browser. The folder of its data is chromedp's own: only from that folder, chromedp removes
// what the processes of the browser write while they end.
func (e *environment) startBrowser(ctx context.Context) error {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(findBrowser()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	e.browser, _ = chromedp.NewContext(ctx) // stop also ends this context
	e.stops = append(e.stops, func() { _ = chromedp.Cancel(e.browser); stop() })
	return chromedp.Do(e.browser)
}

// tab is the context of a browser tab.
type tab struct{ context.Context }

// open opens the page at url in a new tab. It returns when the page is connected to its server.
func (e *environment) open(t *testing.T, url string) tab {
	t.Helper()
	tab := e.newTab(t)
	do(t, tab, chromedp.EmulateViewport(1200, 800), chromedp.Navigate(url))
	await(t, tab, `document.getElementById('connection').textContent === 'live'`)
	evaluate[bool](t, tab, recordUps)
	return tab
}

// newTab opens an empty tab, and closes it at the end of the test.
func (e *environment) newTab(t *testing.T) tab {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(e.browser, chromedp.WithNewBrowserContext())
	t.Cleanup(closeTab)
	if err := chromedp.Do(ctx); err != nil { // the first action must not have a timeout
		t.Fatal(err)
	}
	return tab{ctx}
}

// recordUps is a script that adds the name of each switch that is turned up to the JavaScript variable ups. Without it,
// await could miss a switch that is up for only two seconds while the computer is busy.
const recordUps = `window.ups = new Set();
new MutationObserver(changes => {
	for (const {target} of changes) if (target.ariaChecked === 'true') ups.add(target.title);
}).observe(document.body, {subtree: true, attributes: true, attributeFilter: ['aria-checked']});
true`

// do runs actions in a tab.
func do(t *testing.T, tab tab, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(tab, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// evaluate returns the value of a JavaScript expression in a tab. If the value is a promise, evaluate waits for its
// result.
func evaluate[T any](t *testing.T, tab tab, expression string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(tab, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// await returns when a JavaScript expression is true.
func await(t *testing.T, tab tab, expression string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !evaluate[bool](t, tab, expression); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s\n%s", expression, evaluate[string](t, tab, "document.body.innerText"))
		}
	}
}

// wasUp returns a JavaScript expression. It is true, once, if a switch was turned up after the page was opened.
func wasUp(name string) string { return fmt.Sprintf("ups.delete(%q)", name) }

// isDown returns a JavaScript expression. It is true if a switch exists and is down.
func isDown(name string) string {
	return fmt.Sprintf(`document.querySelector('button[aria-label="%s"]')?.getAttribute('aria-checked') === 'false'`, name)
}

// click clicks the button of a switch.
func click(name string) chromedp.Action[chromedp.Void] {
	return chromedp.Click(chromedp.CSS(fmt.Sprintf(`button[aria-label="%s"]`, name)))
}

// createMachine creates a Machine in the namespace default, like createMachineIn.
func (e *environment) createMachine(t *testing.T, name string, count int32) {
	t.Helper()
	e.createMachineIn(t, metav1.NamespaceDefault, name, count)
}

// createMachineIn creates a Machine whose switches stay up for at least two seconds. It deletes the Machine at the end
// of the test.
func (e *environment) createMachineIn(t *testing.T, namespace, name string, count int32) {
	t.Helper()
	m := &v1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1beta1.MachineSpec{
			Switches: v1beta1.SwitchesSpec{Count: count},
			Flip:     v1beta1.FlipSpec{DelaySeconds: new(int32(delay / time.Second)), IntervalSeconds: new(int32(1))},
		},
	}
	if err := e.admin.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.admin.Delete(context.Background(), m); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

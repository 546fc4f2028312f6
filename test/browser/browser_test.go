// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
)

// TestAPIServerRestart does not run in parallel with the other tests, because it restarts their API server.
func TestAPIServerRestart(t *testing.T) {
	e := use(t)
	e.createMachine(t, "restart-before", 1)
	tab := e.open(t, e.page.URL)
	await(t, tab, isDown("restart-before-0"))
	if err := e.plane.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.createMachine(t, "restart-after", 1)
	await(t, tab, isDown("restart-after-0"))
	do(t, tab, click("restart-before-0"))
	await(t, tab, wasUp("restart-before-0"))
	await(t, tab, isDown("restart-before-0"))
}

func TestOperatorTurnsSwitchDown(t *testing.T) {
	t.Parallel()
	e := use(t)
	e.createMachine(t, "click", 3)
	tab, other := e.open(t, e.page.URL), e.open(t, e.page.URL)
	await(t, tab, isDown("click-1"))
	await(t, other, isDown("click-1"))

	timeUp := e.timeUp(t, "click-1")
	clicked := time.Now()
	do(t, tab, click("click-1"))
	await(t, tab, wasUp("click-1"))
	t.Logf("the page showed the switch up after %s", time.Since(clicked))
	await(t, other, wasUp("click-1"))
	await(t, tab, isDown("click-1"))
	up := time.Since(clicked)
	t.Logf("the page showed the switch down after %s", up)
	if up < delay {
		t.Errorf("the switch was up for %s, want at least %s", up, delay)
	}
	if up, most := <-timeUp, delay+3*time.Second; up > most {
		t.Errorf("according to the API server, the switch was up for %s, want at most %s", up, most)
	}
	await(t, other, isDown("click-1"))
	const event = "Turned switch click-1 down"
	await(t, other, fmt.Sprintf("document.getElementById('events').innerText.includes(%q)", event))
}

// timeUp watches a switch in the namespace default. The switch must be down. The returned channel receives the time
// between two events: a user turns the switch up, and the operator turns it down. A slow browser does not change this
// time.
func (e *environment) timeUp(t *testing.T, name string) <-chan time.Duration {
	t.Helper()
	events, err := e.admin.Watch(t.Context(), &v1beta1.SwitchList{}, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingFields{"metadata.name": name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(events.Stop)
	result := make(chan time.Duration, 1)
	go func() {
		var turnedUp time.Time
		for event := range events.ResultChan() {
			sw, isSwitch := event.Object.(*v1beta1.Switch)
			switch isUp := isSwitch && sw.Spec.Position == v1beta1.PositionUp; {
			case isUp && turnedUp.IsZero():
				turnedUp = time.Now()
			case !isUp && !turnedUp.IsZero():
				result <- time.Since(turnedUp)
				return
			}
		}
	}()
	return result
}

func TestErrorIsShown(t *testing.T) {
	t.Parallel()
	e := use(t)
	e.createMachine(t, "error", 1)
	tab := e.open(t, e.page.URL)
	await(t, tab, isDown("error-0"))
	evaluate[bool](t, tab, `newSwitch('default', 'absent').click() ?? true`)
	await(t, tab, `document.getElementById('error').innerText.includes('Could not turn absent up')`)
	await(t, tab, `document.getElementById('error').innerText.includes('not found')`)
	do(t, tab, click("error-0"))
	await(t, tab, wasUp("error-0"))
	await(t, tab, `document.getElementById('error').innerText === ''`)
}

// TestReconnect cuts the connection between the page and its server. While it is cut, a Machine is deleted. After the
// reconnect, the page must not show this Machine.
func TestReconnect(t *testing.T) {
	t.Parallel()
	e := use(t)
	c := e.connection(t)
	tab := e.open(t, c.URL)
	t.Run("with Machine", func(t *testing.T) {
		e.createMachine(t, "reconnect", 1)
		await(t, tab, isDown("reconnect-0"))
		c.cut()
		await(t, tab, `document.getElementById('connection').textContent === 'reconnecting'`)
		do(t, tab, click("reconnect-0"))
		await(t, tab, `document.getElementById('error').innerText.includes('does not answer')`)
	})
	c.isCut.Store(false)
	await(t, tab, `document.getElementById('connection').textContent === 'live'`)
	await(t, tab, `!document.querySelector('button[aria-label="reconnect-0"]')`)
}

// A connection is a proxy between a tab and the page's server.
type connection struct {
	*httptest.Server
	isCut atomic.Bool
}

func (e *environment) connection(t *testing.T) *connection {
	t.Helper()
	target, err := url.Parse(e.page.URL)
	if err != nil {
		t.Fatal(err)
	}
	c, forward := &connection{}, httputil.NewSingleHostReverseProxy(target)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.isCut.Load() {
			panic(http.ErrAbortHandler)
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { c.cut(); c.Close() })
	return c
}

func (c *connection) cut() {
	c.isCut.Store(true)
	c.CloseClientConnections()
}

// TestManyMachines does not run in parallel with the other tests, because the page shows only the newest events. It has
// its own namespace, because the operator limits the events of each namespace.
func TestManyMachines(t *testing.T) {
	e := use(t)
	const count = 100
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "many-"}}
	if err := e.admin.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		e.createMachineIn(t, namespace.Name, fmt.Sprintf("many-%d", i), 3)
	}
	tab := e.open(t, e.page.URL)
	await(t, tab, fmt.Sprintf(`[...document.querySelectorAll('button')].filter(b => b.title.startsWith('many-')).length === %d`, 3*count))
	for _, width := range []int64{360, 768, 1200, 1600} {
		do(t, tab, chromedp.EmulateViewport(width, 800))
		if got := evaluate[int64](t, tab, "document.documentElement.scrollWidth"); got > width {
			t.Errorf("the page is %d px wide, want at most %d", got, width)
		}
	}
	// The slash excludes matches in the name of the namespace, because this random name can begin with many-99.
	do(t, tab, chromedp.SendKeys(chromedp.CSS("#filter"), "/many-99"))
	await(t, tab, `[...document.querySelectorAll('.machine')].filter(m => !m.hidden).length === 1`)
	clicked := time.Now()
	do(t, tab, click("many-99-2"))
	await(t, tab, wasUp("many-99-2"))
	t.Logf("with %d Machines, the page showed the switch up after %s", count, time.Since(clicked))
	await(t, tab, isDown("many-99-2"))
}

// TestKeyboard moves the focus to a switch with the Tab key, and turns it up with the space bar. The switch keeps the
// focus when the operator turns it down.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	e := use(t)
	e.createMachine(t, "keyboard", 2)
	tab := e.open(t, e.page.URL)
	await(t, tab, isDown("keyboard-1"))
	const focused = `document.activeElement.getAttribute('aria-label')`
	for presses := 0; evaluate[string](t, tab, focused+" ?? ''") != "keyboard-1"; presses++ {
		if presses > 1000 {
			t.Fatal("the Tab key does not reach the switch")
		}
		do(t, tab, chromedp.KeyEvent(kb.Tab))
	}
	for _, key := range []string{" ", kb.Enter} {
		do(t, tab, chromedp.KeyEvent(key))
		await(t, tab, wasUp("keyboard-1"))
		await(t, tab, isDown("keyboard-1"))
		if got := evaluate[string](t, tab, focused); got != "keyboard-1" {
			t.Errorf("the focus is on %s, want keyboard-1", got)
		}
	}
}

// transitionsHaveEnded is a JavaScript expression that is true when no CSS transition runs.
const transitionsHaveEnded = `document.getAnimations().every(a => !(a instanceof CSSTransition))`

// applySamples applies the same samples as the demo.
func (e *environment) applySamples(t *testing.T) {
	t.Helper()
	dir := filepath.Join(repository, "config", "samples")
	for _, path := range []string{dir, filepath.Join(dir, "useless_v1alpha1_switch.yaml")} {
		samples, err := cluster.ReadManifests(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.Install(t.Context(), e.plane.Config, samples, cluster.WebhookServer{}); err != nil {
			t.Fatal(err)
		}
	}
}

// prefer selects the preferred color scheme: light or dark.
func prefer(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}

// TestScreenshot writes a picture of the page with the samples to the file in USELESS_SCREENSHOT.
func TestScreenshot(t *testing.T) {
	path := os.Getenv("USELESS_SCREENSHOT")
	if path == "" {
		t.Skip("to write the picture, run make screenshots")
	}
	e := use(t)
	e.applySamples(t)
	tab := e.open(t, e.page.URL)
	do(t, tab, prefer("light"))
	await(t, tab, `[1, 2, 3, 4].every(i => document.getElementById('events').innerText.includes(`+
		`'Turned switch machine-3-' + i + ' down'))`)
	await(t, tab, `document.querySelectorAll('.workload').length === 3 && !document.querySelector('[aria-checked=true]')`)
	for _, name := range []string{"machine-2-1", "machine-3-1", "machine-3-3"} {
		do(t, tab, click(name))
	}
	await(t, tab, `document.body.innerText.match(/down in/g)?.length === 2 && document.querySelectorAll('[aria-checked=true]').length === 3`)
	await(t, tab, transitionsHaveEnded)
	picture, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	small := bytes.Buffer{}
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, reduce(decoded)); err != nil {
		t.Fatal(err)
	}
	if most := 150_000; small.Len() > most {
		t.Errorf("the picture has %d bytes, want at most %d", small.Len(), most)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, small.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// reduce returns a picture with the 256 most frequent colors. Its file is half as large.
func reduce(picture image.Image) image.Image {
	counts, bounds := map[color.Color]int{}, picture.Bounds()
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			counts[picture.At(x, y)]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	reduced := image.NewPaletted(bounds, colors[:min(256, len(colors))])
	draw.Draw(reduced, bounds, picture, image.Point{}, draw.Src)
	return reduced
}

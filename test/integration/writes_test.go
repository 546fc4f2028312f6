// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/rest"

	"container.training/useless/api/useless/v1beta1"
)

// TestWrites counts the operator's requests to the API server. The number must be the same if a cache shows the
// operator's writes late.
func TestWrites(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string
		lag        time.Duration
	}{
		{name: "with an up-to-date cache"},
		{"with a cache of switches that is half a second old", "/switches", 500 * time.Millisecond},
		{"with a cache of machines that is half a second old", "/machines", 500 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			useExclusiveCluster(t)
			requests := newRequestCounter()
			runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
				config.Wrap(requests.wrap)
				config.Wrap(func(next http.RoundTripper) http.RoundTripper { return laggingWatch{next, tt.path, tt.lag} })
			}})
			namespace := newNamespace(t)
			t.Run("a new machine with 20 switches costs 23 writes", func(t *testing.T) {
				testCostOfMachine(t, requests, namespace)
			})
			t.Run("each of many new machines costs one write for each switch, two other writes and at most one event", func(t *testing.T) {
				testCostOfMachines(t, requests)
			})
			t.Run("a flip costs five writes", func(t *testing.T) { testCostOfFlip(t, requests, namespace) })
			t.Run("a deletion costs one write for each switch that is up, one other write and one event", func(t *testing.T) {
				testCostOfDeletion(t, requests, namespace)
			})
		})
	}
}

func testCostOfMachine(t *testing.T, requests *requestCounter, namespace string) {
	requests.reset()
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) {
		spec.Switches.Count = 20
		spec.Flip.DelaySeconds, spec.Flip.IntervalSeconds = new(int32(3)), new(int32(0)) // 3 s exceed two watch delays
	})
	waitForPositions(t, namespace, "m", strings.Repeat("d", 20), defaultTimeout)
	requests.check(t, namespace, map[string]int{
		"POST switches":         20,
		"PATCH machines":        1, // the finalizer
		"PATCH machines/status": 1,
		"POST events":           1,
	})
}

// testCostOfMachines creates more Machines than the operator has workers, and more than its event limit allows in a
// burst.
func testCostOfMachines(t *testing.T, requests *requestCounter) {
	const switchesPerMachine, burst, perSecond = 6, 50, 2
	machines := 100
	if testing.Short() {
		machines = 60
	}
	namespace := newNamespace(t)
	requests.waitUntilIdle(t)
	requests.reset()
	start := time.Now()
	for i := range machines {
		createMachine(t, namespace, fmt.Sprintf("m-%d", i), func(spec *v1beta1.MachineSpec) {
			spec.Switches.Count = switchesPerMachine
		})
	}
	for i := range machines {
		waitForPositions(t, namespace, fmt.Sprintf("m-%d", i), strings.Repeat("d", switchesPerMachine), defaultTimeout)
	}
	requests.check(t, namespace, map[string]int{
		"POST switches":         machines * switchesPerMachine,
		"PATCH machines":        machines, // the finalizers
		"PATCH machines/status": machines,
	}, "POST events")
	events := requests.successes(namespace, "POST events")
	if most := min(machines, burst+perSecond*int(time.Since(start).Seconds()+1)); events > most {
		t.Errorf("%d events, want at most %d", events, most)
	}
}

func testCostOfFlip(t *testing.T, requests *requestCounter, namespace string) {
	requests.reset()
	switches := recordSwitches(t, namespace)
	turnUp(t, namespace, "m-7")
	switches.untilLast(t, "m-7 is turned down", flipped)
	requests.check(t, namespace, map[string]int{
		"PATCH switches/status": 1, // sets seenAt
		"PATCH switches":        1,
		"PATCH machines/status": 2, // up, down
		"POST events":           1,
	})
}

func testCostOfDeletion(t *testing.T, requests *requestCounter, namespace string) {
	mergePatch(t, newMachine(namespace, "m"), `{"spec":{"flip":{"delaySeconds":3600}}}`)
	eventually(t, defaultTimeout, func() (bool, string) { // until then, the operator may flip after the old delay
		m := getMachine(t, namespace, "m")
		return m.Status.ObservedGeneration == m.Generation, "the operator has not observed the new delay"
	})
	turnUp(t, namespace, "m-3")
	turnUp(t, namespace, "m-4")
	waitForPositions(t, namespace, "m", "ddduu"+strings.Repeat("d", 15), defaultTimeout)
	requests.waitUntilIdle(t)
	requests.reset()
	machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)
	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace)
	machines.untilDeleted(t, "m")
	switches.untilDeleted(t, "m-0")
	requests.check(t, namespace, map[string]int{
		"PATCH switches": 2,
		"PATCH machines": 1, // the finalizer
		"POST events":    1,
	})
}

// TestIdle checks that an operator with nothing to do writes nothing for a minute.
func TestIdle(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	flippingMachine(t, namespace, "m", 20, 0, 0)
	m := waitForPositions(t, namespace, "m", strings.Repeat("d", 20), defaultTimeout)
	switches := recordSwitches(t, namespace)
	turnUp(t, namespace, "m-0")
	switches.untilLast(t, "m-0 is turned down", flipped)
	waitForEvent(t, m, v1beta1.EventScaled)
	waitForEvent(t, m, v1beta1.EventFlipped)
	eventually(t, defaultTimeout, func() (bool, string) { // the operator writes the status last
		status := getMachine(t, namespace, "m").Status
		return status.LastFlipTime != nil && status.Switches.Up == 0, fmt.Sprintf("status %+v", status)
	})

	machines, events := recordMachines(t, namespace), record[*eventsv1.Event](t, &eventsv1.EventList{}, namespace)
	switches = recordSwitches(t, namespace)
	machineChanges, machineChanged := machines.soFar(t)
	switchChanges, switchChanged := switches.soFar(t)
	eventChanges, eventHappened := events.soFar(t)
	if len(machineChanges)+len(switchChanges)+len(eventChanges) > 0 {
		machineChanged = closed()
	}
	select {
	case <-machineChanged:
	case <-switchChanged:
	case <-eventHappened:
	case <-time.After(time.Minute):
		return
	}
	t.Errorf("the idle operator wrote:\n%s%s%s",
		describe(machines.all(t)), describe(switches.all(t)), describe(events.all(t)))
}

// closed returns a closed channel.
func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// requestCounter counts requests by namespace, and by method and resource, such as "PATCH machines/status". Requests
// for all namespaces have the namespace "". It counts failed requests separately, with their status or error in the
// key. A list counts once, although it can have several pages. It does not count watches, or the two periodic requests
// of the operator. One of these requests goes to the metrics API. The other one checks whether KEDA is installed.
type requestCounter struct {
	mu      sync.Mutex
	counts  map[string]map[string]int
	last    map[string]time.Time // when the last response arrived, by namespace
	running map[string]int       // requests without a response, by namespace
}

func newRequestCounter() *requestCounter {
	return &requestCounter{counts: map[string]map[string]int{}, last: map[string]time.Time{}, running: map[string]int{}}
}

func (c *requestCounter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		path := request.URL.Path
		query := request.URL.Query()
		periodic := strings.HasPrefix(path, "/apis/metrics.k8s.io/") || strings.HasPrefix(path, "/apis/keda.sh/")
		furtherPage := query.Has("continue") // the first page counts for the whole list
		if query.Get("watch") != "" || periodic || furtherPage {
			return next.RoundTrip(request)
		}
		namespace, what := subject(path)
		c.begin(namespace)
		response, err := next.RoundTrip(request)
		what = request.Method + " " + what
		switch {
		case err != nil:
			what += " " + err.Error()
		case response.StatusCode >= http.StatusBadRequest:
			what += fmt.Sprintf(" %d", response.StatusCode)
		}
		c.end(namespace, what)
		return response, err
	})
}

func (c *requestCounter) begin(namespace string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[namespace]++
}

func (c *requestCounter) end(namespace, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[namespace] == nil {
		c.counts[namespace] = map[string]int{}
	}
	c.counts[namespace][what]++
	c.last[namespace] = time.Now()
	c.running[namespace]--
}

// subject returns the namespace and the resource of a request, with the subresource if there is one. For a path without
// a namespace, it returns the path.
func subject(path string) (namespace, resource string) {
	_, rest, found := strings.Cut(path, "/namespaces/")
	if !found {
		return "", path
	}
	parts := strings.Split(rest, "/")
	switch len(parts) {
	case 2, 3:
		return parts[0], parts[1]
	case 4:
		return parts[0], parts[1] + "/" + parts[3]
	default:
		return "", path
	}
}

func (c *requestCounter) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts = map[string]map[string]int{}
}

// of returns the number of requests for a namespace so far, by method and resource.
func (c *requestCounter) of(namespace string) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts[namespace])
}

// waitUntilIdle waits until no request of the operator was in flight for one second. This is longer than the watch
// delay in TestWrites. If namespaces are given, only requests for these namespaces count.
func (c *requestCounter) waitUntilIdle(t testing.TB, namespaces ...string) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) { return c.idle(namespaces...), "the operator still sends requests" })
}

// idle reports whether no request of the operator was in flight during the last second.
func (c *requestCounter) idle(namespaces ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for namespace, running := range c.running {
		if len(namespaces) > 0 && !slices.Contains(namespaces, namespace) {
			continue
		}
		if running > 0 || time.Since(c.last[namespace]) <= time.Second {
			return false
		}
	}
	return true
}

// check waits until the operator is idle and its requests for a namespace have the expected counts. It polls both,
// because on a busy computer the operator can be idle for a second before its last request. A request for all
// namespaces fails the check, because the operator needs no lists after its caches are synced. Only one list of each
// custom resource is allowed. Requests in ignored may have any count.
func (c *requestCounter) check(t *testing.T, namespace string, want map[string]int, ignored ...string) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		idle := c.idle()
		got := c.of(namespace)
		for what, count := range c.of("") {
			// A cache starts with a list, perhaps after the reset. Since 1.34, only a cache of custom resources does.
			custom := strings.HasPrefix(what, "GET /apis/"+v1beta1.GroupVersion.Group+"/") && count == 1
			if strings.HasPrefix(what, "GET /api") && (custom || olderThan(t, 34, noStreams)) {
				continue
			}
			if got == nil {
				got = map[string]int{}
			}
			got[what] = count
		}
		for _, what := range ignored {
			delete(got, what)
		}
		diff := cmp.Diff(want, got)
		return idle && diff == "", fmt.Sprintf("idle: %t; requests (-want +got):\n%s", idle, diff)
	})
}

// successes returns the number of successful requests with a method and resource.
func (c *requestCounter) successes(namespace, what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[namespace][what]
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// laggingWatch delays the watch events of a resource, as a busy API server would.
type laggingWatch struct {
	next   http.RoundTripper
	suffix string // end of the URL path of the delayed watches
	lag    time.Duration
}

func (w laggingWatch) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.next.RoundTrip(request)
	if err == nil && w.lag > 0 && request.URL.Query().Get("watch") != "" && strings.HasSuffix(request.URL.Path, w.suffix) {
		response.Body = newLaggingBody(response.Body, w.lag)
	}
	return response, err
}

// A laggingBody delays each piece of a response body by lag.
type laggingBody struct {
	body   io.ReadCloser
	lag    time.Duration
	pieces chan piece
	done   chan struct{}
	close  func() error
	rest   []byte
	err    error
}

type piece struct {
	received time.Time
	data     []byte
	err      error
}

func newLaggingBody(body io.ReadCloser, lag time.Duration) *laggingBody {
	b := &laggingBody{body: body, lag: lag, pieces: make(chan piece, 1<<12), done: make(chan struct{})}
	b.close = sync.OnceValue(func() error {
		close(b.done)
		return body.Close()
	})
	go b.collect()
	return b
}

func (b *laggingBody) collect() {
	for {
		buffer := make([]byte, 32<<10)
		n, err := b.body.Read(buffer)
		select {
		case b.pieces <- piece{time.Now(), buffer[:n], err}:
		case <-b.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader.
func (b *laggingBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 && b.err == nil {
		select {
		case next := <-b.pieces:
			if !b.wait(time.Until(next.received.Add(b.lag))) {
				return 0, io.ErrClosedPipe
			}
			b.rest, b.err = next.data, next.err
		case <-b.done:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	if n == 0 {
		return 0, b.err
	}
	return n, nil
}

// wait waits for lag. It returns false if the body is closed earlier.
func (b *laggingBody) wait(lag time.Duration) bool {
	select {
	case <-time.After(lag):
		return true
	case <-b.done:
		return false
	}
}

// Close implements io.Closer.
func (b *laggingBody) Close() error { return b.close() }

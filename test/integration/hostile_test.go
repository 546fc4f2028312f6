// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"container.training/useless/test/internal/executable"
)

const (
	convertURL  = "/convert"
	validateURL = "/validate-useless-container-training-v1beta1-machine"

	// apiServerAddress is the source address of the calls that simulate the API server.
	apiServerAddress = "127.0.0.1"

	// memoryLimit is the memory limit of the container in config/manager, in bytes.
	memoryLimit = 256 << 20
)

// TestHostileClients starts many abusive clients at the same time. Their requests to the webhooks need much memory and
// time. Meanwhile, the operator must stay below its memory limit and answer the API server's calls. As in a release,
// the operator is built without the race detector.
func TestHostileClients(t *testing.T) {
	useExclusiveCluster(t)
	if runtime.GOOS != "linux" {
		t.Skip("only Linux reports the peak memory of another process")
	}
	s := startWebhookServer(t)
	for range 50 { // the first calls cause one-time allocations
		s.call(t, "conversion", convertURL, s.conversion)
		s.call(t, "admission", validateURL, admissionReview(`{"metadata":{"name":"m"},"spec":{"switches":{"count":3}}}`))
	}
	s.resetPeak(t)
	before := s.memory(t, "VmRSS")
	ctx, cancel := context.WithCancel(t.Context())
	latencies := s.callUntilDone(ctx, t)
	start := time.Now()
	// The abusive clients run in a separate process with low priority. In a cluster, they would not use the operator's
	// processors.
	attackers := exec.CommandContext(t.Context(), "nice", "-n", "5", os.Args[0], fmt.Sprintf("-test.short=%t", testing.Short()))
	attackers.Env = append(os.Environ(), abusiveClientsVariable+"="+s.url)
	if out, err := attackers.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	took := time.Since(start)
	cancel()
	all := latencies()
	peak := s.memory(t, "VmHWM")
	slices.Sort(all)
	t.Logf("load for %s: memory %d MiB before, peak %d MiB; %d calls, latency p50 %s, p99 %s, max %s",
		took.Round(time.Second), before>>20, peak>>20, len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
	if peak > memoryLimit {
		t.Errorf("peak memory is %d MiB, want at most %d", peak>>20, memoryLimit>>20)
	}
	if longest := all[len(all)-1]; longest > 5*time.Second { // timeoutSeconds of the admission webhooks
		t.Errorf("a call took %s", longest)
	}
	s.operator.waitUntilReady(t)
	if log := s.operator.Log(); strings.Contains(log, "panic") {
		t.Errorf("the operator has panicked:\n%s", log)
	}
}

// TestConnectionExhaustion opens as many connections as the operator allows, and starts large requests that do not end.
// Then the operator must accept no more connections. When the clients close their connections, the operator must answer
// the API server again.
func TestConnectionExhaustion(t *testing.T) {
	useExclusiveCluster(t)
	s := startWebhookServer(t)
	const limit = 800
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var connections []net.Conn
	for range limit {
		connection, err := s.dial(ctx)
		if err != nil {
			t.Fatalf("after %d connections: %v", len(connections), err)
		}
		defer connection.Close()
		// The operator closes a connection without a request after 10 s. It keeps a connection for 2 min after a
		// request.
		request := "POST " + convertURL + " HTTP/1.1\r\nHost: webhook\r\nContent-Length: 0\r\n\r\n"
		if _, err := io.WriteString(connection, request); err != nil {
			t.Fatal(err)
		}
		connections = append(connections, connection)
	}
	for i, connection := range connections[:8] {
		path := []string{convertURL, validateURL}[i%2]
		if _, err := fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n"+
			"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s", path, 1<<20,
			`{"request":{"objects":[{"metadata":"`+strings.Repeat("x", 100_000)); err != nil {
			t.Error(err)
		}
	}
	short, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if connection, err := s.dial(short); err == nil {
		connection.Close()
		t.Errorf("the operator has accepted more than %d connections", limit)
	}
	for _, connection := range connections {
		connection.Close()
	}
	took := s.call(t, "conversion", convertURL, s.conversion)
	took = max(took, s.call(t, "admission", validateURL, admissionReview(
		fmt.Sprintf(`{"metadata":{"name":"m","annotations":{"pad":%q}},"spec":{"switches":{"count":3}}}`, strings.Repeat("x", 100_000)))))
	t.Logf("the slowest call took %s", took)
	if took > 5*time.Second { // timeoutSeconds of the admission webhooks
		t.Errorf("a call took %s, want at most 5s", took)
	}
	s.operator.waitUntilReady(t)
}

// webhookCaller calls an operator's webhooks from one address.
type webhookCaller struct {
	operator   *operatorProcess // nil in the process of the abusive clients
	url        string
	dialer     *net.Dialer
	client     *http.Client
	conversion []byte // body of a small conversion request
}

// startWebhookServer starts an operator that serves webhooks and runs no controllers. It returns a client with the API
// server's address. The operator has no race detector, because the race detector would multiply the memory use.
func startWebhookServer(t *testing.T) *webhookCaller {
	t.Helper()
	path, err := executable.BuildManagerWithoutRace()
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	operator := startProgram(t, []string{path}, []string{"GOMEMLIMIT=200MiB"}, // as in config/manager
		fmt.Sprintf("--webhook-port=%d", port), "--controllers=-machine")
	operator.waitUntilReady(t)
	s := newWebhookCaller(fmt.Sprintf("https://127.0.0.1:%d", port), apiServerAddress)
	t.Cleanup(s.client.CloseIdleConnections)
	s.operator = operator
	s.conversion = []byte(`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"7",` +
		`"desiredAPIVersion":"useless.container.training/v1alpha1","objects":[{"apiVersion":"useless.container.training/v1beta1",` +
		`"kind":"Machine","metadata":{"name":"m"},"spec":{"switches":{"count":3}}}]}}`)
	return s
}

// newWebhookCaller returns a client that calls the operator at url. from is the client's source address. If from is not
// apiServerAddress, each call uses a new connection.
func newWebhookCaller(url, from string) *webhookCaller {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return &webhookCaller{url: url, dialer: dialer, client: &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: from != apiServerAddress,
	}}}
}

// abusiveClientsVariable is an environment variable with the URL of an operator. If the variable is set, the test
// program runs the abusive clients against that operator, and no tests.
const abusiveClientsVariable = "USELESS_TEST_ABUSIVE_CLIENTS"

// runAbusiveClients runs all abusive clients at the same time, from several addresses. It returns the exit code.
func runAbusiveClients(url string) int {
	addresses := []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"}
	var attackers errgroup.Group
	var unanswered sync.Map // the attacks that need an answer, but have none yet, by reason
	for i, from := range addresses {
		for _, attack := range newWebhookCaller(url, from).attacks() {
			if attack.mustServe && i == 0 {
				unanswered.Store(attack.reason, attack)
			}
			clients := attack.clients
			if testing.Short() {
				clients = max(1, clients/4)
			}
			for client := i; client < clients; client += len(addresses) {
				attackers.Go(func() error {
					err := attack.run(context.Background())
					if errors.Is(err, errUnanswered) {
						return nil
					}
					unanswered.Delete(attack.reason)
					if err != nil {
						return fmt.Errorf("%s: %w", attack.reason, err)
					}
					return nil
				})
			}
		}
	}
	err := attackers.Wait()
	// On a busy computer, all clients of an attack can be too slow while the other attacks run. Now they have ended.
	for reason, last := range unanswered.Range {
		if failure := last.(attack).run(context.Background()); failure != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w, even after the other attacks", reason, failure))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// resetPeak resets the operator's peak memory in the kernel's statistics.
func (s *webhookCaller) resetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.operator.PID()), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// memory returns a field of the operator's /proc/PID/status, in bytes.
func (s *webhookCaller) memory(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.operator.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == name+":" {
			kilobytes, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes << 10
		}
	}
	t.Fatalf("the kernel does not report %s", name)
	return 0
}

// callUntilDone starts two clients, one for each path. Each client calls the webhooks as the API server does, one call
// at a time, until ctx is done. latencies waits until the clients end. It returns the duration of every call.
func (s *webhookCaller) callUntilDone(ctx context.Context, t *testing.T) (latencies func() []time.Duration) {
	t.Helper()
	var clients sync.WaitGroup
	var mu sync.Mutex
	var all []time.Duration
	review := admissionReview(`{"metadata":{"name":"m"},"spec":{"switches":{"count":3}}}`)
	for path, body := range map[string][]byte{convertURL: s.conversion, validateURL: review} {
		clients.Go(func() {
			for ctx.Err() == nil {
				took := s.call(t, "as the API server", path, body)
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
			}
		})
	}
	return func() []time.Duration {
		clients.Wait()
		return all
	}
}

// call sends a request that the operator must accept, and returns the duration. caller is for failure messages.
func (s *webhookCaller) call(t *testing.T, caller, path string, body []byte) time.Duration {
	t.Helper()
	start := time.Now()
	status, answer := s.post(t.Context(), path, "application/json", int64(len(body)), bytes.NewReader(body))
	if status != http.StatusOK || !strings.Contains(answer, `"allowed":true`) && !strings.Contains(answer, `"status":"Success"`) {
		t.Errorf("%s: status %d after %s: %.300s", caller, status, time.Since(start), answer)
	}
	return time.Since(start)
}

// post sends a request. It returns the status and the end of the body of the response. If length is negative, the
// request does not declare its length. If there is no response, the status is 0 and answer is the error.
func (s *webhookCaller) post(
	ctx context.Context, path, contentType string, length int64, body io.Reader,
) (status int, answer string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, io.NopCloser(body))
	if err != nil {
		return 0, err.Error()
	}
	request.ContentLength = length
	request.Header.Set("Content-Type", contentType)
	response, err := s.client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	end := &tail{}
	if _, err := io.Copy(end, response.Body); err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(end.text)
}

// tail is a writer that keeps the last 4096 bytes.
type tail struct{ text []byte }

func (w *tail) Write(p []byte) (int, error) {
	w.text = append(w.text, p...)
	w.text = w.text[max(0, len(w.text)-4096):]
	return len(p), nil
}

// admissionReview returns the body of a request to review the creation of a Machine.
func admissionReview(machine string) []byte {
	review, err := json.Marshal(map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"request": map[string]any{"uid": "7", "operation": "CREATE", "object": json.RawMessage(
			strings.Replace(machine, "{", `{"apiVersion":"useless.container.training/v1beta1","kind":"Machine",`, 1))},
	})
	if err != nil {
		panic(err)
	}
	return review
}

// attack is a kind of request that several abusive clients send at the same time.
type attack struct {
	reason    string
	clients   int  // total number, on all addresses; a quarter with -short
	mustServe bool // true if a client must get an answer; false if the operator may close all connections

	// run returns errUnanswered if there was no answer. It returns another error if the answer was wrong.
	run func(ctx context.Context) error
}

var errUnanswered = errors.New("no answer")

func (s *webhookCaller) attacks() []attack {
	const (
		json      = "application/json"
		size      = 100 << 20
		before    = `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"7","desiredAPIVersion":"useless.container.training/v1alpha1","objects":[`
		machine   = `{"apiVersion":"useless.container.training/v1beta1","kind":"Machine","metadata":{"annotations":{"pad":"%s"}},"spec":{}}`
		admission = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"7","operation":"CREATE","object":`
	)
	object := func(bytes int) string { return fmt.Sprintf(machine, strings.Repeat("x", bytes)) }
	send := func(path, contentType string, length int64, body func() io.Reader, want ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			status, answer := s.post(ctx, path, contentType, length, body())
			// The operator closes the connection of a client that takes 30 s to send a conversion request, or 5 s to
			// send a review. On a busy or slow computer, all clients can be too slow.
			if status == 0 || strings.Contains(answer, "i/o timeout") {
				return errUnanswered
			}
			if slices.ContainsFunc(want, func(part string) bool { return strings.Contains(fmt.Sprint(status, " ", answer), part) }) {
				return nil
			}
			return fmt.Errorf("status %d: %.300s", status, answer)
		}
	}
	text := func(parts ...string) func() io.Reader {
		return func() io.Reader { return strings.NewReader(strings.Join(parts, "")) }
	}
	flood := func(first, again string, most int64) func() io.Reader {
		return func() io.Reader {
			return io.LimitReader(io.MultiReader(strings.NewReader(first), &repeater{text: again}), most)
		}
	}
	const endless = 1 << 40
	deep := strings.Repeat("[", 100_000)
	deeper := strings.Repeat(`{"a":`, 100_000)
	large, review := object(3<<20), admission+object(3<<20)+"}}"
	return []attack{
		{"conversion of 100 MB of Machines", 2, false, send(convertURL, json, -1, func() io.Reader {
			unit := object(10_000) + ","
			return io.MultiReader(flood(before, unit, int64(len(before)+size/len(unit)*len(unit)))(), strings.NewReader(object(1)+"]}}"))
		}, `"status":"Success"`)},
		{
			"conversion of one Machine of 100 MB", 4, false,
			send(convertURL, json, size, flood(before+`{"metadata":"`, "x", size), "413 "),
		},
		{
			"conversion of one endless Machine, without a declared length", 4, false,
			send(convertURL, json, -1, flood(before+`{"metadata":"`, "x", endless), "413 "),
		},
		{
			"conversion of an endless list of Machines", 2, false,
			send(convertURL, json, -1, flood(before+object(1), ","+object(1000), endless), "request body too large"),
		},
		{
			"review of 100 MB", 4, false,
			send(validateURL, json, size, flood(admission+`"`, "x", size), "request entity is too large", "503 "),
		},
		{
			"endless review", 4, false,
			send(validateURL, json, -1, flood(admission+`"`, "x", endless), "request entity is too large", "503 "),
		},
		{
			"conversion of deeply nested lists", 8, false,
			send(convertURL, json, -1, text(before, `{"spec":`, deep), "exceeded max depth"),
		},
		{
			"conversion of deeply nested objects", 8, false,
			send(convertURL, json, -1, text(before, `{"metadata":`, deeper), "exceeded max depth"),
		},
		{"conversion request that is only nested lists", 8, false, send(convertURL, json, -1, text(deep), "400 ")},
		{
			"review of deeply nested lists", 8, false,
			send(validateURL, json, -1, text(admission, deep), "exceeded max depth", "503 "),
		},
		{
			"review of deeply nested objects", 8, false,
			send(validateURL, json, -1, text(admission, deeper), "exceeded max depth", "503 "),
		},
		{
			"conversion whose body ends before the list of objects ends", 8, false,
			send(convertURL, json, -1, text(before), "unexpected EOF"),
		},
		{
			"review with content type text/plain", 8, false,
			send(validateURL, "text/plain", 10, text("0123456789"), "expected application/json"),
		},
		{
			"many conversions of large Machines", 32, true,
			send(convertURL, json, int64(len(before+large+"]}}")), text(before, large, "]}}"), `"status":"Success"`),
		},
		{
			"many reviews of large Machines; some are rejected with status 503", 32, true,
			send(validateURL, json, int64(len(review)), text(review), `"allowed":true`, "503 "),
		},
		{"headers that never end", 100, false, s.drip("POST " + convertURL + " HTTP/1.1\r\nHost: webhook\r\nX-Pad: " + strings.Repeat("x", 8<<10))},
		{"headers that are too long", 20, false, s.drip("POST " + convertURL + " HTTP/1.1\r\nHost: webhook\r\nX-Pad: " + strings.Repeat("x", 1<<20))},
		{"conversions that never end", 100, false, s.drip("POST " + convertURL + " HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n" +
			before + object(50_000))},
		{"reviews that never end", 50, false, s.drip("POST " + validateURL + " HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n" +
			admission + object(50_000))},
	}
}

// dial connects to the operator with TLS.
func (s *webhookCaller) dial(ctx context.Context) (net.Conn, error) {
	dialer := &tls.Dialer{NetDialer: s.dialer, Config: &tls.Config{InsecureSkipVerify: true}}
	return dialer.DialContext(ctx, "tcp", strings.TrimPrefix(s.url, "https://"))
}

// drip sends text, and then one byte every 100 ms. It stops after 12 s, or when the operator closes the connection.
func (s *webhookCaller) drip(text string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		connection, err := s.dial(ctx)
		if err != nil {
			return nil // a TLS handshake can time out, because many clients start one at the same time
		}
		defer connection.Close()
		closed := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, connection)
			close(closed)
		}()
		_, err = io.WriteString(connection, text)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for enough := time.After(12 * time.Second); err == nil; _, err = io.WriteString(connection, "x") {
			select {
			case <-closed:
				return nil
			case <-enough:
				return nil
			case <-tick.C:
			}
		}
		return nil
	}
}

// repeater is an endless reader that repeats text.
type repeater struct {
	text string
	rest string
}

func (a *repeater) Read(p []byte) (int, error) {
	if a.text == "" {
		return 0, errors.New("nothing to repeat")
	}
	if a.rest == "" {
		a.rest = strings.Repeat(a.text, max(1, 32<<10/len(a.text)))
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

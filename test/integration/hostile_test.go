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

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/internal/conversion/conversiontest"
	"container.training/useless/test/program"
)

const (
	convertURL  = "/convert"
	validateURL = "/validate-useless-container-training-v1beta1-machine"

	// apiServer is the address of who calls as the API server does.
	apiServer = "127.0.0.1"

	// mostMemory is what the container in config/manager may have.
	mostMemory = 256 << 20
)

// TestHostileClients has many clients send what takes memory and time, all at once, to the operator as it is shipped. Its
// memory is enough, and what the API server asks meanwhile is answered.
func TestHostileClients(t *testing.T) {
	alone(t)
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says how much memory another process has had at most")
	}
	s := startSiege(t)
	for range 50 { // what the first calls take
		s.call(t, "conversion", convertURL, s.conversion)
		s.call(t, "admission", validateURL, admissionReview(`{"metadata":{"name":"m"},"spec":{"switches":{"count":3}}}`))
	}
	s.resetPeak(t)
	before := s.memory(t, "VmRSS")
	ctx, cancel := context.WithCancel(t.Context())
	latencies := s.use(ctx, t)
	start := time.Now()
	// In a process of their own, and a nice one: they would have machines of their own.
	attackers := exec.CommandContext(t.Context(), "nice", "-n", "19", os.Args[0], fmt.Sprintf("-test.short=%t", testing.Short()))
	attackers.Env = append(os.Environ(), siegeVariable+"="+s.url)
	if out, err := attackers.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	took := time.Since(start)
	cancel()
	all := latencies()
	most := s.memory(t, "VmHWM")
	slices.Sort(all)
	t.Logf("a siege of %s: %d MiB before and at most %d MiB; %d calls, the median took %s, of a hundred 99 took less than %s, the longest %s",
		took.Round(time.Second), before>>20, most>>20, len(all), all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
	if most > mostMemory {
		t.Errorf("takes %d MiB, want at most %d", most>>20, mostMemory>>20)
	}
	if longest := all[len(all)-1]; longest > 5*time.Second { // which is when the API server gives up
		t.Errorf("a call took %s", longest)
	}
	s.operator.waitUntilReady(t)
	if log := s.operator.Log(); strings.Contains(log, "panic") {
		t.Errorf("the operator has panicked:\n%s", log)
	}
}

// TestGreedyClient has a neighbour take all that one can have, and keep it: connections, and turns for large requests, which never
// end. What the API server asks then is answered on new connections, small or large, and before any of those is given up.
func TestGreedyClient(t *testing.T) {
	alone(t)
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere there is one address of a machine's own")
	}
	s := startSiege(t)
	neighbour := newSiege(s.url, "127.0.0.2")
	var connections []net.Conn
	const attempts = 1000
	for range attempts {
		if connection, err := neighbour.dial(t.Context()); err == nil {
			defer connection.Close()
			_, _ = io.WriteString(connection, "POST "+convertURL+" HTTP/1.1\r\nHost: webhook\r\nContent-Length: 0\r\n\r\n")
			connections = append(connections, connection)
		}
	}
	if n := len(connections); n < 8 || n == attempts {
		t.Fatalf("a neighbour has %d connections", n)
	}
	for i, connection := range connections[:8] {
		path := []string{convertURL, validateURL}[i%2]
		if _, err := fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s",
			path, 1<<20, `{"request":{"objects":[{"metadata":"`+strings.Repeat("x", 100_000)); err != nil {
			t.Error(err)
		}
	}
	annotated := fmt.Sprintf(`"metadata":{"annotations":{"pad":%q},`, strings.Repeat("x", 100_000))
	large, err := conversiontest.Review("7", v1alpha1.GroupVersion.String(),
		bytes.Replace(conversiontest.Machine(1), []byte(`"metadata":{`), []byte(annotated), 1))
	if err != nil {
		t.Fatal(err)
	}
	answered := func(what string, took time.Duration) {
		t.Helper()
		t.Logf("%s took %s", what, took)
		if took > 3*time.Second {
			t.Errorf("%s took %s", what, took)
		}
	}
	for _, body := range [][]byte{s.conversion, large} {
		s.client.CloseIdleConnections()
		answered(fmt.Sprintf("a conversion of %d bytes", len(body)), s.call(t, "conversion", convertURL, body))
	}
	for _, pad := range []int{1, 100_000} {
		s.client.CloseIdleConnections()
		review := admissionReview(fmt.Sprintf(`{"metadata":{"name":"m","annotations":{"pad":%q}},"spec":{"switches":{"count":3}}}`, strings.Repeat("x", pad)))
		answered(fmt.Sprintf("a review of %d bytes", len(review)), s.call(t, "admission", validateURL, review))
	}
	s.operator.waitUntilReady(t)
}

// A siege is an operator and those who call it.
type siege struct {
	operator   *operatorProcess
	url        string
	dialer     *net.Dialer
	client     *http.Client
	conversion []byte
}

// startSiege starts the operator without the race detector, which takes many times the memory, and without controllers: all that
// it does is answer.
func startSiege(t *testing.T) *siege {
	t.Helper()
	path, err := program.BuildPlain()
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	operator := startProgram(t, []string{path}, []string{"GOMEMLIMIT=200MiB"}, // as in config/manager
		fmt.Sprintf("--webhook-port=%d", port), "--controllers=-machine")
	operator.waitUntilReady(t)
	body, err := conversiontest.Machines(1)
	if err != nil {
		t.Fatal(err)
	}
	s := newSiege(fmt.Sprintf("https://127.0.0.1:%d", port), apiServer)
	t.Cleanup(s.client.CloseIdleConnections)
	s.operator, s.conversion = operator, body
	return s
}

// newSiege has somebody at an address call an operator, or several who begin each call anew.
func newSiege(url, from string) *siege {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return &siege{url: url, dialer: dialer, client: &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: from != apiServer,
	}}}
}

// siegeVariable has the URL of the operator that this program is to besiege, rather than run tests.
const siegeVariable = "USELESS_TEST_SIEGE"

// besiege has all attack at once, from several addresses, and returns the exit code.
func besiege(url string) int {
	neighbours := []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"}
	var attackers errgroup.Group
	var unanswered sync.Map // by their reasons, until one of them is
	for i, from := range neighbours {
		for _, attack := range newSiege(url, from).attacks() {
			if attack.served && i == 0 {
				unanswered.Store(attack.reason, true)
			}
			clients := attack.clients
			if testing.Short() {
				clients = max(1, clients/4)
			}
			for client := i; client < clients; client += len(neighbours) {
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
	for reason := range unanswered.Range {
		err = errors.Join(err, fmt.Errorf("%s: none was answered", reason))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// resetPeak has the kernel forget how much memory the operator has had at most.
func (s *siege) resetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.operator.PID()), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// memory is a number of bytes that the kernel counts for the operator.
func (s *siege) memory(t *testing.T, name string) int {
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
	t.Fatalf("the kernel does not count %s", name)
	return 0
}

// use has two clients call as the API server does, one after the other, and returns what gathers how long each call took.
func (s *siege) use(ctx context.Context, t *testing.T) (latencies func() []time.Duration) {
	t.Helper()
	var users sync.WaitGroup
	var mu sync.Mutex
	var all []time.Duration
	review := admissionReview(`{"metadata":{"name":"m"},"spec":{"switches":{"count":3}}}`)
	for path, body := range map[string][]byte{convertURL: s.conversion, validateURL: review} {
		users.Go(func() {
			for ctx.Err() == nil {
				took := s.call(t, "as the API server", path, body)
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
			}
		})
	}
	return func() []time.Duration {
		users.Wait()
		return all
	}
}

// call calls the operator with what it has to accept, and returns how long that took.
func (s *siege) call(t *testing.T, who, path string, body []byte) time.Duration {
	t.Helper()
	start := time.Now()
	status, answer := s.post(t.Context(), path, "application/json", int64(len(body)), bytes.NewReader(body))
	if status != http.StatusOK || !strings.Contains(answer, `"allowed":true`) && !strings.Contains(answer, `"status":"Success"`) {
		t.Errorf("%s: status %d after %s: %.300s", who, status, time.Since(start), answer)
	}
	return time.Since(start)
}

// post returns the answer to a body, which is of no length if that is less than zero; status 0 means none.
func (s *siege) post(ctx context.Context, path, contentType string, length int64, body io.Reader) (status int, answer string) {
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

// A tail keeps the end of what is written.
type tail struct{ text []byte }

func (w *tail) Write(p []byte) (int, error) {
	w.text = append(w.text, p...)
	w.text = w.text[max(0, len(w.text)-4096):]
	return len(p), nil
}

// admissionReview asks whether a Machine may be created.
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

// An attack is what several clients do at the same time. It returns an error where the operator does not answer as it has to, or
// errUnanswered.
type attack struct {
	reason  string
	clients int
	served  bool // in the end; of the others, all may be hung up on
	run     func(ctx context.Context) error
}

var errUnanswered = errors.New("no answer")

// attacks are all there are.
func (s *siege) attacks() []attack {
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
			// Who takes half a minute to say something, as all may where the processor is busy or slow, is not waited for.
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
		{"100 MB of Machines are converted", 2, false, send(convertURL, json, -1, func() io.Reader {
			unit := object(10_000) + ","
			return io.MultiReader(flood(before, unit, int64(len(before)+size/len(unit)*len(unit)))(), strings.NewReader(object(1)+"]}}"))
		}, `"status":"Success"`)},
		{"one Machine of 100 MB is not converted", 4, false, send(convertURL, json, size, flood(before+`{"metadata":"`, "x", size), "413 ")},
		{"nor where nobody says how long it is", 4, false, send(convertURL, json, -1, flood(before+`{"metadata":"`, "x", endless), "413 ")},
		{"Machines without end", 2, false, send(convertURL, json, -1, flood(before+object(1), ","+object(1000), endless), "request body too large")},
		{"a review of 100 MB is not looked at", 4, false, send(validateURL, json, size, flood(admission+`"`, "x", size), "413 ")},
		{"nor one without end", 4, false, send(validateURL, json, -1, flood(admission+`"`, "x", endless), "request entity is too large", "503 ")},
		{"lists in lists are not converted", 8, false, send(convertURL, json, -1, text(before, `{"spec":`, deep), "exceeded max depth")},
		{"nor objects in objects", 8, false, send(convertURL, json, -1, text(before, `{"metadata":`, deeper), "exceeded max depth")},
		{"nor what is nothing else", 8, false, send(convertURL, json, -1, text(deep), "400 ")},
		{"lists in lists are not let in", 8, false, send(validateURL, json, -1, text(admission, deep), "exceeded max depth", "503 ")},
		{"nor objects in objects", 8, false, send(validateURL, json, -1, text(admission, deeper), "exceeded max depth", "503 ")},
		{"what is called text is not converted", 8, false, send(convertURL, "text/plain", -1, text(before), "415 ")},
		{"nor let in", 8, false, send(validateURL, "text/plain", 10, text("0123456789"), "expected application/json")},
		{"many large Machines are converted", 32, true, send(convertURL, json, int64(len(before+large+"]}}")), text(before, large, "]}}"), `"status":"Success"`)},
		{"many large ones are let in, or none has time for them", 32, true, send(validateURL, json, int64(len(review)), text(review), `"allowed":true`, "503 ")},
		{"headers that never end", 100, false, s.drip("POST " + convertURL + " HTTP/1.1\r\nHost: webhook\r\nX-Pad: " + strings.Repeat("x", 8<<10))},
		{"headers that are too long", 20, false, s.drip("POST " + convertURL + " HTTP/1.1\r\nHost: webhook\r\nX-Pad: " + strings.Repeat("x", 1<<20))},
		{"conversions that never end", 100, false, s.drip("POST " + convertURL + " HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n" +
			before + object(50_000))},
		{"reviews that never end", 50, false, s.drip("POST " + validateURL + " HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n" +
			admission + object(50_000))},
	}
}

// dial connects to the operator.
func (s *siege) dial(ctx context.Context) (net.Conn, error) {
	dialer := &tls.Dialer{NetDialer: s.dialer, Config: &tls.Config{InsecureSkipVerify: true}}
	return dialer.DialContext(ctx, "tcp", strings.TrimPrefix(s.url, "https://"))
}

// drip says the beginning of something, and more of it byte by byte, for as long as the siege takes or until the operator has
// had enough.
func (s *siege) drip(text string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		connection, err := s.dial(ctx)
		if err != nil {
			return nil // where all shake hands at once, that can take longer than the operator waits
		}
		defer connection.Close()
		answered := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, connection)
			close(answered)
		}()
		_, err = io.WriteString(connection, text)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for enough := time.After(12 * time.Second); err == nil; _, err = io.WriteString(connection, "x") {
			select {
			case <-answered:
				return nil
			case <-enough:
				return nil
			case <-tick.C:
			}
		}
		return nil
	}
}

// A repeater is a text again and again.
type repeater struct {
	text string
	rest string
}

func (a *repeater) Read(p []byte) (int, error) {
	if a.text == "" {
		return 0, errors.New("nothing again and again")
	}
	if a.rest == "" {
		a.rest = strings.Repeat(a.text, max(1, 32<<10/len(a.text)))
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

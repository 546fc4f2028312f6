// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"container.training/useless/api/useless/v1beta1"
	reporter "container.training/useless/internal/events"
	"container.training/useless/internal/schedule"
)

// server is a running page without a cluster. A test changes the objects in its stores and calls notify.
type server struct {
	*Page
	stop context.CancelFunc
}

// newTestPage returns a page with one Machine that has one switch.
func newTestPage(t *testing.T) *Page {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	machine := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m", UID: "1"}}
	owner := *metav1.NewControllerRef(machine, v1beta1.GroupVersion.WithKind("Machine"))
	sw := &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "m-0", OwnerReferences: []metav1.OwnerReference{owner},
	}}
	p := newPage(fake.NewClientBuilder().WithScheme(scheme).WithObjects(sw).Build())
	for name := range sources() {
		p.stores[name] = toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	}
	p.put(t, machines, machine)
	p.put(t, switches, sw)
	p.refresh(time.Now())
	return p
}

// serve serves a page until the end of the test.
func serve(t *testing.T) *server {
	t.Helper()
	p := newTestPage(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.URL = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(p.done)
		p.err = p.serve(ctx, l)
	}()
	t.Cleanup(func() {
		cancel()
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &server{p, cancel}
}

func (p *Page) put(t *testing.T, store string, o client.Object) {
	t.Helper()
	if err := p.stores[store].Update(o); err != nil {
		t.Fatal(err)
	}
}

// request sends a request with these pairs of header and value. The header Host sets the host of the request.
func (s *server) request(t *testing.T, method, path, body string, headers ...string) (status int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(headers, 2) {
		request.Header.Set(pair[0], pair[1])
		if pair[0] == "Host" {
			request.Host = pair[1]
		}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(all)
}

// stream opens a stream. The function next returns the name and the data of the next event. At the end of the stream,
// it returns an error.
func (s *server) stream(t *testing.T) (next func() (name string, c change, err error)) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	lines := bufio.NewReader(response.Body)
	return func() (name string, c change, err error) {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return "", c, err
			}
			if value, ok := strings.CutPrefix(line, "event: "); ok {
				name = strings.TrimSpace(value)
			}
			if value, ok := strings.CutPrefix(line, "data: "); ok {
				return name, c, json.Unmarshal([]byte(value), &c)
			}
		}
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	s := serve(t)
	one, two := s.stream(t), s.stream(t)
	for _, next := range []func() (string, change, error){one, two} {
		name, c, err := next()
		const want = `{"namespace":"default","name":"m","ready":false,"paused":false,"message":"new",` +
			`"switches":[{"name":"m-0","up":false}]}`
		if got := string(c.Set["machine/default/m"]); name != "state" || got != want || err != nil {
			t.Errorf("got event %q with Machine %s and error %v, want the event state with %s", name, got, err, want)
		}
	}
	s.put(t, machines, &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}})
	if err := s.stores[machines].Delete(&v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}}); err != nil {
		t.Fatal(err)
	}
	s.notify()
	for _, next := range []func() (string, change, error){one, two} {
		name, c, err := next()
		_, ok := c.Set["machine/default/other"]
		if name != "change" || !ok || len(c.Set) != 1 || !slices.Equal(c.Gone, []string{"machine/default/m"}) || err != nil {
			t.Errorf("got event %q with %+v and error %v, want only the changes", name, c, err)
		}
	}
}

// TestChangesAreCoalesced changes a Machine more often than the page sends changes.
func TestChangesAreCoalesced(t *testing.T) {
	t.Parallel()
	s := serve(t)
	next := s.stream(t)
	if _, _, err := next(); err != nil {
		t.Fatal(err)
	}
	const last = 500
	begin := time.Now()
	go func() {
		for i := range last + 1 {
			status := v1beta1.MachineStatus{SeenAt: &metav1.MicroTime{Time: time.UnixMilli(int64(i))}}
			_ = s.stores[machines].Update(&v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}, Status: status})
			s.notify()
			time.Sleep(time.Millisecond)
		}
	}()
	events, m := 0, machineItem{}
	for ; m.Due != 5000+last; events++ {
		_, c, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(c.Set["machine/default/m"], &m); err != nil {
			t.Fatal(err)
		}
	}
	if most := int(time.Since(begin)/minInterval) + 1; events > most {
		t.Errorf("got %d events in %s, want at most %d", events, time.Since(begin), most)
	}
}

func TestTurn(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const up, path = `{"position":"up"}`, "/switches/default/m-0"
	for _, test := range []struct {
		reason, method, path, body string
		headers                    []string
		status                     int
		text                       string
	}{
		{"a host that is not a loopback address", "POST", path, up, []string{"Host", "attacker.example:80"}, 403, "not a loopback address"},
		{"a host that only begins like a loopback address", "GET", "/", "", []string{"Host", "127.0.0.1.attacker.example"}, 403, "not a loopback address"},
		{"a request from another site", "POST", path, up, []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross-origin"},
		{"a request from another port of this host", "POST", path, up, []string{"Sec-Fetch-Site", "same-site"}, 403, "cross-origin"},
		{"another origin, from an old browser", "POST", path, up, []string{"Origin", "http://attacker.example"}, 403, "cross-origin"},
		{"another position", "POST", path, `{"position":"down"}`, nil, 400, "the body must be"},
		{"no JSON", "POST", path, "up", nil, 400, "the body must be"},
		{"a body that is too large", "POST", path, strings.Repeat(" ", 1<<20) + up, nil, 400, "the body must be"},
		{"a switch that does not exist", "POST", "/switches/default/other", up, nil, 404, "not found"},
		{"another method", "GET", path, "", nil, 405, ""},
		{"another path", "GET", "/other", "", nil, 404, ""},
		{"the page", "GET", "/", "", []string{"Host", "[::1]:80"}, 200, "<title>Useless machines</title>"},
		{"the page as localhost, opened from another site", "GET", "/", "", []string{"Host", "LOCALHOST", "Sec-Fetch-Site", "cross-site"}, 200, "<title>"},
	} {
		if status, text := s.request(t, test.method, test.path, test.body, test.headers...); status != test.status || !strings.Contains(text, test.text) {
			t.Errorf("%s: got %d %q, want %d and %q", test.reason, status, text, test.status, test.text)
		}
	}
	var sw v1beta1.Switch
	key := client.ObjectKey{Namespace: "default", Name: "m-0"}
	if err := s.client.Get(t.Context(), key, &sw); err != nil || sw.Spec.Position == v1beta1.PositionUp {
		t.Fatalf("an invalid request changed the switch to %q: %v", sw.Spec.Position, err)
	}
	if status, text := s.request(t, "POST", path, up, "Sec-Fetch-Site", "same-origin"); status != 204 || text != "" {
		t.Errorf("got %d %q, want 204", status, text)
	}
	if err := s.client.Get(t.Context(), key, &sw); err != nil || sw.Spec.Position != v1beta1.PositionUp {
		t.Errorf("the position is %q, want up: %v", sw.Spec.Position, err)
	}
}

// TestShutdownEndsStreams checks that the server stops although a client reads a stream.
func TestShutdownEndsStreams(t *testing.T) {
	t.Parallel()
	s := serve(t)
	next := s.stream(t)
	if _, _, err := next(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
	if name, _, err := next(); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got event %q and error %v, want the end of the stream", name, err)
	}
}

// TestPolicy checks that the policy allows the elements of the page, and no other source.
func TestPolicy(t *testing.T) {
	t.Parallel()
	for _, element := range []string{"style", "script"} {
		if n := strings.Count(string(index), "<"+element); n != 1 {
			t.Errorf("the page has %d elements %s, want 1", n, element)
		}
	}
	for _, source := range []string{"http:", "https:", "*", "unsafe"} {
		if strings.Contains(policy, source) {
			t.Errorf("the policy contains %s: %s", source, policy)
		}
	}
}

func TestWorkload(t *testing.T) {
	t.Parallel()
	s := newTestPage(t)
	s.put(t, namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "dev", Annotations: map[string]string{v1beta1.StopScheduleAnnotation: "20:00"},
	}})
	deployment := func(name string, replicas int32, annotations map[string]string) {
		s.put(t, "deployments", &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: name, Annotations: annotations},
			Spec:       appsv1.DeploymentSpec{Replicas: &replicas},
		})
	}
	deployment("default", 1, nil)
	deployment("none", 1, map[string]string{v1beta1.ScheduleAnnotation: v1beta1.ScheduleNone})
	deployment("invalid", 1, map[string]string{v1beta1.StopScheduleAnnotation: "25:00"})
	deployment("expires", 0, map[string]string{v1beta1.StopScheduleAnnotation: "20:00", v1beta1.StartUntilAnnotation: "2026-11-20T23:00:00Z"})
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	got := map[string]workloadItem{}
	for key, item := range s.state(now) {
		if w, ok := item.(workloadItem); ok {
			w.Week = week{}
			got[key] = w
		}
	}
	at := func(hour int) int64 { return time.Date(2026, 11, 20, hour, 0, 0, 0, time.UTC).UnixMilli() }
	want := map[string]workloadItem{
		"workload/dev/default/deployments": {item: item{"dev", "default"}, Kind: "deployment", State: "started",
			Schedule: "stop 20:00", Zone: "UTC", Next: at(20), NextIsStop: true},
		"workload/dev/invalid/deployments": {item: item{"dev", "invalid"}, Kind: "deployment", State: "invalid",
			Schedule: `useless.container.training/stop-schedule "25:00": 25:00 is not a time of day from 00:00 to 23:59; ` +
				`use for example "Mon-Fri 20:00", "20:00" or "0 20 * * 1-5"`},
		"workload/dev/expires/deployments": {item: item{"dev", "expires"}, Kind: "deployment", State: "stopped",
			Schedule: "stop 20:00, start-until 2026-11-20T23:00:00Z", Zone: "UTC", Next: at(23), NextIsStop: true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(workloadItem{})); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
}

func TestWeek(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		reason, start, stop string
		now                 time.Time
		days                time.Duration
		want                []string
	}{{
		"office hours", "Mon-Fri 07:00", "Mon-Fri 20:00", time.Date(2026, 11, 21, 12, 0, 0, 0, berlin), 7 * 24 * time.Hour,
		slices.Concat(slices.Repeat([]string{"stopped 07:00", "runs 20:00"}, 5), []string{"stopped 00:00"}),
	}, {
		"a start or a stop every minute", "1-59/2 * * * *", "0-58/2 * * * *", time.Date(2026, 11, 21, 12, 0, 0, 0, berlin), 7 * 24 * time.Hour,
		[]string{"changes 00:00"},
	}, {
		"a short stop every Monday", "Mon 12:10", "Mon 12:00", time.Date(2026, 11, 21, 12, 0, 0, 0, berlin), 7 * 24 * time.Hour,
		[]string{"runs 12:00", "changes 12:30", "runs 00:00"},
	}, {
		"only one event, and the clock is set back", "0 9 25 10 *", "0 9 1 1 *", time.Date(2026, 10, 24, 1, 0, 0, 0, berlin), 7*24*time.Hour + time.Hour,
		[]string{"stopped 09:00", "runs 00:00"},
	}} {
		annotations := map[string]string{
			v1beta1.StartScheduleAnnotation: test.start, v1beta1.StopScheduleAnnotation: test.stop,
		}
		s, problems := schedule.Parse(annotations, berlin)
		if s == nil {
			t.Fatal(problems)
		}
		w := newWeek(s, test.now)
		var got []string
		for i, span := range w.Spans {
			if i > 0 && span.From != w.Spans[i-1].To {
				t.Errorf("%s: there is a gap before the span %d", test.reason, i)
			}
			got = append(got, span.State+" "+time.UnixMilli(span.To).In(berlin).Format("15:04"))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.reason, diff)
		}
		first, last := time.UnixMilli(w.Days[0]), time.UnixMilli(w.Days[len(w.Days)-1])
		if len(w.Days) != 8 || last.Sub(first) != test.days || w.Spans[0].From != w.Days[0] || w.Spans[len(w.Spans)-1].To != w.Days[7] {
			t.Errorf("%s: the week is from %s to %s, with spans %v", test.reason, first, last, w.Spans)
		}
	}
}

// TestEvents checks that the page shows the newest events of the operator.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := newTestPage(t)
	for i := range maxEvents + 10 {
		e := &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: string(rune('A' + i)), UID: types.UID(string(rune('A' + i)))},
			EventTime:  metav1.MicroTime{Time: time.Unix(int64(i), 0)}, ReportingController: reporter.Reporter,
		}
		if i == 0 {
			e.Series = &eventsv1.EventSeries{LastObservedTime: metav1.MicroTime{Time: time.Unix(1000, 0)}}
		}
		if i == maxEvents {
			e.ReportingController = "deployment-controller"
		}
		s.put(t, events, e)
	}
	all := s.newestEvents()
	if len(all) != maxEvents || all[0].Name != "A" || slices.ContainsFunc(all, func(e *eventsv1.Event) bool { return e.ReportingController != reporter.Reporter }) {
		t.Errorf("got %d events, first %s; want the newest events of the operator, first A", len(all), all[0].Name)
	}
}

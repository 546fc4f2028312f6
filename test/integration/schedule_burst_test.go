// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// hasRaceDetector reports whether this program was built with the race detector. It slows down the operator more than
// the minimal client of TestScheduleBurst, and a migration multiple times.
var hasRaceDetector bool

var burstRounds = flag.Int("rounds", 0, "number of rounds in which TestScheduleBurst compares the operator with a minimal client")

// TestScheduleBurst stops 2,000 Deployments whose stops are due in the same second. The operator must send one write
// for each Deployment. It must write nothing before the stops are due, and nothing after a restart. Events do not
// count. With -short or the race detector, the test stops only 200 Deployments.
//
// With -rounds, the operator must take at most 1.2 times as long as a minimal client. This client has the same number of
// workers, sends equal patches to equal Deployments, and decodes all watch events of Deployments. It makes no decisions.
// As on a cluster, the operator and the client do not run on the processors of the API server. Each round measures the
// operator and the client directly after each other, so that other load on the computer slows down both. In a first
// round, which does not count, the API server and the client libraries fill their caches. Then the test compares the
// median of the rounds. Run it on an idle computer with two or more processors:
//
//	go test ./test/integration -timeout 30m -run TestScheduleBurst -rounds 5
func TestScheduleBurst(t *testing.T) {
	const most = 1.2
	useExclusiveCluster(t)
	b := &burst{T: t, n: 2000, clock: &adjustedClock{}}
	b.suspendControllers()
	if testing.Short() || hasRaceDetector {
		b.n = 200
	}
	if *burstRounds > 0 {
		b.separateProcessors()
	}
	b.compare(0)
	if *burstRounds == 0 {
		return
	}
	ratios := make([]float64, *burstRounds)
	for i := range ratios {
		ratios[i] = b.compare(i + 1)
	}
	slices.Sort(ratios)
	if median := ratios[len(ratios)/2]; median > most {
		t.Errorf("the operator takes %.2f times as long as the minimal client, want at most %.1f times", median, most)
	}
}

// compare returns the ratio of the operator's time to the minimal client's time. The operator is first in even rounds,
// and the minimal client in odd rounds. The operator must be first in round 0, because the minimal client copies one of
// its patches.
func (b *burst) compare(round int) (ratio float64) {
	b.Helper()
	var operator, minimal time.Duration
	if round%2 == 0 {
		operator = b.operator(round == 0)
		minimal = b.minimalClient()
	} else {
		minimal = b.minimalClient()
		operator = b.operator(false)
	}
	ratio = operator.Seconds() / minimal.Seconds()
	b.Logf("round %d: operator %s, minimal client %s; ratio %.2f", round, operator, minimal, ratio)
	return ratio
}

// burst stops n Deployments at the same time.
type burst struct {
	*testing.T
	n     int
	clock *adjustedClock
	patch map[string]any // one of the operator's patches
}

// burstWorkers is the number of workers of the schedule controller, and of the minimal client.
const burstWorkers = 16

// suspendControllers suspends kube-controller-manager until the test ends. Otherwise, it would write the status of the
// Deployments, and create Pods, at the same time.
func (b *burst) suspendControllers() {
	b.Helper()
	for _, process := range clusterOf(b).Processes() {
		if process.Name() != "kube-controller-manager" {
			continue
		}
		if err := process.Signal(syscall.SIGSTOP); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := process.Signal(syscall.SIGCONT); err != nil {
				b.Error(err)
			}
		})
		return
	}
	b.Fatal("kube-controller-manager does not run")
}

// operator returns the time from when the stops are due until the operator has written the last one. If restart is
// true, it then checks that a new operator writes nothing.
func (b *burst) operator(restart bool) time.Duration {
	b.Helper()
	namespace := newNamespace(b)
	b.create(namespace)
	due := friday(19)
	requests, writes := newRequestCounter(), b.newArrivals(namespace)
	run := func() (stop func()) {
		return runOperatorFor(b, operatorOptions{clock: b.clock, transport: func(config *rest.Config) {
			config.Wrap(requests.wrap)
			config.Wrap(writes.wrap)
		}})
	}
	stop := b.startBefore(due, run)
	writes.wait(b.T, b.n)
	// The operator sends the events one after another, so this takes longer than the default timeout.
	eventually(b, 5*time.Minute, func() (bool, string) { return requests.idle(), "the operator still sends events" })
	stop()
	if restart {
		stop = run()
		requests.waitUntilIdle(b)
		stop()
	}
	b.patch = writes.patch
	for what, count := range requests.of(namespace) {
		if !strings.HasSuffix(what, " events") && (what != "PATCH deployments" || count != b.n) {
			b.Errorf("%d requests %s, want only %d requests PATCH deployments, and events", count, what, b.n)
		}
	}
	writes.checkOnce(b.T, b.n)
	if first := writes.written[0]; first.Before(due) {
		b.Errorf("the first stop was at %s, before it was due at %s", first, due)
	}
	b.delete(namespace)
	return writes.last().Sub(due)
}

// startBefore starts an operator. The operator must have read all Deployments at least ten seconds before their stops
// are due. On a busy computer, startBefore needs several attempts. Each attempt sets the clock to an earlier time.
func (b *burst) startBefore(due time.Time, run func() (stop func())) (stop func()) {
	b.Helper()
	for lead := 20 * time.Second; lead < 5*time.Minute; lead *= 2 {
		b.clock.set(due.Add(-lead))
		stop := run()
		if b.clock.Now().Before(due.Add(-10 * time.Second)) {
			return stop
		}
		stop()
	}
	b.Fatal("the operator does not start in time")
	return nil
}

// minimalClient returns how long a minimal client takes for equal patches. The client has the operator's permissions,
// and no rate limit.
func (b *burst) minimalClient() time.Duration {
	b.Helper()
	namespace := newNamespace(b)
	writes := b.newArrivals(namespace)
	config, err := clientcmd.BuildConfigFromFlags("", clusterOf(b).operatorKubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	config.QPS = -1
	config.Wrap(writes.wrap)
	minimal, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel() // otherwise, its cache would slow down the following rounds
	b.watch(ctx, config)
	deployments := b.create(namespace)
	patches := make([]client.Patch, len(deployments))
	for i, d := range deployments {
		patches[i] = b.patchFor(d)
	}
	var group errgroup.Group
	group.SetLimit(burstWorkers)
	begin := b.clock.Now()
	for i, d := range deployments {
		group.Go(func() error {
			return minimal.Patch(b.Context(), d, patches[i], client.FieldOwner(scheduleManager))
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	writes.checkOnce(b.T, b.n)
	b.delete(namespace)
	return writes.last().Sub(begin)
}

// watch decodes all watch events of Deployments until the end of ctx, like a controller's cache.
func (b *burst) watch(ctx context.Context, config *rest.Config) {
	b.Helper()
	cached, err := cache.New(config, cache.Options{Scheme: newScheme()})
	if err == nil {
		_, err = cached.GetInformer(ctx, &appsv1.Deployment{}, cache.BlockUntilSynced(false))
	}
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = cached.Start(ctx) }()
	if !cached.WaitForCacheSync(ctx) {
		b.Fatal("the cache was not filled")
	}
}

// patchFor returns the operator's patch with the resource version of a Deployment.
func (b *burst) patchFor(d *appsv1.Deployment) client.Patch {
	b.Helper()
	b.patch["metadata"].(map[string]any)["resourceVersion"] = d.ResourceVersion
	data, err := json.Marshal(b.patch)
	if err != nil {
		b.Fatal(err)
	}
	return client.RawPatch(types.MergePatchType, data)
}

// create creates n Deployments with one replica. Their annotations say that the operator has started them.
func (b *burst) create(namespace string) []*appsv1.Deployment {
	b.Helper()
	annotations := map[string]string{
		v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", v1beta1.StopScheduleAnnotation: "Mon-Fri 20:00",
		v1beta1.TimeZoneAnnotation: "Europe/Berlin",
	}
	s, problems := schedule.Parse(annotations, time.UTC)
	if len(problems) > 0 {
		b.Fatal(problems)
	}
	record := schedule.Record{
		Last: friday(6), Next: friday(19), State: v1beta1.ScheduleStarted, Observed: s.Observed,
	}
	record.Write(annotations, false)
	deployments := make([]*appsv1.Deployment, b.n)
	var group errgroup.Group
	group.SetLimit(burstWorkers)
	for i := range deployments {
		group.Go(func() error {
			d := newDeployment(namespace, fmt.Sprintf("d-%d", i))
			d.Spec.Replicas, d.Annotations, deployments[i] = new(int32(1)), annotations, d
			return admin(b).Create(b.Context(), d)
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return deployments
}

// delete deletes the Deployments, so that the next operator does not cache them.
func (b *burst) delete(namespace string) {
	b.Helper()
	if err := admin(b).DeleteAllOf(b.Context(), &appsv1.Deployment{}, client.InNamespace(namespace)); err != nil {
		b.Fatal(err)
	}
}

// arrivals records when the API server answered the writes to the Deployments of a Namespace. It ignores other
// Namespaces, which can have scheduled Deployments of earlier tests.
type arrivals struct {
	folder string // the part of the path before a Deployment's name
	clock  *adjustedClock

	mu      sync.Mutex
	written []time.Time
	writes  map[string]int // successful writes by path
	others  map[string]int // other responses by status
	patch   map[string]any // the first successful patch
}

func (b *burst) newArrivals(namespace string) *arrivals {
	return &arrivals{folder: "/namespaces/" + namespace + "/deployments/", clock: b.clock, writes: map[string]int{},
		others: map[string]int{}}
}

func (a *arrivals) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if request.Method == http.MethodGet || !strings.Contains(request.URL.Path, a.folder) {
			return next.RoundTrip(request)
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		response, err := next.RoundTrip(request)
		if err != nil {
			return response, err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if response.StatusCode != http.StatusOK {
			a.others[response.Status]++
			return response, nil
		}
		a.written = append(a.written, a.clock.Now())
		if a.writes[request.URL.Path]++; len(a.written) == 1 {
			return response, json.Unmarshal(body, &a.patch)
		}
		return response, nil
	})
}

// wait waits until n Deployments have been written at least once.
func (a *arrivals) wait(t *testing.T, n int) {
	t.Helper()
	eventually(t, 5*time.Minute, func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.writes) >= n, fmt.Sprintf("%d of %d Deployments have been written", len(a.writes), n)
	})
}

// checkOnce checks that each of n Deployments was written exactly once, and that no write failed. It sorts the times of
// the writes.
func (a *arrivals) checkOnce(t *testing.T, n int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.written) != n || len(a.writes) != n || len(a.others) > 0 {
		t.Fatalf("%d writes to %d Deployments, want one to each of %d; other responses: %v", len(a.written),
			len(a.writes), n, a.others)
	}
	slices.SortFunc(a.written, time.Time.Compare)
}

// last returns the time of the last write. Call checkOnce before last, because checkOnce sorts the times.
func (a *arrivals) last() time.Time { return a.written[len(a.written)-1] }

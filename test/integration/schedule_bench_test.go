// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// BenchmarkSchedule stops 2,000 Deployments in the same second, with one write each. It reports the lateness of the
// writes.
func BenchmarkSchedule(b *testing.B) {
	const n = 2_000
	useExclusiveCluster(b)
	for b.Loop() {
		b.StopTimer()
		clock, namespace := &adjustedClock{}, newNamespace(b)
		due := friday(19)
		requests := newTally()
		run := func(at time.Time) (writes *arrivals, stop func()) {
			clock.set(at)
			writes = &arrivals{clock: clock, writes: map[string]int{}, others: map[string]int{}}
			return writes, runOperatorFor(b, operatorOptions{clock: clock, transport: func(config *rest.Config) {
				config.Wrap(requests.wrap)
				config.Wrap(writes.wrap)
			}})
		}
		started, stop := run(due.Add(-7 * time.Hour))
		createMany(b, namespace, n)
		started.wait(b, n)
		requests.waitUntilIdle(b)
		stop()

		stopped, stop := run(due.Add(-20 * time.Second)) // enough time to fill the caches
		b.StartTimer()
		stopped.wait(b, n)
		b.StopTimer()
		requests.waitUntilIdle(b) // report must also count a second write to a Deployment
		stop()
		stopped.report(b, due, n)
		if err := admin(b).DeleteAllOf(b.Context(), &appsv1.Deployment{}, client.InNamespace(namespace)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func createMany(b *testing.B, namespace string, n int) {
	b.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			d := newDeployment(namespace, fmt.Sprintf("d-%d", i))
			d.Spec.Replicas = new(int32(1))
			d.Annotations = map[string]string{
				v1beta1.StartScheduleAnnotation: "Mon-Fri 07:00", v1beta1.StopScheduleAnnotation: "Mon-Fri 20:00", v1beta1.TimeZoneAnnotation: "Europe/Berlin",
			}
			return admin(b).Create(b.Context(), d)
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}

// arrivals records when the API server answered the operator's writes to Deployments.
type arrivals struct {
	clock *adjustedClock

	mu        sync.Mutex
	written   []time.Time
	writes    map[string]int // successful writes by path
	conflicts int
	others    map[string]int // all other responses by status
}

func (a *arrivals) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		if err != nil || request.Method == http.MethodGet || !strings.Contains(request.URL.Path, "/deployments/") {
			return response, err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		switch response.StatusCode {
		case http.StatusOK:
			a.written = append(a.written, a.clock.Now())
			a.writes[request.URL.Path]++
		case http.StatusConflict:
			a.conflicts++
		default:
			a.others[response.Status]++
		}
		return response, err
	})
}

// wait waits until n Deployments have been written at least once.
func (a *arrivals) wait(b *testing.B, n int) {
	b.Helper()
	eventually(b, 5*time.Minute, func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.writes) >= n, fmt.Sprintf("%d of %d deployments have been written", len(a.writes), n)
	})
}

// report reports the lateness of the writes. It fails the benchmark unless each of the n Deployments was written
// exactly once, and not before the due time.
func (a *arrivals) report(b *testing.B, due time.Time, n int) {
	b.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.written) != n || len(a.writes) != n || len(a.others) > 0 {
		b.Fatalf("%d writes to %d deployments, want one to each of %d; other responses: %v",
			len(a.written), len(a.writes), n, a.others)
	}
	slices.SortFunc(a.written, time.Time.Compare)
	lag := func(i int) float64 { return a.written[i].Sub(due).Seconds() }
	if lag(0) < 0 {
		b.Fatalf("the first write came %.3fs early", -lag(0))
	}
	b.ReportMetric(lag(n/2), "p50-lag-s")
	b.ReportMetric(lag(n*99/100), "p99-lag-s")
	b.ReportMetric(lag(n-1), "max-lag-s")
	b.ReportMetric(float64(len(a.written)), "writes")
	b.ReportMetric(float64(a.conflicts), "conflicts")
}

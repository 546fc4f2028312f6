// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/docexamples"
)

// An adjustedClock runs as fast as the real clock, but shows a different time.
type adjustedClock struct{ ahead atomic.Int64 }

// Now implements clock.PassiveClock.
func (c *adjustedClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Since implements clock.PassiveClock.
func (c *adjustedClock) Since(at time.Time) time.Duration { return c.Now().Sub(at) }

// set sets the clock to a time.
func (c *adjustedClock) set(to time.Time) { c.ahead.Store(int64(time.Until(to))) }

// by converts a time of the real clock to the time that this clock showed at that moment.
func (c *adjustedClock) by(at time.Time) time.Time { return at.Add(time.Duration(c.ahead.Load())) }

// friday returns an hour (UTC) of 20 November 2026, a Friday.
func friday(hour int) time.Time { return time.Date(2026, 11, 20, hour, 0, 0, 0, time.UTC) }

// TestScheduleAcrossTheWeekend runs the example of the documentation. From Monday to Friday, the Deployment web has 3
// replicas from 07:00 to 20:00 in Berlin.
//
// The operator stops web on Friday, when the stop is due. Then the test stops the operator. On Monday, after the start
// was due, the test starts the operator again. The operator must then start web.
func TestScheduleAcrossTheWeekend(t *testing.T) {
	useExclusiveCluster(t)
	clock, requests, registry := &adjustedClock{}, newRequestCounter(), prometheus.NewRegistry()
	options := operatorOptions{clock: clock, registry: registry, transport: func(config *rest.Config) { config.Wrap(requests.wrap) }}
	stop := runOperatorFor(t, options)
	namespace := newNamespace(t)

	clock.set(friday(19).Add(-15 * time.Second)) // 15 s before 20:00 in Berlin
	deployments := record[*appsv1.Deployment](t, &appsv1.DeploymentList{}, namespace)
	mustKubectl(t, docexamples.Block(t, "schedule.md", "apiVersion: apps/v1"), "apply", "-n", namespace, "-f", "-")
	stopped := func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 0 }
	for _, change := range deployments.until(t, "web is stopped", func(changes []change[*appsv1.Deployment]) bool {
		return len(changes) > 0 && stopped(changes[len(changes)-1].object)
	}) {
		if at := clock.by(change.at); stopped(change.object) && at.Before(friday(19)) {
			t.Errorf("web was stopped at %s, before it was due at %s", at, friday(19))
		}
	}
	web := getDeployment(t, namespace, "web")
	checkEvents(t, web, v1beta1.EventScheduledStop, `Scaled in from 3 to 0 replicas (stop-schedule "Mon-Fri 20:00", due 2026-11-20T19:00:00Z)`)
	requests.waitUntilIdle(t)
	if got := requests.successes(namespace, "PATCH deployments"); got != 2 { // one records the schedule, one stops web
		t.Errorf("%d writes to web until it is stopped, want 2", got)
	}
	checkMetrics(t, registry, namespace, map[string]float64{
		"useless_schedule_workloads":          1,
		"useless_schedule_saved_cpu_cores":    1.5,
		"useless_schedule_saved_memory_bytes": 3 * 256 << 20,
	})

	stop()
	options.registry = prometheus.NewRegistry()
	requests.reset()
	clock.set(friday(6).AddDate(0, 0, 3).Add(3*time.Hour + 12*time.Minute)) // Monday
	stop = runOperatorFor(t, options)
	web = waitForReplicas(t, web, 3)
	checkEvents(t, web, v1beta1.EventScheduledStart,
		`Scaled out from 0 to 3 replicas (start-schedule "Mon-Fri 07:00", due 2026-11-23T06:00:00Z, 3h12m late)`)
	served := httptest.NewRecorder()
	promhttp.HandlerFor(options.registry, promhttp.HandlerOpts{}).ServeHTTP(served, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if late := badness(t, "UselessScheduleLate", served.Body.String()); late != 1 {
		t.Errorf("UselessScheduleLate selects %v late starts and stops, want 1", late)
	}

	stop()
	options.registry = nil
	runOperatorFor(t, options)
	checkUnchangedAt(t, web, clock, requests)
	if got := requests.successes(namespace, "PATCH deployments"); got != 2 { // one for web, one for barrier
		t.Errorf("%d writes to Deployments on Monday, want 2", got)
	}
}

// checkMetrics compares the useless_schedule_* gauges of a namespace. It adds up the gauges that have the same name.
func checkMetrics(t *testing.T, registry *prometheus.Registry, namespace string, want map[string]float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		if strings.HasSuffix(family.GetName(), "_total") { // counters grow with time
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "namespace" && label.GetValue() == namespace && strings.HasPrefix(family.GetName(), "useless_schedule_") {
					got[family.GetName()] += metric.GetGauge().GetValue()
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// checkUnchangedAt is like checkUnchanged for an operator with an adjustedClock. It compares only the replicas and the
// annotation last-schedule-time.
func checkUnchangedAt(t *testing.T, d *appsv1.Deployment, clock *adjustedClock, requests *requestCounter) {
	t.Helper()
	barrier := newDeployment(d.Namespace, "barrier")
	due := clock.Now().UTC().Add(-time.Hour)
	barrier.Annotations = map[string]string{v1beta1.StopScheduleAnnotation: due.Format("15:04")}
	if err := admin(t).Create(t.Context(), barrier); err != nil {
		t.Fatal(err)
	}
	waitForReplicas(t, barrier, 0)
	requests.waitUntilIdle(t)
	if after := getDeployment(t, d.Namespace, d.Name); *after.Spec.Replicas != *d.Spec.Replicas ||
		after.Annotations[v1beta1.LastScheduleTimeAnnotation] != d.Annotations[v1beta1.LastScheduleTimeAnnotation] {
		t.Errorf("the deployment was changed: %d replicas, annotations %v", *after.Spec.Replicas, after.Annotations)
	}
}

// TestScheduleWithStaleCache checks that the operator does not repeat a stop that its cache does not show yet.
func TestScheduleWithStaleCache(t *testing.T) {
	useExclusiveCluster(t)
	requests := newRequestCounter()
	runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
		config.Wrap(requests.wrap)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return laggingWatch{next, "/deployments", time.Second} })
	}})
	namespace := newNamespace(t)
	d := createSettled(t, namespace)
	requests.reset()
	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
	waitForReplicas(t, d, 0)
	// The replicas may change before the counter has counted the responses. Wait for the responses.
	eventually(t, defaultTimeout, func() (bool, string) {
		return requests.successes(namespace, "PATCH deployments") > 0 && requests.successes(namespace, "POST events") > 0,
			fmt.Sprintf("requests %v", requests.of(namespace))
	})
	requests.reset()
	createAutoscaler(t, d) // triggers a reconcile before the cache shows the operator's write
	requests.check(t, namespace, nil)
}

// createSettled creates a Deployment whose stop is due in an hour. It returns when neither the operator nor Kubernetes'
// deployment controller has anything left to do.
func createSettled(t *testing.T, namespace string) *appsv1.Deployment {
	t.Helper()
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[v1beta1.StopScheduleAnnotation] = timeOfDayIn(time.Hour)
	})
	eventually(t, defaultTimeout, func() (bool, string) {
		d = getDeployment(t, namespace, "d")
		return d.Annotations[v1beta1.ScheduleStateAnnotation] == v1beta1.ScheduleStarted && d.Status.ObservedGeneration == d.Generation && d.Status.Replicas == 3,
			fmt.Sprintf("annotations %v, status %+v", d.Annotations, d.Status)
	})
	return d
}

// TestScheduleConflict lets a user scale a Deployment just before the operator sends the write that stops it. This
// write fails with a conflict. The operator must then stop the Deployment, store the replicas that the user set, and
// emit no ScaleFailed event.
func TestScheduleConflict(t *testing.T) {
	useExclusiveCluster(t)
	requests := newRequestCounter()
	var userScales atomic.Bool
	namespace := newNamespace(t)
	runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
		config.Wrap(requests.wrap)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				if request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/deployments/d") &&
					userScales.CompareAndSwap(true, false) {
					mergePatch(t, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "d"}}, `{"spec":{"replicas":5}}`)
				}
				return next.RoundTrip(request)
			})
		})
	}})
	d := createSettled(t, namespace)
	requests.waitUntilIdle(t)
	requests.reset()
	userScales.Store(true)
	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
	d = waitForReplicas(t, d, 0)
	if got := d.Annotations[v1beta1.OriginalReplicasAnnotation]; got != "5" {
		t.Errorf("the annotation has %s original replicas, want the 5 that the user just set", got)
	}
	waitForEvent(t, d, v1beta1.EventScheduledStop)
	if stops := eventsOn(t, d, v1beta1.EventScheduledStop); len(stops) != 1 || !strings.HasPrefix(stops[0].Note, "Scaled in from 5 to 0 replicas") {
		t.Errorf("events about the stop: %+v; want one event with 5 replicas", stops)
	}
	requests.waitUntilIdle(t)
	if got := requests.successes(namespace, "PATCH deployments"); got != 1 {
		t.Errorf("%d writes, want 1", got)
	}
	if failures := eventsOn(t, d, v1beta1.EventScaleFailed); len(failures) > 0 {
		t.Errorf("a conflict caused events: %+v", failures)
	}
}

// TestScheduleLostResponse loses the operator's write that stops a Deployment, or the response to this write. The
// operator gets the error context.Canceled, as when it exits. The API server has rejected nothing, so the operator must
// not emit a ScaleFailed event.
func TestScheduleLostResponse(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"the request is lost": false, "only the response is lost": true} {
		t.Run(name, func(t *testing.T) {
			useExclusiveCluster(t)
			requests := newRequestCounter()
			var lose atomic.Bool
			runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
				config.Wrap(requests.wrap)
				config.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return roundTripper(func(request *http.Request) (*http.Response, error) {
						if request.Method != http.MethodPatch || !strings.HasSuffix(request.URL.Path, "/deployments/d") || !lose.CompareAndSwap(true, false) {
							return next.RoundTrip(request)
						}
						if arrives {
							response, err := next.RoundTrip(request)
							if err != nil {
								return nil, err
							}
							_ = response.Body.Close()
						}
						return nil, context.Canceled
					})
				})
			}})
			namespace := newNamespace(t)
			createSettled(t, namespace)
			requests.waitUntilIdle(t)
			requests.reset()
			lose.Store(true)
			d := getDeployment(t, namespace, "d")
			annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
			waitForReplicas(t, d, 0)
			// The replicas may change before the counter has counted the response.
			eventually(t, defaultTimeout, func() (bool, string) {
				return requests.successes(namespace, "PATCH deployments") > 0, "no write has succeeded"
			})
			requests.waitUntilIdle(t)
			if lose.Load() {
				t.Error("the test lost neither a write nor a response")
			}
			if got := requests.successes(namespace, "PATCH deployments"); got != 1 {
				t.Errorf("%d writes, want 1", got)
			}
			if failures := eventsOn(t, d, v1beta1.EventScaleFailed); len(failures) > 0 {
				t.Errorf("the loss caused events: %+v", failures)
			}
		})
	}
}

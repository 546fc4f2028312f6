// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// A span is a part of the strip, which shows the week around now. From and To are hours since the start of the strip.
type span struct{ From, To float64 }

// TestWeek checks the strip of a Deployment that runs from 07:00 to 20:00. Then the Deployment gets another schedule.
// The page must show that the operator has stopped the Deployment.
func TestWeek(t *testing.T) {
	t.Parallel()
	e := use(t)
	zone := zoneAtNoon(t)
	d := e.createScheduled(t, "week", map[string]string{
		v1beta1.StartScheduleAnnotation: "07:00",
		v1beta1.StopScheduleAnnotation:  "20:00",
		v1beta1.TimeZoneAnnotation:      zone.String(),
	})
	tab := e.open(t, e.page.URL)
	await(t, tab, inWeek(`find('.pill').textContent === 'running'`))
	await(t, tab, inWeek(`/^stops in [78] h/.test(find('.title:nth-child(2) > .dim:last-child').textContent)`))
	var want []span
	for day := range 7 {
		want = append(want, span{24*float64(day) + 7, 24*float64(day) + 20})
	}
	checkSpans(t, tab, want)
	const noon = 3*24 + 12
	if now := evaluate[float64](t, tab, inWeek(`hour(find('.now').getBoundingClientRect().x)`)); now < noon-1 || now > noon+2 {
		t.Errorf("now is at the hour %.1f of the week, want noon of the fourth day", now)
	}
	today := time.Now().In(zone)
	var days []string
	for day := range 7 {
		days = append(days, today.AddDate(0, 0, day-3).Format("Mon 2"))
	}
	labels := evaluate[[]string](t, tab, inWeek(`[...find('.days').children].map(day => day.innerText)`))
	if diff := cmp.Diff(days, labels); diff != "" {
		t.Errorf("days (-want +got):\n%s", diff)
	}

	patch := client.MergeFrom(d.DeepCopy())
	d.Annotations[v1beta1.StartScheduleAnnotation], d.Annotations[v1beta1.StopScheduleAnnotation] = "22:00", "10:00"
	if err := e.admin.Patch(t.Context(), d, patch); err != nil {
		t.Fatal(err)
	}
	await(t, tab, inWeek(`find('.pill').textContent === 'stopped'`))
	want = []span{{0, 10}}
	for day := range 7 {
		want = append(want, span{24*float64(day) + 22, min(24*float64(day)+34, 7*24)})
	}
	checkSpans(t, tab, want)
	const label = "The week around now: start 22:00, stop 10:00. Now stopped."
	if got := evaluate[string](t, tab, inWeek(`find('.strip').ariaLabel`)); got != label {
		t.Errorf("a screen reader reads %q, want %q", got, label)
	}
}

// zoneAtNoon returns a time zone in which it is about noon, so that the day does not end during the test.
func zoneAtNoon(t *testing.T) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(fmt.Sprintf("Etc/GMT%+d", time.Now().UTC().Hour()-12)) // Etc/GMT-1 is east of Greenwich
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// createScheduled creates a Deployment in the namespace default. It deletes the Deployment at the end of the test.
func (e *environment) createScheduled(t *testing.T, name string, annotations map[string]string) *appsv1.Deployment {
	t.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Annotations: annotations},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/web:1"}}},
			},
		},
	}
	if err := e.admin.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.admin.Delete(context.Background(), d); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	return d
}

// inWeek returns a JavaScript expression about the Deployment named week. In it, find returns an element of the
// workload, and hour converts a position on the screen to an hour of the strip.
func inWeek(expression string) string {
	return `(() => {
		const workload = [...document.querySelectorAll('.workload')].find(w => w.querySelector('h3').innerText === 'week deployment');
		if (!workload) return false;
		const find = selector => workload.querySelector(selector), strip = find('.strip').getBoundingClientRect();
		const hour = x => 7 * 24 * (x - strip.x) / strip.width;
		return ` + expression + `;
	})()`
}

// checkSpans checks that the strip shows the wanted times at which the workload runs.
func checkSpans(t *testing.T, tab tab, want []span) {
	t.Helper()
	got := evaluate[[]span](t, tab, inWeek(`[...workload.querySelectorAll('.strip .runs')].map(node => {
		const {left, right} = node.getBoundingClientRect();
		return {From: hour(left), To: hour(right)};
	})`))
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 0.1)); diff != "" {
		t.Errorf("the strip shows other hours in which the workload runs (-want +got):\n%s", diff)
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// schedules measures how fast the operator stops and starts Deployments that are due in the same second. In each round,
// a minimal client scales the same number of other Deployments. It has as many workers as the operator, and sends one
// patch for each Deployment. In both turns, the operator and this program decode all watch events of the Deployments. A
// case is a number of Deployments. Stops and starts alternate.
//
// Values of a round:
//   - lag_p50_seconds, lag_p99_seconds, lag_max_seconds: from the due time until the watch event shows the new number
//     of replicas; for the minimal client, from the first patch; p99 only with 1,000 Deployments or more
//   - writes_deployments, writes_events: the write requests of all clients
//   - cpu_apiserver_seconds: the CPU time of kube-apiserver, with the time for the events
//   - writes, requests, cpu_subject_seconds: as in large; only for the operator
func schedules(ctx context.Context, b *bench) (err error) {
	s, rounds := &scaling{bench: b, n: 2_000}, 5
	if b.quick {
		s.n, rounds = 200, 1
	}
	b.log("%d Deployments: preparing", s.n)
	if s.env, err = newEnvironment(ctx, b.programs, b.ours); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.env.stop()) }()
	if err := s.prepare(ctx); err != nil {
		return err
	}
	turns := []func(ctx context.Context, round int) error{s.operatorTurn, s.minimalTurn}
	for round := 1; round <= rounds; round++ {
		for _, turn := range turns {
			if err := turn(ctx, round); err != nil {
				return err
			}
		}
		slices.Reverse(turns) // the order is A B, B A, A B, …
	}
	return nil
}

// A scaling scales n Deployments at the same time.
type scaling struct {
	*bench

	env      *environment
	n        int
	operator *process
	minimal  client.Client // has the operator's permissions
	quickDue time.Time     // when the only stop of a quick run is due
}

// scalingLead is the time between the start of the operator and the due time.
const scalingLead = 10 * time.Second

// The groups of Deployments are values of the label app. The operator scales one group, the minimal client the other.
const scheduled, unscheduled = "scheduled", "unscheduled"

// prepare creates the Deployments. The operator then executes the last start or stop of the schedules.
func (s *scaling) prepare(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.env.key)
	if err != nil {
		return err
	}
	config.QPS = -1
	if s.minimal, err = client.New(config, client.Options{Scheme: s.env.admin.Scheme()}); err != nil {
		return err
	}
	annotations := map[string]string{
		v1beta1.StopScheduleAnnotation: "1-59/2 * * * *", v1beta1.StartScheduleAnnotation: "*/2 * * * *",
	}
	if s.quick { // a quick run does not wait for the next minute
		s.quickDue = time.Now().Add(2 * scalingLead).Truncate(time.Second)
		annotations = map[string]string{
			v1beta1.StopScheduleAnnotation: "@yearly",
			v1beta1.StartUntilAnnotation:   s.quickDue.Format(time.RFC3339),
		}
	}
	if err := s.populate(ctx, scheduled, annotations); err != nil {
		return err
	}
	if err := s.populate(ctx, unscheduled, nil); err != nil {
		return err
	}
	return s.restart(ctx)
}

// populate creates the Deployments of a group, with one replica each.
func (s *scaling) populate(ctx context.Context, group string, annotations map[string]string) error {
	labels := map[string]string{"app": group}
	return s.env.createAll(ctx, s.n, func(name string) client.Object {
		d := &appsv1.Deployment{}
		d.Namespace, d.Name, d.Labels, d.Annotations = metav1.NamespaceDefault, group+"-"+name, labels, annotations
		d.Spec.Replicas, d.Spec.Selector = new(int32(1)), &metav1.LabelSelector{MatchLabels: labels}
		d.Spec.Template.Labels = labels
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "pause", Image: "registry.k8s.io/pause"}}
		return d
	})
}

// restart starts a new operator. Otherwise, the operator would count repeated events in a series, and not create them.
func (s *scaling) restart(ctx context.Context) (err error) {
	s.env.killProcesses()
	if s.operator, err = s.env.startManager(s.ours.name); err != nil {
		return err
	}
	if err := s.operator.awaitReady(ctx); err != nil {
		return err
	}
	return awaitQuiet(ctx, s.env)
}

// A scalingTurn is the turn of a subject.
type scalingTurn struct {
	subject  string
	group    string
	replicas int32 // after the turn
	// scale returns the time from which the lag counts.
	scale func(ctx context.Context) (start time.Time, err error)
}

func (s *scaling) operatorTurn(ctx context.Context, round int) error {
	due, replicas := s.quickDue, int32(0)
	if !s.quick {
		due = time.Now().Add(scalingLead).Truncate(time.Minute).Add(time.Minute)
		replicas = int32(1 - due.Minute()%2) // stops are due in odd minutes
	}
	if err := pause(ctx, time.Until(due.Add(-scalingLead))); err != nil {
		return err
	}
	if err := s.restart(ctx); err != nil {
		return err
	}
	awaitDue := func(ctx context.Context) (time.Time, error) {
		wait := time.Until(due)
		if wait < 0 {
			return due, fmt.Errorf("the operator was ready %s after the due time", -wait)
		}
		return due, pause(ctx, wait)
	}
	return s.measure(ctx, round, scalingTurn{s.ours.name, scheduled, replicas, awaitDue})
}

func (s *scaling) minimalTurn(ctx context.Context, round int) error {
	const workers = 16 // as in the operator
	replicas := int32(1 - round%2)
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	patchAll := func(ctx context.Context) (time.Time, error) {
		start := time.Now()
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(workers)
		for i := range s.n {
			group.Go(func() error {
				d := &appsv1.Deployment{}
				d.Namespace, d.Name = metav1.NamespaceDefault, unscheduled+"-"+nameOf(i)
				return s.minimal.Patch(ctx, d, patch)
			})
		}
		return start, group.Wait()
	}
	return s.measure(ctx, round, scalingTurn{"minimal client", unscheduled, replicas, patchAll})
}

// measure records a turn. At first, the watch sends all Deployments of the group. This does not count.
func (s *scaling) measure(ctx context.Context, round int, t scalingTurn) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	watcher, err := s.env.admin.Watch(ctx, &appsv1.DeploymentList{}, client.MatchingLabels{"app": t.group})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	var scaled []time.Time
	var watching errgroup.Group
	watching.Go(func() (err error) {
		scaled, err = awaitScaled(watcher.ResultChan(), t.replicas, s.n)
		return err
	})
	if err := awaitQuiet(ctx, s.env); err != nil {
		return err
	}
	before, err := s.usage(ctx, t.subject)
	if err != nil {
		return err
	}
	start, err := t.scale(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(watching.Wait(), awaitQuiet(ctx, s.env)); err != nil {
		return err
	}
	values, err := s.usage(ctx, t.subject)
	if err != nil {
		return err
	}
	subtract(values, before)
	addLag(values, start, scaled)
	s.log("%d Deployments: %s: round %d: scaled to %d, the last one after %.2fs", s.n, t.subject, round, t.replicas,
		values["lag_max_seconds"])
	return s.record(Record{Case: strconv.Itoa(s.n), Subject: t.subject, Round: round, Values: values})
}

// usage returns the number of writes, and the use of resources since the start of the processes.
func (s *scaling) usage(ctx context.Context, subject string) (values map[string]float64, err error) {
	if values, err = s.env.usage(ctx, s.operator); err != nil {
		return nil, err
	}
	if subject != s.ours.name {
		delete(values, "cpu_subject_seconds")
		delete(values, "writes")
	}
	if values["writes_deployments"], err = s.env.writes(ctx, "deployments"); err != nil {
		return nil, err
	}
	values["writes_events"], err = s.env.writes(ctx, "events")
	return values, err
}

// awaitScaled returns when the first watch event of each of n Deployments with the number of replicas arrived.
func awaitScaled(events <-chan watch.Event, replicas int32, n int) ([]time.Time, error) {
	scaled := make(map[string]time.Time, n)
	for event := range events {
		d, ok := event.Object.(*appsv1.Deployment)
		if !ok {
			return nil, fmt.Errorf("watch Deployments: %w", apierrors.FromObject(event.Object))
		}
		if _, ok := scaled[d.Name]; !ok && *d.Spec.Replicas == replicas {
			scaled[d.Name] = time.Now()
		}
		if len(scaled) == n {
			return slices.Collect(maps.Values(scaled)), nil
		}
	}
	return nil, fmt.Errorf("the watch ended when %d of %d Deployments were scaled", len(scaled), n)
}

// addLag adds percentiles of the lag to the values. A p99 needs at least 1,000 Deployments.
func addLag(values map[string]float64, start time.Time, scaled []time.Time) {
	lag := make([]float64, len(scaled))
	for i, at := range scaled {
		lag[i] = at.Sub(start).Seconds()
	}
	values["lag_p50_seconds"] = percentile(lag, 50)
	if len(lag) >= 1000 {
		values["lag_p99_seconds"] = percentile(lag, 99)
	}
	values["lag_max_seconds"] = percentile(lag, 100)
}

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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// schedules measures how long stops and starts take if 2,000 Deployments are due in the same second. Stops and starts
// alternate. A case is a number of Deployments.
//
// Values of a round:
//   - lag_…_seconds: from the due time until the watch event shows the new number of replicas
//   - writes_deployments, writes_events: the write requests of all clients
//   - writes: the write requests of the operator
//   - cpu_subject_seconds, cpu_apiserver_seconds: the CPU time of the operator and of kube-apiserver
func schedules(ctx context.Context, b *bench) (err error) {
	s, rounds := &scaling{bench: b, n: 2_000}, 3
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
	for round := 1; round <= rounds; round++ {
		if err := s.turn(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

// A scaling scales n Deployments at the same time.
type scaling struct {
	*bench

	env      *environment
	n        int
	operator *process
	quickDue time.Time // when the only stop of a quick run is due
}

// scalingLead is the time between the start of the operator and the due time.
const scalingLead = 10 * time.Second

// prepare creates the Deployments with one replica each. The operator then executes the last start or stop of the
// schedules.
func (s *scaling) prepare(ctx context.Context) error {
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
	labels := map[string]string{"app": "scheduled"}
	err := s.env.createAll(ctx, s.n, func(name string) client.Object {
		d := &appsv1.Deployment{}
		d.Namespace, d.Name, d.Labels, d.Annotations = metav1.NamespaceDefault, name, labels, annotations
		d.Spec.Replicas, d.Spec.Selector = new(int32(1)), &metav1.LabelSelector{MatchLabels: labels}
		d.Spec.Template.Labels = labels
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "pause", Image: "registry.k8s.io/pause"}}
		return d
	})
	if err != nil {
		return err
	}
	return s.restart(ctx)
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

// turn measures the next stop or start.
func (s *scaling) turn(ctx context.Context, round int) error {
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
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	// At first, the watch sends all Deployments, with the old number of replicas.
	watcher, err := s.env.admin.Watch(ctx, &appsv1.DeploymentList{})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	before, err := s.usage(ctx)
	if err != nil {
		return err
	}
	if wait := time.Until(due); wait < 0 {
		return fmt.Errorf("the operator was ready %s after the due time", -wait)
	}
	scaled, err := awaitScaled(watcher.ResultChan(), replicas, s.n)
	if err := errors.Join(err, awaitQuiet(ctx, s.env)); err != nil {
		return err
	}
	values, err := s.usage(ctx)
	if err != nil {
		return err
	}
	subtract(values, before)
	lag := make([]float64, len(scaled))
	for i, at := range scaled {
		lag[i] = at.Sub(due).Seconds()
	}
	addPercentiles(values, "lag", lag)
	s.log("%d Deployments: round %d: scaled to %d, the last one after %.2fs, with %.0f writes", s.n, round, replicas,
		values["lag_max_seconds"], values["writes"])
	return s.record(Record{Case: strconv.Itoa(s.n), Subject: s.ours.name, Round: round, Values: values})
}

// usage returns the number of writes, and the use of resources since the start of the processes.
func (s *scaling) usage(ctx context.Context) (values map[string]float64, err error) {
	if values, err = s.env.usage(ctx, s.operator); err != nil {
		return nil, err
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

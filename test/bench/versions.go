// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The subjects of the experiment versions.
const bothVersions, onlyV1beta1 = "both versions", "only v1beta1"

const versionsRounds = 6

// versions compares two API servers: one serves both versions of Machines and Switches, the other one only v1beta1, as
// with the component v1beta1-only. No controller runs. In a round, an annotation of every second Machine changes.
//
// Values of a round:
//   - writes: the number of changed Machines
//   - cpu_apiserver_seconds: the CPU time of the API server
//   - apiserver_memory_bytes: its resident memory after the round
func versions(ctx context.Context, b *bench) (err error) {
	s, rounds := size{2_000, 10}, versionsRounds
	if b.quick {
		s, rounds = size{300, 10}, 1
	}
	b.log("%s: preparing", s)
	subjects := []string{bothVersions, onlyV1beta1}
	environments := map[string]*environment{}
	defer func() {
		for _, e := range environments {
			err = errors.Join(err, e.stop())
		}
	}()
	for _, subject := range subjects {
		if environments[subject], err = b.newVersions(ctx, subject, s); err != nil {
			return err
		}
	}
	for round := 1; round <= rounds; round++ {
		for _, subject := range subjects {
			if err := b.changeHalf(ctx, environments[subject], subject, s, round); err != nil {
				return err
			}
		}
		slices.Reverse(subjects) // the order is A B, B A, A B, …
	}
	return nil
}

// newVersions returns an environment with Machines, which serves the versions of a subject.
func (b *bench) newVersions(ctx context.Context, subject string, s size) (*environment, error) {
	e, err := newEnvironment(ctx, b.programs, b.ours)
	if err != nil {
		return nil, err
	}
	if subject == onlyV1beta1 {
		err = e.stopV1alpha1(ctx)
	}
	if err == nil {
		err = e.fill(ctx, s)
	}
	if err != nil {
		return nil, errors.Join(err, e.stop())
	}
	return e, nil
}

// fill writes Machines into etcd. Only the webhooks of the operator run meanwhile and afterwards.
func (e *environment) fill(ctx context.Context, s size) error {
	p, err := e.newPrototype(ctx, s.switches)
	if err != nil {
		return err
	}
	e.killProcesses()
	converter, err := e.startManager("converter", "--controllers=-machine", "--webhooks")
	if err != nil {
		return err
	}
	if err := converter.awaitReady(ctx); err != nil {
		return err
	}
	return e.multiply(ctx, p, 1, s.machines)
}

// stopV1alpha1 serves only v1beta1.
func (e *environment) stopV1alpha1(ctx context.Context) error {
	patch := client.RawPatch(types.JSONPatchType, []byte(`[
		{"op": "test", "path": "/spec/versions/0/name", "value": "v1alpha1"},
		{"op": "replace", "path": "/spec/versions/0/served", "value": false}]`))
	for _, resource := range []string{"machines", "switches"} {
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(schema.GroupVersionKind{
			Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition",
		})
		crd.Name = resource + ".useless.container.training"
		if err := e.admin.Patch(ctx, crd, patch); err != nil {
			return fmt.Errorf("stop serving v1alpha1: %w", err)
		}
	}
	return nil
}

// changeHalf changes an annotation of every second Machine.
func (b *bench) changeHalf(ctx context.Context, e *environment, subject string, s size, round int) error {
	if err := awaitQuiet(ctx, e); err != nil {
		return err
	}
	before, err := cpuSeconds(e.apiServer())
	if err != nil {
		return err
	}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"round":"%d"}}}`, round))
	group, limited := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for i := 0; i < s.machines; i += 2 {
		group.Go(func() error { return e.admin.Patch(limited, newMachine(nameOf(i), s.switches), patch) })
	}
	if err := errors.Join(group.Wait(), awaitQuiet(ctx, e)); err != nil {
		return err
	}
	after, err := cpuSeconds(e.apiServer())
	if err != nil {
		return err
	}
	values := map[string]float64{"writes": float64(s.machines / 2), "cpu_apiserver_seconds": after - before}
	if values["apiserver_memory_bytes"], err = residentMemory(e.apiServer()); err != nil {
		return err
	}
	b.log("%s: %s: round %d: CPU time of kube-apiserver for a write %.2f ms, memory %.0f MiB", s, subject, round,
		1e3*values["cpu_apiserver_seconds"]/values["writes"], values["apiserver_memory_bytes"]/(1<<20))
	return b.record(Record{Case: s.String(), Subject: subject, Round: round, Values: values})
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// versions are the served ones of a Machine, the storage version first.
var versions = []string{"v1beta1", "v1alpha1"}

// listing records how long a LIST of all Machines takes in each version, by turns: whole and in pages, from a state that is
// certainly the newest and from what the API server has cached.
func (b *bench) listing(ctx context.Context, w *world) error {
	for _, how := range []struct{ name, query string }{
		{"whole", "?"}, {"whole-cached", "?resourceVersion=0"}, {"pages-of-500", "?limit=500"},
	} {
		for round := range 5 {
			for i := range versions {
				version := versions[(i+round)%2]
				start := time.Now()
				size, err := w.list(ctx, version, how.query)
				if err != nil {
					return err
				}
				err = b.record(Record{Case: "list-" + how.name, Contender: version, Round: round + 1, Values: map[string]float64{
					"seconds": time.Since(start).Seconds(), "bytes": float64(size),
				}})
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// list reads all Machines in a version, page after page, and returns how many bytes they have.
func (w *world) list(ctx context.Context, version, query string) (size int, err error) {
	path := machinesPath(version) + query
	for next := ""; ; {
		data, err := w.raw.Get().RequestURI(path + next).Do(ctx).Raw()
		if err != nil {
			return 0, err
		}
		size += len(data)
		// Decoding would take longer than listing does.
		_, after, _ := bytes.Cut(data[bytes.LastIndex(data, []byte(`"metadata"`)):], []byte(`"continue":"`))
		token, _, _ := bytes.Cut(after, []byte(`"`))
		if len(token) == 0 {
			return size, nil
		}
		next = "&continue=" + string(token)
	}
}

func machinesPath(version string) string {
	return "/apis/useless.container.training/" + version + "/machines"
}

// coldCache records how long Machines are not to be had from the cache of the version that is not stored, after a change
// to their CustomResourceDefinition: the API server has every object converted, one by one.
func (b *bench) coldCache(ctx context.Context, w *world) error {
	for round := range 3 { // there is nobody to compare with
		before, err := w.warmedCaches(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := w.touchMachines(ctx, round); err != nil {
			return err
		}
		// The first request has the caches made, and those before that are refused. One that is not may have been answered from
		// the cache of before: only the metrics tell, which take the API server too long to be asked for all the time.
		for caches := before; caches < before+float64(len(versions)); time.Sleep(100 * time.Millisecond) {
			err := w.raw.Get().MaxRetries(0).RequestURI(machinesPath(versions[1]) + "?resourceVersion=0&fieldSelector=metadata.name%3D" + nameOf(0)).Do(ctx).Error()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				continue
			}
			if caches, err = w.warmedCaches(ctx); err != nil {
				return err
			}
		}
		record := Record{Case: "cold-cache", Contender: versions[1], Round: round + 1, Values: map[string]float64{
			"seconds": time.Since(start).Seconds(),
		}}
		b.say("%s: the cache of %s was cold for %.1fs", b.large, versions[1], record.Values["seconds"])
		if err := b.record(record); err != nil {
			return err
		}
	}
	return nil
}

// warmedCaches is how often a cache of Machines has been filled.
func (w *world) warmedCaches(ctx context.Context) (float64, error) {
	families, err := w.metrics(ctx)
	if err != nil {
		return 0, err
	}
	return sumOf(families["apiserver_watch_cache_initializations_total"], prometheus.Labels{"group": v1beta1.GroupVersion.Group, "resource": "machines"}), nil
}

// touchMachines changes something about the CustomResourceDefinition that matters to nobody.
func (w *world) touchMachines(ctx context.Context, round int) error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := w.admin.Get(ctx, client.ObjectKey{Name: "machines." + v1beta1.GroupVersion.Group}, crd); err != nil {
		return err
	}
	before := crd.DeepCopy()
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema.OpenAPIV3Schema.Description = fmt.Sprintf("Round %d", round)
	}
	return w.admin.Patch(ctx, crd, client.MergeFrom(before))
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"time"

	"container.training/useless/internal/webhook/conversion/conversiontest"
)

// conversions measures requests of the API server to convert Machines to the version that is not stored. The operator's
// handler and controller-runtime's handler take turns. Both have the same converter, and use TLS and HTTP/1.1 with
// keep-alive. A case is the number of Machines in a request.
//
// Values of a round:
//   - calls, objects, seconds
//
// Values of all rounds, if there are at least 100 calls:
//   - calls, p99_seconds
func conversions(ctx context.Context, b *bench) (err error) {
	stock, err := conversiontest.Stock()
	if err != nil {
		return err
	}
	converters := []*converter{serve("ours", conversiontest.Handler()), serve("stock", stock)}
	for _, c := range converters {
		defer c.server.Close()
	}
	for _, r := range reviews(b.quick) {
		b.log("conversion of %d Machines in a request", r.objects)
		if err := r.measure(ctx, b, converters); err != nil {
			return fmt.Errorf("%d Machines: %w", r.objects, err)
		}
	}
	return nil
}

// A converter is a handler with its server and a client.
type converter struct {
	name   string
	server *httptest.Server
	client *http.Client
}

func serve(name string, handler http.Handler) *converter {
	server, client := conversiontest.Serve(handler)
	return &converter{name, server, client}
}

// A review is a request that is repeated.
type review struct {
	objects int
	rounds  int
	calls   map[string]int // in a round, by converter
}

// reviews returns the cases. Fast requests have many short rounds, so that other load on the machine affects both
// handlers.
func reviews(quick bool) []review {
	all := []review{
		{objects: 1, rounds: 50, calls: map[string]int{"ours": 400, "stock": 100}},
		{objects: 500, rounds: 10, calls: map[string]int{"ours": 20, "stock": 5}},
		{objects: 1_500, rounds: 5, calls: map[string]int{"ours": 40}},
		{objects: 10_000, rounds: 5, calls: map[string]int{"ours": 20, "stock": 2}},
	}
	if quick {
		return all[:2]
	}
	return all
}

// measure records all rounds of a review.
func (r review) measure(ctx context.Context, b *bench, converters []*converter) error {
	body, err := conversiontest.Machines(r.objects)
	if err != nil {
		return err
	}
	kase, took := strconv.Itoa(r.objects), map[string][]float64{}
	for round := range r.rounds {
		for _, c := range converters {
			if r.calls[c.name] == 0 {
				continue
			}
			calls, err := c.call(ctx, body, r.calls[c.name])
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			took[c.name] = append(took[c.name], calls...)
			total := 0.
			for _, seconds := range calls {
				total += seconds
			}
			n := float64(len(calls))
			values := map[string]float64{"calls": n, "objects": n * float64(r.objects), "seconds": total}
			if err := b.record(Record{Case: kase, Subject: c.name, Round: round + 1, Values: values}); err != nil {
				return err
			}
		}
		slices.Reverse(converters)
	}
	for name, calls := range took {
		if len(calls) >= 100 {
			values := map[string]float64{"calls": float64(len(calls)), "p99_seconds": percentile(calls, 99)}
			err = errors.Join(err, b.record(Record{Case: kase, Subject: name, Values: values}))
		}
	}
	return err
}

// call sends n requests and returns how long each of them took, in seconds.
func (c *converter) call(ctx context.Context, body []byte, n int) ([]float64, error) {
	runtime.GC() // the garbage of the other converter
	calls := make([]float64, n)
	for i := range calls {
		start := time.Now()
		if err := conversiontest.Call(ctx, c.server, c.client, body); err != nil {
			return nil, err
		}
		calls[i] = time.Since(start).Seconds()
	}
	return calls, nil
}

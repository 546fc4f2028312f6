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

// conversions measures what the API server waits for when it has Machines converted to the version that is not stored:
// with the operator's handler and, by turns, with that of controller-runtime, which has the same converter. Both are served
// by this process over TLS and HTTP/1.1, on connections that are kept. A case is how many Machines are in a request.
//
// Values of a round:
//   - calls, objects, seconds: all that were made, and how long they took
//
// Values of the whole, where there were a hundred calls:
//   - calls, p99_seconds: what the slowest percent of them took at least
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
		if r.body, err = conversiontest.Machines(r.objects); err != nil {
			return err
		}
		b.say("%d objects in a request", r.objects)
		r.took = map[string][]float64{}
		for round := range r.rounds {
			for _, c := range converters {
				err = errors.Join(err, r.turn(ctx, b, round+1, c))
			}
			if err != nil {
				return fmt.Errorf("%d objects: %w", r.objects, err)
			}
			slices.Reverse(converters)
		}
		for name, took := range r.took {
			if len(took) >= 100 {
				values := map[string]float64{"calls": float64(len(took)), "p99_seconds": percentile(took, 99)}
				err = errors.Join(err, b.record(Record{Case: strconv.Itoa(r.objects), Contender: name, Values: values}))
			}
		}
	}
	return err
}

// A converter is a handler that is served.
type converter struct {
	name   string
	server *httptest.Server
	client *http.Client
}

func serve(name string, handler http.Handler) *converter {
	server, client := conversiontest.Serve(handler)
	return &converter{name, server, client}
}

// A review is a request that is made again and again.
type review struct {
	objects int
	rounds  int
	calls   map[string]int // in a round, by converter
	body    []byte
	took    map[string][]float64 // seconds, each call, by converter
}

// reviews are short where a call is, so that whatever else the machine does hits all converters alike.
func reviews(quick bool) []review {
	one := review{objects: 1, rounds: 50, calls: map[string]int{"ours": 400, "stock": 100}}
	if quick {
		return []review{one, {objects: 500, rounds: 10, calls: map[string]int{"ours": 20, "stock": 5}}}
	}
	return []review{
		one,
		{objects: 500, rounds: 10, calls: map[string]int{"ours": 20, "stock": 5}},
		{objects: 1_500, rounds: 5, calls: map[string]int{"ours": 40}},
		{objects: 10_000, rounds: 5, calls: map[string]int{"ours": 20, "stock": 2}},
	}
}

// turn lets one converter work.
func (r review) turn(ctx context.Context, b *bench, round int, c *converter) error {
	if r.calls[c.name] == 0 {
		return nil
	}
	runtime.GC() // of what the other one has left
	calls, total := make([]float64, r.calls[c.name]), 0.
	for i := range calls {
		start := time.Now()
		if err := conversiontest.Call(ctx, c.server, c.client, r.body); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		calls[i] = time.Since(start).Seconds()
		total += calls[i]
	}
	values := map[string]float64{"calls": float64(len(calls)), "objects": float64(len(calls) * r.objects), "seconds": total}
	r.took[c.name] = append(r.took[c.name], calls...)
	return b.record(Record{Case: strconv.Itoa(r.objects), Contender: c.name, Round: round, Values: values})
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"

	"github.com/google/uuid"

	"container.training/useless/test/history"
)

// registry is where the API server keeps objects in etcd, and registryEnd what comes after it.
const registry, registryEnd = "/registry/", "/registry0"

// An etcdPair is a key with its value.
type etcdPair struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// uid is what UIDs look like, also within what is stored in protobuf.
var uid = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// multiply makes so many parents out of the first one, with all that is theirs: it writes into etcd what the API server would
// have written, had it been asked, and spares what that takes it. The API server reads of it as of what another one has
// written. A name is as long as any other, and so is a UID, which keeps protobuf valid.
func (w *world) multiply(ctx context.Context, parents int) error {
	first := []byte(nameOf(0))
	var found struct{ Kvs []etcdPair }
	err := w.askEtcd(ctx, "range", map[string]any{"key": []byte(registry), "range_end": []byte(registryEnd)}, &found)
	if err != nil {
		return err
	}
	var owners, owned []etcdPair
	for _, pair := range found.Kvs {
		if bytes.HasSuffix(pair.Key, append([]byte{'/'}, first...)) {
			owners = append(owners, pair)
		} else if bytes.Contains(pair.Key, first) {
			owned = append(owned, pair)
		}
	}
	// Who does not wait has a restless world: the garbage collector asks the API server for each owner of which it has not heard,
	// twenty a second. And a cache of v1alpha1 that can have no more converted in the midst of a transaction loses the rest of it,
	// after which the API server answers no pages from it.
	for _, pattern := range [][]etcdPair{owners, owned} {
		if err := errors.Join(w.copyAll(ctx, pattern, parents), awaitQuiet(ctx, w)); err != nil {
			return err
		}
	}
	// All keys of a transaction have one revision, and the API server's cache is as new as that with the first of them. Who asks
	// for a list after one more revision gets all.
	return w.put(ctx, owners[:1])
}

// copyAll writes what is stored of the first parent for each of the others, too.
func (w *world) copyAll(ctx context.Context, pattern []etcdPair, parents int) error {
	names := make([]string, parents)
	for i := range names {
		names[i] = nameOf(i)
	}
	parts := slices.Collect(slices.Chunk(names[1:], 100))
	return inParallel(ctx, len(parts), func(ctx context.Context, i int) error {
		pairs := make([]etcdPair, 0, len(parts[i])*len(pattern))
		for _, name := range parts[i] {
			for _, pair := range pattern {
				pairs = append(pairs, pair.as([]byte(name)))
			}
		}
		for some := range slices.Chunk(pairs, maxOperations) {
			if err := w.put(ctx, some); err != nil {
				return err
			}
		}
		return nil
	})
}

// as returns what is stored of the first parent as it would be of another one, which has UIDs of its own.
func (p etcdPair) as(name []byte) etcdPair {
	first := []byte(nameOf(0))
	value := uid.ReplaceAllFunc(bytes.ReplaceAll(p.Value, first, name), func(old []byte) []byte {
		return []byte(uuid.NewSHA1(uuid.NameSpaceOID, slices.Concat(old, name)).String())
	})
	return etcdPair{bytes.ReplaceAll(p.Key, first, name), value}
}

// maxOperations are as many as etcd takes in one transaction, unless --max-txn-ops says otherwise.
const maxOperations = 128

// put writes into etcd.
func (w *world) put(ctx context.Context, pairs []etcdPair) error {
	type operation struct {
		Put etcdPair `json:"requestPut"`
	}
	operations := make([]operation, len(pairs))
	for i, pair := range pairs {
		operations[i].Put = pair
	}
	return w.askEtcd(ctx, "txn", map[string]any{"success": operations}, &struct{}{})
}

// askEtcd has etcd answer a question about keys and values.
func (w *world) askEtcd(ctx context.Context, what string, question, answer any) error {
	body, err := history.AskEtcd(ctx, w.plane.Etcd(), "kv/"+what, question)
	if err != nil {
		return err
	}
	return errors.Join(json.NewDecoder(body).Decode(answer), body.Close())
}

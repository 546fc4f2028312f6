// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/test/internal/invariants"
)

// registry is the prefix of the keys of Machines and Switches in etcd.
const registry = "/registry/useless.container.training/"

// An etcdPair is a key with its value.
type etcdPair struct {
	Key     []byte `json:"key"`
	Value   []byte `json:"value"`
	Version int    `json:"version,string,omitempty"` // number of writes since the key was created
}

// callEtcd sends a request to etcd, such as kv/range, and decodes the response into answer.
func (e *environment) callEtcd(ctx context.Context, what string, question, answer any) error {
	body, err := invariants.CallEtcd(ctx, e.plane.Etcd(), what, question)
	if err != nil {
		return err
	}
	return errors.Join(json.NewDecoder(body).Decode(answer), body.Close())
}

// readEtcd returns the pairs whose keys begin with prefix.
func (e *environment) readEtcd(ctx context.Context, prefix string) ([]etcdPair, error) {
	var answer struct {
		Pairs []etcdPair `json:"kvs"`
	}
	question := map[string]any{"key": []byte(prefix), "range_end": []byte(prefix + "\xff")} // keys are ASCII
	err := e.callEtcd(ctx, "kv/range", question, &answer)
	return answer.Pairs, err
}

// A prototype is a Machine with its Switches, as etcd stores them. Its copies become the Machines of an environment.
// Copies are much faster than requests to the API server.
type prototype struct {
	machine, switches []etcdPair
	uids              []string // UIDs of all objects

	// perNamespace is the number of Machines in a namespace. 0 means that all Machines are in the namespace default.
	perNamespace int
}

// mark is the label of the prototype and its copies that touch changes.
const mark, unmarked = "mark", `"mark":""`

// newPrototype creates a Machine. The operator turns down each of its Switches once, so all Switches have their final
// size. The operator continues to run.
func (e *environment) newPrototype(ctx context.Context, switches int) (p *prototype, err error) {
	m := newMachine(nameOf(0), switches)
	m.Labels = map[string]string{mark: ""}
	m.Spec.Position = v1beta1.PositionUp
	m.Spec.Flip = v1beta1.FlipSpec{DelaySeconds: new(int32(1)), IntervalSeconds: new(int32(0))}
	if err := e.admin.Create(ctx, m); err != nil {
		return nil, err
	}
	if _, err := e.startManager(e.rev.name); err != nil {
		return nil, err
	}
	if err := e.awaitFlips(ctx, switches); err != nil {
		return nil, err
	}
	defaults := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"position":null,"flip":null}}`))
	if err := e.admin.Patch(ctx, m, defaults); err != nil {
		return nil, err
	}
	if err := awaitQuiet(ctx, e); err != nil {
		return nil, err
	}
	p = &prototype{}
	if p.machine, err = e.readEtcd(ctx, registry+"machines/"); err != nil {
		return nil, err
	}
	if p.switches, err = e.readEtcd(ctx, registry+"switches/"); err != nil {
		return nil, err
	}
	for _, pair := range slices.Concat(p.machine, p.switches) {
		object := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(pair.Value, object); err != nil {
			return nil, fmt.Errorf("decode %s: %w", pair.Key, err)
		}
		p.uids = append(p.uids, string(object.UID))
	}
	return p, nil
}

// awaitFlips waits until the operator has turned down n Switches.
func (e *environment) awaitFlips(ctx context.Context, n int) error {
	return cluster.Await(ctx, e.processes, func(ctx context.Context) error {
		list, flipped := &v1beta1.SwitchList{}, 0
		err := e.admin.List(ctx, list)
		for _, sw := range list.Items {
			if sw.Annotations[v1beta1.FlippedAtAnnotation] != "" {
				flipped++
			}
		}
		if err == nil && flipped < n {
			err = fmt.Errorf("the operator has turned down %d Switches", flipped)
		}
		return err
	})
}

// namespace returns the namespace of Machine number i.
func (p *prototype) namespace(i int) string {
	if i == 0 || p.perNamespace == 0 {
		return metav1.NamespaceDefault
	}
	return fmt.Sprintf("bench-%04d", i/p.perNamespace)
}

// copyOf returns the pairs for Machine number i, with another name, namespace and UID. oldnew are further replacements.
func (p *prototype) copyOf(pairs []etcdPair, i int, oldnew ...string) []etcdPair {
	const namespace = `"namespace":"%s"`
	oldnew = append(oldnew, nameOf(0), nameOf(i), "/"+metav1.NamespaceDefault+"/", "/"+p.namespace(i)+"/",
		fmt.Sprintf(namespace, metav1.NamespaceDefault), fmt.Sprintf(namespace, p.namespace(i)))
	for _, uid := range p.uids {
		oldnew = append(oldnew, uid, fmt.Sprintf("%08x%s", i, uid[8:]))
	}
	replacer := strings.NewReplacer(oldnew...)
	copies := make([]etcdPair, len(pairs))
	for j, pair := range pairs {
		copies[j].Key = []byte(replacer.Replace(string(pair.Key)))
		copies[j].Value = []byte(replacer.Replace(string(pair.Value)))
	}
	return copies
}

// multiply writes the Machines with the numbers from first to last-1. It returns when the control plane is quiet.
func (e *environment) multiply(ctx context.Context, p *prototype, first, last int) error {
	// The garbage collector requests each owner that it does not know, at most 20 per second. So it must see the
	// Machines before their Switches.
	for _, pairs := range [][]etcdPair{p.machine, p.switches} {
		if err := e.writeCopies(ctx, p, pairs, first, last, 100); err != nil { // etcd allows 128
			return err
		}
		if err := awaitQuiet(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// touch changes a label of all Machines except the first one. Each change has its own revision, as a change by a client
// has. Otherwise a watch that the API server ends in the middle of a revision would lose the rest of the revision.
func (e *environment) touch(ctx context.Context, p *prototype, machines int, value string) error {
	return e.writeCopies(ctx, p, p.machine, 1, machines, 1, unmarked, fmt.Sprintf(`"%s":"%s"`, mark, value))
}

// writeCopies writes copies of the pairs into etcd. A transaction writes at most the given number of pairs.
func (e *environment) writeCopies(
	ctx context.Context, p *prototype, pairs []etcdPair, first, last, pairsPerTxn int, oldnew ...string,
) error {
	const block = 100 // Machines
	group, limited := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for from := max(first, 1); from < last; from += block {
		group.Go(func() error {
			var copies []etcdPair
			for i := from; i < min(from+block, last); i++ {
				copies = append(copies, p.copyOf(pairs, i, oldnew...)...)
			}
			for some := range slices.Chunk(copies, pairsPerTxn) {
				if err := e.put(limited, some); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	// All keys of a transaction have the same revision. When the API server's cache has received the first key, a
	// list of this revision may lack the others. After a later revision, it is complete.
	return e.put(ctx, p.machine)
}

// put writes pairs into etcd in one transaction.
func (e *environment) put(ctx context.Context, pairs []etcdPair) error {
	type operation struct {
		Put etcdPair `json:"requestPut"`
	}
	operations := make([]operation, len(pairs))
	for i, pair := range pairs {
		operations[i].Put = etcdPair{Key: pair.Key, Value: pair.Value}
	}
	return e.callEtcd(ctx, "kv/txn", map[string]any{"success": operations}, &struct{}{})
}

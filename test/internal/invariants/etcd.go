// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package invariants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// The etcd prefix of Machines and switches, and the key that sync writes. The API server does not read that key.
const (
	etcdPrefix = "/registry/useless.container.training/"
	etcdMark   = etcdPrefix + "~mark"
)

// A Recorder keeps the revisions of Machines and switches until Take returns them. It watches etcd, which numbers the
// revisions of both kinds in one sequence. It misses no revision, even if API servers are killed. It reads the authors
// from the API servers' audit log.
type Recorder struct {
	etcd     *http.Client
	operator string // the operator's username

	asking  sync.Mutex // guards authors
	authors *authors

	mu    sync.Mutex
	heard int64      // the last etcd revision that was received
	kept  []Revision // not returned by Take yet
	err   error
	more  chan struct{} // closed and replaced when revisions or an error arrive
}

// Record starts a Recorder, which runs until the context ends. The Recorder also keeps the revisions from before its
// start. etcd is an HTTP client for the JSON gateway of a control plane's etcd. The Recorder keeps a Machine only if
// the Machine is stored as v1beta1. It keeps all switches, because they have the same schema in both versions.
func Record(ctx context.Context, etcd *http.Client, audit AuditLog) (*Recorder, error) {
	authors, err := readAuthors(audit.Log)
	if err != nil {
		return nil, err
	}
	r := &Recorder{etcd: etcd, operator: audit.Operator, authors: authors, more: make(chan struct{})}
	end := etcdPrefix[:len(etcdPrefix)-1] + string(etcdPrefix[len(etcdPrefix)-1]+1)
	stream, err := CallEtcd(ctx, r.etcd, "watch", map[string]any{"create_request": map[string]any{
		"key": []byte(etcdPrefix), "range_end": []byte(end), "start_revision": 1, "prev_kv": true,
	}})
	if err != nil {
		return nil, err
	}
	go func() {
		defer stream.Close()
		for decoder := json.NewDecoder(stream); ; {
			if err := r.hear(decoder); err != nil {
				r.advance(0, fmt.Errorf("watch etcd: %w", err))
				return
			}
		}
	}()
	return r, nil
}

// Take returns the kept revisions of a namespace, and removes them from the Recorder. An empty namespace means all
// namespaces.
func (r *Recorder) Take(ctx context.Context, namespace string) (taken []Revision, err error) {
	if _, err := r.sync(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.kept = slices.DeleteFunc(r.kept, func(revision Revision) bool {
		if namespace != "" && namespace != revision.Object.GetNamespace() {
			return false
		}
		taken = append(taken, revision)
		return true
	})
	r.mu.Unlock()
	r.asking.Lock()
	defer r.asking.Unlock()
	for i, revision := range taken {
		by, err := r.authors.of(revision)
		if err != nil {
			return nil, err
		}
		taken[i].User = by.user
		if by.user == r.operator {
			taken[i].By = by.process
		}
	}
	return taken, nil
}

// Compact compacts etcd at its current revision, after the Recorder has received that revision.
func (r *Recorder) Compact(ctx context.Context) error {
	revision, err := r.sync(ctx)
	if err != nil {
		return err
	}
	answer, err := CallEtcd(ctx, r.etcd, "kv/compaction", map[string]any{"revision": revision, "physical": true})
	if err != nil {
		return err
	}
	return answer.Close()
}

// sync writes to etcd and waits until the Recorder has received that write. It returns the write's etcd revision.
func (r *Recorder) sync(ctx context.Context) (int64, error) {
	answer, err := CallEtcd(ctx, r.etcd, "kv/put", map[string]any{"key": []byte(etcdMark)})
	if err != nil {
		return 0, err
	}
	defer answer.Close()
	var put struct{ Header etcdHeader }
	if err := json.NewDecoder(answer).Decode(&put); err != nil {
		return 0, fmt.Errorf("write the sync key to etcd: %w", err)
	}
	for {
		r.mu.Lock()
		heard, more, err := r.heard, r.more, r.err
		r.mu.Unlock()
		if err != nil || heard >= put.Header.Revision {
			return put.Header.Revision, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

type etcdHeader struct {
	Revision int64 `json:"revision,string"`
}

type etcdPair struct {
	Key, Value     []byte
	CreateRevision int64 `json:"create_revision,string"`
	ModRevision    int64 `json:"mod_revision,string"`
}

type etcdAnswer struct {
	Result struct {
		Canceled     bool
		CancelReason string `json:"cancel_reason"`
		Events       []struct {
			Type   string // empty for a put
			KV     etcdPair
			PrevKV etcdPair `json:"prev_kv"`
		}
	}
	Error struct{ Message string }
}

// CallEtcd sends a JSON request to etcd's gateway. The argument what is a path, such as kv/range. The caller must close
// the answer.
func CallEtcd(ctx context.Context, etcd *http.Client, what string, question any) (io.ReadCloser, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd/v3/"+what, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := etcd.Do(request)
	if err != nil {
		return nil, fmt.Errorf("call etcd: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return nil, errors.Join(fmt.Errorf("call etcd: %s: %s", response.Status, text), err)
	}
	return response.Body, nil
}

// hear receives the next watch response and keeps its revisions.
func (r *Recorder) hear(decoder *json.Decoder) error {
	var answer etcdAnswer
	if err := decoder.Decode(&answer); err != nil {
		return err
	}
	if reason := answer.Result.CancelReason + answer.Error.Message; answer.Result.Canceled || reason != "" {
		return errors.New(reason)
	}
	for _, event := range answer.Result.Events {
		happened, value := watch.Modified, event.KV.Value
		switch {
		case event.Type == "DELETE":
			happened, value = watch.Deleted, event.PrevKV.Value
		case event.KV.CreateRevision == event.KV.ModRevision:
			happened = watch.Added
		}
		object, err := decode(string(event.KV.Key), value)
		if err != nil {
			return fmt.Errorf("%s: %w", event.KV.Key, err)
		}
		var heard []Revision
		if object != nil {
			object.SetResourceVersion(strconv.FormatInt(event.KV.ModRevision, 10))
			heard = []Revision{{Type: happened, Object: object, At: time.Now()}}
		}
		r.advance(event.KV.ModRevision, nil, heard...)
	}
	return nil
}

// advance keeps revisions and the received etcd revision, or the error of the watch. Then it wakes sync.
func (r *Recorder) advance(heard int64, err error, revisions ...Revision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = append(r.kept, revisions...)
	r.heard, r.err = max(r.heard, heard), err
	close(r.more)
	r.more = make(chan struct{})
}

// decode decodes an object that etcd stores under key. It returns nil for an object that the Recorder does not keep.
func decode(key string, value []byte) (client.Object, error) {
	switch resource, _, _ := strings.Cut(strings.TrimPrefix(key, etcdPrefix), "/"); resource {
	case "machines":
		var kind metav1.TypeMeta
		if err := json.Unmarshal(value, &kind); err != nil || kind.APIVersion != v1beta1.GroupVersion.String() {
			return nil, err // in v1alpha1 the fields have other types
		}
		m := &v1beta1.Machine{}
		return m, json.Unmarshal(value, m)
	case "switches":
		sw := &v1beta1.Switch{}
		return sw, json.Unmarshal(value, sw)
	default:
		return nil, nil
	}
}

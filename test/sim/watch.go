// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

// A watcher tells a client of changes of a kind, as the body of a response.
type watcher struct {
	ctx     context.Context
	client  *Client
	kind    *Kind
	initial []any // what it begins with
	next    int64 // the first revision to tell of
	news    chan struct{}
	buffer  bytes.Buffer
}

// watch begins to tell of changes.
func (c *Client) watch(ctx context.Context, k *Kind, query url.Values) (*http.Response, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &watcher{ctx: ctx, client: c, kind: k, news: make(chan struct{}, 1)}
	if query.Get("sendInitialEvents") == "true" {
		seen := s.revision // without a version, it is a read of what is certainly the newest
		if query.Get("resourceVersion") != "" {
			seen = c.sees(k)
		}
		for _, object := range s.at(k, seen) {
			w.initial = append(w.initial, event(watch.Added, object))
		}
		w.initial = append(w.initial, event(watch.Bookmark, bookmark(k, seen)))
		w.next = seen + 1
	} else {
		version, err := strconv.ParseInt(cmp.Or(query.Get("resourceVersion"), strconv.FormatInt(s.revision, 10)), 10, 64)
		if err != nil {
			return refusal(apierrors.NewBadRequest(err.Error())), nil
		}
		w.next = version + 1
	}
	s.watches = append(s.watches, w)
	return respond(http.StatusOK, w), nil
}

func event(kind watch.EventType, object any) map[string]any {
	return map[string]any{"type": string(kind), "object": object}
}

// bookmark says that what there was at a revision has been told.
func bookmark(k *Kind, revision int64) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(k.GroupVersionKind)
	object.SetResourceVersion(fmt.Sprint(revision))
	object.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return object
}

// Look has the client's watches tell what its View has come to show.
func (c *Client) Look() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for _, w := range c.server.watches {
		if w.client == c {
			w.wake()
		}
	}
}

// wake has the watcher look for news.
func (w *watcher) wake() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// Read implements io.Reader.
func (w *watcher) Read(p []byte) (int, error) {
	for w.buffer.Len() == 0 {
		if event, ok := w.take(); ok {
			if err := json.NewEncoder(&w.buffer).Encode(event); err != nil {
				return 0, err
			}
			break
		}
		select {
		case <-w.ctx.Done():
			return 0, io.EOF
		case <-w.news:
		}
	}
	return w.buffer.Read(p)
}

// take returns the next event, if the client may hear of it.
func (w *watcher) take() (any, bool) {
	s := w.client.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(w.initial) > 0 {
		first := w.initial[0]
		w.initial = w.initial[1:]
		return first, true
	}
	for seen := w.client.sees(w.kind); w.next <= seen; {
		change := s.history[w.next-1]
		w.next++
		if change.Kind == w.kind {
			return event(change.Type, change.Object), true
		}
	}
	return nil, false
}

// Close implements io.Closer.
func (w *watcher) Close() error {
	s := w.client.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = slices.DeleteFunc(s.watches, func(other *watcher) bool { return other == w })
	return nil
}

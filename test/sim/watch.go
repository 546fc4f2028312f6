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
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
)

// A watcher is the body of a watch response: a stream of changes of one kind.
type watcher struct {
	ctx     context.Context
	client  *Client
	call    Call
	initial []any     // the initial events
	next    int64     // the next revision to send
	missed  bool      // an earlier event was skipped, or sent late
	late    []*Change // skipped events that are not sent yet
	expired bool      // the next event is "resource expired"
	wakeup  chan struct{}
	buffer  bytes.Buffer
}

// watch opens a watch.
func (c *Client) watch(ctx context.Context, call Call) (*http.Response, error) {
	s, k, query := c.server, call.Kind, call.query
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &watcher{ctx: ctx, client: c, call: call, wakeup: make(chan struct{}, 1)}
	initial := isSet(query, "sendInitialEvents")
	if initial && s.NoStreams {
		return errorResponse(apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "",
			field.ErrorList{
				field.Forbidden(field.NewPath("sendInitialEvents"),
					"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"),
			})), nil
	}
	if initial {
		seen := s.revision // without a resourceVersion, the read is consistent
		if query.Get("resourceVersion") != "" {
			seen = c.visible(k)
		}
		for _, object := range s.at(k, seen) {
			if call.selects(object) {
				w.initial = append(w.initial, event(watch.Added, call.project(object)))
			}
		}
		w.initial = append(w.initial, event(watch.Bookmark, call.project(bookmark(k, seen))))
		w.next = seen + 1
	} else {
		version, err := strconv.ParseInt(cmp.Or(query.Get("resourceVersion"), strconv.FormatInt(s.revision, 10)), 10,
			64)
		if err != nil {
			return errorResponse(apierrors.NewBadRequest(err.Error())), nil
		}
		w.next = version + 1
	}
	s.watches = append(s.watches, w)
	return respond(http.StatusOK, w), nil
}

// isSet reports whether the request sets a boolean option to true.
func isSet(query url.Values, option string) bool {
	set, err := strconv.ParseBool(query.Get(option))
	return err == nil && set
}

func event(kind watch.EventType, object any) map[string]any {
	return map[string]any{"type": string(kind), "object": object}
}

// bookmark returns the bookmark that ends the initial events of a revision.
func bookmark(k *Kind, revision int64) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(k.GroupVersionKind)
	object.SetResourceVersion(fmt.Sprint(revision))
	object.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return object
}

// Locked calls a function. During this call, the server serves no request and sends no event. Callers must use Locked
// to change variables that their View or SkipEvents functions read.
func (s *Server) Locked(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// WakeWatches makes the client's watches send the events that its View has made visible.
func (c *Client) WakeWatches() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for _, w := range c.server.watches {
		if w.client == c {
			w.wake()
		}
	}
}

// SkipEvents makes the client's watches skip the events for which skip returns true. When the client sees a later
// change, the watches call skip again with all later changes so far. If skip returns false, they send the event late.
func (c *Client) SkipEvents(skip func(change Change, since []Change) bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.misses = skip
}

// ExpireWatches ends the client's watches that have skipped an event, or sent an event late. The client gets "resource
// expired" and lists all objects again.
func (c *Client) ExpireWatches() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for _, w := range c.server.watches {
		if w.client == c && w.missed {
			w.missed, w.expired = false, true
			w.wake()
		}
	}
}

// wake makes the watcher look for new changes.
func (w *watcher) wake() {
	select {
	case w.wakeup <- struct{}{}:
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
		case <-w.wakeup:
		}
	}
	return w.buffer.Read(p)
}

// take returns the next event. It returns false if the client can see no next event yet.
func (w *watcher) take() (any, bool) {
	s := w.client.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.expired {
		w.expired = false // sent one time, because the client then closes the watch
		return event(watch.Error,
			apierrors.NewResourceExpired("the history of this watch is no longer available").Status()), true
	}
	if len(w.initial) > 0 {
		first := w.initial[0]
		w.initial = w.initial[1:]
		return first, true
	}
	for seen := w.client.visible(w.call.Kind); ; {
		change, ok := w.advance(seen)
		if !ok {
			return nil, false
		}
		if change == nil {
			continue
		}
		if next := w.call.eventFor(*change); next != nil {
			return next, true
		}
	}
}

// advance returns the next change to send. It returns nil if the next change is skipped or is of another kind. It
// reports whether there may be more changes.
func (w *watcher) advance(seen int64) (*Change, bool) {
	history, misses := w.client.server.history, w.client.misses
	for i, change := range w.late {
		if since := history[change.Revision : w.next-1]; len(since) > 0 && !misses(*change, since) {
			w.late = slices.Delete(w.late, i, i+1)
			return change, true
		}
	}
	if w.next > seen {
		return nil, false
	}
	change := &history[w.next-1]
	w.next++
	switch {
	case change.Kind != w.call.Kind:
		return nil, true
	case misses != nil && misses(*change, nil):
		w.missed, w.late = true, append(w.late, change)
		return nil, true
	}
	return change, true
}

// eventFor returns the watch event for a change, or nil. If an object starts to match the selector, the event is ADDED.
// If an object stops matching, the event is DELETED.
func (c Call) eventFor(change Change) any {
	is := change.Type != watch.Deleted && c.selects(change.Object)
	was := change.Before != nil && c.selects(change.Before)
	switch {
	case is && was:
		return event(watch.Modified, c.project(change.Object))
	case is:
		return event(watch.Added, c.project(change.Object))
	case was:
		last := change.Before.DeepCopy()
		last.SetResourceVersion(change.Object.GetResourceVersion())
		return event(watch.Deleted, c.project(last))
	}
	return nil
}

// Close implements io.Closer.
func (w *watcher) Close() error {
	s := w.client.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = slices.DeleteFunc(s.watches, func(other *watcher) bool { return other == w })
	return nil
}

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

// A watcher tells a client of changes of a kind, as the body of a response.
type watcher struct {
	ctx     context.Context
	client  *Client
	call    Call
	initial []any     // what it begins with
	next    int64     // the first revision to tell of
	missed  bool      // something before that was not told, or late
	late    []*Change // that are not told yet
	expired bool      // it ends
	news    chan struct{}
	buffer  bytes.Buffer
}

// watch begins to tell of changes.
func (c *Client) watch(ctx context.Context, call Call) (*http.Response, error) {
	s, k, query := c.server, call.Kind, call.query
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &watcher{ctx: ctx, client: c, call: call, news: make(chan struct{}, 1)}
	initial := isSet(query, "sendInitialEvents")
	if initial && s.NoStreams {
		return refusal(apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", field.ErrorList{
			field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"),
		})), nil
	}
	if initial {
		seen := s.revision // without a version, it is a read of what is certainly the newest
		if query.Get("resourceVersion") != "" {
			seen = c.sees(k)
		}
		for _, object := range s.at(k, seen) {
			if call.selects(object) {
				w.initial = append(w.initial, event(watch.Added, call.shown(object)))
			}
		}
		w.initial = append(w.initial, event(watch.Bookmark, call.shown(bookmark(k, seen))))
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

// isSet reports whether a request asks for something that is off by default.
func isSet(query url.Values, option string) bool {
	set, err := strconv.ParseBool(query.Get(option))
	return err == nil && set
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

// Hold does something while nobody is served or hears of anything: what Views, and those who let events be missed, depend on
// changes nowhere else.
func (s *Server) Hold(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
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

// Miss has the client's watches leave out the events for which it returns true. It is asked about them again after each later
// change, and tells of them late when it no longer does.
func (c *Client) Miss(leaveOut func(change Change, since []Change) bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.misses = leaveOut
}

// Reread has those of the client's watches end that have left something out, or told of it late, as when their history is gone,
// which has the client read all anew.
func (c *Client) Reread() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	for _, w := range c.server.watches {
		if w.client == c && w.missed {
			w.missed, w.expired = false, true
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
	if w.expired {
		w.expired = false // it is said once, and the client hangs up
		return event(watch.Error, apierrors.NewResourceExpired("there is no history any more").Status()), true
	}
	if len(w.initial) > 0 {
		first := w.initial[0]
		w.initial = w.initial[1:]
		return first, true
	}
	for seen := w.client.sees(w.call.Kind); ; {
		change, ok := w.advance(seen)
		if !ok {
			return nil, false
		}
		if change == nil {
			continue
		}
		if told := w.call.tell(*change); told != nil {
			return told, true
		}
	}
}

// advance returns the next change to tell of, which is nil if that is not to be told of now. It reports whether there may be more.
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

// tell is what a change is to who watches a selection: what comes to be in it is added, and what no longer is is deleted.
func (c Call) tell(change Change) any {
	is := change.Type != watch.Deleted && c.selects(change.Object)
	was := change.Before != nil && c.selects(change.Before)
	switch {
	case is && was:
		return event(watch.Modified, c.shown(change.Object))
	case is:
		return event(watch.Added, c.shown(change.Object))
	case was:
		last := change.Before.DeepCopy()
		last.SetResourceVersion(change.Object.GetResourceVersion())
		return event(watch.Deleted, c.shown(last))
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

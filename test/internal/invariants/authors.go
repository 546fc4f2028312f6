// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package invariants

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditPatience limits the wait for a revision's line in the audit log. The line is missing if the API server was
// killed before it logged the request.
const auditPatience = 10 * time.Second

// AuditLog describes the audit log, which names the author of each write.
type AuditLog struct {
	Log      string // path of the log of an API server that uses audit-policy.yaml
	Operator string // the operator's username
}

// An author is the user and the process that wrote a revision; zero if unknown.
type author struct{ user, process string }

// authors reads an audit log while API servers append to it.
type authors struct {
	log   *bufio.Reader
	begun []byte            // a line that is still incomplete
	found map[string]author // by the resourceVersion of a created or changed object, or the UID of a deleted one
}

func readAuthors(path string) (*authors, error) {
	log, err := os.Open(path) // stays open until the test ends
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return &authors{log: bufio.NewReader(log), found: map[string]author{}}, nil
}

// of returns the author of a revision, or zero if the author is unknown. It waits for the revision's line in the audit
// log. The watch event can arrive before this line, because the API server logs a request after it has sent the
// response.
func (a *authors) of(r Revision) (author, error) {
	key := r.Object.GetResourceVersion()
	if r.Type == watch.Deleted {
		key = string(r.Object.GetUID())
	}
	for {
		if by, ok := a.found[key]; ok {
			delete(a.found, key)
			return by, nil
		}
		more, err := a.read()
		switch {
		case err != nil:
			return author{}, err
		case more:
		case time.Since(r.At) > auditPatience:
			return author{}, nil
		default:
			<-time.After(10 * time.Millisecond)
		}
	}
}

// read takes all complete new lines. It reports whether there were any.
func (a *authors) read() (more bool, err error) {
	for {
		line, err := a.log.ReadBytes('\n')
		a.begun = append(a.begun, line...)
		switch {
		case errors.Is(err, io.EOF):
			return more, nil
		case err != nil:
			return false, fmt.Errorf("read the audit log: %w", err)
		}
		a.take(a.begun)
		a.begun, more = a.begun[:0], true
	}
}

// take parses a line. It ignores a line that is cut off because the API server was killed.
func (a *authors) take(line []byte) {
	var event auditv1.Event
	if err := json.Unmarshal(line, &event); err != nil || event.ResponseObject == nil ||
		event.ResponseStatus == nil || event.ResponseStatus.Code >= http.StatusMultipleChoices {
		return
	}
	var written answer
	if err := json.Unmarshal(event.ResponseObject.Raw, &written); err != nil {
		return
	}
	process, _, _ := strings.Cut(event.UserAgent, "/")
	by := author{event.User.Username, process}
	var asked struct {
		metav1.ObjectMeta `json:"metadata"`
	}
	if event.RequestObject != nil {
		_ = json.Unmarshal(event.RequestObject.Raw, &asked) // fails for a JSON patch, which is a list without metadata
	}
	for _, key := range written.keys(asked.ResourceVersion) {
		// The response to a write without a change has the resourceVersion of an earlier write, perhaps by another
		// author. Then the author is unknown.
		if other, ok := a.found[key]; ok && other != by {
			a.found[key] = author{}
		} else {
			a.found[key] = by
		}
	}
}

// An answer is the API server's response to a write.
type answer struct {
	metav1.ObjectMeta `json:"metadata"`

	Details struct{ UID types.UID }                      // the UID of a deleted object
	Items   []struct{ Metadata struct{ UID types.UID } } // the UIDs of the objects of a deletecollection
}

// keys returns the keys of authors.found for the written objects. The argument is the request's resourceVersion, or
// empty.
func (a *answer) keys(asked string) (keys []string) {
	switch {
	case a.Details.UID != "":
		return []string{string(a.Details.UID)}
	case a.DeletionTimestamp != nil && len(a.Finalizers) == 0:
		return []string{string(a.UID)} // the last finalizer was removed; the response has the old resourceVersion
	case a.UID != "" && a.ResourceVersion != asked: // equal resourceVersions mean that nothing changed
		return []string{a.ResourceVersion}
	}
	for _, item := range a.Items {
		keys = append(keys, string(item.Metadata.UID))
	}
	return keys
}

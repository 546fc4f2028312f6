// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package history

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

// auditPatience is how long the audit log is asked for who wrote a revision. There is no line of a request whose API server was
// killed before it had answered.
const auditPatience = 3 * time.Second

// An Audit says who wrote what.
type Audit struct {
	Log      string // the file of an API server with the policy of audit-policy.yaml
	Operator string // the name of its user
}

// An author is who wrote a revision; zero where nobody knows.
type author struct{ user, process string }

// authors reads an audit log, to which API servers write.
type authors struct {
	log   *bufio.Reader
	begun []byte            // of a line whose end is not there yet
	found map[string]author // by the resourceVersion of what they made, or by the UID of what they deleted
}

func readAuthors(path string) (*authors, error) {
	log, err := os.Open(path) // until the test ends
	if err != nil {
		return nil, fmt.Errorf("find out who writes what: %w", err)
	}
	return &authors{log: bufio.NewReader(log), found: map[string]author{}}, nil
}

// of returns the author of a revision. The API server logs a request when it has answered it, which is after the revision was
// told of.
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

// read takes the lines that there are by now, if there are more.
func (a *authors) read() (more bool, err error) {
	for {
		line, err := a.log.ReadBytes('\n')
		a.begun = append(a.begun, line...)
		switch {
		case errors.Is(err, io.EOF):
			return more, nil
		case err != nil:
			return false, fmt.Errorf("find out who writes what: %w", err)
		}
		a.take(a.begun)
		a.begun, more = a.begun[:0], true
	}
}

// take takes a line, but for one that its API server was killed at.
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
		_ = json.Unmarshal(event.RequestObject.Raw, &asked) // a patch may be a list, which says nothing here
	}
	for _, key := range written.keys(asked.ResourceVersion) {
		// Who changes nothing is answered with what somebody else has written. Which of two it was, nobody knows.
		if other, ok := a.found[key]; ok && other != by {
			a.found[key] = author{}
		} else {
			a.found[key] = by
		}
	}
}

// An answer is what the API server says of a write.
type answer struct {
	metav1.ObjectMeta `json:"metadata"`

	Details struct{ UID types.UID }                      // of an object that is deleted
	Items   []struct{ Metadata struct{ UID types.UID } } // of all that are
}

// keys are those of what was written, a version having been asked for, or not.
func (a *answer) keys(asked string) (keys []string) {
	switch {
	case a.Details.UID != "":
		return []string{string(a.Details.UID)}
	case a.DeletionTimestamp != nil && len(a.Finalizers) == 0:
		return []string{string(a.UID)} // the last finalizer was taken, and the object is what it was before
	case a.UID != "" && a.ResourceVersion != asked: // which nothing has been done to
		return []string{a.ResourceVersion}
	}
	for _, item := range a.Items {
		keys = append(keys, string(item.Metadata.UID))
	}
	return keys
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"container.training/useless/internal/webhook/server"
)

const (
	reviewKind    = "ConversionReview"
	reviewVersion = "apiextensions.k8s.io/v1"
)

var (
	// The API server accepts duplicate names and invalid UTF-8, so the operator must not reject them.
	jsonOptions = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

	errTooLarge = fmt.Errorf("an object is larger than %d MiB", maxObject>>20)
	errRequest  = errors.New(
		"a review must have a request with a uid and one desiredAPIVersion, followed by one list of objects")
)

// review is a ConversionReview.
type review struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Request    struct {
		UID     string  `json:"uid"`
		Desired string  `json:"desiredAPIVersion"`
		Objects objects `json:"objects"`
	} `json:"request"`
}

// objects is the list of objects in a review. The call converts each object as soon as it is decoded.
type objects struct{ call *call }

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (o *objects) UnmarshalJSONFrom(in *jsontext.Decoder) error {
	o.call.listErr = o.call.convertList(in)
	return o.call.listErr
}

// object is a Machine of any version.
type object struct {
	Kind       string         `json:"kind"`
	APIVersion string         `json:"apiVersion"`
	Metadata   metadata       `json:"metadata"`
	Spec       jsontext.Value `json:"spec,omitzero"`
	Status     jsontext.Value `json:"status,omitzero"`
	Unknown    jsontext.Value `json:",embed"`
}

// metadata has the fields that the API server reads from the metadata of a converted object. The API server compares
// the first three with its own copy, and takes the labels and annotations. It restores all other fields from its copy.
// The answer omits those, in particular managedFields, so that the API server decodes less. See
// pkg/apiserver/conversion/webhook_converter.go in k8s.io/apiextensions-apiserver.
type metadata struct {
	Name        jsontext.Value `json:"name,omitzero"`
	Namespace   jsontext.Value `json:"namespace,omitzero"`
	UID         jsontext.Value `json:"uid,omitzero"`
	Labels      jsontext.Value `json:"labels,omitzero"`
	Annotations jsontext.Value `json:"annotations,omitzero"`
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom. If an object has metadata twice, the second value replaces the
// first one. By default, package json would merge them.
func (m *metadata) UnmarshalJSONFrom(in *jsontext.Decoder) error {
	type fields metadata
	*m = metadata{}
	return json.UnmarshalDecode(in, (*fields)(m))
}

// call converts one review.
type call struct {
	*Handler
	ctx     context.Context
	body    io.Reader
	size    int  // bytes read since the previous object was converted
	hasSlot bool // for large objects
	out     *bufio.Writer

	review    review
	desired   string // version of the converted objects; empty before the list
	object    object // the current object
	converted int    // number of objects in the answer
	listErr   error  // of the list of objects
}

// Read implements io.Reader. It limits the size of one object, and the number of concurrent requests with a large
// object.
func (c *call) Read(p []byte) (int, error) {
	if c.size > maxObject {
		return 0, errTooLarge
	}
	if c.size > server.LargeBytes && !c.hasSlot {
		if err := c.large.Acquire(c.ctx, 1); err != nil {
			return 0, err
		}
		c.hasSlot = true
	}
	n, err := c.body.Read(p)
	c.size += n
	return n, err
}

func (c *call) release() {
	if c.hasSlot {
		c.large.Release(1)
	}
}

// run reads the review, and writes the converted objects to the answer.
func (c *call) run() error {
	c.out.WriteString(answerStart)
	c.review.Request.Objects.call = c
	err := json.UnmarshalRead(c, &c.review, jsonOptions)
	switch {
	case c.listErr != nil:
		return c.listErr
	case err != nil:
		return withoutPath(err)
	case c.review.Kind != reviewKind || c.review.APIVersion != reviewVersion:
		return fmt.Errorf("want a %s of %s, got %q of %q",
			reviewKind, reviewVersion, c.review.Kind, c.review.APIVersion)
	case c.review.Request.UID == "" || c.desired != "" && c.desired != c.review.Request.Desired:
		return errRequest
	}
	return nil
}

// withoutPath removes the path from a syntax error, because jsontext reads the path from a buffer whose contents may
// have moved.
func withoutPath(err error) error {
	if problem, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return &jsontext.SyntacticError{ByteOffset: problem.ByteOffset, Err: problem.Err}
	}
	return err
}

// convertList converts the list of objects and adds the results to the answer. The list may be null.
func (c *call) convertList(in *jsontext.Decoder) error {
	request := &c.review.Request
	switch {
	case in.PeekKind() == 'n':
		return in.SkipValue()
	case request.UID == "" || request.Desired == "" || c.desired != "":
		return errRequest
	}
	c.desired = request.Desired
	if token, err := in.ReadToken(); err != nil {
		return withoutPath(err)
	} else if token.Kind() != '[' {
		return errors.New("the objects must be a list")
	}
	for in.PeekKind() != ']' {
		if err := c.convert(in); err != nil {
			return fmt.Errorf("object %d: %w", c.converted, err)
		}
		c.size = 0
	}
	_, err := in.ReadToken()
	return err
}

// convert converts the next object and adds it to the answer.
func (c *call) convert(in *jsontext.Decoder) error {
	o := &c.object
	*o = object{}
	if err := json.UnmarshalDecode(in, o); err != nil {
		return withoutPath(err)
	}
	convert := c.converters[versionPair{o.APIVersion, c.desired}]
	if convert == nil || o.Kind != machineKind {
		return fmt.Errorf("cannot convert %s, Kind=%s to %s", o.APIVersion, o.Kind, c.desired)
	}
	if o.Spec != nil {
		var err error
		if o.Spec, err = convert(o.Spec); err != nil {
			return err
		}
	}
	o.APIVersion = c.desired
	if c.converted > 0 {
		c.out.WriteByte(',')
	}
	c.converted++
	return json.MarshalWrite(c.out, o, jsonOptions)
}

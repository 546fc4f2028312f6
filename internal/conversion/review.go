// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

const (
	machineKind   = "Machine"
	reviewKind    = "ConversionReview"
	reviewVersion = "apiextensions.k8s.io/v1"

	// An answer begins with this. Its uid and result follow the objects, so that one that fails halfway can say so.
	preamble = `{"kind":"` + reviewKind + `","apiVersion":"` + reviewVersion + `","response":{"convertedObjects":[`

	// An answer is sent in pieces of this size or one object more; a smaller one is sent as a whole.
	pieceSize = 32 << 10
)

// A way leads from one apiVersion to another.
type way struct{ from, to string }

// Converters turn the JSON of a spec into that of another version.
type converters map[way]func(spec []byte) ([]byte, error)

// machines has a converter for every two versions of Machine.
func machines() converters {
	alpha, beta := v1alpha1.GroupVersion.String(), v1beta1.GroupVersion.String()
	unchanged := func(spec []byte) ([]byte, error) { return spec, nil }
	return converters{
		{beta, alpha}:  typed(specToV1alpha1),
		{alpha, beta}:  typed(specFromV1alpha1),
		{alpha, alpha}: unchanged,
		{beta, beta}:   unchanged,
	}
}

func typed[A, B any](convert func(A) B) func([]byte) ([]byte, error) {
	return func(raw []byte) ([]byte, error) {
		var spec A
		if err := utiljson.Unmarshal(raw, &spec); err != nil {
			return nil, err
		}
		return json.Marshal(convert(spec))
	}
}

// A call reads one review and writes the answer.
type call struct {
	*buffers
	converters   converters
	w            http.ResponseWriter
	body         *body
	uid, desired string
	listed       bool // whether objects have been converted, of which there may have been none
	count        int  // how many
	whole        int  // how much of out they take
	sent         bool // whether a part of the answer is out
}

// Buffers are used for one call after another, for they would be most of what a call allocates.
type buffers struct {
	in        reader
	out, spec []byte
}

var pool = sync.Pool{New: func() any { return &buffers{in: reader{Decoder: &jsontext.Decoder{}}} }}

func newCall(converters converters, w http.ResponseWriter, in *body) *call {
	c := &call{buffers: pool.Get().(*buffers), converters: converters, w: w, body: in, whole: len(preamble)}
	c.in.reset(in)
	c.out = append(c.out[:0], preamble...)
	return c
}

func (c *call) recycle() {
	if c.body.release == nil { // then they have grown beyond what is worth keeping
		c.in.reset(http.NoBody)
		pool.Put(c.buffers)
	}
}

// review reads a ConversionReview.
func (c *call) review() error {
	var kind, version string
	for name := range c.in.members() {
		switch name {
		case "kind":
			kind = c.in.text()
		case "apiVersion":
			version = c.in.text()
		case "request":
			c.request()
		default:
			c.in.skip()
		}
	}
	switch {
	case c.in.err != nil:
		return c.in.err
	case kind != reviewKind || version != reviewVersion:
		return fmt.Errorf("want a %s of %s, got %q of %q", reviewKind, reviewVersion, kind, version)
	case c.uid == "":
		return errors.New("a review must have a request with a uid")
	}
	return nil
}

func (c *call) request() {
	var early []byte
	for name := range c.in.members() {
		switch name {
		case "uid":
			c.uid = c.in.text()
		case "desiredAPIVersion", "objects":
			switch {
			case c.listed: // and the answer is on its way
				c.in.err = errors.New("there may be one list of objects, and no version to convert to after it")
			case name == "desiredAPIVersion":
				c.desired = c.in.text()
			case c.desired == "": // which the API server puts first
				early = bytes.Clone(c.in.value())
			default:
				c.in.err = c.convert(&c.in)
			}
		default:
			c.in.skip()
		}
	}
	if c.in.err == nil && early != nil {
		in := reader{Decoder: &jsontext.Decoder{}}
		in.reset(bytes.NewReader(early))
		c.in.err = c.convert(&in)
	}
}

// convert reads objects and adds them to the answer.
func (c *call) convert(in *reader) error {
	c.listed = true
	for range in.elements() {
		if c.count > 0 {
			c.out = append(c.out, ',')
		}
		if err := c.object(in); err != nil {
			return fmt.Errorf("object %d: %w", c.count, err)
		}
		c.count++
		c.body.size = 0
		c.whole = len(c.out)
		if c.whole >= pieceSize {
			if err := c.send(); err != nil {
				return err
			}
		}
	}
	return in.err
}

// object reads one object and adds it to the answer. The spec may come before the version that it is of. Of members that
// are there twice the last one counts, here as where the answer goes.
func (c *call) object(in *reader) error {
	var version, kind string
	var spec, metadata bool
	c.out = append(c.out, `{"kind":"`+machineKind+`"`...)
	for name := range in.members() {
		switch name {
		case "apiVersion":
			version = in.text()
		case "kind":
			kind = in.text()
		case "spec":
			spec, c.spec = true, append(c.spec[:0], in.value()...)
		case "metadata":
			metadata = in.PeekKind() == '{'
			c.member(name, in.value())
		default:
			c.member(name, in.value())
		}
	}
	if in.err != nil {
		return in.err
	}
	convert, known := c.converters[way{version, c.desired}]
	if !known || kind != machineKind {
		return fmt.Errorf("cannot convert %s, Kind=%s to %s", version, kind, c.desired)
	}
	c.quote(`,"apiVersion":`, c.desired)
	if !metadata { // the API server accepts no object without
		c.member("metadata", []byte("{}"))
	}
	if spec {
		converted, err := convert(c.spec)
		if err != nil {
			return err
		}
		c.member("spec", converted)
	}
	c.out = append(c.out, '}')
	return nil
}

// member adds what an object has to the answer.
func (c *call) member(name string, value []byte) {
	c.quote(",", name)
	c.out = append(c.out, ':')
	c.out = append(c.out, value...)
}

// send sends what there is of the answer.
func (c *call) send() error {
	c.w.Header().Set("Content-Type", contentType)
	_, err := c.w.Write(c.out)
	c.out, c.whole, c.sent = c.out[:0], 0, true
	return err
}

// finish sends the rest of the answer. There is nobody to tell if it fails.
func (c *call) finish(err error) {
	status := metav1.StatusSuccess
	if err != nil {
		status = metav1.StatusFailure
		c.out = c.out[:c.whole]
	}
	c.quote(`],"uid":`, c.uid)
	c.quote(`,"result":{"status":`, status)
	if err != nil {
		c.quote(`,"message":`, err.Error())
	}
	c.out = append(c.out, "}}}\n"...)
	if !c.sent {
		c.w.Header().Set("Content-Length", strconv.Itoa(len(c.out)))
	}
	_ = c.send()
}

func (c *call) quote(before, text string) {
	c.out = append(c.out, before...)
	c.out, _ = jsontext.AppendQuote(c.out, text) // what is not UTF-8 becomes so
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bufio"
	"errors"
	"fmt"
	"mime"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion/metrics"
)

const (
	reviewKind    = "ConversionReview"
	reviewVersion = "apiextensions.k8s.io/v1"

	// The uid and the result follow the objects, so that the answer can report a failure after the first objects.
	answerStart = `{"kind":"` + reviewKind + `","apiVersion":"` + reviewVersion + `","response":{"convertedObjects":[`
)

// The API server accepts duplicate names and invalid UTF-8, so the operator must not reject them.
var (
	jsonOptions   = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	reviewOptions = json.JoinOptions(jsonOptions, json.WithUnmarshalers(json.UnmarshalFromFunc(
		func(in *jsontext.Decoder, list *objects) error { return list.call.convertList(in) })))
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

// objects is the list of objects. The call converts it while it is decoded.
type objects struct{ call *call }

// object is a Machine of any version.
type object struct {
	Kind       string         `json:"kind"`
	APIVersion string         `json:"apiVersion"`
	Metadata   jsontext.Value `json:"metadata"`
	Spec       jsontext.Value `json:"spec,omitzero"`
	Status     jsontext.Value `json:"status,omitzero"`
	Unknown    jsontext.Value `json:",embed"`
}

// call converts one review.
type call struct {
	converters map[versionPair]converter
	in         *body
	out        *bufio.Writer

	review  review
	desired string // version of the converted objects; empty before the list
	object  object // the current object
	started bool   // whether a part of the answer is in out
	listErr error  // of the list of objects
	status  int    // HTTP status of an error that a review cannot report, or 0
}

// run converts all objects of a request. A panic becomes an error.
func (c *call) run(r *http.Request) (err error) {
	defer func() {
		if r := recover(); r != nil {
			metrics.WebhookPanics.WithLabelValues().Inc()
			for _, handle := range utilruntime.PanicHandlers {
				handle(c.in.ctx, r)
			}
			err = errPanic
		}
		c.status = c.statusOf(err)
	}()
	if err := checkHeader(r); err != nil {
		return err
	}
	c.review.Request.Objects.call = c
	err = json.UnmarshalRead(c.in, &c.review, reviewOptions)
	switch {
	case c.listErr != nil:
		return c.listErr
	case err != nil:
		return withoutPath(err)
	case c.review.Kind != reviewKind || c.review.APIVersion != reviewVersion:
		return fmt.Errorf("want a %s of %s, got %q of %q", reviewKind, reviewVersion, c.review.Kind, c.review.APIVersion)
	case c.review.Request.UID == "":
		return errNoUID
	case c.desired != "" && c.desired != c.review.Request.Desired:
		return errOrder
	}
	return nil
}

// checkHeader rejects a request before its body is read.
func checkHeader(r *http.Request) error {
	if r.ContentLength > maxReview {
		return &http.MaxBytesError{Limit: maxReview}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != contentType {
		return errContentType
	}
	return nil
}

// statusOf returns the HTTP status of an error that a review cannot report, or 0.
func (c *call) statusOf(err error) int {
	_, tooLong := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil || c.started:
		return 0
	case tooLong || errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errContentType):
		return http.StatusUnsupportedMediaType
	case c.review.Request.UID == "":
		return http.StatusBadRequest
	}
	return 0
}

// withoutPath removes the path from a syntax error, because jsontext reads the path from a buffer that may have moved.
func withoutPath(err error) error {
	if problem, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return &jsontext.SyntacticError{ByteOffset: problem.ByteOffset, Err: problem.Err}
	}
	return err
}

// convertList converts a list of objects, which may be null, and adds them to the answer.
func (c *call) convertList(in *jsontext.Decoder) (err error) {
	defer func() { c.listErr = err }()
	switch request := c.review.Request; {
	case in.PeekKind() == 'n':
		return in.SkipValue()
	case request.UID == "":
		return errNoUID
	case request.Desired == "" || c.desired != "":
		return errOrder
	}
	c.desired = c.review.Request.Desired
	if token, err := in.ReadToken(); err != nil {
		return withoutPath(err)
	} else if token.Kind() != '[' {
		return errors.New("the objects must be a list")
	}
	for i := 0; in.PeekKind() != ']'; i++ {
		if err := c.convert(in); err != nil {
			return fmt.Errorf("object %d: %w", i, err)
		}
		c.in.size = 0
	}
	_, err = in.ReadToken()
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
	if o.Metadata.Kind() != '{' { // the API server accepts no object without metadata
		o.Metadata = jsontext.Value("{}")
	}
	if c.started {
		c.out.WriteByte(',')
	}
	c.start()
	return json.MarshalWrite(c.out, o, jsonOptions)
}

func (c *call) start() {
	if !c.started {
		c.out.WriteString(answerStart)
		c.started = true
	}
}

// finish ends the answer and sends it. It ignores write errors, because only a lost connection causes one.
func (c *call) finish(err error) {
	c.start()
	status := metav1.StatusSuccess
	if err != nil {
		status = metav1.StatusFailure
	}
	c.quote(`],"uid":`, c.review.Request.UID)
	c.quote(`,"result":{"status":`, status)
	if err != nil {
		c.quote(`,"message":`, err.Error())
	}
	c.out.WriteString("}}}\n")
	_ = c.out.Flush()
}

// quote writes a name, and text as a JSON string.
func (c *call) quote(name, text string) {
	c.out.WriteString(name)
	quoted, _ := jsontext.AppendQuote(c.out.AvailableBuffer(), text) // invalid UTF-8 is replaced
	c.out.Write(quoted)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion/metrics"

	"container.training/useless/internal/limit"
)

const (
	// The API server may send a whole collection in one review, and Kubernetes wants 10,000 objects of 10 kB to be
	// possible (KEP-95). A review is answered while it is read, so that its size costs time and no memory.
	maxReview = 128 << 20

	// One object of a request is in memory at a time. The API server takes none above 3 MiB.
	maxObject = 4 << 20

	// A request with a bigger object than this waits for one of few slots, of which one is for each client, for many at once
	// would not fit into a container of 256 MiB.
	bigObject = 64 << 10
	bigSlots  = 2

	// An error repeats what the client has sent, of which so much is worth keeping.
	maxMessage = 1 << 10

	contentType = "application/json"
)

var (
	errObjectTooLarge = errors.New("an object is larger than " + strconv.Itoa(maxObject>>20) + " MiB")
	errContentType    = errors.New("the request has to be of type " + contentType)
	errPanic          = errors.New("internal error occurred during conversion")
)

// A Handler answers ConversionReviews of version v1 about Machines. It converts one object after the other while it
// reads the request, and decodes no more of it than its spec.
type Handler struct {
	converters converters
	slots      *limit.Slots
}

var _ http.Handler = &Handler{}

// NewHandler makes the Handler of Machines.
func NewHandler() *Handler {
	return &Handler{converters: machines(), slots: limit.NewSlots(bigSlots)}
}

// ServeHTTP implements http.Handler. What cannot be converted is answered with a failed review that says why, what is
// not a review with status 400, and what is too large with status 413.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A server of HTTP/1.1 reads no more of a request that it answers, unless told to. One of HTTP/2 does anyway.
	_ = http.NewResponseController(w).EnableFullDuplex()
	in := &body{Reader: http.MaxBytesReader(w, r.Body, maxReview), ctx: r.Context(), client: r.RemoteAddr, slots: h.slots}
	defer in.done()
	c := newCall(h.converters, w, in)
	defer c.recycle()

	err := checkHeader(r)
	if err == nil {
		err = c.run(r.Context())
	}
	status := c.refusal(err)
	if err != nil {
		err = errors.New(clip(err.Error()))
		ctrl.Log.WithName("conversion").Error(err, "Failed to convert", "request", clip(c.uid))
	}
	if status != 0 {
		http.Error(w, err.Error(), status)
		return
	}
	_, _ = io.Copy(io.Discard, in.Reader) // who is still writing does not see an answer
	c.finish(err)
}

// checkHeader spares a client from sending what will be refused.
func checkHeader(r *http.Request) error {
	if r.ContentLength > maxReview {
		return &http.MaxBytesError{Limit: maxReview}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != contentType {
		return errContentType
	}
	return nil
}

func clip(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return text[:maxMessage] + "…"
}

// run converts all that there is; a panic becomes an error.
func (c *call) run(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			metrics.WebhookPanics.WithLabelValues().Inc()
			for _, handle := range utilruntime.PanicHandlers {
				handle(ctx, r)
			}
			err = errPanic
		}
	}()
	return c.review()
}

// refusal is the status of an error that no review can be answered with, or zero.
func (c *call) refusal(err error) int {
	_, tooLong := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil || c.sent:
		return 0
	case tooLong || errors.Is(err, errObjectTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errContentType):
		return http.StatusUnsupportedMediaType
	case c.uid == "":
		return http.StatusBadRequest
	}
	return 0
}

// A body is that of a request. It may be long, but not for the sake of one object.
type body struct {
	io.Reader
	ctx     context.Context
	client  string
	slots   *limit.Slots
	size    int    // of what was read since the last object
	release func() // gives its slot back, if it has one
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (n int, err error) {
	if b.size > maxObject {
		return 0, errObjectTooLarge
	}
	if b.size > bigObject && b.release == nil {
		if b.release, err = b.slots.Take(b.ctx, b.client); err != nil {
			return 0, err
		}
	}
	n, err = b.Reader.Read(p)
	b.size += n
	return n, err
}

func (b *body) done() {
	if b.release != nil {
		b.release()
	}
}

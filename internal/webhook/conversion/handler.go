// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"

	"container.training/useless/internal/webhook/server"
)

const (
	// maxReview is the size of the largest review. The API server may send a whole list in one review, and Kubernetes
	// requires support for 10,000 objects of 10 kB (KEP-95). The handler converts each object while it reads the rest.
	// So a long list needs time, but little memory.
	maxReview = 128 << 20

	// maxObject is the size of the largest object. The API server accepts no object above 3 MiB.
	maxObject = 4 << 20

	// maxMessage bounds an error in the log and in the answer, because an error quotes input of the client.
	maxMessage = 1 << 10

	machineKind = "Machine"
	contentType = "application/json"

	bufferSize = 32 << 10
)

var (
	errTooLarge    = fmt.Errorf("an object is larger than %d MiB", maxObject>>20)
	errContentType = errors.New("the content type must be " + contentType)
	errNoUID       = errors.New("a review must have a request with a uid")
	errOrder       = errors.New("a request must have one desiredAPIVersion, and one list of objects after it")
	errPanic       = errors.New("internal error occurred during conversion")
)

// Handler answers ConversionReviews of Machines. It needs an eighth to a third of the time of controller-runtime's
// handler, because it decodes only the spec.
type Handler struct {
	converters map[versionPair]converter
	large      *semaphore.Weighted // slots for requests with a large object
}

// NewHandler returns a Handler for all versions of Machine in the scheme. It returns an error if it cannot convert
// between two of them.
func NewHandler(scheme *runtime.Scheme) (*Handler, error) {
	all, err := converters(scheme)
	return &Handler{converters: all, large: semaphore.NewWeighted(server.MaxLarge)}, err
}

// ServeHTTP implements http.Handler. If an object cannot be converted, the answer is a failed review with the reason.
// The status is 400 if the request is not a review, and 413 if it is too large.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).EnableFullDuplex() // otherwise net/http stops reading after the first write
	in := &body{Reader: http.MaxBytesReader(w, r.Body, maxReview), ctx: r.Context(), large: h.large}
	defer in.close()
	c := &call{converters: h.converters, in: in, out: bufio.NewWriterSize(w, bufferSize)}
	w.Header().Set("Content-Type", contentType)
	err := c.run(r)
	if err != nil {
		err = errors.New(truncate(err.Error()))
		ctrl.Log.WithName("conversion").Error(err, "Failed to convert", "request", truncate(c.review.Request.UID))
	}
	if c.status != 0 {
		http.Error(w, err.Error(), c.status)
		return
	}
	_, _ = io.Copy(io.Discard, in.Reader) // a client may read the answer only after it has sent everything
	c.finish(err)
}

func truncate(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return text[:maxMessage] + "…"
}

// body reads a request. It limits the size of one object, and the number of concurrent requests with a large object.
type body struct {
	io.Reader
	ctx     context.Context
	large   *semaphore.Weighted
	size    int // bytes read since the end of the last object
	hasSlot bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.size > maxObject {
		return 0, errTooLarge
	}
	if b.size > server.LargeBytes && !b.hasSlot {
		if err := b.large.Acquire(b.ctx, 1); err != nil {
			return 0, err
		}
		b.hasSlot = true
	}
	n, err := b.Reader.Read(p)
	b.size += n
	return n, err
}

func (b *body) close() {
	if b.hasSlot {
		b.large.Release(1)
	}
}

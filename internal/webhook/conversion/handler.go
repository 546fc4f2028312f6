// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"

	"container.training/useless/internal/webhook/server"
)

const (
	// maxReview is the maximum size of a review, in bytes. The API server may send a whole list in one review, and
	// Kubernetes requires support for 10,000 objects of 10 kB (KEP-95). The handler converts each object before it
	// reads the next one. So a long list needs time, but little memory.
	maxReview = 128 << 20

	// maxObject is the maximum size of an object, in bytes. The API server accepts no object above 3 MiB.
	maxObject = 4 << 20

	machineKind = "Machine"

	// In the answer, uid and result follow the objects. So an error can still be reported after the first objects.
	answerStart = `{"kind":"` + reviewKind + `","apiVersion":"` + reviewVersion + `","response":{"convertedObjects":[`
)

// Handler answers ConversionReviews of Machines. It needs between an eighth and a third of the time that
// controller-runtime's handler needs, because it decodes only the spec.
type Handler struct {
	converters map[versionPair]converter
	large      *semaphore.Weighted // slots for requests with a large object
}

// NewHandler returns a Handler for all versions of Machine in the scheme. It returns an error if there is no conversion
// between two of them.
func NewHandler(scheme *runtime.Scheme) (*Handler, error) {
	all, err := converters(scheme)
	return &Handler{converters: all, large: semaphore.NewWeighted(server.MaxLarge)}, err
}

// ServeHTTP implements http.Handler. If an object cannot be converted, the answer is a failed review with the reason.
// The HTTP status is 400 if no uid was read, and 413 if the declared length or the first object is too large.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > maxReview {
		http.Error(w, "the review is too large", http.StatusRequestEntityTooLarge)
		return
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // otherwise net/http stops reading after the first write
	w.Header().Set("Content-Type", "application/json")
	body := http.MaxBytesReader(w, r.Body, maxReview)
	c := &call{Handler: h, ctx: r.Context(), body: body, out: bufio.NewWriterSize(w, 32<<10)}
	defer c.release()
	err := c.run()
	var message string
	if err != nil {
		message = fmt.Sprintf("%.1024s", err.Error()) // the error can quote a long input
		ctrl.Log.WithName("conversion").Error(errors.New(message), "Failed to convert")
	}
	switch {
	case err == nil || c.converted > 0:
	case errors.Is(err, errTooLarge):
		http.Error(w, message, http.StatusRequestEntityTooLarge)
		return
	case c.review.Request.UID == "":
		http.Error(w, message, http.StatusBadRequest)
		return
	}
	_, _ = io.Copy(io.Discard, body) // some clients send everything before they read the answer
	c.finish(message)
}

// finish ends the answer and sends it. An empty message means success. finish ignores write errors, because only a lost
// connection causes them.
func (c *call) finish(message string) {
	result := []byte(`{"metadata":{},"status":"Success"}`)
	if message != "" {
		result, _ = json.Marshal(metav1.Status{Status: metav1.StatusFailure, Message: message})
	}
	uid, _ := json.Marshal(c.review.Request.UID) // replaces invalid UTF-8
	for _, part := range [][]byte{[]byte(`],"uid":`), uid, []byte(`,"result":`), result, []byte("}}\n")} {
		_, _ = c.out.Write(part)
	}
	_ = c.out.Flush()
}

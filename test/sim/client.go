// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// A Client is one client of a server. It is the transport of a rest.Config.
type Client struct {
	server *Server
	name   string

	// Gate is called before every request except watches and access reviews, and returns the outcome of the request.
	// The request waits until Gate returns. Then it is served, unless the outcome rejects or drops it. If Gate is nil,
	// every request is served immediately.
	Gate func(Call) Outcome
	// For each kind, View returns the newest revision that the client can see. Watches send events up to this revision.
	// Lists with a resourceVersion return the objects at this revision. newest is the server's current revision. If View
	// is nil, the client can see every revision.
	View func(k *Kind, newest int64) int64

	misses func(change Change, since []Change) bool // see SkipEvents
}

// A Call is one request.
type Call struct {
	Verb        string // get, list, create, update, patch or delete
	Kind        *Kind
	Key         types.NamespacedName
	Subresource string
	Cached      bool // the request has a resourceVersion: the response may be stale
	Body        []byte

	patch    types.PatchType // the format of the body
	query    url.Values
	selector labels.Selector
	fields   fields.Selector // of the object's name and namespace
	metadata bool            // the request is for metadata only
}

func (c Call) String() string {
	resource := c.Kind.Resource
	if c.Subresource != "" {
		resource += "/" + c.Subresource
	}
	return strings.Join([]string{c.Verb, resource, c.Key.String(), string(c.Body)}, " ")
}

// Writes reports whether the call is a write request.
func (c Call) Writes() bool { return c.Verb != verbGet && c.Verb != verbList }

// Verbs of read requests.
const (
	verbGet  = "get"
	verbList = "list"
)

// An Outcome is the outcome of a request. The zero value means that the request is served and the client receives the
// response.
type Outcome struct {
	Reject       error // the client receives this error; the request has no effect
	DropRequest  bool  // the client gets a connection error; the request has no effect
	DropResponse bool  // the client gets a connection error, but the request has its effect
	Crash        bool  // the client's process ends, and a new process starts in its place
}

// Connect returns a client of the server. name is the author of the client's changes in the server's history.
func (s *Server) Connect(name string) *Client { return &Client{server: s, name: name} }

// Config returns the configuration that connects a program to the server.
func (c *Client) Config() *rest.Config {
	return &rest.Config{Host: "http://sim", Transport: c, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// RoundTrip implements http.RoundTripper.
func (c *Client) RoundTrip(request *http.Request) (*http.Response, error) {
	call, err := c.parse(request)
	switch {
	case err != nil:
		return errorResponse(err), nil
	case call.query.Get("watch") != "":
		return c.watch(request.Context(), call)
	case call.Kind.review:
		return response(allow(call.Body)), nil
	}
	var outcome Outcome
	if c.Gate != nil {
		outcome = c.Gate(call)
	}
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	if outcome.DropRequest {
		return nil, errBroken
	}
	result, err := any(nil), outcome.Reject
	if err == nil {
		result, err = c.serve(call)
	}
	if outcome.DropResponse {
		return nil, errBroken
	}
	if object, ok := result.(*unstructured.Unstructured); ok {
		result = call.project(object)
	}
	return response(result, err), nil
}

// project returns the object, or only its metadata if the request is for metadata only.
func (c Call) project(object *unstructured.Unstructured) *unstructured.Unstructured {
	if !c.metadata || object == nil {
		return object
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": metav1.SchemeGroupVersion.String(), "kind": partialKind, "metadata": object.Object["metadata"],
	}}
}

// partialKind is the kind of an object that has only metadata.
const partialKind = "PartialObjectMetadata"

// allow answers an access review. It allows everything.
func allow(review []byte) (any, error) {
	object, err := decode(review)
	if err != nil {
		return nil, err
	}
	return object, unstructured.SetNestedField(object.Object, true, statusField, "allowed")
}

// errBroken is the error that a client gets when its connection fails.
var errBroken = errors.New("the connection broke")

// parse parses a request. The path is /api/VERSION or /apis/GROUP/VERSION, then optionally namespaces/NAME, then the
// resource, and optionally a name and a subresource.
func (c *Client) parse(request *http.Request) (call Call, err error) {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	var group string
	if parts[0] == "apis" && len(parts) > 1 {
		group, parts = parts[1], parts[1:]
	}
	parts = parts[min(2, len(parts)):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		call.Key.Namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "", "")
	resource := schema.GroupResource{Group: group, Resource: parts[0]}
	if call.Kind = c.server.kinds[resource]; call.Kind == nil {
		return call, apierrors.NewNotFound(resource, "")
	}
	call.Key.Name, call.Subresource = parts[1], parts[2]
	if request.Body != nil {
		if call.Body, err = io.ReadAll(request.Body); err != nil {
			return call, err
		}
	}
	call.query, call.patch = request.URL.Query(), types.PatchType(request.Header.Get("Content-Type"))
	call.metadata = strings.Contains(request.Header.Get("Accept"), "as="+partialKind)
	if call.selector, err = labels.Parse(call.query.Get("labelSelector")); err != nil {
		return call, apierrors.NewBadRequest(err.Error())
	}
	if call.fields, err = fields.ParseSelector(call.query.Get("fieldSelector")); err != nil {
		return call, apierrors.NewBadRequest(err.Error())
	}
	call.Verb = map[string]string{
		http.MethodGet: verbGet, http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch",
		http.MethodDelete: "delete",
	}[request.Method]
	if call.Verb == verbGet && call.Key.Name == "" {
		call.Verb = verbList
	}
	call.Cached = call.query.Get("resourceVersion") != ""
	return call, nil
}

// serve executes a call.
func (c *Client) serve(call Call) (any, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	by := author{c.name, cmp.Or(call.query.Get("fieldManager"), c.name)}
	switch call.Verb {
	case verbGet:
		return s.get(call.Kind, call.Key)
	case verbList:
		return c.list(call), nil
	case "patch":
		return s.patch(by, call)
	case "delete":
		var options metav1.DeleteOptions
		if len(call.Body) > 0 {
			if err := json.Unmarshal(call.Body, &options); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
		object, err := s.remove(by, call.Kind, call.Key, options)
		if object == nil && err == nil {
			return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status: metav1.StatusSuccess}, nil
		}
		return object, err
	}
	object, err := decode(call.Body)
	if err != nil {
		return nil, err
	}
	if call.Verb == "create" {
		return s.create(by, call.Kind, call.Key.Namespace, object)
	}
	return s.update(by, call.Kind, call.Key, call.Subresource, object)
}

// list returns the objects that match a call.
func (c *Client) list(call Call) *unstructured.UnstructuredList {
	k, revision := call.Kind, c.server.revision
	if call.Cached {
		revision = c.visible(k)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind + "List"))
	if call.metadata {
		list.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(partialKind + "List"))
	}
	list.SetResourceVersion(fmt.Sprint(revision))
	for _, object := range c.server.at(k, revision) {
		if call.selects(object) {
			list.Items = append(list.Items, *call.project(object))
		}
	}
	return list
}

// selects reports whether the call's namespace, label selector and field selector match an object.
func (c Call) selects(object *unstructured.Unstructured) bool {
	return (c.Key.Namespace == "" || object.GetNamespace() == c.Key.Namespace) &&
		c.selector.Matches(labels.Set(object.GetLabels())) &&
		c.fields.Matches(fields.Set{
			metav1.ObjectNameField: object.GetName(), "metadata.namespace": object.GetNamespace(),
		})
}

// visible returns, for a kind, the newest revision that the client can see.
func (c *Client) visible(k *Kind) int64 {
	if c.View == nil {
		return c.server.revision
	}
	return c.View(k, c.server.revision)
}

// response returns a response with a result, or with an error.
func response(result any, err error) *http.Response {
	if err != nil {
		return errorResponse(err)
	}
	data, err := json.Marshal(result)
	if err != nil {
		return errorResponse(err)
	}
	return respond(http.StatusOK, io.NopCloser(bytes.NewReader(data)))
}

// errorResponse returns an error response in the API server's format.
func errorResponse(err error) *http.Response {
	status := apierrors.APIStatus(apierrors.NewInternalError(err))
	errors.As(err, &status)
	value := status.Status()
	value.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // a Status can always be encoded
	}
	response := respond(int(value.Code), io.NopCloser(bytes.NewReader(data)))
	if details := value.Details; details != nil && details.RetryAfterSeconds > 0 {
		response.Header.Set("Retry-After", strconv.Itoa(int(details.RetryAfterSeconds)))
	}
	return response
}

func respond(code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body, ContentLength: -1,
	}
}

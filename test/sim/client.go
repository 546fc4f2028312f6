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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// A Client is one client of a server: it is the transport of a rest.Config.
type Client struct {
	server *Server
	name   string

	// Gate is asked before every request but watches. It returns when the request is to be served, and says what becomes of it.
	// All requests are served at once if it is nil.
	Gate func(Call) Fate
	// View is the revision of a kind that watches have heard of, and that lists are answered from which take what is at hand
	// (resourceVersion=0). It is told the newest one, which they know if it is nil.
	View func(k *Kind, newest int64) int64

	misses func(change Change, since []Change) bool
}

// A Call is one request.
type Call struct {
	Verb        string // get, list, create, update, patch or delete
	Kind        *Kind
	Key         types.NamespacedName
	Subresource string
	AtHand      bool // a list may be old
	Body        []byte

	patch    types.PatchType // how the body is read
	query    url.Values
	selector labels.Selector
	metadata bool // nothing else is asked for
}

func (c Call) String() string {
	resource := c.Kind.Resource
	if c.Subresource != "" {
		resource += "/" + c.Subresource
	}
	return strings.Join([]string{c.Verb, resource, c.Key.String(), string(c.Body)}, " ")
}

// Writes reports whether the call can change anything.
func (c Call) Writes() bool { return c.Verb != verbGet && c.Verb != verbList }

// Verbs of calls that write nothing.
const (
	verbGet  = "get"
	verbList = "list"
)

// A Fate is what becomes of a request. It is served and answered if nothing is said.
type Fate struct {
	Refuse error // it is answered with this, and has no effect
	Lose   bool  // it has no effect, and the client learns that the connection broke
	Mute   bool  // it has its effect, and the client learns that the connection broke
	Crash  bool  // the client ends, and another one starts in its place
}

// Connect returns a client of the server. Its name says who wrote what in the server's history.
func (s *Server) Connect(name string) *Client { return &Client{server: s, name: name} }

// Config is how programs reach the server.
func (c *Client) Config() *rest.Config {
	return &rest.Config{Host: "http://sim", Transport: c, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// RoundTrip implements http.RoundTripper.
func (c *Client) RoundTrip(request *http.Request) (*http.Response, error) {
	call, problem := c.parse(request)
	switch {
	case problem != nil:
		return refusal(problem), nil
	case call.query.Get("watch") != "":
		return c.watch(request.Context(), call)
	case call.Kind.question:
		return answer(yes(call.Body)), nil
	}
	var fate Fate
	if c.Gate != nil {
		fate = c.Gate(call)
	}
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	if fate.Lose {
		return nil, errBroken
	}
	result, err := any(nil), fate.Refuse
	if err == nil {
		result, err = c.serve(call)
	}
	if fate.Mute {
		return nil, errBroken
	}
	if object, ok := result.(*unstructured.Unstructured); ok {
		result = call.shown(object)
	}
	return answer(result, err), nil
}

// shown is as much of an object as was asked for.
func (c Call) shown(object *unstructured.Unstructured) *unstructured.Unstructured {
	if !c.metadata || object == nil {
		return object
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": metav1.SchemeGroupVersion.String(), "kind": partialKind, "metadata": object.Object["metadata"],
	}}
}

// partialKind is what nothing but metadata is called.
const partialKind = "PartialObjectMetadata"

// yes answers the question whether something is allowed.
func yes(question []byte) (any, error) {
	object, err := decode(question)
	if err != nil {
		return nil, err
	}
	return object, unstructured.SetNestedField(object.Object, true, statusField, "allowed")
}

// errBroken is what a client learns of a connection that breaks.
var errBroken = errors.New("the connection broke")

// parse reads what a request is for from its path, which is /api/VERSION or /apis/GROUP/VERSION, and then may have
// namespaces/NAME, and has a resource, a name and a subresource.
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
	call.Verb = map[string]string{
		http.MethodGet: verbGet, http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[request.Method]
	if call.Verb == verbGet && call.Key.Name == "" {
		call.Verb = verbList
	}
	call.AtHand = call.query.Get("resourceVersion") != ""
	return call, nil
}

// serve does what a call asks for.
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
			return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}, nil
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

// list returns the objects that a call asks for.
func (c *Client) list(call Call) *unstructured.UnstructuredList {
	k, revision := call.Kind, c.server.revision
	if call.AtHand {
		revision = c.sees(k)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind + "List"))
	if call.metadata {
		list.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(partialKind + "List"))
	}
	list.SetResourceVersion(fmt.Sprint(revision))
	for _, object := range c.server.at(k, revision) {
		if call.selects(object) {
			list.Items = append(list.Items, *call.shown(object))
		}
	}
	return list
}

// selects reports whether an object is among those that a call is about.
func (c Call) selects(object *unstructured.Unstructured) bool {
	return (c.Key.Namespace == "" || object.GetNamespace() == c.Key.Namespace) && c.selector.Matches(labels.Set(object.GetLabels()))
}

// sees is the revision that the client sees of a kind.
func (c *Client) sees(k *Kind) int64 {
	if c.View == nil {
		return c.server.revision
	}
	return c.View(k, c.server.revision)
}

// answer is a response with a result, or an error.
func answer(result any, err error) *http.Response {
	if err != nil {
		return refusal(err)
	}
	data, err := json.Marshal(result)
	if err != nil {
		return refusal(err)
	}
	return respond(http.StatusOK, io.NopCloser(bytes.NewReader(data)))
}

// refusal is a response with an error as the API server writes it.
func refusal(err error) *http.Response {
	status := apierrors.APIStatus(apierrors.NewInternalError(err))
	errors.As(err, &status)
	value := status.Status()
	value.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // a Status has nothing that cannot be written
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

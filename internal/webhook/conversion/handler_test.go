// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

const uid = "4d5cb7a3-7d0e-4b1c-9d0a-1b2c3d4e5f60"

var (
	alpha = v1alpha1.GroupVersion.String()
	beta  = v1beta1.GroupVersion.String()
)

// post calls a handler without a network connection.
func post(handler http.Handler, body []byte) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, newRequest(bytes.NewReader(body)))
	return recorder
}

// convert sends objects to a handler and checks the fields that each answer must have.
func convert(t testing.TB, handler http.Handler, version string, objects ...[]byte) *apiextensionsv1.ConversionResponse {
	t.Helper()
	body := review(t, version, objects...)
	recorder := post(handler, body)
	if recorder.Code != http.StatusOK {
		t.Fatalf("status %d: %s", recorder.Code, recorder.Body)
	}
	return answer(t, recorder.Body.Bytes())
}

func answer(t testing.TB, body []byte) *apiextensionsv1.ConversionResponse {
	t.Helper()
	var review apiextensionsv1.ConversionReview
	if err := json.Unmarshal(body, &review); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if want := apiextensionsv1.SchemeGroupVersion.WithKind("ConversionReview"); review.GroupVersionKind() != want {
		t.Errorf("kind of the response is %v, want %v", review.GroupVersionKind(), want)
	}
	if review.Response == nil || review.Response.UID != uid {
		t.Fatalf("the response does not have the UID %s: %s", uid, body)
	}
	return review.Response
}

func succeeded(response *apiextensionsv1.ConversionResponse) bool {
	return response.Result.Status == metav1.StatusSuccess
}

// members decodes an object and keeps the exact numbers. If a name occurs twice, the result has the last value, as in
// the API server.
func members(t testing.TB, raw []byte) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return object
}

// typed decodes an object into its Go type and encodes it, twice. The first pass drops empty maps. The second pass
// drops structs that contained only an empty map. So two results are equal if they have the same meaning.
func typed[T any](t testing.TB, raw []byte) string {
	t.Helper()
	for range 2 {
		var object T
		err := utiljson.Unmarshal(raw, &object)
		if err == nil {
			raw, err = json.Marshal(object)
		}
		if err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
	}
	return string(raw)
}

// restored returns a converted object with the metadata that the API server restores from the original object: all
// fields except labels and annotations. Like the API server, it requires the same name, namespace and UID.
func restored(t testing.TB, original, converted []byte) []byte {
	t.Helper()
	metadata, _ := members(t, original)["metadata"].(map[string]any)
	object := members(t, converted)
	answered, ok := object["metadata"].(map[string]any)
	if !ok {
		t.Fatalf("the converted object has no metadata: %s", converted)
	}
	all := map[string]any{}
	maps.Copy(all, metadata)
	for _, name := range []string{"name", "namespace", "uid", "labels", "annotations"} {
		value, ok := answered[name]
		switch {
		case ok && (name == "labels" || name == "annotations"):
			all[name] = value
		case name == "labels" || name == "annotations":
			delete(all, name)
		case !reflect.DeepEqual(value, all[name]):
			t.Errorf("the conversion of %s changed metadata.%s to %v", original, name, value)
		}
	}
	object["metadata"] = all
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// compare fails the test if both handlers convert a Machine to different results. The handler stock is
// controller-runtime's, and ours is the operator's. If stock rejects the Machine, compare returns false and does not
// fail the test, because ours may accept more Machines.
func compare[T any](t testing.TB, ours, stock http.Handler, version string, object []byte) (converted []byte, ok bool) {
	t.Helper()
	want, got := convert(t, stock, version, object), convert(t, ours, version, object)
	if !succeeded(want) {
		if strings.Contains(want.Result.Message, "internal error") {
			t.Fatalf("the converter panicked: %s", object)
		}
		return nil, false
	}
	if !succeeded(got) || len(got.ConvertedObjects) != 1 {
		t.Fatalf("the stock handler converts %s, ours returns %v", object, got)
	}
	converted = restored(t, object, got.ConvertedObjects[0].Raw)
	if diff := cmp.Diff(typed[T](t, want.ConvertedObjects[0].Raw), typed[T](t, converted)); diff != "" {
		t.Errorf("stock and ours convert %s to different results (-stock +ours):\n%s", object, diff)
	}
	return converted, true
}

// checkOtherFields fails the test if a conversion changes fields other than apiVersion and spec.
func checkOtherFields(t testing.TB, object, converted []byte) {
	t.Helper()
	want, got := members(t, object), members(t, restored(t, object, converted))
	if _, ok := want["metadata"].(map[string]any); !ok {
		want["metadata"] = map[string]any{} // the handler adds it, because the API server requires metadata
	}
	for _, both := range []map[string]any{want, got} {
		delete(both, "apiVersion")
		delete(both, "spec")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the conversion changed other fields (-want +got):\n%s", diff)
	}
}

// spokes are Machines in v1alpha1, without apiVersion and kind. controller-runtime calls each version except the
// storage version a spoke. The API server really sends most of these objects. The others have unusual JSON.
var spokes = []string{
	`{"metadata":{"name":"machine-1"},"spec":{"switchPosition":"up"}}`,
	`{"metadata":{"name":"machine-2","annotations":{"a":"b"}},"spec":{"switches":3,"flipDelaySeconds":0}}`,
	`{"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"c":"d"}}}}}`,
	`{"status":{"switches":{"total":3,"up":1,"down":2},"seenAt":"2026-11-20T09:00:00.123456Z"}}`,
	`{"metadata":null,"spec":null,"status":null}`,
	`{"metadata":{},"spec":{"template":{"metadata":{"labels":{}}}}}`,
	`{"metadata":{"managedFields":[{"fieldsV1":{"f:spec":{}}}]}}`,
	`{}`,
	`{"spec":{"switches":2147483648}}`,
	`{"spec":{"switches":-1,"switchPosition":"sideways"}}`,
	`{"spec":{"switches":3,"selector":{"matchExpressions":[{"key":"a","operator":"In","values":["<&>","\u2028"]}]},"flipIntervalSeconds":86400}}`,
	`{"spec":{"Switches":3,"unknown":{"a":[1,2.50,1e3]}},"Spec":{"switches":4},"unknown":{"big":12345678901234567890,"a":null}}`,
	"\t{\r\n \"spec\" : {\n\t\"switches\" : 3 } ,\"status\":{ \"positions\" : \"d\\u0064d\" } }\n",
	`{"\u0073pec":{"switches":3},"st\u0061tus":{"positions":"ddd"}}`,
	`{"spec":{"switches":1},"status":{"positions":"d"},"spec":{"switches":2},"status":{"positions":"dd"},"metadata":{"name":"a"},"metadata":null}`,
}

// FuzzHandler converts any JSON object to v1beta1 and back, with the operator's handler and with controller-runtime's.
// The operator's handler must not panic, and must accept each object that the other handler accepts. Both must return
// the same spec. Other fields must not change.
func FuzzHandler(f *testing.F) {
	for _, spoke := range spokes {
		f.Add([]byte(spoke))
	}
	ours := newHandler()
	stock := newStock(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var object map[string]any
		if json.Unmarshal(raw, &object) != nil || object == nil {
			t.Skip("not a JSON object")
		}
		// The same object, with apiVersion as its last field.
		spoke := bytes.TrimSuffix(bytes.TrimRight(raw, " \t\r\n"), []byte("}"))
		if len(object) > 0 {
			spoke = append(slices.Clip(spoke), ',')
		}
		spoke = fmt.Appendf(slices.Clip(spoke), `"kind":"Machine","apiVersion":%q}`, alpha)
		if response := convert(t, ours, beta, spoke); succeeded(response) {
			checkOtherFields(t, spoke, response.ConvertedObjects[0].Raw)
		}
		// The same object without duplicate names, because the two handlers may treat duplicates differently.
		object["kind"], object["apiVersion"] = "Machine", alpha
		spoke, err := json.Marshal(object)
		if err != nil {
			t.Skip(err)
		}
		hub, ok := compare[v1beta1.Machine](t, ours, stock, beta, spoke)
		if !ok {
			return
		}
		back, ok := compare[v1alpha1.Machine](t, ours, stock, alpha, hub)
		if !ok {
			t.Fatalf("the handler rejects its own result: %s", hub)
		}
		if diff := cmp.Diff(typed[v1alpha1.Machine](t, spoke), typed[v1alpha1.Machine](t, back)); diff != "" {
			t.Errorf("the round trip changed the object (-want +got):\n%s", diff)
		}
		checkOtherFields(t, hub, back)
	})
}

// TestReviews sends valid and invalid requests.
func TestReviews(t *testing.T) {
	machine := fmt.Sprintf(`{"apiVersion":%q,"kind":"Machine","metadata":{"name":"m"},"spec":{"switches":{"count":3}}}`, beta)
	request := func(members string) string {
		return `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{` + members + `}}`
	}
	const id = `"uid":"` + uid + `"`
	desired := fmt.Sprintf(`"desiredAPIVersion":%q`, alpha)
	tests := []struct {
		reason  string
		body    string
		code    int
		failure string // a part of the message; empty means success
		objects int
	}{
		{"a valid review", request(id + "," + desired + `,"objects":[` + machine + "]"), 200, "", 1},
		{"members in another order", request(desired + "," + id + `,"objects":[` + machine + "," + machine + "]"), 200, "", 2},
		{"the version after the objects", request(id + `,"objects":[` + machine + "]," + desired), 200, "followed by one list of objects", 0},
		{
			"the kind comes last",
			`{"request":{` + id + "," + desired + `,"objects":[` + machine + `]},"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"}`,
			200, "", 1,
		},
		{"an empty list of objects", request(id + "," + desired + `,"objects":[]`), 200, "", 0},
		{"null is an empty list", request(id + "," + desired + `,"objects":null`), 200, "", 0},
		{"a missing list is an empty list", request(id + "," + desired), 200, "", 0},
		{"an unknown field is ignored", request(id + "," + desired + `,"more":[{}],"objects":[` + machine + "]"), 200, "", 1},

		{"not JSON", "switch", 400, "invalid character", 0},
		{"an empty body", "", 400, "EOF", 0},
		{"JSON of another type", "[]", 400, "unmarshal JSON array into", 0},
		{"no request", `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1"}`, 400, "must have a request with a uid", 0},
		{"null as the request", `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":null}`, 400, "must have a request with a uid", 0},
		{"no uid", request(desired + `,"objects":[` + machine + "]"), 400, "must have a request with a uid", 0},
		{"a uid that is not a string", request(`"uid":7`), 400, `unmarshal JSON number into Go string within "/request/uid"`, 0},

		{"a second version after the objects", request(id + "," + desired + `,"objects":[` + machine + `],"desiredAPIVersion":"v2"`), 200, "one desiredAPIVersion", 0},
		{"two lists of objects", request(id + "," + desired + `,"objects":[],"objects":[]`), 200, "followed by one list of objects", 0},
		{
			"another version of reviews", strings.Replace(request(id+","+desired+`,"objects":[`+machine+"]"), "k8s.io/v1", "k8s.io/v1beta1", 1),
			200, `want a ConversionReview of apiextensions.k8s.io/v1, got "ConversionReview" of "apiextensions.k8s.io/v1beta1"`, 0,
		},
		{
			"another kind of review", strings.Replace(request(id+","+desired+`,"objects":[`+machine+"]"), "ConversionReview", "AdmissionReview", 1),
			200, `got "AdmissionReview" of "apiextensions.k8s.io/v1"`, 0,
		},
		{"a truncated request", strings.TrimSuffix(request(id+","+desired+`,"objects":[`+machine+"]"), "}}"), 200, "unexpected EOF", 0},
		{"objects that are not a list", request(id + "," + desired + `,"objects":{}`), 200, "the objects must be a list", 0},
		{"null in place of an object", request(id + "," + desired + `,"objects":[` + machine + ",null]"), 200, "object 1: cannot convert , Kind= to", 0},
		{
			"an unknown desired version", request(id + `,"desiredAPIVersion":"useless.container.training/v2","objects":[` + machine + "]"),
			200, "object 0: cannot convert useless.container.training/v1beta1, Kind=Machine to useless.container.training/v2", 0,
		},
		{"no desired version", request(id + `,"objects":[` + machine + "]"), 200, "one desiredAPIVersion", 0},
		{
			"an object of an unknown version", request(id + "," + desired + `,"objects":[` + strings.Replace(machine, "v1beta1", "v2", 1) + "]"),
			200, "cannot convert useless.container.training/v2, Kind=Machine to useless.container.training/v1alpha1", 0,
		},
		{
			"an object of an unknown group", request(id + "," + desired + `,"objects":[` + strings.Replace(machine, "useless.", "useful.", 1) + "]"),
			200, "cannot convert useful.container.training/v1beta1, Kind=Machine to", 0,
		},
		{
			"an object of an unknown kind", request(id + "," + desired + `,"objects":[` + strings.Replace(machine, "Machine", "Switch", 1) + "]"),
			200, "cannot convert useless.container.training/v1beta1, Kind=Switch to", 0,
		},
		{"an object without a version", request(id + "," + desired + `,"objects":[{"kind":"Machine"}]`), 200, "cannot convert , Kind=Machine to", 0},
		{
			"a value of the wrong type in a spec", request(id + "," + desired + `,"objects":[` + machine + "," + strings.Replace(machine, "3", `"three"`, 1) + "]"),
			200, "object 1: json: cannot unmarshal string into Go struct field", 0,
		},
	}
	handler := newHandler()
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			recorder := post(handler, []byte(test.body))
			if recorder.Code != test.code {
				t.Fatalf("status %d, want %d: %s", recorder.Code, test.code, recorder.Body)
			}
			if test.code != http.StatusOK {
				if !strings.Contains(recorder.Body.String(), test.failure) {
					t.Errorf("got %q, want %q", recorder.Body, test.failure)
				}
				return
			}
			got := answer(t, recorder.Body.Bytes())
			if succeeded(got) != (test.failure == "") || !strings.Contains(got.Result.Message, test.failure) {
				t.Errorf("got %v, want %q", got.Result, test.failure)
			}
			if succeeded(got) && len(got.ConvertedObjects) != test.objects {
				t.Errorf("got %d objects, want %d", len(got.ConvertedObjects), test.objects)
			}
		})
	}
}

// TestMetadata converts an object with all kinds of metadata. The answer must have only the metadata that the API
// server reads from it.
func TestMetadata(t *testing.T) {
	object := fmt.Sprintf(`{"apiVersion":%q,"kind":"Machine","metadata":{"name":"m","generateName":"g","namespace":"n",`+
		`"uid":"u","resourceVersion":"7","generation":3,"creationTimestamp":"2026-11-20T09:00:00Z","finalizers":["f"],`+
		`"ownerReferences":[{"name":"o"}],"labels":{"a":"b"},"annotations":{"c":"d"},"managedFields":[{"manager":"x"}]}}`, beta)
	response := convert(t, newHandler(), alpha, []byte(object))
	if !succeeded(response) {
		t.Fatal(response.Result.Message)
	}
	want := map[string]any{
		"name": "m", "namespace": "n", "uid": "u", "labels": map[string]any{"a": "b"}, "annotations": map[string]any{"c": "d"},
	}
	if diff := cmp.Diff(want, members(t, response.ConvertedObjects[0].Raw)["metadata"]); diff != "" {
		t.Errorf("metadata of the answer (-want +got):\n%s", diff)
	}
}

// TestLongErrors sends long values that the error quotes. The answer must have only the beginning of the error.
func TestLongErrors(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, object := range []string{
		fmt.Sprintf(`{"apiVersion":%q,"kind":"Machine"}`, long),
		fmt.Sprintf(`{"apiVersion":%q,"kind":%q}`, beta, long),
		fmt.Sprintf(`{"apiVersion":%q,"kind":"Machine","spec":{"switches":{%q:3,"count":%[2]q}}}`, beta, long),
	} {
		response := convert(t, newHandler(), alpha, []byte(object))
		if succeeded(response) || len(response.Result.Message) > 2<<10 {
			t.Errorf("the error for %.100s… has %d bytes: %.100s", object, len(response.Result.Message), response.Result.Message)
		}
	}
}

// TestOwnVersion converts an object to the version that it already has.
func TestOwnVersion(t *testing.T) {
	object := machine(1)
	response := convert(t, newHandler(), beta, object)
	if !succeeded(response) {
		t.Fatal(response.Result.Message)
	}
	got := restored(t, object, response.ConvertedObjects[0].Raw)
	if diff := cmp.Diff(members(t, object), members(t, got)); diff != "" {
		t.Errorf("the object changed (-want +got):\n%s", diff)
	}
}

// TestManyObjects converts a list that is larger than the handler's buffer, over the network as the API server does.
// Each result must equal the result of controller-runtime's handler.
func TestManyObjects(t *testing.T) {
	const count = 300
	objects := make([][]byte, count)
	for i := range objects {
		objects[i] = machine(i)
	}
	body := review(t, alpha, objects...)
	stock := newStock(t)
	want := answer(t, post(stock, body).Body.Bytes())

	// controller-runtime's server also wraps each handler in InstrumentHandlerCounter.
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests_total"}, []string{"code"})
	server, client := serve(promhttp.InstrumentHandlerCounter(requests, newHandler()))
	defer server.Close()
	for range 2 { // over one connection
		response, err := client.Post(server.URL, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if got := response.Header.Get("Content-Type"); got != "application/json" {
			t.Errorf("the answer has the content type %q", got)
		}
		got := answer(t, text)
		if !succeeded(got) || len(got.ConvertedObjects) != count {
			t.Fatalf("got %d objects and the result %v", len(got.ConvertedObjects), got.Result)
		}
		for i := range objects {
			checkOtherFields(t, objects[i], got.ConvertedObjects[i].Raw)
			converted := restored(t, objects[i], got.ConvertedObjects[i].Raw)
			if diff := cmp.Diff(typed[v1alpha1.Machine](t, want.ConvertedObjects[i].Raw), typed[v1alpha1.Machine](t, converted)); diff != "" {
				t.Fatalf("object %d (-stock +ours):\n%s", i, diff)
			}
		}
	}
}

// TestFailureHalfway sends 3,000 objects, and the one in the middle is invalid. Before the handler reads the invalid
// object, it has already sent a part of the answer. The answer must still be a failed review.
func TestFailureHalfway(t *testing.T) {
	objects := slices.Repeat([][]byte{machine(1)}, 3000)
	objects[1500] = []byte(`{"apiVersion":"useless.container.training/v1beta1","kind":"Machine","spec":"up"}`)
	body := review(t, alpha, objects...)
	server, client := serve(newHandler())
	defer server.Close()
	response, err := client.Post(server.URL, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := answer(t, text)
	if succeeded(got) || !strings.HasPrefix(got.Result.Message, "object 1500: json: cannot unmarshal string") {
		t.Errorf("got the result %v", got.Result)
	}
}

// padded returns a Machine with an annotation of size bytes.
func padded(size int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":%q,"kind":"Machine","metadata":{"annotations":{"pad":%q}},"spec":{}}`, beta, strings.Repeat("x", size))
}

// endless is the body of a review that repeats one object without end. Without an object, it repeats commas.
type endless struct {
	io.Reader
	object []byte
}

func newEndless(object []byte) *endless {
	before := `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":%q,"desiredAPIVersion":%q,"objects":[`
	object = append(slices.Clip(object), ',')
	return &endless{io.MultiReader(strings.NewReader(fmt.Sprintf(before, uid, alpha)), bytes.NewReader(object)), object}
}

func (e *endless) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err == io.EOF {
		e.Reader, err = bytes.NewReader(e.object), nil
	}
	return n, err
}

// gauge is an http.ResponseWriter that records the peak size of the heap and the end of the answer.
type gauge struct {
	http.ResponseWriter
	written, sampled int
	peak             uint64
	end              []byte
}

func (g *gauge) Write(p []byte) (int, error) {
	g.written += len(p)
	g.end = append(g.end[:0], p...)
	if g.written-g.sampled > 1<<20 {
		g.sampled = g.written
		g.peak = max(g.peak, heap())
	}
	return len(p), nil
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestMemory sends objects of 10 kB until the handler rejects the request. The handler must accept 10,000 objects, as
// Kubernetes requires (KEP-95). It must need at most 32 MiB of memory for these objects.
func TestMemory(t *testing.T) {
	const size, atLeast, most = 10_000, 10_000, 32 << 20
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // Go's default, as in the operator
	response := &gauge{ResponseWriter: httptest.NewRecorder()}
	request := newRequest(newEndless(padded(size)))
	runtime.GC()
	before := heap()
	newHandler().ServeHTTP(response, request)
	if response.written < size*atLeast {
		t.Errorf("the handler stopped reading after %d bytes", response.written)
	}
	if want := `"message":"object `; !strings.Contains(string(response.end), want) || !strings.Contains(string(response.end), "request body too large") {
		t.Errorf("the response ends with %s", response.end)
	}
	if response.peak > before+most {
		t.Errorf("the answer of %d bytes needed %d bytes of memory, want at most %d", response.written, response.peak-before, most)
	}
}

// TestTooLarge sends requests that would need too much memory or time.
func TestTooLarge(t *testing.T) {
	tests := []struct {
		reason string
		length int64
		object []byte
	}{
		{"the declared length is too large", 1 << 28, nil},
		{"an object is too large", -1, padded(5 << 20)},
		{"an object is too large, and many more bytes follow", 1 << 26, padded(5 << 20)},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			request := newRequest(newEndless(test.object))
			request.ContentLength = test.length
			newHandler().ServeHTTP(recorder, request)
			if recorder.Code != http.StatusRequestEntityTooLarge || !strings.Contains(recorder.Body.String(), "large") {
				t.Errorf("got status %d: %s", recorder.Code, recorder.Body)
			}
		})
	}
	if response := convert(t, newHandler(), alpha, padded(3<<20)); !succeeded(response) {
		t.Errorf("cannot convert the API server's largest object: %v", response.Result)
	}
}

// TestManyLargeObjectsAtOnce sends eight large objects at the same time, and the handler converts at most two of them
// at once. The others must wait. A small object must not wait.
func TestManyLargeObjectsAtOnce(t *testing.T) {
	const clients, slots = 8, 2
	object, small := padded(3<<20), machine(1)
	synctest.Test(t, func(t *testing.T) {
		handler := newHandler()
		var taken [clients]atomic.Int64
		var rest [clients]chan struct{}
		var answers errgroup.Group
		for i := range clients {
			body := review(t, alpha, object)
			in, out := io.Pipe()
			rest[i] = make(chan struct{})
			go func() {
				n, _ := out.Write(body[:1<<20])
				taken[i].Store(int64(n))
				<-rest[i]
				_, _ = out.Write(body[1<<20:])
				_ = out.Close()
			}()
			answers.Go(func() error {
				recorder := httptest.NewRecorder()
				request := newRequest(in)
				request.RemoteAddr = fmt.Sprintf("10.0.0.%d:1", i)
				handler.ServeHTTP(recorder, request)
				if text := recorder.Body.String(); !strings.HasSuffix(text, `"result":{"metadata":{},"status":"Success"}}}`+"\n") {
					return fmt.Errorf("status %d: %d bytes", recorder.Code, len(text))
				}
				return nil
			})
		}
		synctest.Wait()
		served := 0
		for i := range clients {
			if taken[i].Load() > 0 {
				served++
			}
		}
		if served != slots {
			t.Errorf("%d large objects are served at the same time, want %d", served, slots)
		}
		if response := convert(t, handler, alpha, small); !succeeded(response) {
			t.Errorf("a small object: %v", response.Result)
		}
		for i := range clients {
			close(rest[i])
		}
		if err := answers.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestAllocations counts allocations, because their number does not depend on the computer's speed. For each object,
// the handler may need at most a third of the allocations of controller-runtime's handler, plus two. The number of
// allocations for an object must not depend on the length of the list.
func TestAllocations(t *testing.T) {
	stock := newStock(t)
	perObject := func(handler http.Handler, count int) float64 {
		body := machines(t, count)
		response := discard{http.Header{}}
		// With the race detector, sync.Pool drops buffers at random. The average of many objects is stable.
		runs := min(500, 10_000/count)
		request := testing.AllocsPerRun(runs, func() { newRequest(bytes.NewReader(body)) }) // the test's allocations
		return (testing.AllocsPerRun(runs, func() {
			handler.ServeHTTP(response, newRequest(bytes.NewReader(body)))
		}) - request) / float64(count)
	}
	ours := newHandler()
	for _, count := range []int{1, 100} {
		// The two additional allocations are for buffers that sync.Pool drops if the race detector runs.
		if ours, stock := perObject(ours, count), perObject(stock, count); ours > stock/3+2 {
			t.Errorf("%d objects: %.1f allocations per object, and %.1f with controller-runtime's handler", count, ours, stock)
		}
	}
	if few, many := perObject(ours, 100), perObject(ours, 2000); many > few*1.02 {
		t.Errorf("%.2f allocations per object in a list of 100, %.2f in a list of 2000", few, many)
	}
}

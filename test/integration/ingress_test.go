// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
)

// foreign are annotations that other clients set. The operator must keep them unchanged, byte for byte.
var foreign = map[string]string{
	"example.com/snippet": "more_set_headers \"X-A: b\";\n\tif ($a ~* '^/\\\\d+$') {\r\n}\n",
	"example.com/empty":   "",
	"example.com/accents": "é e\u0301 \u200b 🔌 <&>",
	"fooo":                "bar",
}

func newIngress(namespace, name string, annotations map[string]string) *networkingv1.Ingress {
	backend := networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: maps.Clone(annotations)},
		Spec:       networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{Service: &backend}},
	}
}

func createIngress(t *testing.T, namespace, name string, annotations map[string]string) *networkingv1.Ingress {
	t.Helper()
	created := newIngress(namespace, name, annotations)
	if err := admin(t).Create(t.Context(), created); err != nil {
		t.Fatal(err)
	}
	return created
}

// waitForAnnotations waits until an Ingress has exactly the union of the given annotations, and returns the Ingress.
func waitForAnnotations(t *testing.T, namespace, name string, want ...map[string]string) *networkingv1.Ingress {
	t.Helper()
	all := map[string]string{}
	for _, want := range want {
		maps.Copy(all, want)
	}
	found := &networkingv1.Ingress{}
	eventually(t, defaultTimeout, func() (bool, string) {
		if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, found); err != nil {
			return false, err.Error()
		}
		diff := cmp.Diff(all, found.Annotations, cmpopts.EquateEmpty())
		return diff == "", "annotations (-want +got):\n" + diff
	})
	return found
}

// waitForNote waits for an event on an object with the given reason, and a note that contains note.
func waitForNote(t *testing.T, object client.Object, reason, note string) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		var notes []string
		for _, event := range eventsOn(t, object, reason) {
			notes = append(notes, event.Note)
			if strings.Contains(event.Note, note) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("no event %s with %q in its note; notes: %q", reason, note, notes)
	})
}

// TestIngressAnnotationFooBar runs the example of docs/ingress.md with the operator's command-line flags.
func TestIngressAnnotationFooBar(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	here, there := newNamespace(t), newNamespace(t)
	mustKubectl(t, documented(t, "ingress.md"), "create", "-n", here, "-f", "-")
	startedOperator(t, "--controllers=*,ingress", "--ingress-annotation=foo=bar")
	team := map[string]string{"example.com/team": "web"}
	eventually(t, defaultTimeout, func() (bool, string) {
		got := strings.Fields(mustKubectl(t, "", "annotate", "ingress", "web", "--list", "-n", here))
		return slices.Equal(got, []string{"example.com/team=web", "foo=bar"}), fmt.Sprintf("annotations are %s", got)
	})
	createIngress(t, there, "later", team)
	waitForAnnotations(t, there, "later", team, map[string]string{"foo": "bar"})
	createIngress(t, here, "bare", nil)
	bare := waitForAnnotations(t, here, "bare", map[string]string{"foo": "bar"})
	waitForNote(t, bare, ingress.EventAnnotationsEnsured, "Set annotation foo")
}

// TestIngressConfiguration restarts the operator with other annotations in each step. The operator must set the new
// annotations, and remove annotations that it set before and that are no longer configured.
func TestIngressConfiguration(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	namespace := newNamespace(t)
	createIngress(t, namespace, "web", foreign)
	createIngress(t, namespace, "theirs", map[string]string{"b": "2"})
	for _, step := range []struct {
		name             string
		configured, also map[string]string // also has the other annotations that the Ingress theirs must keep
		note             string
	}{
		{"two keys added", map[string]string{"a": "1", "b": "2"}, nil, "Set annotations a, b"},
		{
			"one key changed, one removed, one added", map[string]string{"a": "3", "example.com/c": "4"},
			map[string]string{"b": "2"}, "Removed annotation b",
		},
		{"all keys removed", nil, map[string]string{"b": "2"}, "Removed annotations a, example.com/c"},
	} {
		t.Run(step.name, func(t *testing.T) {
			runOperatorFor(t, operatorOptions{controllers: ensuring(step.configured)})
			web := waitForAnnotations(t, namespace, "web", foreign, step.configured)
			waitForNote(t, web, ingress.EventAnnotationsEnsured, step.note)
			waitForAnnotations(t, namespace, "theirs", step.configured, step.also)
		})
	}
}

// TestIngressRestart restarts the operator when all annotations are already correct. The operator must not write them
// again.
func TestIngressRestart(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	namespace := newNamespace(t)
	createIngress(t, namespace, "web", foreign)
	stop := runOperatorFor(t, operatorOptions{controllers: ensuring(fooBar)})
	waitForAnnotations(t, namespace, "web", foreign, fooBar)
	stop()
	requests := newRequestCounter()
	runOperatorFor(t, operatorOptions{
		controllers: ensuring(fooBar),
		transport:   func(config *rest.Config) { config.Wrap(requests.wrap) },
	})
	waitForIngresses(t, namespace, requests)
	want := map[string]int{"PATCH ingresses": 1, "POST events": 1} // for the Ingress that waitForIngresses creates
	// The operator may emit the event more than a second after the write.
	eventually(t, defaultTimeout, func() (bool, string) {
		diff := cmp.Diff(want, requests.of(namespace))
		return diff == "", "requests (-want +got):\n" + diff
	})
}

// ensuring enables the Ingress controller with the given annotations.
func ensuring(annotations map[string]string) func(*controller.Options) {
	return func(options *controller.Options) {
		options.Selection = []string{"*", ingress.Name}
		options.Ingress.Annotations = annotations
	}
}

// TestIngress tests an operator that ensures the annotation foo: bar.
func TestIngress(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, ingress.Name)
	requests, intercept, clock := newRequestCounter(), &interceptor{}, clocktesting.NewFakePassiveClock(time.Now())
	runOperatorFor(t, operatorOptions{
		clock:       clock,
		controllers: ensuring(fooBar),
		transport: func(config *rest.Config) {
			config.Wrap(intercept.wrap)
			config.Wrap(requests.wrap)
		},
	})
	t.Run("one write per Ingress, none for other changes", func(t *testing.T) {
		testIngressWrites(t, newNamespace(t), requests)
	})
	t.Run("an Ingress opts out and in", func(t *testing.T) { testIngressOptsOut(t, newNamespace(t)) })
	t.Run("a paused Ingress is not changed", func(t *testing.T) { testIngressPaused(t, newNamespace(t), requests) })
	t.Run("an Ingress that is being deleted is not changed", func(t *testing.T) {
		testIngressBeingDeleted(t, newNamespace(t), requests)
	})
	t.Run("an Ingress deleted just before the write is not created again", func(t *testing.T) {
		testIngressDeleted(t, newNamespace(t), intercept, requests)
	})
	t.Run("a write does not change a new Ingress of the same name", func(t *testing.T) {
		testIngressReplaced(t, newNamespace(t), intercept, requests)
	})
	t.Run("a value that another client sets just before the write is saved", func(t *testing.T) {
		testIngressChangedBeforeWrite(t, newNamespace(t), intercept)
	})
	t.Run("the operator backs off while another client reverts its writes", func(t *testing.T) {
		testIngressConflict(t, newNamespace(t), clock, requests)
	})
	t.Run("one event for a write that is rejected repeatedly", func(t *testing.T) {
		testIngressRejected(t, newNamespace(t), requests)
	})
}

var fooBar = map[string]string{"foo": "bar"}

func testIngressWrites(t *testing.T, namespace string, requests *requestCounter) {
	waitForIngresses(t, newNamespace(t), requests) // the operator's client sends its discovery requests before reset
	requests.reset()
	createIngress(t, namespace, "web", foreign)
	web := waitForAnnotations(t, namespace, "web", foreign, fooBar)
	mergePatch(t, web, `{"metadata":{"annotations":{"example.com/empty":"full"}}}`)
	web.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}}
	if err := admin(t).Status().Update(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	requests.check(t, namespace, map[string]int{"PATCH ingresses": 1, "POST events": 1})
	mergePatch(t, web, `{"metadata":{"annotations":{"foo":null}}}`)
	waitForAnnotations(t, namespace, "web", foreign, fooBar, map[string]string{"example.com/empty": "full"})
}

func testIngressOptsOut(t *testing.T, namespace string) {
	createIngress(t, namespace, "web", foreign)
	web := waitForAnnotations(t, namespace, "web", foreign, fooBar)
	for range 7 { // if the operator counted these changes as reverts, it would warn
		mergePatch(t, web, `{"metadata":{"annotations":{%q:%q}}}`, v1beta1.IngressAnnotationsAnnotation, v1beta1.IngressAnnotationsDisabled)
		waitForAnnotations(t, namespace, "web", foreign, map[string]string{v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled})
		mergePatch(t, web, `{"metadata":{"annotations":{%q:null}}}`, v1beta1.IngressAnnotationsAnnotation)
		waitForAnnotations(t, namespace, "web", foreign, fooBar)
	}
	if warnings := eventsOn(t, web, ingress.EventAnnotationReverted); len(warnings) > 0 {
		t.Errorf("unexpected events: %v", warnings)
	}
}

func testIngressPaused(t *testing.T, namespace string, requests *requestCounter) {
	paused := map[string]string{v1beta1.PausedAnnotation: "true"}
	web := createIngress(t, namespace, "web", paused)
	waitForIngresses(t, namespace, requests)
	if diff := cmp.Diff(web, waitForAnnotations(t, namespace, "web", paused)); diff != "" {
		t.Errorf("the paused Ingress was changed (-before +after):\n%s", diff)
	}
	setPaused(t, web, false)
	waitForAnnotations(t, namespace, "web", fooBar)
}

func testIngressBeingDeleted(t *testing.T, namespace string, requests *requestCounter) {
	web := newIngress(namespace, "web", nil)
	web.Finalizers = []string{"example.com/wait"}
	if err := admin(t).Create(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	waitForAnnotations(t, namespace, "web", fooBar)
	mustKubectl(t, "", "delete", "ingress", "web", "-n", namespace, "--wait=false")
	mergePatch(t, web, `{"metadata":{"annotations":{"foo":null}}}`)
	waitForIngresses(t, namespace, requests)
	waitForAnnotations(t, namespace, "web")
	mergePatch(t, web, `{"metadata":{"finalizers":null}}`)
}

func testIngressDeleted(t *testing.T, namespace string, intercept *interceptor, requests *requestCounter) {
	answered := intercept.before(namespace+"/ingresses/web", func() error {
		return admin(t).Delete(context.Background(), newIngress(namespace, "web", nil))
	})
	createIngress(t, namespace, "web", foreign)
	if status := receive(t, answered); status != http.StatusConflict {
		t.Errorf("status of the operator's write: %d, want %d", status, http.StatusConflict)
	}
	waitForIngresses(t, namespace, requests)
	err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, &networkingv1.Ingress{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("want the Ingress not to exist, got %v", err)
	}
}

func testIngressReplaced(t *testing.T, namespace string, intercept *interceptor, requests *requestCounter) {
	second := newIngress(namespace, "web", map[string]string{v1beta1.PausedAnnotation: "true"})
	answered := intercept.before(namespace+"/ingresses/web", func() error {
		if err := admin(t).Delete(context.Background(), newIngress(namespace, "web", nil)); err != nil {
			return err
		}
		return admin(t).Create(context.Background(), second)
	})
	createIngress(t, namespace, "web", foreign)
	if status := receive(t, answered); status != http.StatusConflict {
		t.Errorf("status of the operator's write: %d, want %d", status, http.StatusConflict)
	}
	waitForIngresses(t, namespace, requests)
	waitForAnnotations(t, namespace, "web", map[string]string{v1beta1.PausedAnnotation: "true"})
}

func testIngressChangedBeforeWrite(t *testing.T, namespace string, intercept *interceptor) {
	answered := intercept.before(namespace+"/ingresses/web", func() error {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"foo":"late"}}}`))
		return admin(t).Patch(context.Background(), newIngress(namespace, "web", nil), patch)
	})
	web := createIngress(t, namespace, "web", foreign)
	if status := receive(t, answered); status != http.StatusConflict {
		t.Errorf("status of the operator's write: %d, want %d", status, http.StatusConflict)
	}
	waitForAnnotations(t, namespace, "web", foreign, overwritten(map[string]any{"foo": "late"}), fooBar)
	disabled := map[string]string{v1beta1.IngressAnnotationsAnnotation: v1beta1.IngressAnnotationsDisabled}
	mergePatch(t, web, `{"metadata":{"annotations":{%q:%q}}}`, v1beta1.IngressAnnotationsAnnotation, v1beta1.IngressAnnotationsDisabled)
	waitForAnnotations(t, namespace, "web", foreign, disabled, map[string]string{"foo": "late"})
	waitForNote(t, web, ingress.EventAnnotationsEnsured, "Restored annotation foo")
}

// testIngressRejected creates an admission policy that rejects the annotation, and then removes the policy.
func testIngressRejected(t *testing.T, namespace string, requests *requestCounter) {
	web := createIngress(t, namespace, "web", map[string]string{v1beta1.PausedAnnotation: "true"})
	allow := forbidUpdates(t, web, networkingv1.GroupName, "ingresses", "!('foo' in object.metadata.annotations)", `{"metadata":{"annotations":{"foo":"bar"}}}`)
	mergePatch(t, web, `{"metadata":{"annotations":{%q:"false"}}}`, v1beta1.PausedAnnotation)
	waitForNote(t, web, ingress.EventAnnotationsRefused, "Could not change annotation foo: ")
	eventually(t, defaultTimeout, func() (bool, string) {
		tries := requests.of(namespace)
		return tries["PATCH ingresses 422"] > 3, fmt.Sprintf("requests: %v", tries)
	})
	if events := eventsOn(t, web, ingress.EventAnnotationsRefused); len(events) != 1 || events[0].Series != nil {
		t.Errorf("want one event without a series, got %v", events)
	}
	allow()
	waitForAnnotations(t, namespace, "web", map[string]string{v1beta1.PausedAnnotation: "false"}, fooBar)
}

// testIngressConflict acts as another client. Each time the operator has set the annotation, the test changes the
// annotation again. The test controls the operator's clock.
func testIngressConflict(t *testing.T, namespace string, clock *clocktesting.FakePassiveClock, requests *requestCounter) {
	ingresses := record[*networkingv1.Ingress](t, &networkingv1.IngressList{}, namespace)
	web := createIngress(t, namespace, "web", foreign)
	rival := func(foo string) {
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{"foo":%q}}}`, foo))
		if err := admin(t).Patch(t.Context(), web, patch, client.FieldOwner("rival")); err != nil {
			t.Fatal(err)
		}
	}
	setAgain := func() {
		ingresses.untilLast(t, "foo is set again", func(last *networkingv1.Ingress) bool {
			return !before(t, last, web) && last.Annotations["foo"] == "bar"
		})
	}
	for reverts := 1; reverts <= 6; reverts++ {
		ingresses.until(t, "the operator sets foo again", func(changes []change[*networkingv1.Ingress]) bool {
			set := 0
			for _, change := range changes {
				if change.object.Annotations["foo"] == "bar" {
					set++
				}
			}
			return set == reverts
		})
		rival("other")
	}
	waitForNote(t, web, ingress.EventAnnotationReverted, "Field manager rival keeps changing annotation foo; setting it again in 10s")
	triggerReconcile := func() { mergePatch(t, web, `{"metadata":{"annotations":{"example.com/at":%q}}}`, clock.Now()) }
	clock.SetTime(clock.Now().Add(9 * time.Second))
	triggerReconcile()
	requests.waitUntilIdle(t)
	if writes := requests.of(namespace)["PATCH ingresses"]; writes != 6 {
		t.Errorf("%d writes before the backoff ends, want 6", writes)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	triggerReconcile()
	setAgain()

	rival("other")
	waitForNote(t, web, ingress.EventAnnotationReverted, "setting it again in 20s")
	rival("bar") // the operator's value: if it stays for ten minutes, the conflict ends
	waitForIngresses(t, namespace, requests)
	clock.SetTime(clock.Now().Add(11 * time.Minute))
	for range 2 {
		rival("other")
		setAgain()
	}
}

// waitForIngresses waits until the operator has handled all earlier changes of Ingresses. It creates another Ingress
// and waits until the operator annotates it and sends no more requests. The watch delivers the creation after the
// earlier changes.
func waitForIngresses(t *testing.T, namespace string, requests *requestCounter) {
	t.Helper()
	createIngress(t, namespace, "last", nil)
	waitForAnnotations(t, namespace, "last", fooBar)
	requests.waitUntilIdle(t)
}

// interceptor wraps the operator's transport. It calls a function just before a request reaches the API server.
type interceptor struct {
	mu     sync.Mutex
	path   string
	do     func() error
	status chan int
}

// before registers do. The interceptor calls do only once, before the next PATCH request whose URL ends with path. The
// channel receives the status of the response.
func (i *interceptor) before(path string, do func() error) <-chan int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.path, i.do, i.status = path, do, make(chan int, 1)
	return i.status
}

// receive receives the status from a channel that interceptor.before has returned.
func receive(t *testing.T, answered <-chan int) (status int) {
	t.Helper()
	select {
	case status := <-answered:
		return status
	case <-time.After(defaultTimeout):
		t.Fatalf("the operator has sent no write within %s, or got no response", defaultTimeout)
		return 0
	}
}

func (i *interceptor) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		i.mu.Lock()
		do, status := i.do, i.status
		hit := do != nil && request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, i.path)
		if hit {
			i.do = nil
		}
		i.mu.Unlock()
		if !hit {
			return next.RoundTrip(request)
		}
		if err := do(); err != nil {
			return nil, err
		}
		response, err := next.RoundTrip(request)
		if err == nil {
			status <- response.StatusCode
		}
		return response, err
	})
}

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
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
)

// foreign are annotations of others, which have to stay as they are, byte for byte.
var foreign = map[string]string{
	"example.com/snippet": "more_set_headers \"X-A: b\";\n\tif ($a ~* '^/\\\\d+$') {\r\n}\n",
	"example.com/empty":   "",
	"example.com/accents": "é e\u0301 \u200b 🔌 <&>",
	"fooo":                "bar",
}

func anIngress(namespace, name string, annotations map[string]string) *networkingv1.Ingress {
	backend := networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: maps.Clone(annotations)},
		Spec:       networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{Service: &backend}},
	}
}

func createIngress(t *testing.T, namespace, name string, annotations map[string]string) *networkingv1.Ingress {
	t.Helper()
	created := anIngress(namespace, name, annotations)
	if err := admin(t).Create(t.Context(), created); err != nil {
		t.Fatal(err)
	}
	return created
}

// waitForAnnotations waits until an Ingress has these annotations, and no others, and returns it.
func waitForAnnotations(t *testing.T, namespace, name string, want ...map[string]string) *networkingv1.Ingress {
	t.Helper()
	all := map[string]string{}
	for _, want := range want {
		maps.Copy(all, want)
	}
	found := &networkingv1.Ingress{}
	eventually(t, patience, func() (bool, string) {
		if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, found); err != nil {
			return false, err.Error()
		}
		diff := cmp.Diff(all, found.Annotations, cmpopts.EquateEmpty())
		return diff == "", "annotations (-want +got):\n" + diff
	})
	return found
}

// waitForNote waits for an event on an object that says something.
func waitForNote(t *testing.T, object client.Object, reason, note string) {
	t.Helper()
	eventually(t, patience, func() (bool, string) {
		var notes []string
		for _, event := range eventsOn(t, object, reason) {
			notes = append(notes, event.Note)
			if strings.Contains(event.Note, note) {
				return true, ""
			}
		}
		return false, fmt.Sprintf("no event %s that says %q, but %q", reason, note, notes)
	})
}

// TestIngressAnnotationFooBar is the tutorial's own case, told to the operator as it is installed.
func TestIngressAnnotationFooBar(t *testing.T) {
	alone(t)
	grant(t, ingress.Name)
	here, there := newNamespace(t), newNamespace(t)
	mustKubectl(t, documented(t, "ingress.md"), "create", "-n", here, "-f", "-")
	startedOperator(t, "--controllers=*,ingress", "--ingress-annotation=foo=bar")
	team := map[string]string{"example.com/team": "web"}
	eventually(t, patience, func() (bool, string) {
		got := strings.Fields(mustKubectl(t, "", "annotate", "ingress", "web", "--list", "-n", here))
		return slices.Equal(got, []string{"example.com/team=web", "foo=bar"}), fmt.Sprintf("annotations are %s", got)
	})
	createIngress(t, there, "later", team)
	waitForAnnotations(t, there, "later", team, map[string]string{"foo": "bar"})
	createIngress(t, here, "bare", nil)
	bare := waitForAnnotations(t, here, "bare", map[string]string{"foo": "bar"})
	waitForNote(t, bare, ingress.EventAnnotationsEnsured, "Set annotation foo")
}

// TestIngressConfiguration changes the annotations that are configured, as every change of the configuration does by a
// start of the operator.
func TestIngressConfiguration(t *testing.T) {
	alone(t)
	grant(t, ingress.Name)
	namespace := newNamespace(t)
	createIngress(t, namespace, "web", foreign)
	createIngress(t, namespace, "theirs", map[string]string{"b": "2"})
	for _, step := range []struct {
		what             string
		configured, also map[string]string // also is what the second Ingress has beside it
		note             string
	}{
		{"a key is added", map[string]string{"a": "1", "b": "2"}, nil, "Set annotations a, b"},
		{"a key is changed, one dropped, one added", map[string]string{"a": "3", "example.com/c": "4"}, map[string]string{"b": "2"}, "Removed annotation b"},
		{"none is left", nil, map[string]string{"b": "2"}, "Removed annotations a, example.com/c"},
	} {
		t.Run(step.what, func(t *testing.T) {
			exclusive(t, operatorOptions{controllers: ensuring(step.configured)})
			web := waitForAnnotations(t, namespace, "web", foreign, step.configured)
			waitForNote(t, web, ingress.EventAnnotationsEnsured, step.note)
			waitForAnnotations(t, namespace, "theirs", step.configured, step.also)
		})
	}
}

// TestIngressRestart starts an operator where all is as it is to be.
func TestIngressRestart(t *testing.T) {
	alone(t)
	grant(t, ingress.Name)
	namespace := newNamespace(t)
	createIngress(t, namespace, "web", foreign)
	stop := exclusive(t, operatorOptions{controllers: ensuring(fooBar)})
	waitForAnnotations(t, namespace, "web", foreign, fooBar)
	stop()
	requests := newTally()
	exclusive(t, operatorOptions{
		controllers: ensuring(fooBar),
		transport:   func(config *rest.Config) { config.Wrap(requests.wrap) },
	})
	ingressIsThrough(t, namespace, requests)
	want := map[string]int{"PATCH ingresses": 1, "POST events": 1} // of the fence
	if diff := cmp.Diff(want, requests.of(namespace)); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// ensuring turns the controller on, with these annotations.
func ensuring(annotations map[string]string) func(*controller.Options) {
	return func(options *controller.Options) {
		options.Selection = []string{"*", ingress.Name}
		options.Ingress.Annotations = annotations
	}
}

// TestIngress tells what an operator does that ensures foo: bar.
func TestIngress(t *testing.T) {
	alone(t)
	grant(t, ingress.Name)
	requests, between, clock := newTally(), &interceptor{}, clocktesting.NewFakePassiveClock(time.Now())
	exclusive(t, operatorOptions{
		clock:       clock,
		controllers: ensuring(fooBar),
		transport: func(config *rest.Config) {
			config.Wrap(between.wrap)
			config.Wrap(requests.wrap)
		},
	})
	t.Run("one write is enough, and a foreign change needs none", func(t *testing.T) { testIngressWrites(t, newNamespace(t), requests) })
	t.Run("an Ingress opts out, and in again", func(t *testing.T) { testIngressOptsOut(t, newNamespace(t)) })
	t.Run("an Ingress is paused", func(t *testing.T) { testIngressPaused(t, newNamespace(t), requests) })
	t.Run("an Ingress that is being deleted is left alone", func(t *testing.T) { testIngressBeingDeleted(t, newNamespace(t), requests) })
	t.Run("an Ingress deleted at the same moment is not made again", func(t *testing.T) { testIngressDeleted(t, newNamespace(t), between, requests) })
	t.Run("another of the same name is not taken for the first", func(t *testing.T) { testIngressReplaced(t, newNamespace(t), between, requests) })
	t.Run("a fight is told of, and the operator waits, until the rival gives in", func(t *testing.T) { testIngressFight(t, newNamespace(t), clock, requests) })
	t.Run("a refusal is told of once", func(t *testing.T) { testIngressRefused(t, newNamespace(t), requests) })
}

var fooBar = map[string]string{"foo": "bar"}

func testIngressWrites(t *testing.T, namespace string, requests *tally) {
	ingressIsThrough(t, namespace, requests) // and has found out which APIs there are
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
	for range 7 { // more often than would be a fight
		mergePatch(t, web, `{"metadata":{"annotations":{%q:%q}}}`, ingress.ModeAnnotation, ingress.ModeDisabled)
		waitForAnnotations(t, namespace, "web", foreign, map[string]string{ingress.ModeAnnotation: ingress.ModeDisabled})
		mergePatch(t, web, `{"metadata":{"annotations":{%q:null}}}`, ingress.ModeAnnotation)
		waitForAnnotations(t, namespace, "web", foreign, fooBar)
	}
	if warnings := eventsOn(t, web, ingress.EventAnnotationReverted); len(warnings) > 0 {
		t.Errorf("warned of %v", warnings)
	}
}

func testIngressPaused(t *testing.T, namespace string, requests *tally) {
	paused := map[string]string{v1beta1.PausedAnnotation: "true"}
	web := createIngress(t, namespace, "web", paused)
	ingressIsThrough(t, namespace, requests)
	if diff := cmp.Diff(web, waitForAnnotations(t, namespace, "web", paused)); diff != "" {
		t.Errorf("the paused Ingress was touched (-before +after):\n%s", diff)
	}
	setPaused(t, web, false)
	waitForAnnotations(t, namespace, "web", fooBar)
}

func testIngressBeingDeleted(t *testing.T, namespace string, requests *tally) {
	web := anIngress(namespace, "web", nil)
	web.Finalizers = []string{"example.com/wait"}
	if err := admin(t).Create(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	waitForAnnotations(t, namespace, "web", fooBar)
	mustKubectl(t, "", "delete", "ingress", "web", "-n", namespace, "--wait=false")
	mergePatch(t, web, `{"metadata":{"annotations":{"foo":null}}}`)
	ingressIsThrough(t, namespace, requests)
	waitForAnnotations(t, namespace, "web")
	mergePatch(t, web, `{"metadata":{"finalizers":null}}`)
}

func testIngressDeleted(t *testing.T, namespace string, between *interceptor, requests *tally) {
	answered := between.before(namespace+"/ingresses/web", func() error {
		return admin(t).Delete(context.Background(), anIngress(namespace, "web", nil))
	})
	createIngress(t, namespace, "web", foreign)
	if status := <-answered; status != http.StatusConflict {
		t.Errorf("the API server answers %d, want %d", status, http.StatusConflict)
	}
	ingressIsThrough(t, namespace, requests)
	err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, &networkingv1.Ingress{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the Ingress is there again: %v", err)
	}
}

func testIngressReplaced(t *testing.T, namespace string, between *interceptor, requests *tally) {
	second := anIngress(namespace, "web", map[string]string{v1beta1.PausedAnnotation: "true"})
	answered := between.before(namespace+"/ingresses/web", func() error {
		if err := admin(t).Delete(context.Background(), anIngress(namespace, "web", nil)); err != nil {
			return err
		}
		return admin(t).Create(context.Background(), second)
	})
	createIngress(t, namespace, "web", foreign)
	if status := <-answered; status != http.StatusUnprocessableEntity { // a UID is immutable
		t.Errorf("the API server answers %d, want %d", status, http.StatusUnprocessableEntity)
	}
	ingressIsThrough(t, namespace, requests)
	waitForAnnotations(t, namespace, "web", map[string]string{v1beta1.PausedAnnotation: "true"})
}

// testIngressRefused has a policy keep the annotation off, until it does no more.
func testIngressRefused(t *testing.T, namespace string, requests *tally) {
	web := createIngress(t, namespace, "web", map[string]string{v1beta1.PausedAnnotation: "true"})
	allow := forbidUpdates(t, web, networkingv1.GroupName, "ingresses", "!('foo' in object.metadata.annotations)", `{"metadata":{"annotations":{"foo":"bar"}}}`)
	mergePatch(t, web, `{"metadata":{"annotations":{%q:"false"}}}`, v1beta1.PausedAnnotation)
	waitForNote(t, web, ingress.EventAnnotationsRefused, "Could not change annotation foo: ")
	eventually(t, patience, func() (bool, string) {
		tries := requests.of(namespace)
		return tries["PATCH ingresses 422"] > 3, fmt.Sprintf("requests: %v", tries)
	})
	if events := eventsOn(t, web, ingress.EventAnnotationsRefused); len(events) != 1 || events[0].Series != nil {
		t.Errorf("told of it more than once: %v", events)
	}
	allow()
	waitForAnnotations(t, namespace, "web", map[string]string{v1beta1.PausedAnnotation: "false"}, fooBar)
}

// testIngressFight has a rival change the annotation back as soon as it is set, and the clock stand still.
func testIngressFight(t *testing.T, namespace string, clock *clocktesting.FakePassiveClock, requests *tally) {
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
		ingresses.until(t, "foo is set once more", func(changes []change[*networkingv1.Ingress]) bool {
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
	wake := func() { mergePatch(t, web, `{"metadata":{"annotations":{"example.com/at":%q}}}`, clock.Now()) }
	clock.SetTime(clock.Now().Add(9 * time.Second))
	wake()
	requests.quiet(t)
	if writes := requests.of(namespace)["PATCH ingresses"]; writes != 6 {
		t.Errorf("%d writes before the operator waits, want 6", writes)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	wake()
	setAgain()

	rival("other")
	waitForNote(t, web, ingress.EventAnnotationReverted, "setting it again in 20s")
	rival("bar") // and so gives in
	ingressIsThrough(t, namespace, requests)
	clock.SetTime(clock.Now().Add(11 * time.Minute))
	for range 2 {
		rival("other")
		setAgain()
	}
}

// ingressIsThrough returns when the operator has done all that it will do about what happened to Ingresses before: it has
// annotated another one, whose creation it learnt of later, and asks for nothing more.
func ingressIsThrough(t *testing.T, namespace string, requests *tally) {
	t.Helper()
	createIngress(t, namespace, "fence", nil)
	waitForAnnotations(t, namespace, "fence", fooBar)
	requests.quiet(t)
}

// An interceptor does something just before a request gets to the API server.
type interceptor struct {
	mu   sync.Mutex
	path string
	do   func() error
	then chan int
}

// before says what to do before the next write to an object. The channel has the status of the answer.
func (i *interceptor) before(path string, do func() error) <-chan int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.path, i.do, i.then = path, do, make(chan int, 1)
	return i.then
}

func (i *interceptor) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		i.mu.Lock()
		do, then := i.do, i.then
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
			then <- response.StatusCode
		}
		return response, err
	})
}

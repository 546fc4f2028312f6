// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/machine"
)

// workers is how many Machines the operator has in hand at a time.
const workers = machine.DefaultConcurrentSyncs

// TestUsersComeBeforeNewMachines has a user turn a switch up while the operator has its hands full.
func TestUsersComeBeforeNewMachines(t *testing.T) {
	alone(t)
	const crowd = 200
	busy := newNamespace(t)
	requests, held, open := newTally(), make(chan struct{}, crowd), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(open) })
	exclusive(t, operatorOptions{transport: func(config *rest.Config) {
		config.Wrap(requests.wrap)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				if request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/"+busy+"/switches") {
					held <- struct{}{}
					<-open
					<-held
				}
				return next.RoundTrip(request)
			})
		})
	}})
	t.Cleanup(letGo) // before the operator is to stop
	namespace := newNamespace(t)
	flippingMachine(t, namespace, "m", 1, 0, 0)
	switches := recordSwitches(t, namespace)
	for i := range crowd {
		createMachine(t, busy, fmt.Sprintf("m-%d", i), func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 5 })
	}
	eventually(t, patience, func() (bool, string) { return len(held) == workers, fmt.Sprintf("%d requests held", len(held)) })
	turnUp(t, namespace, "m-0")
	switches.untilObject(t, "m-0", "is up", func(sw *v1beta1.Switch) bool { return sw.Spec.Position == v1beta1.PositionUp })
	letGo()
	switches.untilObject(t, "m-0", "is turned down", flipped)
	begun := requests.successes(busy, "PATCH machines") // their finalizers
	t.Logf("turned down after %d of %d new machines were begun", begun, crowd)
	if begun > crowd/2 {
		t.Errorf("a user waited for %d of %d new machines", begun, crowd)
	}
}

// TestFlipsComeFirst has many switches be due at once, at a start.
func TestFlipsComeFirst(t *testing.T) {
	alone(t)
	const crowd = 60
	anHourAgo := clocktesting.NewFakePassiveClock(time.Now().Add(-time.Hour))
	stop := exclusive(t, operatorOptions{clock: anHourAgo}) // for which nothing is ever due
	namespace := newNamespace(t)
	for i := range crowd {
		createMachine(t, namespace, fmt.Sprintf("m%d", i), nil)
	}
	for i := range crowd {
		waitForPositions(t, namespace, fmt.Sprintf("m%d", i), "d", patience)
		turnUp(t, namespace, fmt.Sprintf("m%d-0", i))
	}
	for i := range crowd {
		waitForPositions(t, namespace, fmt.Sprintf("m%d", i), "u", patience)
	}
	stop()

	requests, order := newTally(), &sequence{}
	exclusive(t, operatorOptions{transport: func(config *rest.Config) { config.Wrap(requests.wrap); config.Wrap(order.wrap) }})
	for i := range crowd {
		waitForPositions(t, namespace, fmt.Sprintf("m%d", i), "d", patience)
	}
	requests.quiet(t)
	got := requests.of(namespace)
	delete(got, "POST events")
	want := map[string]int{
		"PATCH switches":        crowd,
		"PATCH switches/status": crowd, // forgotten
		"PATCH machines/status": crowd,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	// Each of the other workers may have its last flip still ahead when one is done with its own.
	if first := slices.Index(order.all(), "PATCH machines/status"); first <= crowd-workers {
		t.Errorf("of %d switches that were due, %d at most were turned down before something else was written", crowd, first)
	}
}

// A sequence is the order in which requests were begun.
type sequence struct {
	mu    sync.Mutex
	begun []string
}

func (s *sequence) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if _, what := subject(request.URL.Path); request.Method == http.MethodPatch {
			s.mu.Lock()
			s.begun = append(s.begun, request.Method+" "+what)
			s.mu.Unlock()
		}
		return next.RoundTrip(request)
	})
}

func (s *sequence) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.begun)
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
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

// workers is the number of Machines that the operator reconciles at the same time.
const workers = machine.DefaultConcurrentSyncs

// TestUserChangesBeforeNewMachines turns a switch up while all workers are busy and many new Machines are queued. The
// operator must turn the switch down before it handles most of the new Machines.
func TestUserChangesBeforeNewMachines(t *testing.T) {
	useExclusiveCluster(t)
	const newMachines = 200
	busy := newNamespace(t)
	requests, held, open := newRequestCounter(), make(chan struct{}, newMachines), make(chan struct{})
	namespace, startedAtFlip := newNamespace(t), make(chan int, 10)
	release := sync.OnceFunc(func() { close(open) })
	runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
		config.Wrap(requests.wrap)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				if request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/"+busy+"/switches") {
					held <- struct{}{}
					<-open
					<-held
				}
				if request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/"+namespace+"/switches/m-0") {
					startedAtFlip <- requests.successes(busy, "PATCH machines") // the operator first adds the finalizer
				}
				return next.RoundTrip(request)
			})
		})
	}})
	t.Cleanup(release) // runs before the operator stops
	flippingMachine(t, namespace, "m", 1, 0, 0)
	switches := recordSwitches(t, namespace)
	for i := range newMachines {
		createMachine(t, busy, fmt.Sprintf("m-%d", i), func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 5 })
	}
	eventually(t, defaultTimeout, func() (bool, string) { return len(held) == workers, fmt.Sprintf("%d requests held", len(held)) })
	turnUp(t, namespace, "m-0")
	switches.untilObject(t, "m-0", "is up", func(sw *v1beta1.Switch) bool { return sw.Spec.Position == v1beta1.PositionUp })
	release()
	switches.untilObject(t, "m-0", "is turned down", flipped)
	started := <-startedAtFlip
	t.Logf("the operator had started %d of %d new machines when it turned the switch down", started, newMachines)
	if started > newMachines/2 {
		t.Errorf("the user's change waited for %d of %d new machines", started, newMachines)
	}
}

// TestFlipsBeforeOtherWrites starts an operator at a time when many switches are due. The operator must turn the
// switches down before it sends other writes. Only a status that has waited for half a second may overtake them.
func TestFlipsBeforeOtherWrites(t *testing.T) {
	useExclusiveCluster(t)
	const machines = 60
	anHourAgo := clocktesting.NewFakePassiveClock(time.Now().Add(-time.Hour))
	stop := runOperatorFor(t, operatorOptions{clock: anHourAgo}) // with this clock, no switch is due
	namespace := newNamespace(t)
	for i := range machines {
		createMachine(t, namespace, fmt.Sprintf("m%d", i), nil)
	}
	for i := range machines {
		waitForPositions(t, namespace, fmt.Sprintf("m%d", i), "d", defaultTimeout)
		turnUp(t, namespace, fmt.Sprintf("m%d-0", i))
	}
	for i := range machines {
		waitForPositions(t, namespace, fmt.Sprintf("m%d", i), "u", defaultTimeout)
	}
	stop()

	requests, order := newRequestCounter(), &sequence{}
	runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) { config.Wrap(requests.wrap); config.Wrap(order.wrap) }})
	for i := range machines {
		waitForPositions(t, namespace, fmt.Sprintf("m%d", i), "d", defaultTimeout)
	}
	requests.waitUntilIdle(t)
	got := requests.of(namespace)
	delete(got, "POST events")
	want := map[string]int{
		"PATCH switches":        machines,
		"PATCH machines/status": machines,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	// A worker may send other writes when no more switches wait. At this time, each other worker may still be busy with
	// its last flip.
	if flips := order.flipsBeforeEarlyStatus(); flips <= machines-workers {
		t.Errorf("at most %d of %d due switches were turned down before the first status that had not waited", flips, machines)
	}
}

// minStatusDelay is less than the time for which a status waits behind due flips. That time begins shortly before the
// operator sends its flip.
const minStatusDelay = 250 * time.Millisecond

// A sequence records the operator's patches in the order in which they were sent.
type sequence struct {
	mu      sync.Mutex
	patches []sentPatch
}

type sentPatch struct {
	path string
	at   time.Time
}

func (s *sequence) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if request.Method == http.MethodPatch {
			s.mu.Lock()
			s.patches = append(s.patches, sentPatch{request.URL.Path, time.Now()})
			s.mu.Unlock()
		}
		return next.RoundTrip(request)
	})
}

// flipsBeforeEarlyStatus returns how many flips were sent before the first status of a Machine that was sent less than
// minStatusDelay after the flip of this Machine. Without such a status, it returns the number of all flips.
func (s *sequence) flipsBeforeEarlyStatus() (flips int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	flippedAt := map[string]time.Time{} // by the path of the Machine's status
	for _, patch := range s.patches {
		if at, ok := flippedAt[patch.path]; ok && patch.at.Sub(at) < minStatusDelay {
			break
		}
		if namespace, name, ok := strings.Cut(patch.path, "/switches/"); ok {
			flippedAt[namespace+"/machines/"+strings.TrimSuffix(name, "-0")+"/status"] = patch.at
			flips++
		}
	}
	return flips
}

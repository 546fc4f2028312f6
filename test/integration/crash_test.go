// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

func TestCrashBetweenNoticingAndFlipping(t *testing.T) {
	useExclusiveCluster(t)
	const delay = 4 * time.Second
	namespace := newNamespace(t)
	operator := startedOperator(t)
	flippingMachine(t, namespace, "m", 1, 4, 0)
	switches := recordSwitches(t, namespace)
	ups := turnUpInOrder(t, switches, namespace, "m-0")
	operator.Kill()
	startedOperator(t)
	ready := time.Now()

	found := untilFlips(t, switches, ups, 1)
	checkFlips(t, found, delay, 0)
	due := latest(found[0].seenAt.Add(delay), ready)
	t.Logf("turned down %s after it was due and the operator was ready again", found[0].at.Sub(due))
	if late := found[0].at.Sub(due); late > 15*time.Second {
		t.Errorf("turned down %s late", late)
	}
	for _, change := range switches.all(t) {
		if seen := change.object.Status.SeenAt; seen != nil && !seen.Time.Equal(found[0].seenAt) {
			t.Errorf("status.seenAt is %s in revision %s, and %s at the flip",
				seen, change.object.ResourceVersion, found[0].seenAt)
		}
	}
	onceEach(t, switches.all(t), "m-0")
}

func TestCrashBetweenFlips(t *testing.T) {
	useExclusiveCluster(t)
	const delay, interval = time.Second, 3 * time.Second
	namespace := newNamespace(t)
	operator := startedOperator(t)
	flippingMachine(t, namespace, "m", 3, 1, 3)
	switches := recordSwitches(t, namespace)
	ups := turnUpInOrder(t, switches, namespace, "m-1", "m-2", "m-0")
	untilFlips(t, switches, ups, 1)
	operator.Kill() // probably before the operator writes the time of the flip to the Machine's status
	startedOperator(t)

	found := untilFlips(t, switches, ups, 3)
	checkFlips(t, found, delay, interval)
	reportLateness(t, found, delay, interval, 15*time.Second)
	waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	onceEach(t, switches.all(t), "m-0", "m-1", "m-2")
}

// TestCrashBeforeStatusUpdate stops an operator that has turned a switch down but could not update the Machine's
// status. The next operator must read the time of the last flip from the switch.
func TestCrashBeforeStatusUpdate(t *testing.T) {
	useExclusiveCluster(t)
	const delay, interval = time.Second, 3 * time.Second
	var failStatus atomic.Bool
	stop := runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				isStatus := request.Method == http.MethodPatch && strings.HasSuffix(request.URL.Path, "/machines/m/status")
				if failStatus.Load() && isStatus {
					return nil, errors.New("connection lost")
				}
				return next.RoundTrip(request)
			})
		})
	}})
	namespace := newNamespace(t)
	flippingMachine(t, namespace, "m", 2, 1, 3)
	failStatus.Store(true)
	switches := recordSwitches(t, namespace)
	ups := turnUpInOrder(t, switches, namespace, "m-1", "m-0")
	untilFlips(t, switches, ups, 1)
	stop()
	if last := getMachine(t, namespace, "m").Status.LastFlipTime; last != nil {
		t.Fatalf("status.lastFlipTime is %s, want none: the updates should have failed", last)
	}
	runOperatorFor(t, operatorOptions{})
	found := untilFlips(t, switches, ups, 2)
	checkFlips(t, found, delay, interval)
	waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	onceEach(t, switches.all(t), "m-0", "m-1")
}

// TestCrashWhileCreating kills an operator that has created some switches of a Machine. A quota rejects the other
// switches until the operator is killed.
func TestCrashWhileCreating(t *testing.T) {
	useExclusiveCluster(t)
	const count, allowed = 60, 10
	namespace := newNamespace(t)
	quota := createQuota(t, namespace, allowed)
	operator := startedOperator(t)
	switches := recordSwitches(t, namespace)
	slowMachine(t, namespace, "m", count)
	switches.until(t, "the allowed switches are created", func(changes []change[*v1beta1.Switch]) bool { return len(changes) >= allowed })
	operator.Kill()
	m := getMachine(t, namespace, "m")
	if created := len(switchesOf(t, m)); created != allowed {
		t.Fatalf("the operator was killed after it had created %d switches, want %d of %d", created, allowed, count)
	}
	if err := admin(t).Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	startedOperator(t)
	waitForPositions(t, namespace, "m", strings.Repeat("d", count), defaultTimeout)
	changes := switches.all(t)
	if most := mostAtOnce(changes); most != count || len(changes) != count {
		t.Errorf("at most %d switches at the same time, and %d changes; want %d creations and nothing else", most, len(changes), count)
	}
	if own := len(switchesOf(t, m)); own != count {
		t.Errorf("%d switches", own)
	}
}

func TestLeaderChange(t *testing.T) {
	useExclusiveCluster(t)
	const delay, interval = time.Second, 2 * time.Second
	namespace := newNamespace(t)
	leader := []string{"--leader-elect", "--namespace=useless-system"}
	first := startedOperator(t, leader...)
	firstID := waitForLeader(t, "")
	second := startedOperator(t, append(leader, "--webhooks=false")...)
	flippingMachine(t, namespace, "m", 6, 1, 2)
	switches := recordSwitches(t, namespace)

	order := []string{"m-3", "m-0", "m-5", "m-1", "m-4", "m-2"}
	ups := turnUpInOrder(t, switches, namespace, order...)
	untilFlips(t, switches, ups, 2)
	stopped := time.Now()
	if err := first.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	secondID := waitForLeader(t, firstID)
	t.Logf("another replica became the leader %s after SIGTERM to the leader", time.Since(stopped))
	if took := time.Since(stopped); took > 14*time.Second { // a Lease that is not released expires after 15 s
		t.Errorf("another replica became the leader %s after SIGTERM to the leader: the leader did not release the Lease", took)
	}
	if code := first.ended(t); code != 0 {
		t.Errorf("after SIGTERM the leader exited with code %d", code)
	}
	untilFlips(t, switches, ups, 3)

	startedOperator(t, leader...)
	killed := time.Now()
	second.Kill()
	waitForLeader(t, secondID)
	t.Logf("another replica became the leader %s after SIGKILL to the leader", time.Since(killed))
	if took := time.Since(killed); took > 45*time.Second {
		t.Errorf("another replica became the leader %s after SIGKILL to the leader, want at most 45s", took)
	}
	found := untilFlips(t, switches, ups, len(order))
	checkFlips(t, found, delay, interval)
	waitForPositions(t, namespace, "m", "dddddd", defaultTimeout)
	onceEach(t, switches.all(t), order...)
}

// TestContainerCrash kills the leader and starts it again with the same --pod-uid, as the kubelet does after a crash.
// The new process must continue immediately, although another replica waits for the Lease.
func TestContainerCrash(t *testing.T) {
	useExclusiveCluster(t)
	const delay, interval = time.Second, time.Second
	namespace := newNamespace(t)
	crashing := startPodOperator(t, "--pod-uid="+string(uuid.NewUUID()), "--webhooks=false")
	holder := waitForLeader(t, "")
	before := leaderLease(t)
	startPodOperator(t, "--pod-uid="+string(uuid.NewUUID())).waitUntilReady(t) // the other replica
	flippingMachine(t, namespace, "m", 6, 1, 1)
	switches := recordSwitches(t, namespace)
	order := []string{"m-3", "m-0", "m-5", "m-1", "m-4", "m-2"}
	ups := turnUpInOrder(t, switches, namespace, order...)

	for crash := range 3 {
		untilFlips(t, switches, ups, crash+1)
		killed := time.Now()
		crashing.Kill()
		crashing = startPodOperator(t, crashing.podArgs...)
		found := untilFlips(t, switches, ups, crash+2)
		took := found[crash+1].received.Sub(killed)
		t.Logf("the next flip was %s after the crash", took)
		if took > 10*time.Second { // a process that waited until the Lease expires would need 15 s
			t.Errorf("the next flip was %s after the crash", took)
		}
	}
	after := leaderLease(t)
	if *after.HolderIdentity != holder || *after.LeaseTransitions != *before.LeaseTransitions {
		t.Errorf("the Lease has the holder %s and %d transitions, want %s and %d",
			*after.HolderIdentity, *after.LeaseTransitions, holder, *before.LeaseTransitions)
	}
	found := untilFlips(t, switches, ups, len(order))
	checkFlips(t, found, delay, interval)
	waitForPositions(t, namespace, "m", "dddddd", defaultTimeout)
	onceEach(t, switches.all(t), order...)
}

// TestTwoProcessesOfOnePod starts a second process with the same --pod-uid while the leader runs, and then suspends the
// leader. The second process must wait until the Lease expires.
func TestTwoProcessesOfOnePod(t *testing.T) {
	useExclusiveCluster(t)
	const delay, interval = time.Second, 2 * time.Second
	namespace := newNamespace(t)
	first := startPodOperator(t, "--pod-uid="+string(uuid.NewUUID()))
	holder := waitForLeader(t, "")
	flippingMachine(t, namespace, "m", 6, 1, 2)
	switches := recordSwitches(t, namespace)
	order := []string{"m-3", "m-0", "m-5", "m-1", "m-4", "m-2"}
	ups := turnUpInOrder(t, switches, namespace, order...)

	second := startPodOperator(t, first.podArgs[0], "--webhooks=false")
	waitForLog(t, second.operatorProcess, "Cannot lead as the Pod")
	second.waitUntilReady(t)
	untilFlips(t, switches, ups, 3)
	if got := *leaderLease(t).HolderIdentity; got != holder {
		t.Errorf("the Lease has the holder %s, want %s", got, holder)
	}
	suspended := time.Now()
	if err := first.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitForLeader(t, holder)
	if took := time.Since(suspended); took < 12*time.Second { // the leader renews the Lease every second
		t.Errorf("the second process became the leader %s after the leader was suspended: the Lease had not expired", took)
	}
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if code := first.ended(t); code != 1 {
		t.Errorf("after it was suspended, the leader exited with code %d", code)
	}
	found := untilFlips(t, switches, ups, len(order))
	checkFlips(t, found, delay, interval)
	onceEach(t, switches.all(t), order...)
}

// A podOperator is an operator with leader election.
type podOperator struct {
	*operatorProcess
	podArgs []string // arguments in addition to --leader-elect and --namespace
}

func startPodOperator(t *testing.T, args ...string) podOperator {
	t.Helper()
	all := append([]string{"--leader-elect", "--namespace=" + operatorNamespace}, args...)
	return podOperator{startOperator(t, nil, all...), args}
}

func leaderLease(t *testing.T) coordinationv1.LeaseSpec {
	t.Helper()
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: operatorNamespace, Name: "leader.useless.container.training"}
	if err := admin(t).Get(t.Context(), key, lease); err != nil {
		t.Fatal(err)
	}
	return lease.Spec
}

// TestStandby starts a replica while another holder has the Lease. The standby replica must already watch the listed
// resources, which it will need as the leader. Otherwise, a new leader would still have to fill its caches. If this
// took longer than two minutes, the new leader would exit.
func TestStandby(t *testing.T) {
	useExclusiveCluster(t)
	lease := holdLease(t)
	t.Cleanup(func() {
		if err := admin(t).Delete(context.Background(), lease); err != nil {
			t.Error(err)
		}
	})
	var watched sync.Map
	runOperatorFor(t, operatorOptions{leaderElection: lease.Name, transport: func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				if request.URL.Query().Get("watch") != "" {
					watched.Store(path.Base(request.URL.Path), true)
				}
				return next.RoundTrip(request)
			})
		})
	}})
	for _, resource := range []string{
		"machines", "switches", "namespaces", "deployments", "statefulsets", "cronjobs", "horizontalpodautoscalers",
		"virtualmachines", "pods",
	} {
		eventually(t, defaultTimeout, func() (bool, string) {
			_, ok := watched.Load(resource)
			return ok, "the standby replica does not watch " + resource
		})
	}
}

// waitForLeader waits until the Lease has a holder other than before, and returns the new holder.
func waitForLeader(t *testing.T, before string) string {
	t.Helper()
	var holder string
	eventually(t, defaultTimeout, func() (bool, string) {
		lease := &coordinationv1.Lease{}
		key := client.ObjectKey{Namespace: operatorNamespace, Name: "leader.useless.container.training"}
		if err := admin(t).Get(t.Context(), key, lease); err != nil {
			return false, err.Error()
		}
		if lease.Spec.HolderIdentity != nil {
			holder = *lease.Spec.HolderIdentity
		}
		return holder != "" && holder != before, fmt.Sprintf("the holder of the Lease is %q", holder)
	})
	return holder
}

// onceEach fails the test unless each of these switches, and no other switch, was turned down exactly once. It also
// fails the test if a switch was created or deleted.
func onceEach(t *testing.T, changes []change[*v1beta1.Switch], names ...string) {
	t.Helper()
	want := map[string]int{}
	for _, name := range names {
		want[name] = 1
	}
	if diff := cmp.Diff(want, turnedDown(changes)); diff != "" {
		t.Errorf("how often each switch was turned down (-want +got):\n%s", diff)
	}
	for _, change := range changes {
		if change.kind != watch.Modified {
			t.Errorf("switch %s was %s", change.object.Name, change.kind)
		}
	}
}

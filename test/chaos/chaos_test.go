// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos injects faults on a real control plane while simulated users work. It kills, suspends and disconnects
// the operator, and kills the API server. The invariant checker reads all revisions of Machines and switches.
package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/invariants"
)

var (
	times = flag.Int("times", 0,
		"how often each disturbance runs, as a multiple of a full run; 0 is a short run without slow disturbances")
	seed = flag.Uint64("seed", 1, "seed of the order of disturbances and of the users' requests; timing still varies")
)

// maxLag is the lag that the invariant checker allows. The operator may act on data that became outdated less than
// maxLag ago. Each suspension and each disconnection is shorter.
const maxLag = time.Minute

// A chaos is one test run. It has a control plane with the operator (world), simulated users, and recorded revisions.
type chaos struct {
	*world
	*users
	t        *testing.T
	random   *rand.Rand
	start    time.Time
	recorder *invariants.Recorder

	checker   *invariants.Checker
	revisions int
	operators int // revisions by the operator
	unknown   int // revisions by an unknown author
	written   *json.Encoder
}

// TestChaos disturbs an operator of one replica, without leader election.
func TestChaos(t *testing.T) {
	t.Parallel()
	disturb(t, disturbances, func(c *chaos) { c.replica() })
}

// TestLeaders disturbs an operator of two replicas with leader election.
func TestLeaders(t *testing.T) {
	if *times == 0 {
		t.Skip("each disturbance takes longer than a lease; run make chaos")
	}
	t.Parallel()
	disturb(t, leaderDisturbances, func(c *chaos) {
		for range 2 {
			c.replica("--leader-elect")
		}
	})
}

// disturb starts replicas on a new control plane. It runs all disturbances while users work, and then waits until all
// Machines and switches have converged.
func disturb(t *testing.T, disturbances []disturbance, start func(*chaos)) {
	t.Helper()
	c := &chaos{world: newWorld(t), t: t, random: rand.New(rand.NewPCG(*seed, *seed)), start: time.Now(), checker: invariants.NewChecker(maxLag)}
	c.users = newUsers(c.admin)
	c.record()
	if err := c.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	users, calm := context.WithCancel(t.Context())
	var acting sync.WaitGroup
	for i := range 8 {
		acting.Go(func() { c.act(users, rand.New(rand.NewPCG(*seed, uint64(i)))) })
	}
	start(c)
	done := c.inRandomOrder(t.Context(), disturbances)
	calm()
	acting.Wait()
	defer c.report(disturbances, done)
	if t.Failed() {
		return
	}
	c.settle()
	c.rest()
	if c.unexpected != nil {
		t.Error("users got unexpected errors:", c.unexpected)
	}
	if c.operators == 0 || c.unknown > c.revisions/10 {
		t.Errorf("of %d revisions, %d are by the operator and %d by an unknown author; want at least 1, and at most a tenth",
			c.revisions, c.operators, c.unknown)
	}
}

// record starts the recording of all revisions. It also creates history.jsonl in the folder of the logs. c.see writes
// each revision into this file.
func (c *chaos) record() {
	file, err := os.Create(filepath.Join(c.logs, "history.jsonl"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.written = json.NewEncoder(file)
	// The recorder must not end with t.Context(), because it would report an error before the cleanup.
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(func() {
		cancel()
		_ = file.Close()
	})
	audit := invariants.AuditLog{Log: c.plane.AuditLog(), Operator: serviceaccount.MakeUsername(operatorNamespace, operatorAccount)}
	if c.recorder, err = invariants.Record(ctx, c.plane.Etcd(), audit); err != nil {
		c.t.Fatal(err)
	}
}

// see checks a revision, counts it by its author, and writes it to history.jsonl.
func (c *chaos) see(r invariants.Revision) {
	c.checker.Add(r)
	c.revisions++
	switch {
	case r.By != "":
		c.operators++
	case r.User == "":
		c.unknown++
	}
	r.Object.SetManagedFields(nil)
	_ = c.written.Encode(r)
}

// check reports all violations so far as errors of the test. It returns the number of revisions so far.
func (c *chaos) check() int {
	revisions, err := c.recorder.Take(c.t.Context(), metav1.NamespaceAll)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range revisions {
		c.see(r)
	}
	for _, fault := range c.checker.Violations() {
		c.t.Error(fault)
	}
	return c.revisions
}

// A disturbance is a fault that the test injects.
type disturbance struct {
	what               string
	short, brief, full int // number of runs with -short, without -times, and with -times 1
	do                 func(*chaos, context.Context) error
}

var (
	disturbances = []disturbance{
		{"the operator is killed", 1, 5, 50, (*chaos).kill},
		{"the API server is killed", 1, 1, 5, (*chaos).restartAPIServer},
		{"etcd is compacted, and the operator's connections are reset", 0, 1, 5, (*chaos).compact},
		{"connections are slow", 0, 1, 5, (*chaos).slow},
		{"connections are reset", 1, 2, 15, (*chaos).reset},
		{"connections drop all bytes and stay open", 0, 0, 3, (*chaos).lose},
		{"the webhooks are unreachable", 0, 1, 5, (*chaos).hideWebhooks},
		{"the webhooks' certificates are rotated", 0, 1, 5, (*chaos).rotate},
		{"a ResourceQuota rejects switches", 0, 1, 5, (*chaos).refuse},
		{"the API server rejects the operator's requests (429)", 0, 1, 5, (*chaos).throttle},
	}
	leaderDisturbances = []disturbance{
		{"the leader is suspended for longer than its lease, and resumes", 0, 0, 10, (*chaos).stopLeader},
	}
)

func (d *disturbance) times() int {
	switch {
	case *times > 0:
		return *times * d.full
	case testing.Short():
		return d.short
	default:
		return d.brief
	}
}

// inRandomOrder runs all disturbances, and stops when the test fails. It returns how often each disturbance succeeded.
func (c *chaos) inRandomOrder(ctx context.Context, disturbances []disturbance) map[string]int {
	done := map[string]int{}
	order := c.order(disturbances)
	for i, d := range order {
		c.once(ctx, d, fmt.Sprintf("%d/%d", i+1, len(order)))
		if c.t.Failed() {
			break
		}
		done[d.what]++
	}
	return done
}

// order returns all disturbances in random order. Each disturbance occurs as often as it must run.
func (c *chaos) order(disturbances []disturbance) (all []disturbance) {
	for _, d := range disturbances {
		all = append(all, slices.Repeat([]disturbance{d}, d.times())...)
	}
	c.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// once runs a disturbance. Then it waits for up to a second, so the next disturbance may begin before the operator has
// recovered.
func (c *chaos) once(ctx context.Context, d disturbance, progress string) {
	c.t.Helper()
	began := time.Now()
	if err := d.do(c, ctx); err != nil {
		c.t.Errorf("%s: %v", d.what, err)
		return
	}
	took := time.Since(began)
	<-time.After(c.upTo(time.Second))
	n := c.check()
	c.t.Logf("%5.0fs %7s %s (%.1fs); %d revisions", time.Since(c.start).Seconds(), progress, d.what, took.Seconds(), n)
}

// upTo returns a random duration in [0, most).
func (c *chaos) upTo(most time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(most)))
}

// settle waits until all Machines and switches have converged. Then each Machine has its number of switches, and all
// switches with an owner are down.
//
// First it restarts the garbage collector of Kubernetes. While the garbage collector is disconnected, a Machine may be
// deleted and recreated with the same name. The garbage collector sees this as an update, and keeps the old Machine's
// switches.
func (c *chaos) settle() {
	c.t.Helper()
	if err := c.plane.RestartControllers(); err != nil {
		c.t.Fatal(err)
	}
	for _, r := range c.replicas {
		if err := r.awaitReady(c.t.Context()); err != nil {
			c.t.Fatal(err)
		}
	}
	began := time.Now()
	var wrong error
	err := wait.PollUntilContextTimeout(c.t.Context(), time.Second, patience, true, func(ctx context.Context) (bool, error) {
		found, err := c.wrong(ctx)
		if err == nil {
			wrong = found
		}
		return found == nil, err
	})
	if err != nil {
		c.t.Fatalf("%v: %v", err, wrong)
	}
	c.t.Logf("all Machines and switches converged after %.0fs", time.Since(began).Seconds())
}

// wrong describes each Machine and switch that has not converged. It is nil if all have converged. err is the error of
// a list request.
func (c *chaos) wrong(ctx context.Context) (wrong, err error) {
	all, switches := &v1beta1.MachineList{}, &v1beta1.SwitchList{}
	if err := errors.Join(c.admin.List(ctx, all), c.admin.List(ctx, switches)); err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, m := range all.Items {
		known[string(m.UID)], known[m.Namespace+"/"+m.Name] = true, true
	}
	own := map[types.UID]int{}
	for _, sw := range switches.Items {
		if why := wrongSwitch(&sw, known); why != "" {
			wrong = errors.Join(wrong, fmt.Errorf("switch %s/%s is %s", sw.Namespace, sw.Name, why))
		}
		if owner := metav1.GetControllerOf(&sw); owner != nil {
			own[owner.UID]++
		}
	}
	for _, m := range all.Items {
		want := int(m.Spec.Switches.Count)
		if own[m.UID] != want || !m.DeletionTimestamp.IsZero() || m.Status.ObservedGeneration != m.Generation ||
			m.Status.Positions != strings.Repeat("d", want) || !meta.IsStatusConditionTrue(m.Status.Conditions, v1beta1.ConditionReady) {
			wrong = errors.Join(wrong, fmt.Errorf("%s/%s has %d of %d switches: %+v", m.Namespace, m.Name, own[m.UID], want, m))
		}
	}
	return wrong, nil
}

// wrongSwitch describes why a switch has not converged, or returns "". The keys of known are the UIDs and the
// namespace/name of all Machines.
func wrongSwitch(sw *v1beta1.Switch, known map[string]bool) string {
	owner := metav1.GetControllerOf(sw)
	switch {
	case !sw.DeletionTimestamp.IsZero():
		return "being deleted"
	case owner == nil && known[sw.Namespace+"/"+sw.Labels[v1beta1.MachineLabel]]:
		return "not adopted by " + sw.Labels[v1beta1.MachineLabel]
	case owner != nil && !known[string(owner.UID)]:
		return "owned by a deleted Machine"
	case owner != nil && sw.Spec.Position != v1beta1.PositionDown:
		return "up"
	default:
		return ""
	}
}

// rest checks that the operator writes nothing more after everything has converged.
func (c *chaos) rest() {
	c.t.Helper()
	rest := 5 * time.Second
	if *times > 0 {
		rest = time.Minute
	}
	before := c.check()
	<-time.After(rest)
	if after := c.check(); after != before {
		c.t.Errorf("%d revisions after everything had converged", after-before)
	}
}

// report logs how often each disturbance succeeded, and how often each kind of user request ran.
func (c *chaos) report(disturbances []disturbance, done map[string]int) {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	for _, d := range disturbances {
		fmt.Fprintf(table, "%d\t%s\n", done[d.what], d.what)
	}
	fmt.Fprintf(table, "\nrequests\trejected\t\n")
	for _, d := range requests {
		fmt.Fprintf(table, "%d\t%d\t%s\n", c.sent[d.what], c.rejected[d.what], d.what)
	}
	_ = table.Flush()
	n := c.check()
	c.t.Logf("%.0fs, seed %d, %d revisions: %d by the operator, %d by an unknown author\n%s",
		time.Since(c.start).Seconds(), *seed, n, c.operators, c.unknown, text.String())
}

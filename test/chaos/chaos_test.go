// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos has everything go wrong around the operator on a real control plane, while users go on using it: it
// is killed, stopped and cut off, and so is the API server. All revisions of Machines and switches are judged.
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
	"container.training/useless/test/history"
)

var (
	times = flag.Int("times", 0, "multiple of how often each disturbance comes; 0 is a brief run without the slow ones")
	seed  = flag.Uint64("seed", 1, "of what happens when, as far as a seed can say")
)

// maxLag is how old what the operator acts on may be: it is stopped, or cut off, for less than that.
const maxLag = time.Minute

// A chaos is a world, its users and what is recorded of it.
type chaos struct {
	*world
	*users
	t        *testing.T
	random   *rand.Rand
	start    time.Time
	recorder *history.Recorder

	checker   *history.Checker
	revisions int
	operators int // of those, by the operator
	unknown   int // of those, by nobody knows whom
	written   *json.Encoder
}

// TestChaos disturbs an operator of one replica, without leader election.
func TestChaos(t *testing.T) {
	t.Parallel()
	disturb(t, disturbances, func(c *chaos) { c.replica() })
}

// TestLeaders disturbs an operator of two replicas, one of which leads.
func TestLeaders(t *testing.T) {
	if *times == 0 {
		t.Skip("each disturbance takes longer than a lease: make chaos runs it")
	}
	t.Parallel()
	disturb(t, leaderDisturbances, func(c *chaos) {
		for range 2 {
			c.replica("--leader-elect")
		}
	})
}

// disturb starts replicas on a control plane of their own. It runs all disturbances while users work, and then waits
// until everything is as it should be.
func disturb(t *testing.T, disturbances []disturbance, start func(*chaos)) {
	t.Helper()
	c := &chaos{world: newWorld(t), t: t, random: rand.New(rand.NewPCG(*seed, *seed)), start: time.Now(), checker: history.NewChecker(maxLag)}
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
	done := c.inSomeOrder(t.Context(), disturbances)
	calm()
	acting.Wait()
	defer c.report(disturbances, done)
	if t.Failed() {
		return
	}
	c.settle()
	c.rest()
	if c.unlikely != nil {
		t.Error("users were told what they should not be:", c.unlikely)
	}
	if c.operators == 0 || c.unknown > c.revisions/10 {
		t.Errorf("of %d revisions %d are by the operator, and %d by nobody knows whom", c.revisions, c.operators, c.unknown)
	}
}

// record judges everything from now on, and keeps it beside the operator's logs.
func (c *chaos) record() {
	file, err := os.Create(filepath.Join(c.logs, "history.jsonl"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.written = json.NewEncoder(file)
	// Not t.Context(), whose end would look like a failure.
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(func() {
		cancel()
		_ = file.Close()
	})
	audit := history.Audit{Log: c.plane.AuditLog(), Operator: serviceaccount.MakeUsername(operatorNamespace, operatorAccount)}
	if c.recorder, err = history.Record(ctx, c.plane.Etcd(), audit); err != nil {
		c.t.Fatal(err)
	}
}

func (c *chaos) see(r history.Revision) {
	c.checker.See(r)
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

// judge fails the test for what must not have happened so far, and returns how many revisions there were.
func (c *chaos) judge() int {
	revisions, err := c.recorder.Take(c.t.Context(), metav1.NamespaceAll)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range revisions {
		c.see(r)
	}
	for _, fault := range c.checker.Faults() {
		c.t.Error(fault)
	}
	return c.revisions
}

// A disturbance is something that goes wrong.
type disturbance struct {
	what               string
	short, brief, full int // how often: with -short, without -times, and with -times 1
	do                 func(*chaos, context.Context) error
}

var (
	disturbances = []disturbance{
		{"the operator is killed", 1, 5, 50, (*chaos).kill},
		{"the API server is killed", 1, 1, 5, (*chaos).restartAPIServer},
		{"etcd is compacted, and all connections are reset", 0, 1, 5, (*chaos).compact},
		{"connections are slow", 0, 1, 5, (*chaos).slow},
		{"connections are reset", 1, 2, 15, (*chaos).reset},
		{"connections are lost, which nobody is told", 0, 0, 3, (*chaos).lose},
		{"the webhooks are away", 0, 1, 5, (*chaos).hideWebhooks},
		{"the webhooks' certificates are rotated", 0, 1, 5, (*chaos).rotate},
		{"a ResourceQuota refuses switches", 0, 1, 5, (*chaos).refuse},
		{"the API server has no time for the operator (429)", 0, 1, 5, (*chaos).throttle},
	}
	leaderDisturbances = []disturbance{
		{"the leader is stopped for longer than its lease, and goes on", 0, 0, 10, (*chaos).stopLeader},
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

// inSomeOrder runs all disturbances, until something is wrong that must not be. It returns how often each one ran.
func (c *chaos) inSomeOrder(ctx context.Context, disturbances []disturbance) map[string]int {
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

// order is one in which everything happens as often as it is to.
func (c *chaos) order(disturbances []disturbance) (all []disturbance) {
	for _, d := range disturbances {
		all = append(all, slices.Repeat([]disturbance{d}, d.times())...)
	}
	c.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// once has something go wrong, and lets the operator recover, or not quite.
func (c *chaos) once(ctx context.Context, d disturbance, progress string) {
	c.t.Helper()
	began := time.Now()
	if err := d.do(c, ctx); err != nil {
		c.t.Errorf("%s: %v", d.what, err)
		return
	}
	took := time.Since(began)
	<-time.After(c.upTo(time.Second))
	n := c.judge()
	c.t.Logf("%5.0fs %7s %s (%.1fs); %d revisions", time.Since(c.start).Seconds(), progress, d.what, took.Seconds(), n)
}

// upTo is some time.
func (c *chaos) upTo(most time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(most)))
}

// settle waits until every Machine and every switch is what it should be.
//
// It restarts Kubernetes' garbage collector, which keeps the switches of a Machine that was deleted, and created again under
// its name, while the collector heard nothing: what it then reads looks to it like a change of the first one.
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
	c.t.Logf("everything was as it should be after %.0fs", time.Since(began).Seconds())
}

// wrong says what of Machines and switches is not as it should be.
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

// wrongSwitch says what a switch should not be. Machines are known by UID, and by namespace and name.
func wrongSwitch(sw *v1beta1.Switch, known map[string]bool) string {
	owner := metav1.GetControllerOf(sw)
	switch {
	case !sw.DeletionTimestamp.IsZero():
		return "being deleted"
	case owner == nil && known[sw.Namespace+"/"+sw.Labels[v1beta1.MachineLabel]]:
		return "not adopted by " + sw.Labels[v1beta1.MachineLabel]
	case owner != nil && !known[string(owner.UID)]:
		return "of a Machine that is gone"
	case owner != nil && sw.Spec.Position != v1beta1.PositionDown:
		return "up"
	default:
		return ""
	}
}

// rest looks whether nothing is written once there is nothing to do.
func (c *chaos) rest() {
	c.t.Helper()
	rest := 5 * time.Second
	if *times > 0 {
		rest = time.Minute
	}
	before := c.judge()
	<-time.After(rest)
	if after := c.judge(); after != before {
		c.t.Errorf("%d revisions when there was nothing to do", after-before)
	}
}

// report logs how often each disturbance and each request of a user ran.
func (c *chaos) report(disturbances []disturbance, done map[string]int) {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	for _, d := range disturbances {
		fmt.Fprintf(table, "%d\t%s\n", done[d.what], d.what)
	}
	fmt.Fprintf(table, "\nasked\trefused\t\n")
	for _, d := range deeds {
		fmt.Fprintf(table, "%d\t%d\t%s\n", c.asked[d.what], c.refused[d.what], d.what)
	}
	_ = table.Flush()
	n := c.judge()
	c.t.Logf("%.0fs, seed %d, %d revisions, of which %d are by the operator, and %d by nobody knows whom\n%s",
		time.Since(c.start).Seconds(), *seed, n, c.operators, c.unknown, text.String())
}

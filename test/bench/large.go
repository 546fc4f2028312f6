// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/versioned"
)

// large measures the operator with 100,000 Switches that have all been turned down before: starts, starts while users
// turn Switches up, and the activity at rest after the last start. With a base, the two revisions take turns, with more
// starts and fewer Machines. Only the starts without users are then measured.
func large(ctx context.Context, b *bench) error {
	s, rounds, rest := b.large(), 5, time.Minute
	if b.base != nil && !b.quick {
		rounds = 15
	} else if b.base == nil && b.quick {
		rounds, rest = 2, 5*time.Second
	}
	b.log("%s: preparing", s)
	prepare := func(e *environment) error {
		// kube-apiserver needs minutes to convert 100,000 Switches for its cache of v1alpha1.
		if err := e.stopV1alpha1(ctx); err != nil {
			return err
		}
		return e.fill(ctx, s)
	}
	return b.inTurns(ctx, rounds, prepare, func(e *environment, round int) error {
		if err := e.quiesce(ctx); err != nil {
			return err
		}
		_, r, err := b.restart(ctx, e, s)
		if err == nil {
			r.Case, r.Round = "start", round
			err = b.record(r)
		}
		if err != nil || b.base != nil || round < rounds {
			return err
		}
		p, err := b.startsWithUsers(ctx, e, s, (rounds+1)/2)
		if err != nil {
			return err
		}
		return b.rest(ctx, e, s, p, rest)
	})
}

// quiesce ends the operator and waits until the control plane is almost idle.
func (e *environment) quiesce(ctx context.Context) error {
	e.killProcesses()
	return awaitQuiet(ctx, e)
}

// restart starts the operator with webhooks and leader election, as in config/manager, and waits until it has
// reconciled every Machine. It returns a record without its case and round. Values:
//   - seconds: from the start until the operator has reconciled all Machines
//   - cached_seconds: from the start until the first reconcile, which is after the caches are filled
//   - peak_bytes: the maximum resident memory of the operator
//   - cgroup_peak_bytes: the maximum memory of the operator's cgroup; the text "cgroup" is the reason if there is none
//   - cpu_subject_seconds, cpu_apiserver_seconds: the CPU time of the operator and of kube-apiserver
//   - received_bytes: what the operator has read, almost all of it from kube-apiserver
//   - writes: the write requests of all clients for Machines and Switches
//   - events: the write requests for events; the leader election emits one
func (b *bench) restart(ctx context.Context, e *environment, s size) (p *process, r Record, err error) {
	before, err := e.costs(ctx)
	if err != nil {
		return nil, r, err
	}
	start := time.Now()
	// The new process belongs to the same Pod as its predecessor, so it takes the Lease of the Pod at once.
	pod := "--pod-uid=" + filepath.Base(e.plane.Dir)
	if p, err = e.startManager(e.rev.name, "--webhooks", "--leader-elect", pod); err != nil {
		return nil, r, err
	}
	addPeak := p.limitMemory(e.memoryLimit * containerLimit / installedLimit)
	if err := p.awaitReconciles(ctx, 1); err != nil {
		return nil, r, err
	}
	cached := time.Since(start).Seconds()
	if err := p.awaitReconciles(ctx, s.machines); err != nil {
		return nil, r, err
	}
	seconds := time.Since(start).Seconds()
	r.Subject = e.rev.name
	if r.Values, err = e.costs(ctx); err != nil {
		return nil, r, err
	}
	subtract(r.Values, before)
	r.Values["cached_seconds"], r.Values["seconds"] = cached, seconds
	err = errors.Join(p.addUse(r.Values), addPeak(&r))
	b.log("%s: a start of %s took %.1fs, %.1fs to fill the caches; CPU time %.1fs, kube-apiserver %.1fs; "+
		"%.0f writes, %.0f MiB of memory, %.1f MiB received", s, e.rev.name, seconds, cached, r.Values["cpu_subject_seconds"],
		r.Values["cpu_apiserver_seconds"], r.Values["writes"], r.Values["peak_bytes"]/(1<<20),
		r.Values["received_bytes"]/(1<<20))
	return p, r, err
}

// costs returns the write requests and the CPU time of kube-apiserver until now.
func (e *environment) costs(ctx context.Context) (values map[string]float64, err error) {
	values = map[string]float64{}
	if values["cpu_apiserver_seconds"], err = cpuSeconds(e.apiServer()); err != nil {
		return nil, err
	}
	if values["writes"], err = e.writes(ctx, "machines", "switches"); err != nil {
		return nil, err
	}
	values["events"], err = e.writes(ctx, "events")
	return values, err
}

// addUse adds what the operator has used since its start.
func (p *process) addUse(values map[string]float64) (err error) {
	if values["cpu_subject_seconds"], err = cpuSeconds(p.Process); err != nil {
		return err
	}
	if values["peak_bytes"], err = peakMemory(p.Process); err != nil {
		return err
	}
	values["received_bytes"], err = p.received()
	return err
}

// received returns the number of bytes that the process has read since its start.
func (p *process) received() (float64, error) {
	proc, err := procfs.NewProc(p.PID())
	if err != nil {
		return 0, err
	}
	io, err := proc.IO()
	return float64(io.RChar), err
}

// withUsers is the case of startsWithUsers. It has the requests per second.
const withUsers = "start, 20/s"

// startsWithUsers measures starts while users turn Switches up. It records the time from a user's request until the
// operator notices the Switch, for all starts together:
//   - edits, edits_per_second: the number and the rate of the requests
//   - notice_p50_seconds, notice_max_seconds
//   - notice_p99_seconds: only with at least 1,000 requests
func (b *bench) startsWithUsers(ctx context.Context, e *environment, s size, rounds int) (p *process, err error) {
	const perSecond = 20
	t := &turns{env: e, size: s, order: rand.New(rand.NewPCG(5, 6)).Perm(s.machines)}
	for round := 1; round <= rounds; round++ {
		if err := e.quiesce(ctx); err != nil {
			return nil, err
		}
		started := make(chan struct{})
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return t.run(ctx, started, time.Second/perSecond) })
		group.Go(func() (err error) {
			defer close(started)
			var r Record
			if p, r, err = b.restart(ctx, e, s); err != nil {
				return err
			}
			r.Case, r.Round = withUsers, round
			return b.record(r)
		})
		if err := group.Wait(); err != nil {
			return nil, err
		}
	}
	values := map[string]float64{
		"edits": float64(len(t.waits)), "edits_per_second": perSecond,
		"notice_p50_seconds": percentile(t.waits, 50), "notice_max_seconds": percentile(t.waits, 100),
	}
	if len(t.waits) >= 1_000 {
		values["notice_p99_seconds"] = percentile(t.waits, 99)
	}
	b.log("%s: the operator notices %d changes after %.2fs (p50), at most %.2fs",
		s, len(t.waits), values["notice_p50_seconds"], values["notice_max_seconds"])
	return p, b.record(Record{Case: withUsers, Subject: e.rev.name, Values: values})
}

// turns are requests that turn Switches up. Each request is for another Machine.
type turns struct {
	env   *environment
	size  size
	order []int // numbers of the Machines, in random order
	n     int   // number of requests

	waits []float64 // seconds until the operator noticed the Switches
}

// next returns the name of the next Machine.
func (t *turns) next() string {
	t.n++
	return nameOf(t.order[t.n%t.size.machines])
}

// run turns one Switch up in each interval until the channel is closed. Then it waits until all Switches are down.
func (t *turns) run(ctx context.Context, until <-chan struct{}, interval time.Duration) error {
	watcher, err := t.watch(ctx)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	group, ctx := errgroup.WithContext(ctx)
	user := &users{env: t.env}
	pending := map[string]time.Time{} // the times of the requests; zero when the operator has noticed the Switch
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for until != nil || len(pending) > 0 {
		select {
		case <-until:
			until = nil
			ticker.Stop()
		case now := <-ticker.C:
			machine := t.next()
			pending[machine+"-0"] = now
			group.Go(func() error { return user.turnUp(ctx, machine) })
		case event := <-watcher.ResultChan():
			sw, ok := event.Object.(*v1beta1.Switch)
			if !ok {
				return fmt.Errorf("the watch of Switches ended: %v", event.Object)
			}
			t.hear(sw, pending)
		case <-ctx.Done():
			return errors.Join(group.Wait(), ctx.Err())
		case <-time.After(patience):
			return fmt.Errorf("no Switch has changed for %s, and %d are up", patience, len(pending))
		}
	}
	return group.Wait()
}

// hear removes a pending Switch that is down again. If the operator has noticed that a Switch is up, hear adds the time
// since the request to waits.
func (t *turns) hear(sw *v1beta1.Switch, pending map[string]time.Time) {
	asked, ok := pending[sw.Name]
	switch {
	case !ok:
	case sw.Spec.Position == v1beta1.PositionDown:
		delete(pending, sw.Name)
	case sw.Status.ObservedGeneration == sw.Generation && !asked.IsZero():
		t.waits = append(t.waits, time.Since(asked).Seconds())
		pending[sw.Name] = time.Time{}
	}
}

// watch returns all changes of Switches from now on. If the API server ends a watch because it considers the client
// slow, the RetryWatcher continues.
func (t *turns) watch(ctx context.Context) (watch.Interface, error) {
	clientset, err := versioned.NewForConfig(t.env.plane.Config)
	if err != nil {
		return nil, err
	}
	switches := clientset.UselessV1beta1().Switches(metav1.NamespaceAll)
	list, err := switches.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	return toolswatch.NewRetryWatcherWithContext(
		ctx, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: switches.Watch})
}

// rest records the operator's activity while nothing changes.
//
// Values:
//   - seconds: the length of the measurement
//   - lease_writes: renewals of the operator's Lease
//   - writes: all other requests of the operator that are not reads
//   - cpu_ratio, apiserver_cpu_ratio: the shares of one core of the operator and of kube-apiserver
func (b *bench) rest(ctx context.Context, e *environment, s size, p *process, length time.Duration) error {
	if err := awaitQuiet(ctx, e); err != nil {
		return err
	}
	before, err := e.activity(ctx, p)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := pause(ctx, length); err != nil {
		return err
	}
	values, err := e.activity(ctx, p)
	if err != nil {
		return err
	}
	subtract(values, before)
	values["seconds"] = time.Since(start).Seconds()
	values["cpu_ratio"] = values["cpu_subject_seconds"] / values["seconds"]
	values["apiserver_cpu_ratio"] = values["cpu_apiserver_seconds"] / values["seconds"]
	b.log("%s: at rest %.0f writes, %.0f renewals of the Lease, %.2f %% of a core; kube-apiserver %.2f %%", s,
		values["writes"], values["lease_writes"], 100*values["cpu_ratio"], 100*values["apiserver_cpu_ratio"])
	return b.record(Record{Case: "rest", Subject: e.rev.name, Round: 1, Values: values})
}

// activity is usage without the renewals of the Lease among the writes.
func (e *environment) activity(ctx context.Context, p *process) (map[string]float64, error) {
	values, err := e.usage(ctx, p)
	if err != nil {
		return nil, err
	}
	leases, err := e.readEtcd(ctx, "/registry/leases/useless-system/")
	for _, lease := range leases {
		values["lease_writes"] += float64(lease.Version)
	}
	values["writes"] -= values["lease_writes"]
	return values, err
}

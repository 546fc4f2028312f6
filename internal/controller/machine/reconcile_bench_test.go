// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/informer"
	"container.training/useless/internal/patch"
	"container.training/useless/internal/queue"
)

// maxNoOpAllocations is the maximum number of allocations of a reconcile that changes nothing. The number does not
// depend on the computer or on the number of Machines. The client needs 17 of these allocations, because it waits for
// the operator's own writes.
const maxNoOpAllocations = 58

// maxNoOpSlope is the maximum ratio of the time with 10,000 Machines to the time with 100. The ratio is 1 on an idle
// computer, and up to 1.3 on a busy computer. If a reconcile also listed the pointers to all Machines, the ratio would
// be 11.
const maxNoOpSlope = 3.0

func TestNoOpReconcile(t *testing.T) {
	few, many := newIdleController(t, 100, 10), newIdleController(t, 10_000, 10)
	for machines, c := range map[int]*Controller{100: few, 10_000: many} {
		request := requestFor(machines / 2)
		allocations := testing.AllocsPerRun(100, func() { reconcileNoOp(t, c, request) })
		t.Logf("%d machines: %.0f allocations", machines, allocations)
		if allocations > maxNoOpAllocations {
			t.Errorf("a no-op reconcile with %d Machines allocates %.0f times, want at most %d", machines, allocations,
				maxNoOpAllocations)
		}
	}
	// The minimum of many short measurements excludes other load on the computer. Measurements with few and with many
	// Machines alternate.
	withFew, withMany := time.Hour, time.Hour
	for range 200 {
		withFew = min(withFew, duration(t, few, 20, 1, 1))
		withMany = min(withMany, duration(t, many, 20, 1, 100))
	}
	ratio := float64(withMany) / float64(withFew)
	t.Logf("with 10,000 Machines it takes %.2f times as long as with 100", ratio)
	if ratio > maxNoOpSlope {
		t.Errorf("a no-op reconcile with 10,000 Machines takes %.2f times as long as with 100, want at most %.2f",
			ratio, maxNoOpSlope)
	}
}

// BenchmarkNoOpReconcile reconciles all Machines in turn. With many Machines, cache misses of the CPU dominate.
func BenchmarkNoOpReconcile(b *testing.B) {
	for _, machines := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("machines=%d", machines), func(b *testing.B) {
			c := newIdleController(b, machines, 10)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				reconcileNoOp(b, c, requestFor(i%machines))
				i++
			}
		})
	}
}

// BenchmarkNoOpReconcileSlope reports the median ratio of the times with 10,000 and with 100 Machines. If it reconciles
// one Machine, the ratio shows only additional work. If it reconciles 100 Machines in turn, the ratio also shows cache
// misses of the CPU.
func BenchmarkNoOpReconcileSlope(b *testing.B) {
	few, many := newIdleController(b, 100, 10), newIdleController(b, 10_000, 10)
	for _, distinct := range []int{1, 100} {
		b.Run(fmt.Sprintf("machines=%d", distinct), func(b *testing.B) {
			var ratios []float64
			for b.Loop() {
				ratios = append(ratios, slope(b, few, many, distinct))
			}
			b.ReportMetric(median(ratios), "ratio")
		})
	}
}

// slope returns the ratio of the times with 10,000 and with 100 Machines. The argument distinct is the number of
// Machines that it reconciles in turn. One call takes a few milliseconds. So other load on the computer changes both
// times by the same factor, or changes only a few of many samples.
func slope(t testing.TB, few, many *Controller, distinct int) float64 {
	t.Helper()
	a1, b1 := duration(t, few, 100, distinct, 1), duration(t, many, 100, distinct, 100)
	b2, a2 := duration(t, many, 100, distinct, 100), duration(t, few, 100, distinct, 1)
	return float64(b1+b2) / float64(a1+a2)
}

// duration returns the time of n reconciles. The argument distinct is the number of Machines that it reconciles in
// turn, and stride is the difference between the numbers of consecutive Machines.
func duration(t testing.TB, c *Controller, n, distinct, stride int) time.Duration {
	t.Helper()
	start := clock.RealClock{}.Now()
	for i := range n {
		reconcileNoOp(t, c, requestFor(i%distinct*stride))
	}
	return clock.RealClock{}.Since(start)
}

func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

func reconcileNoOp(t testing.TB, c *Controller, request reconcile.Request) {
	t.Helper()
	result, err := c.Reconcile(context.Background(), request)
	if err != nil || result != (reconcile.Result{}) {
		t.Fatalf("got %+v, %v", result, err)
	}
}

func requestFor(i int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default",
		Name: fmt.Sprintf("machine-%d", i)}}
}

// newIdleController returns a controller whose cache has idle Machines. There is no API server, so a write fails.
func newIdleController(t testing.TB, machines, switchesEach int) *Controller {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1beta1.GroupVersion.WithKind("Machine"), meta.RESTScopeNamespace)
	mapper.Add(v1beta1.GroupVersion.WithKind("Switch"), meta.RESTScopeNamespace)

	machineList, switchList := idleMachines(machines, switchesEach)
	informers, err := cache.New(&rest.Config{}, cache.Options{
		Scheme: scheme, Mapper: mapper, ByObject: Options{}.CacheOptions(),
		NewInformer: func(_ toolscache.ListerWatcher, kind runtime.Object, resync time.Duration,
			indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			var list runtime.Object = machineList
			if _, ok := kind.(*v1beta1.Switch); ok {
				list = switchList
			}
			return toolscache.NewSharedIndexInformer(staticListWatch{list}, kind, resync, indexers)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)),
		finalizer: &patch.Finalizer{Name: v1beta1.MachineFinalizer}}
	c.alarms, c.statuses = queue.NewAlarms(c.clock), queue.NewAlarms(c.clock)
	c.client, err = client.New(&rest.Config{},
		client.Options{Scheme: scheme, Mapper: mapper, Cache: &client.CacheOptions{
			Reader: informers, EnableReadYourWritesConsistency: new(true),
		}})
	if err != nil {
		t.Fatal(err)
	}
	if c.switches, err = informer.Store(t.Context(), informers, &v1beta1.Switch{}, switchIndexers); err != nil {
		t.Fatal(err)
	}
	if c.machines, err = informer.Store(t.Context(), informers, &v1beta1.Machine{}, machineIndexers); err != nil {
		t.Fatal(err)
	}
	c.metrics = newMetrics(prometheus.NewRegistry(), c.machines)
	go func() { _ = informers.Start(t.Context()) }()
	if !informers.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache did not fill")
	}
	return c
}

// staticListWatch lists objects that never change.
type staticListWatch struct{ list runtime.Object }

func (s staticListWatch) List(metav1.ListOptions) (runtime.Object, error) { return s.list, nil }
func (s staticListWatch) Watch(metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}
func (s staticListWatch) IsWatchListSemanticsUnSupported() bool { return true }

func idleMachines(machines, switchesEach int) (*v1beta1.MachineList, *v1beta1.SwitchList) {
	now := time.Unix(1e9, 0)
	machineList := &v1beta1.MachineList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	switchList := &v1beta1.SwitchList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for i := range machines {
		m := v1beta1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: requestFor(i).Name, UID: types.UID(fmt.Sprintf("uid-%d", i)),
				ResourceVersion: "1",
				Generation:      1, CreationTimestamp: metav1.NewTime(now), Finalizers: []string{v1beta1.MachineFinalizer},
			},
			Spec: v1beta1.MachineSpec{
				Switches: v1beta1.SwitchesSpec{Count: int32(switchesEach)}, Position: v1beta1.PositionDown,
				Flip: v1beta1.FlipSpec{DelaySeconds: new(int32(5)), IntervalSeconds: new(int32(5))},
			},
		}
		var own []*v1beta1.Switch
		for range switchesEach {
			sw := newTestSwitch(fmt.Sprintf("%s-%d", m.Name, len(own)))
			sw.ResourceVersion, sw.Labels[v1beta1.MachineLabel] = "1", m.Name
			sw.OwnerReferences[0].Name, sw.OwnerReferences[0].UID = m.Name, m.UID
			sw.Annotations = map[string]string{v1beta1.FlippedAtAnnotation: "2001-09-09T01:46:40.000000Z"}
			switchList.Items = append(switchList.Items, *sw)
			own = append(own, sw)
		}
		selector, _ := m.SwitchSelector()
		m.Status = newStatus(&m, plan{selector: selector, mine: own, lastFlip: lastFlip(&m, own, time.Time{}, now)},
			outcome{}, now)
		machineList.Items = append(machineList.Items, m)
	}
	return machineList, switchList
}

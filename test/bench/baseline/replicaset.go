// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/client/informers"
	"container.training/useless/client/versioned"
	typed "container.training/useless/client/versioned/typed/useless/v1beta1"
)

const (
	// workers is the number of concurrent syncs. The default of kube-controller-manager is 5. With 20 workers, the
	// algorithm is faster. More workers do not make it faster.
	workers = 20
	burst   = 500 // maximum number of Switches that one sync creates

	ownerIndex = "owner" // finds Switches by the UID of their controller
)

// replicaSetAlgorithm is the algorithm of Kubernetes' ReplicaSet controller, with Machines instead of ReplicaSets and
// with Switches instead of Pods. It emits no events, and does not delete, adopt or release Switches. The ReplicaSet
// controller emits an event for each Pod.
type replicaSetAlgorithm struct {
	clientset typed.UselessV1beta1Interface
	machines  cache.Indexer
	switches  cache.Indexer
	queue     workqueue.TypedRateLimitingInterface[string]
	pending   pending
}

// RunReplicaSetAlgorithm creates the Switches of all Machines, and writes their statuses, until the context ends.
func RunReplicaSetAlgorithm(ctx context.Context, config *rest.Config) error {
	clientset, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(clientset, 0)
	machines := factory.Useless().V1beta1().Machines().TypedInformer()
	switches := factory.Useless().V1beta1().Switches().TypedInformer()
	a := &replicaSetAlgorithm{
		clientset: clientset.UselessV1beta1(), machines: machines.GetIndexer(), switches: switches.GetIndexer(),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		pending: pending{creations: map[string]int{}, versions: map[write]string{}},
	}
	defer a.queue.ShutDown()
	if err := a.watch(machines, switches); err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		return err
	}
	for range workers {
		go a.work(ctx)
	}
	<-ctx.Done()
	return nil
}

// watch adds Machines to the queue when they or their Switches change.
func (a *replicaSetAlgorithm) watch(
	machines cache.TypedSharedIndexInformer[*v1beta1.Machine], switches cache.TypedSharedIndexInformer[*v1beta1.Switch],
) error {
	enqueue := func(m *v1beta1.Machine) { a.queue.Add(keyOf(m)) }
	_, machinesErr := machines.AddTypedEventHandler(cache.TypedResourceEventHandlerFuncs[*v1beta1.Machine]{
		AddFunc:    enqueue,
		UpdateFunc: func(_, m *v1beta1.Machine) { enqueue(m) },
	})
	_, switchesErr := switches.AddTypedEventHandler(cache.TypedResourceEventHandlerFuncs[*v1beta1.Switch]{
		AddFunc: func(sw *v1beta1.Switch) {
			if m := a.machineOf(sw); m != nil {
				a.pending.observe(keyOf(m), 1)
				enqueue(m)
			}
		},
		UpdateFunc: func(_, sw *v1beta1.Switch) {
			if m := a.machineOf(sw); m != nil {
				enqueue(m)
			}
		},
	})
	return errors.Join(machinesErr, switchesErr, switches.AddTypedIndexers(cache.TypedIndexers[*v1beta1.Switch]{
		ownerIndex: func(sw *v1beta1.Switch) ([]string, error) {
			if owner := metav1.GetControllerOfNoCopy(sw); owner != nil {
				return []string{string(owner.UID)}, nil
			}
			return nil, nil
		},
	}))
}

func keyOf(object metav1.Object) string { return cache.MetaObjectToName(object).String() }

// machineOf returns the Machine that controls a Switch, or nil if there is none.
func (a *replicaSetAlgorithm) machineOf(sw *v1beta1.Switch) *v1beta1.Machine {
	owner := metav1.GetControllerOfNoCopy(sw)
	if owner == nil || owner.Kind != "Machine" {
		return nil
	}
	object, exists, err := a.machines.GetByKey(sw.Namespace + "/" + owner.Name)
	if err != nil || !exists || object.(*v1beta1.Machine).UID != owner.UID {
		return nil
	}
	return object.(*v1beta1.Machine)
}

// work reconciles Machines from the queue until the queue shuts down.
func (a *replicaSetAlgorithm) work(ctx context.Context) {
	for key, shutdown := a.queue.Get(); !shutdown; key, shutdown = a.queue.Get() {
		if err := a.sync(ctx, key); err != nil {
			utilruntime.HandleErrorWithContext(ctx, err, "Cannot reconcile the Machine", "machine", key)
			a.queue.AddRateLimited(key)
		} else {
			a.queue.Forget(key)
		}
		a.queue.Done(key)
	}
}

// sync creates missing Switches and updates the status. The status does not count the Switches that this sync creates:
// their watch events cause the next sync.
func (a *replicaSetAlgorithm) sync(ctx context.Context, key string) error {
	if !a.pending.cached(write{key, a.machines}) || !a.pending.cached(write{key, a.switches}) {
		return errors.New("the cache does not show all writes of the Machine")
	}
	object, exists, err := a.machines.GetByKey(key)
	if err != nil || !exists {
		return err
	}
	m, satisfied := object.(*v1beta1.Machine), a.pending.satisfied(key)
	n, err := a.count(m)
	if err != nil {
		return err
	}
	var failed error
	if satisfied && m.DeletionTimestamp.IsZero() {
		failed = a.create(ctx, m, min(int(m.Spec.Switches.Count-n), burst))
	}
	if err := a.updateStatus(ctx, m, statusOf(m, n)); err != nil {
		return err
	}
	return failed
}

// count returns the number of a Machine's Switches in the cache.
func (a *replicaSetAlgorithm) count(m *v1beta1.Machine) (n int32, err error) {
	owned, err := a.switches.ByIndex(ownerIndex, string(m.UID))
	for _, object := range owned {
		if sw := object.(*v1beta1.Switch); sw.DeletionTimestamp.IsZero() && sw.Labels[v1beta1.MachineLabel] == m.Name {
			n++
		}
	}
	return n, err
}

// create creates n Switches. If requests fail, it no longer expects the Switches that it has not created.
func (a *replicaSetAlgorithm) create(ctx context.Context, m *v1beta1.Machine, n int) error {
	if n <= 0 {
		return nil
	}
	key := keyOf(m)
	a.pending.expect(key, n)
	created, err := slowStart(n, func() error {
		sw := newSwitch(m, "")
		sw.GenerateName = m.Name + "-"
		sw, err := a.clientset.Switches(m.Namespace).Create(ctx, sw, metav1.CreateOptions{})
		if err == nil {
			a.pending.wrote(write{key, a.switches}, sw.ResourceVersion)
		}
		return err
	})
	a.pending.observe(key, n-created)
	return err
}

// slowStart sends n requests in batches that double in size while they succeed: 1, 2, 4, … It returns the number of
// successful requests.
func slowStart(n int, request func() error) (succeeded int, err error) {
	for size := 1; succeeded < n && err == nil; size *= 2 {
		var batch errgroup.Group
		var successes atomic.Int32
		for range min(size, n-succeeded) {
			batch.Go(func() error {
				err := request()
				if err == nil {
					successes.Add(1)
				}
				return err
			})
		}
		err = batch.Wait()
		succeeded += int(successes.Load())
	}
	return succeeded, err
}

// updateStatus writes the status if it has changed. After an error, it tries once more with the current Machine.
func (a *replicaSetAlgorithm) updateStatus(
	ctx context.Context, m *v1beta1.Machine, status v1beta1.MachineStatus,
) error {
	if equality.Semantic.DeepEqual(m.Status, status) {
		return nil
	}
	machines := a.clientset.Machines(m.Namespace)
	update := func(m *v1beta1.Machine) error {
		m.Status = status
		updated, err := machines.UpdateStatus(ctx, m, metav1.UpdateOptions{})
		if err == nil {
			a.pending.wrote(write{keyOf(m), a.machines}, updated.ResourceVersion)
		}
		return err
	}
	if update(m.DeepCopy()) == nil {
		return nil
	}
	current, err := machines.Get(ctx, m.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the Machine: %w", err)
	}
	return update(current)
}

// pending records the writes that the cache may not show yet. Since Kubernetes 1.36, the ReplicaSet controller has the
// resource versions in addition to the expectations.
type pending struct {
	mu        sync.Mutex
	creations map[string]int   // the expectations: for each Machine, the creations that the informer has not observed
	versions  map[write]string // resource versions of the last writes
}

// A write is for a Machine, and changes an object in the cache store.
type write struct {
	machine string
	store   cache.Store
}

// expect replaces the expectations.
func (p *pending) expect(machine string, creations int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.creations[machine] = creations
}

// observe lowers the expectations.
func (p *pending) observe(machine string, creations int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.creations[machine] -= creations
}

// satisfied reports whether the informer has observed all expected creations.
func (p *pending) satisfied(machine string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.creations[machine] <= 0
}

// wrote records the resource version of a write.
func (p *pending) wrote(w write, version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !newer(p.versions[w], version) {
		p.versions[w] = version
	}
}

// cached reports whether the cache shows the last write.
func (p *pending) cached(w write) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !newer(p.versions[w], w.store.LastStoreSyncResourceVersion())
}

// newer reports whether resource version a is newer than b. It returns false if one of them is empty.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

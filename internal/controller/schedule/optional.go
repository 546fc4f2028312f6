// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"container.training/useless/internal/pause"
)

// checkInterval is the maximum time until the operator notices that a CustomResourceDefinition was installed or
// removed.
const checkInterval = 10 * time.Second

// presence watches the workloads of an optional kind while the API server serves the kind. Without presence, the
// informer of a kind that does not exist would prevent the start of all controllers.
type presence struct {
	*Controller
	api   discovery.DiscoveryInterfaceWithContext
	cache cache.Cache
	watch func(source.Source) error // the method Watch of the controller-runtime controller
	log   logr.Logger
}

// addPresence adds a presence for a controller's kind to a manager. It also replaces the client of the controller. A
// read with the manager's client would wait for the first informer of the kind, even if this informer was removed. A
// read with the new client does not wait until the cache has the controller's own writes. So a read may be stale, but
// then the API server rejects the next write.
func (c *Controller) addPresence(mgr ctrl.Manager, running controller.Controller) error {
	api, apiErr := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	reading, err := client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		Cache: &client.CacheOptions{Reader: mgr.GetCache()},
	})
	if err = errors.Join(apiErr, err); err != nil {
		return err
	}
	c.client = client.WithFieldOwner(reading, string(fieldManager))
	c.isSynced = c.newSynced(mgr.GetCache())
	p := &presence{c, api, mgr.GetCache(), running.Watch, mgr.GetLogger().WithName(Name)}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { // runs on the leader only
		wait.UntilWithContext(ctx, p.check, checkInterval)
		return nil
	}))
}

// check starts or stops the watch if the kind was installed or removed.
func (p *presence) check(ctx context.Context) {
	served, err := p.isServed(ctx)
	switch {
	case err != nil:
	case served == p.absent.Load():
		p.log.Info("A kind of workload was installed or removed", "kind", p.kind.gvk.Kind, "installed", served)
		err = p.change(ctx, served)
	case !served:
		err = p.cache.RemoveInformer(ctx, p.kind.object) // a concurrent read may have started another informer
	}
	if err != nil && ctx.Err() == nil {
		p.log.Error(err, "Cannot check whether a kind of workload is installed", "kind", p.kind.gvk.Kind)
	}
}

// newSynced returns a function that reports whether the cache has all workloads of an optional kind. It does not wait.
func (c *Controller) newSynced(informers cache.Informers) func(context.Context) bool {
	return func(ctx context.Context) bool {
		informer, err := informers.GetInformer(ctx, c.kind.object, cache.BlockUntilSynced(false))
		return err == nil && informer.HasSynced()
	}
}

// isServed reports whether the API server serves the kind.
func (p *presence) isServed(ctx context.Context) (bool, error) {
	resources, err := p.api.ServerResourcesForGroupVersionWithContext(ctx, p.kind.gvk.GroupVersion().String())
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool {
		return r.Kind == p.kind.gvk.Kind
	}), nil
}

// change starts or stops the watch.
func (p *presence) change(ctx context.Context, served bool) error {
	if !served {
		p.absent.Store(true)
		return p.cache.RemoveInformer(ctx, p.kind.object)
	}
	p.absent.Store(false)
	return p.watch(source.Kind[client.Object](
		p.cache, p.kind.object, &handler.EnqueueRequestForObject{}, pause.Predicate(), p.scheduled()))
}

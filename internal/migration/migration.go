// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package migration rewrites the objects that were stored in an older version of the API, so that a later release may
// do without that version.
//
// An object stays stored in the version that was the storage version when it was last written, for years if need be,
// and status.storedVersions of its CustomResourceDefinition lists every version that there may be. Nothing but this
// takes one from that list, and no version can leave a CustomResourceDefinition that is on it.
package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	operatorsv2 "github.com/operator-framework/api/pkg/operators/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

const (
	// pageSize bounds what the API server converts at a time, and how old a version is when it is rewritten.
	pageSize = 100

	// settling is how long an API server may go on storing the old version after its CustomResourceDefinition has
	// changed: it learns of that through a watch, for which Kubernetes itself allows five seconds, and it has requests
	// under way, of which the validating webhook may hold up each for as long.
	settling = 10 * time.Second

	// reportEvery is how often there is word of a pass that takes long.
	reportEvery = 10 * time.Second
)

// retries are for what keeps the objects from being read or written. The converter may be away for a moment, or for as
// long as it takes somebody to mend it.
var retries = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: .1, Steps: 10, Cap: time.Minute}

// A Migrator migrates once, when the process becomes the leader. It keeps nothing: one that is stopped anywhere and
// started again begins anew, and what is rewritten already costs no further write.
type Migrator struct {
	client client.Client // without a cache
	clock  clock.Clock
	log    logr.Logger
	olm    *reporter
}

var (
	_ manager.Runnable               = &Migrator{}
	_ manager.LeaderElectionRunnable = &Migrator{}
)

// Setup adds the migration to a manager.
func Setup(mgr ctrl.Manager, clock clock.Clock) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(apiextensionsv1.AddToScheme(scheme), operatorsv2.AddToScheme(scheme)); err != nil {
		return err
	}
	c, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return err
	}
	logger := mgr.GetLogger().WithName("migration")
	return mgr.Add(&Migrator{client: c, clock: clock, log: logger, olm: newReporter(c, logger)})
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (m *Migrator) NeedLeaderElection() bool { return true }

// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=machines.useless.container.training;switches.useless.container.training;virtualmachines.cloudnative.tw,verbs=get
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions/status,resourceNames=machines.useless.container.training;switches.useless.container.training;virtualmachines.cloudnative.tw,verbs=update
// +kubebuilder:rbac:groups=useless.container.training,resources=machines;switches,verbs=list;patch
// +kubebuilder:rbac:groups=cloudnative.tw,resources=virtualmachines,verbs=list;patch

// Start implements manager.Runnable. It returns when there is nothing left to migrate or the context ends, never with
// an error: an operator that cannot migrate does all else.
func (m *Migrator) Start(ctx context.Context) error {
	var problem error
	_ = retries.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (done bool, _ error) {
		problem = m.try(ctx, problem)
		if problem != nil && ctx.Err() == nil {
			m.log.Info("Cannot migrate yet, and will try again", "problem", problem.Error())
		}
		return problem == nil, nil
	})
	return nil
}

// try migrates everything. It is told why the try before failed, if there was one.
func (m *Migrator) try(ctx context.Context, before error) error {
	pending, err := m.read(ctx)
	if err != nil || len(pending) > 0 {
		m.olm.running(ctx, cmp.Or(err, before))
	}
	if err := errors.Join(err, m.migrate(ctx, pending)); err != nil {
		return err
	}
	m.log.Info("All objects are stored in the storage version")
	return m.olm.done(ctx)
}

// read returns what there is to migrate. What is wrong with one resource keeps none of the others back.
func (m *Migrator) read(ctx context.Context) (pending []*migration, problem error) {
	for _, r := range resources {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		err := m.client.Get(ctx, client.ObjectKey{Name: r.crd}, crd)
		if apierrors.IsNotFound(err) {
			continue // and if it comes, it comes in its storage version
		}
		var todo *migration
		if err == nil {
			todo, err = decide(r, crd)
		}
		if todo != nil {
			pending = append(pending, todo)
		}
		problem = errors.Join(problem, err)
	}
	return pending, problem
}

// migrate rewrites objects, in passes with time to settle in between. Only a pass that finds nothing to rewrite, as
// that comes to no write, shows that every object is stored in the new version, and only where it is not the first:
// what an API server writes that has yet to learn of that version looks the same.
func (m *Migrator) migrate(ctx context.Context, pending []*migration) error {
	if len(pending) == 0 {
		return nil
	}
	for pass := 1; ; pass++ {
		rewritten, err := m.pass(ctx, pass, pending)
		if err != nil {
			return err
		}
		if rewritten == 0 && pass > 1 {
			return m.prune(ctx, pending)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.clock.After(settling):
		}
	}
}

// pass goes through all objects once, and returns how many were stored in another version before.
func (m *Migrator) pass(ctx context.Context, pass int, pending []*migration) (rewritten int, problem error) {
	for _, migration := range pending {
		n, err := m.rewriteAll(ctx, pass, migration)
		rewritten += n
		problem = errors.Join(problem, err)
	}
	return rewritten, problem
}

// prune says that no object is stored in another version than today's. It is refused where a CustomResourceDefinition
// has changed since before the first pass, which then proves nothing.
func (m *Migrator) prune(ctx context.Context, pending []*migration) error {
	var errs []error
	for _, migration := range pending {
		crd := migration.crd
		before := crd.Status.StoredVersions
		crd.Status.StoredVersions = []string{migration.to.Version}
		if err := m.client.Status().Update(ctx, crd); err != nil {
			errs = append(errs, fmt.Errorf("update the stored versions of %s: %w", crd.Name, err))
			continue
		}
		m.log.Info("Migrated", "resource", crd.Name, "storedBefore", before, "storedNow", crd.Status.StoredVersions)
	}
	return errors.Join(errs...)
}

// rewriteAll has the API server store every object anew, one after the other, and returns how many were stored
// otherwise before.
func (m *Migrator) rewriteAll(ctx context.Context, pass int, migration *migration) (rewritten int, _ error) {
	p := newProgress(m.log.WithValues("resource", migration.crd.Name, "version", migration.to.Version, "pass", pass), m.clock)
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(migration.to.GroupVersion().WithKind(migration.crd.Spec.Names.ListKind))
	for more, next := true, ""; more; more = next != "" {
		err := m.client.List(ctx, list, client.Limit(pageSize), client.Continue(next))
		if rest := restOf(err); rest != "" {
			next = rest
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("list %s: %w", migration.crd.Name, err)
		}
		p.page(list)
		for _, object := range list.Items {
			changed, err := m.rewrite(ctx, migration.to, &object)
			if err != nil {
				return 0, fmt.Errorf("rewrite %s %s: %w", migration.to.Kind, client.ObjectKeyFromObject(&object), err)
			}
			if changed {
				rewritten++
			}
			p.one()
		}
		next = list.GetContinue()
	}
	p.end(rewritten)
	return rewritten, nil
}

// restOf returns where to go on with a list that took so long that its version is gone, or nothing for any other
// error. What has changed since may be missing from the rest, and is stored in the new version for having changed.
func restOf(err error) string {
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
		return ""
	}
	return status.Status().Continue
}

// rewrite has the API server store an object anew, by a patch that changes nothing, and reports whether that came to a
// write. An object that has changed since it was listed is stored anew already, and one that is gone is not stored.
func (m *Migrator) rewrite(ctx context.Context, kind schema.GroupVersionKind, listed *metav1.PartialObjectMetadata) (bool, error) {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: listed.Namespace, Name: listed.Name}}
	object.SetGroupVersionKind(kind)
	unlessChanged := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q}}`, listed.ResourceVersion)
	err := m.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, unlessChanged))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return object.ResourceVersion != listed.ResourceVersion, err
}

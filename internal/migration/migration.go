// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package migration is the storage version migration. It rewrites the objects that are stored in an older version of
// the API, so that a later release can remove that version.
//
// An object is stored in the version that was the storage version at the last write of the object. The field
// status.storedVersions of a CustomResourceDefinition lists all versions in which objects may be stored. A version on
// that list cannot be removed from the CustomResourceDefinition, and Kubernetes never shortens the list.
package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	operatorsv2 "github.com/operator-framework/api/pkg/operators/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
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
	// pageSize is the number of objects in one list request. It limits the objects that the API server converts in one
	// request. It also limits the time between the list and the rewrite of an object.
	pageSize = 100

	// settleDelay is how long an API server may still store objects in the old version after the
	// CustomResourceDefinition has changed. The API server receives the change through a watch, and Kubernetes allows
	// 5 s for that. A request in progress can last another 5 s in the validating webhook.
	settleDelay = 10 * time.Second

	// fieldManager is required in an apply. The migration owns no fields, so it does not appear in managed fields.
	fieldManager = client.FieldOwner("useless-operator-migration")
)

// Resource is a kind of object that is migrated.
type Resource struct {
	CRD       string // the name of its CustomResourceDefinition
	Converted bool   // whether a webhook must convert between its versions
}

// Resources has all migrated resources. The RBAC markers of Migrator.Start must name the same resources.
// VirtualMachines have had only one version, so the migration never lists or rewrites them. The RBAC permissions to
// list and patch them belong to other controllers.
var Resources = []Resource{
	{CRD: "machines.useless.container.training", Converted: true},
	{CRD: "switches.useless.container.training"},
	{CRD: "virtualmachines.cloudnative.tw"},
}

// retries are the delays after errors. The conversion webhook can be unavailable for a moment, or until a user fixes
// it.
var retries = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: .1, Steps: 10, Cap: time.Minute}

// Migrator migrates once, when the process becomes the leader. It stores no progress. After a restart, it begins again,
// but it does not write the objects again that are already rewritten.
type Migrator struct {
	client client.Client // without a cache
	clock  clock.Clock
	log    logr.Logger
	olm    *reporter
	gauge  gauge
}

// Setup adds the migration to a manager, and registers its metric.
func Setup(mgr ctrl.Manager, clock clock.Clock, registerer prometheus.Registerer) error {
	scheme := runtime.NewScheme()
	if err := errors.Join(apiextensionsv1.AddToScheme(scheme), operatorsv2.AddToScheme(scheme)); err != nil {
		return err
	}
	c, err := client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mgr.GetRESTMapper(),
	})
	if err != nil {
		return err
	}
	logger := mgr.GetLogger().WithName("migration")
	m := &Migrator{client: c, clock: clock, log: logger, olm: newReporter(c, logger), gauge: newGauge(registerer)}
	return mgr.Add(manager.RunnableFunc(m.Start)) // runs on the leader only
}

// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=machines.useless.container.training;switches.useless.container.training;virtualmachines.cloudnative.tw,verbs=get
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions/status,resourceNames=machines.useless.container.training;switches.useless.container.training;virtualmachines.cloudnative.tw,verbs=update
// +kubebuilder:rbac:groups=useless.container.training,resources=machines;switches,verbs=list;patch

// Start implements manager.Runnable. It returns when the migration is complete or the context is canceled. It never
// returns an error, because the rest of the operator must continue without the migration.
func (m *Migrator) Start(ctx context.Context) error {
	var err error
	m.gauge.set(running)
	_ = retries.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (done bool, _ error) {
		err = m.try(ctx, err)
		if err != nil && ctx.Err() == nil {
			m.gauge.set(failing) // until an attempt succeeds
			m.log.Info("The storage version migration failed and will be retried", "error", err.Error())
		}
		return err == nil, nil
	})
	if err == nil {
		m.gauge.set(complete)
	} else {
		m.olm.stopped(ctx)
	}
	return nil
}

// try migrates all resources. previous is the error of the previous attempt, or nil.
func (m *Migrator) try(ctx context.Context, previous error) error {
	pending, err := m.read(ctx)
	if err != nil || len(pending) > 0 {
		m.olm.running(ctx, cmp.Or(err, previous))
	}
	if err := errors.Join(err, m.migrate(ctx, pending)); err != nil {
		return err
	}
	m.log.Info("All objects are stored in the storage version")
	return m.olm.done(ctx)
}

// read returns the pending migrations. An error of one resource does not affect the others.
func (m *Migrator) read(ctx context.Context) (pending []*migration, errs error) {
	for _, r := range Resources {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		err := m.client.Get(ctx, client.ObjectKey{Name: r.CRD}, crd)
		if apierrors.IsNotFound(err) {
			continue // without a CustomResourceDefinition, there are no objects
		}
		var todo *migration
		if err == nil {
			todo, err = decide(r, crd)
		}
		if todo != nil {
			pending = append(pending, todo)
		}
		errs = errors.Join(errs, err)
	}
	return pending, errs
}

// migration is the pending rewrite of all objects of a CustomResourceDefinition.
type migration struct {
	crd *apiextensionsv1.CustomResourceDefinition // as read before the first pass
	to  schema.GroupVersionKind                   // the storage version
}

// decide returns the migration that a CustomResourceDefinition needs, or nil. It returns an error if the migration
// would fail or lose data.
func decide(r Resource, crd *apiextensionsv1.CustomResourceDefinition) (*migration, error) {
	storage, err := apihelpers.GetCRDStorageVersion(crd)
	if err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %s: %w", crd.Name, err)
	}
	switch conversion := crd.Spec.Conversion; {
	case !crd.DeletionTimestamp.IsZero() || slices.Equal(crd.Status.StoredVersions, []string{storage}):
		return nil, nil
	case r.Converted && (conversion == nil || conversion.Strategy != apiextensionsv1.WebhookConverter):
		// The API server would only change the apiVersion, and drop the fields that the new version does not have.
		return nil, fmt.Errorf("CustomResourceDefinition %s has no conversion webhook, "+
			"and a rewrite would lose fields: apply its manifest again", crd.Name)
	}
	to := schema.GroupVersionKind{Group: crd.Spec.Group, Version: storage, Kind: crd.Spec.Names.Kind}
	return &migration{crd, to}, nil
}

// migrate rewrites objects in passes, with settleDelay between them. If the second or a later pass writes nothing, all
// objects are stored in the new version. The first pass proves nothing, because an API server may not know the new
// storage version yet.
func (m *Migrator) migrate(ctx context.Context, pending []*migration) error {
	if len(pending) == 0 {
		return nil
	}
	for pass := 1; ; pass++ {
		rewritten := 0
		var errs error
		for _, migration := range pending {
			n, err := m.rewriteAll(ctx, pass, migration)
			rewritten += n
			errs = errors.Join(errs, err)
		}
		if errs != nil {
			return errs
		}
		if rewritten == 0 && pass > 1 {
			return m.prune(ctx, pending)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.clock.After(settleDelay):
		}
	}
}

// prune removes all versions except the storage version from status.storedVersions. The update has the resourceVersion
// from before the first pass. If the CustomResourceDefinition has changed since then, the API server rejects the
// update. In this case, the storage version may have changed too, and objects may be stored in another version.
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

// rewriteAll rewrites every object of a resource. It returns the number of objects that were stored in another version.
func (m *Migrator) rewriteAll(ctx context.Context, pass int, migration *migration) (rewritten int, _ error) {
	start, objects := m.clock.Now(), 0
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(migration.to.GroupVersion().WithKind(migration.crd.Spec.Names.ListKind))
	for more, next := true, ""; more; more = next != "" {
		err := m.client.List(ctx, list, client.Limit(pageSize), client.Continue(next))
		if token := continueAfter(err); token != "" {
			next = token
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("list %s: %w", migration.crd.Name, err)
		}
		objects += len(list.Items)
		for _, object := range list.Items {
			changed, err := m.rewrite(ctx, migration.to, &object)
			if err != nil {
				return 0, fmt.Errorf("rewrite %s %s: %w", migration.to.Kind, client.ObjectKeyFromObject(&object), err)
			}
			if changed {
				rewritten++
			}
		}
		next = list.GetContinue()
	}
	m.log.Info("Finished a pass", "resource", migration.crd.Name, "version", migration.to.Version, "pass", pass,
		"rewritten", rewritten, "objects", objects, "duration", m.clock.Since(start).String())
	return rewritten, nil
}

// continueAfter returns the token that continues a list after its resource version has expired. For any other error it
// returns "". The continued list can lack objects that were created since its first page, but these objects are already
// stored in the new version.
func continueAfter(err error) string {
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
		return ""
	}
	return status.Status().Continue
}

// rewrite sends a server-side apply without fields, and reports whether the API server wrote the object. An object that
// has changed since it was listed is already stored in the new version.
//
// A merge patch is not safe. If the conversion webhook does not answer, the API server executes a merge patch of an
// object in its watch cache, and removes all managed fields of the object. In this case, it rejects an apply. The apply
// has the UID, so that it does not create a deleted object again. If an object has no managed fields, the API server
// adds the manager before-first-apply.
func (m *Migrator) rewrite(
	ctx context.Context, kind schema.GroupVersionKind, listed *metav1.PartialObjectMetadata,
) (bool, error) {
	object := &metav1.PartialObjectMetadata{}
	object.Namespace, object.Name = listed.Namespace, listed.Name
	object.SetGroupVersionKind(kind)
	unlessChanged := fmt.Appendf(nil,
		`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"uid":%q,"resourceVersion":%q}}`,
		kind.GroupVersion(), kind.Kind, listed.Name, listed.UID, listed.ResourceVersion)
	err := m.client.Patch(ctx, object, client.RawPatch(types.ApplyPatchType, unlessChanged), fieldManager)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return object.ResourceVersion != listed.ResourceVersion, err
}

// state is a value of the label state.
type state string

const (
	running  state = "running"
	failing  state = "failing"
	complete state = "complete"
)

// gauge is the metric useless_storage_migration. On a replica that is not the leader, all states have the value 0.
type gauge struct{ *prometheus.GaugeVec }

func newGauge(registerer prometheus.Registerer) gauge {
	g := gauge{promauto.With(registerer).NewGaugeVec(prometheus.GaugeOpts{
		Name: "useless_storage_migration",
		Help: "State of the storage version migration. The leader sets the current state to 1.",
	}, []string{"state"})}
	g.set("")
	return g
}

// set sets the current state to 1 and all other states to 0.
func (g gauge) set(current state) {
	for _, s := range []state{running, failing, complete} {
		value := 0.
		if s == current {
			value = 1
		}
		g.WithLabelValues(string(s)).Set(value)
	}
}

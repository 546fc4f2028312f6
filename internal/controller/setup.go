// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller lists and sets up the operator's controllers.
package controller

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/controller/virtualmachine"
	"container.training/useless/internal/informer"
)

// Options selects and configures the controllers. The zero value runs the default controllers.
type Options struct {
	// Selection has the format of --controllers of kube-controller-manager. "*" selects all controllers that are
	// enabled by default, "name" enables a controller, and "-name" disables it. If a name appears twice, the first one
	// takes effect. Empty means "*".
	Selection []string

	// Namespace is the operator's namespace. Empty means that it is not known.
	Namespace string

	Machine        machine.Options
	Schedule       schedule.Options
	VirtualMachine virtualmachine.Options
	PodCount       podcount.Options
	Ingress        ingress.Options
}

// controllers returns all controllers, in the order in which they are added to a manager. To remove one, delete its
// package, its lines in this file, and all other code that imports the package.
func (o *Options) controllers() []entry {
	return []entry{
		{name: machine.Name, options: &o.Machine},
		{name: schedule.Name, options: &o.Schedule},
		{name: virtualmachine.Name, options: &o.VirtualMachine},
		{name: podcount.Name, options: &o.PodCount, rights: []right{
			{schema.GroupResource{Group: "apps", Resource: "replicasets"}, "list watch patch"},
			{schema.GroupResource{Resource: "pods"}, "list watch"},
		}},
		{name: ingress.Name, options: &o.Ingress, rights: []right{
			{schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}, "list watch patch get"},
		}},
	}
}

// entry is a controller with its options and permissions.
type entry struct {
	name    string
	options interface {
		// AddFlags adds the controller's flags. It sets the options of most flags to their defaults.
		AddFlags(flags *flag.FlagSet)
		// Validate returns an error that names the flag with a wrong value.
		Validate() error
		// CacheOptions returns the options of the manager's cache for the kinds that only this controller reads.
		CacheOptions() map[client.Object]cache.ByObject
		// Setup adds the controller to a manager. Its metrics go to the registerer.
		Setup(ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer) error
	}

	// rights are permissions that the operator does not have by default. A controller with rights is disabled by
	// default.
	rights []right
}

// right is an RBAC permission on a resource.
type right struct {
	schema.GroupResource
	verbs string // separated by spaces
}

func (e entry) enabled(selection []string) bool {
	for _, selected := range selection {
		switch selected {
		case e.name:
			return true
		case "-" + e.name:
			return false
		}
	}
	return len(e.rights) == 0 && (len(selection) == 0 || slices.Contains(selection, "*"))
}

// enabled returns the controllers that run.
func (o Options) enabled() []entry {
	return slices.DeleteFunc(o.controllers(), func(e entry) bool { return !e.enabled(o.Selection) })
}

// Names returns the names of all controllers.
func Names() (names []string) {
	for _, e := range (&Options{}).controllers() {
		names = append(names, e.name)
	}
	return names
}

// AddFlags adds --controllers and the flags of all controllers.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.Func("controllers", "a comma-separated list of controllers: "+
		"'*' selects the controllers that are enabled by default, 'name' enables one, '-name' disables one; "+
		"repeat the flag to append to the list (default *)\n"+
		"All controllers: "+strings.Join(Names(), ", "), func(list string) error {
		o.Selection = append(o.Selection, strings.Split(list, ",")...)
		return nil
	})
	for _, e := range o.controllers() {
		e.options.AddFlags(flags)
	}
}

// Validate returns an error for options that are invalid.
func (o Options) Validate() error {
	var errs []error
	for _, selected := range o.Selection {
		if name := strings.TrimPrefix(selected, "-"); selected != "*" && !slices.Contains(Names(), name) {
			errs = append(errs, fmt.Errorf("there is no controller %q: choose from %s",
				name, strings.Join(Names(), ", ")))
		}
	}
	for _, e := range o.controllers() {
		errs = append(errs, e.options.Validate())
	}
	return errors.Join(errs...)
}

// ValidateFlags returns an error if a flag has no effect, because it belongs to a controller that does not run. The
// argument flags must contain the flags that AddFlags has added.
func (o Options) ValidateFlags(flags *flag.FlagSet) error {
	var errs []error
	for _, e := range (&Options{}).controllers() { // new Options, because AddFlags would overwrite those of o
		if e.enabled(o.Selection) {
			continue
		}
		unused := flag.NewFlagSet(e.name, flag.ContinueOnError)
		e.options.AddFlags(unused)
		flags.Visit(func(f *flag.Flag) {
			if unused.Lookup(f.Name) != nil {
				errs = append(errs, fmt.Errorf(
					"--%s has no effect: enable the controller %s with --controllers=*,%[2]s", f.Name, e.name))
			}
		})
	}
	return errors.Join(errs...)
}

// CacheOptions returns options for the manager's cache, merged from the options of the enabled controllers. The scheme
// must contain all kinds of these options. CacheOptions returns an error if two controllers configure the same kind.
func (o Options) CacheOptions(scheme *runtime.Scheme) (cache.Options, error) {
	enabled := o.enabled()
	all := make([]map[client.Object]cache.ByObject, 0, len(enabled))
	for _, e := range enabled {
		all = append(all, e.options.CacheOptions())
	}
	byObject, err := informer.Merge(scheme, all...)
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         byObject,
	}, err
}

// ClientOptions returns options for the manager's client. Its reads wait until the cache has the client's own writes,
// except writes with DisableReadYourWritesConsistency. So a controller does not decide on data that is older than these
// writes.
func ClientOptions() client.Options {
	return client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: new(true)}}
}

// Setup adds the enabled controllers to a manager.
func (o Options) Setup(
	ctx context.Context, mgr ctrl.Manager, clock clock.PassiveClock, registerer prometheus.Registerer,
) error {
	o.Schedule.OwnNamespace = o.Namespace
	for _, e := range o.enabled() {
		if err := checkRights(ctx, mgr.GetClient(), e.name, e.rights); err != nil {
			return fmt.Errorf("set up controller %s: %w", e.name, err)
		}
		if err := e.options.Setup(ctx, mgr, clock, registerer); err != nil {
			return fmt.Errorf("set up controller %s: %w", e.name, err)
		}
	}
	return nil
}

// checkRights returns an error with a solution if the operator lacks permissions of a controller. Without this check,
// the caches would never sync, and the whole operator would exit two minutes after each start.
func checkRights(ctx context.Context, c client.Writer, name string, rights []right) error {
	for _, right := range rights {
		for verb := range strings.FieldsSeq(right.verbs) {
			review := &authorizationv1.SelfSubjectAccessReview{}
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
				Group: right.Group, Resource: right.Resource, Verb: verb,
			}
			// The API server does not store a review. A read that waits for the review in the cache would never end.
			if err := c.Create(ctx, review, client.DisableReadYourWritesConsistency); err != nil {
				return fmt.Errorf("check the permission to %s %s: %w", verb, right, err)
			}
			if !review.Status.Allowed { // the command has the names of the default installation
				return fmt.Errorf("no permission to %s %s: bind the ClusterRole of the controller before you enable "+
					"it, with kubectl create clusterrolebinding useless-%[3]s --clusterrole useless-%[3]s-role "+
					"--serviceaccount useless-system:useless-controller-manager", verb, right, name)
			}
		}
	}
	return nil
}

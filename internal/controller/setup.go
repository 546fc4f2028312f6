// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller has the one list of the operator's controllers.
package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
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
	"container.training/useless/internal/object"
)

// Options say which controllers run, and how.
type Options struct {
	// Selection is read as kube-controller-manager reads --controllers: "*" stands for those that are on by default,
	// "name" turns one on and "-name" turns one off. Where a controller is named both ways, the first mention counts.
	Selection []string

	Machine        machine.Options
	Schedule       schedule.Options
	VirtualMachine virtualmachine.Options
	PodCount       podcount.Options
	Ingress        ingress.Options
}

// Validate returns an error for what no operator can be started with, or for what would be without effect.
func (o Options) Validate() error {
	if len(o.Ingress.Annotations) > 0 && !o.selected(ingress.Name) {
		return errors.New("--ingress-annotation is for the controller ingress, which is off: add --controllers=*,ingress")
	}
	return errors.Join(o.Machine.Validate(), o.Schedule.Validate(), o.VirtualMachine.Validate(), o.PodCount.Validate())
}

// selected reports whether the controller of a name runs.
func (o Options) selected(name string) bool {
	return slices.ContainsFunc(controllers, func(c entry) bool {
		return c.name == name && enabled(name, c.byDefault(), o.Selection)
	})
}

// An entry is one of the controllers.
type entry struct {
	name  string
	setup func(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error

	// rights are those that the operator has only where it is given them. A controller that needs any is off by default.
	rights []right
}

func (e entry) byDefault() bool { return len(e.rights) == 0 }

// controllers are all there are, in the order in which they are added.
var controllers = []entry{
	{name: machine.Name, setup: func(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
		return machine.Setup(ctx, mgr, options.Machine, clock, registerer)
	}},
	{name: schedule.Name, setup: func(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
		return schedule.Setup(ctx, mgr, options.Schedule, clock, registerer)
	}},
	{name: virtualmachine.Name, setup: func(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
		return virtualmachine.Setup(ctx, mgr, options.VirtualMachine, clock, registerer)
	}},
	{
		name: podcount.Name,
		setup: func(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
			return podcount.Setup(ctx, mgr, options.PodCount, clock, registerer)
		},
		rights: []right{
			{schema.GroupResource{Group: "apps", Resource: "replicasets"}, "list watch patch"},
			{schema.GroupResource{Resource: "pods"}, "list watch"},
		},
	},
	{
		name: ingress.Name,
		setup: func(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
			return ingress.Setup(ctx, mgr, options.Ingress, clock, registerer)
		},
		rights: []right{
			{schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}, "list watch patch get"},
		},
	},
}

// CacheOptions keep from a manager's cache what no controller reads, and have it begin with what is certainly the newest.
func CacheOptions() cache.Options {
	byObject := map[client.Object]cache.ByObject{}
	maps.Copy(byObject, schedule.CacheOptions())
	maps.Copy(byObject, podcount.CacheOptions())
	maps.Copy(byObject, ingress.CacheOptions())
	return cache.Options{NewInformer: object.NewInformer, DefaultTransform: machine.CacheTransform(), ByObject: byObject}
}

// Names returns the names of all controllers.
func Names() []string {
	names := make([]string, 0, len(controllers))
	for _, c := range controllers {
		names = append(names, c.name)
	}
	return names
}

// Setup adds the selected controllers to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options, clock clock.PassiveClock, registerer prometheus.Registerer) error {
	for _, selected := range options.Selection {
		if name := strings.TrimPrefix(selected, "-"); selected != "*" && !slices.Contains(Names(), name) {
			return fmt.Errorf("there is no controller %q: choose from %s", name, strings.Join(Names(), ", "))
		}
	}
	for _, c := range controllers {
		if !enabled(c.name, c.byDefault(), options.Selection) {
			continue
		}
		if err := checkRights(ctx, mgr.GetClient(), c.name, c.rights); err != nil {
			return fmt.Errorf("set up controller %s: %w", c.name, err)
		}
		if err := c.setup(ctx, mgr, options, clock, registerer); err != nil {
			return fmt.Errorf("set up controller %s: %w", c.name, err)
		}
	}
	return nil
}

func enabled(name string, byDefault bool, selection []string) bool {
	for _, selected := range selection {
		switch selected {
		case name:
			return true
		case "-" + name:
			return false
		}
	}
	return byDefault && slices.Contains(selection, "*")
}

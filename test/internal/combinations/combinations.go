// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package combinations lists combinations of controllers and kinds of workloads. Tests check the permissions of each.
package combinations

import (
	"strings"

	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/controller/virtualmachine"
)

// The folders in config/core, each with the manifests of the operator without controllers.
const (
	SelfManaged = "self-managed-certificates"
	CertManager = "cert-manager"
)

// A Combination selects the controllers that run, and the kinds of workloads that schedules apply to.
type Combination struct {
	Name        string
	Controllers []string
	Kinds       []string
}

// Default is the combination of config/default.
var Default = Combination{
	"default", []string{machine.Name, virtualmachine.Name, schedule.Name}, schedule.Kinds(),
}

// Everything has all controllers and all kinds of workloads.
var Everything = Combination{"everything", controller.Names(), schedule.Kinds()}

// Deployments is the example in docs/installing.md.
var Deployments = Combination{"schedules of deployments", []string{schedule.Name}, []string{"deployments"}}

// All are the tested combinations.
var All = []Combination{
	Default,
	{"only machines", []string{machine.Name}, nil},
	Deployments,
	{"schedules of cronjobs and virtualmachines", []string{schedule.Name}, []string{"cronjobs", "virtualmachines"}},
	Everything,
}

// Components returns the folders of the combination in config/components.
func (c Combination) Components() []string {
	folders := append([]string{}, c.Controllers...)
	for _, kind := range c.Kinds {
		folders = append(folders, "schedule/"+kind)
	}
	return folders
}

// Args returns the flags that select the combination.
func (c Combination) Args() (args []string) {
	for _, name := range c.Controllers {
		args = append(args, "--controllers="+name)
	}
	for _, kind := range c.Kinds {
		args = append(args, "--schedule-kinds="+kind)
	}
	return args
}

// Kustomization returns the content of a kustomization.yaml that is next to a clone of the repository. core is a folder
// in config/core.
func (c Combination) Kustomization(core string) string {
	const config = "useless-operator/config/"
	separator := "\n- " + config + "components/"
	return "resources:\n- " + config + "core/" + core + "\ncomponents:" + separator +
		strings.Join(c.Components(), separator) + "\n"
}

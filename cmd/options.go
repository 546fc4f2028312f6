// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/controller/virtualmachine"
)

// options are the values of the flags. Each flag also has an environment variable: USELESS_MAX_SWITCHES for
// --max-switches. A Subscription of OLM can set environment variables, but no flags. A flag on the command line takes
// precedence.
type options struct {
	controllers      controller.Options
	namespace        string
	leaderElect      bool
	maxSwitches      int
	metricsAddress   string
	metricsSecure    bool
	metricsCertDir   string
	probeAddress     string
	webhooks         bool
	webhookHost      string
	webhookPort      int
	webhookCertDir   string
	selfManagedCerts bool
	shutdownDelay    time.Duration
	version          bool
	log              zap.Options
}

// parse reads the flags, and then the environment variables of the flags that are not set.
func parse(args []string, getenv func(string) string) (*options, error) {
	o := &options{controllers: controller.Options{Selection: []string{"*"}}}
	flags := newFlagSet(o)
	flags.SetOutput(io.Discard) // main prints the error
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		flags.SetOutput(os.Stdout)
		flags.Usage()
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w (--help shows all flags)", err)
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: every option is a flag", flags.Arg(0))
	}
	if err := fromEnvironment(flags, getenv); err != nil {
		return nil, err
	}
	return o, o.validate()
}

func newFlagSet(o *options) *flag.FlagSet {
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	o.addControllerFlags(flags)
	flags.BoolVar(&o.leaderElect, "leader-elect", false, "run the controllers on one replica at a time")
	flags.StringVar(&o.namespace, "namespace", "",
		"the operator's namespace, for its Lease and its certificates (default: the namespace of its Pod)")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443",
		"the address of the metrics endpoint; 0 disables it")
	flags.BoolVar(&o.metricsSecure, "metrics-secure", true,
		"serve metrics over HTTPS, with authentication and authorization")
	flags.StringVar(&o.metricsCertDir, "metrics-cert-dir", "",
		"the directory with tls.crt and tls.key of the metrics endpoint (default: a self-signed certificate)")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081",
		"the address of /healthz and /readyz; 0 disables them")
	flags.BoolVar(&o.webhooks, "webhooks", true, "serve the admission and conversion webhooks")
	flags.StringVar(&o.webhookHost, "webhook-host", "", "the address of the webhook server (default: all addresses)")
	flags.IntVar(&o.webhookPort, "webhook-port", 9443, "the port of the webhook server")
	flags.StringVar(&o.webhookCertDir, "webhook-cert-dir",
		filepath.Join(os.TempDir(), "k8s-webhook-server", "serving-certs"),
		"the directory with tls.crt and tls.key of the webhook server")
	flags.BoolVar(&o.selfManagedCerts, "self-managed-certs", false,
		"create and rotate the webhook certificates, in place of reading them from --webhook-cert-dir")
	flags.DurationVar(&o.shutdownDelay, "shutdown-delay", 0,
		"how long the operator continues after SIGTERM, so that webhook clients can connect to another replica")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	config.RegisterFlags(flags)
	o.log.BindFlags(flags)
	return flags
}

func (o *options) addControllerFlags(flags *flag.FlagSet) {
	c := &o.controllers
	flags.Func("controllers", "a comma-separated list of controllers: "+
		"'*' selects the controllers that are on by default, 'name' turns one on, '-name' turns one off; "+
		"repeat the flag to append to the list (default *)\n"+
		"All controllers: "+strings.Join(controller.Names(), ", "), selection(&c.Selection))
	flags.StringVar(&c.PodCount.Label, "pod-count-label", podcount.DefaultLabel,
		"the label that the controller podcount sets on ReplicaSets")
	flags.Var(&c.Ingress.Annotations, "ingress-annotation",
		"a `key=value` annotation that the controller ingress sets on Ingresses; repeat the flag for more annotations")
	flags.StringVar((*string)(&c.Ingress.Policy), "ingress-annotation-policy", string(ingress.PolicyAlways),
		"Always overwrites annotations that other clients have set, IfNotPresent keeps them")
	flags.Var(&c.Ingress.Classes, "ingress-class",
		"the `name` of a class of Ingresses that get the annotations; repeat the flag for more classes (default: all)")
	flags.IntVar(&o.maxSwitches, "max-switches", 100, "the maximum number of switches of a Machine, from 1 to 1000")
	flags.IntVar(&c.Machine.ConcurrentSyncs, "concurrent-machine-syncs", machine.DefaultConcurrentSyncs,
		"the number of Machines that are reconciled concurrently, from 1 to 256")
	flags.Func("schedule-kinds", "a comma-separated list of the kinds of workloads that schedules apply to; "+
		"repeat the flag to append to the list (default: all kinds)\n"+
		"All kinds: "+strings.Join(schedule.Kinds(), ", "), selection(&c.Schedule.Kinds))
	flags.StringVar(&c.Schedule.DefaultTimeZone, "default-time-zone", "UTC",
		"the IANA time zone of schedules without a time zone")
	flags.StringVar(&c.VirtualMachine.Image, "vm-image", virtualmachine.DefaultImage,
		"the container image of VirtualMachines; it must run as a numeric user other than root")
	flags.DurationVar(&c.VirtualMachine.UsageInterval, "vm-usage-interval", virtualmachine.DefaultUsageInterval,
		"the time between two requests for the usage of VirtualMachines, at least 1s")
}

// selection parses a comma-separated list, such as --controllers. The first flag replaces the default, and each further
// flag appends to the list, so that each kustomize component can add its own flag.
func selection(into *[]string) func(string) error {
	var all []string
	return func(value string) error {
		all = append(all, strings.Split(value, ",")...)
		*into = all
		return nil
	}
}

// fromEnvironment sets the flags that are not on the command line from their environment variables.
func fromEnvironment(flags *flag.FlagSet, getenv func(string) string) error {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		if given[f.Name] {
			return
		}
		variable := "USELESS_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		// Only annotations and classes can have several values, one per line.
		for _, value := range strings.FieldsFunc(getenv(variable), func(r rune) bool { return r == '\n' }) {
			if err := flags.Set(f.Name, value); err != nil {
				errs = append(errs,
					fmt.Errorf("invalid value %q for environment variable %s: %w", value, variable, err))
			}
		}
	})
	return errors.Join(errs...)
}

// validate returns an error for an invalid value. The controllers read a zero value as the default, so a zero value on
// the command line is rejected here.
func (o *options) validate() error {
	if o.maxSwitches < 1 || o.maxSwitches > 1000 {
		return fmt.Errorf("invalid value %d for flag --max-switches: must be from 1 to 1000", o.maxSwitches)
	}
	if o.selfManagedCerts && o.namespace == "" {
		return errors.New("--self-managed-certs needs --namespace: it stores the certificates in a Secret")
	}
	switch c := o.controllers; {
	case c.Machine.ConcurrentSyncs == 0:
		return errors.New("invalid value 0 for flag --concurrent-machine-syncs: must be from 1 to 256")
	case c.VirtualMachine.Image == "":
		return errors.New("invalid value \"\" for flag --vm-image: must be an image, such as " +
			virtualmachine.DefaultImage)
	case c.VirtualMachine.UsageInterval == 0:
		return errors.New("invalid value 0s for flag --vm-usage-interval: must be at least 1s, such as 30s")
	case c.PodCount.Label == "":
		return errors.New("invalid value \"\" for flag --pod-count-label: " +
			"must be a label key; for example, pod-count or example.com/pod-count")
	case c.Ingress.Policy == "":
		return errors.New("invalid value \"\" for flag --ingress-annotation-policy: must be Always or IfNotPresent")
	}
	return o.controllers.Validate()
}

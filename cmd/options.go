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
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/internal/controller/virtualmachine"
)

// options are the command line's flags. Each has a twin in the environment (--max-switches is USELESS_MAX_SWITCHES),
// because users of OLM configure an operator through its Subscription's environment alone; a flag that is given wins.
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

// parse reads the flags, and what they leave open from the environment.
func parse(args []string, getenv func(string) string) (*options, error) {
	o := &options{controllers: controller.Options{Selection: []string{"*"}}}
	flags := newFlagSet(o)
	flags.SetOutput(io.Discard) // a mistake is worth one line, which main prints
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
	flags.Func("controllers", fmt.Sprintf("comma-separated controllers to run: '*' for all that are on by default, 'name' for one more, "+
		"'-name' for one less; more of these flags add to the first (default *)\nAll controllers: %s", strings.Join(controller.Names(), ", ")),
		selection(&o.controllers.Selection))
	flags.StringVar(&o.controllers.PodCount.Label, "pod-count-label", podcount.DefaultLabel, "the label that the controller podcount keeps on ReplicaSets")
	flags.Var(&o.controllers.Ingress.Annotations, "ingress-annotation", "`key=value` that the controller ingress ensures on Ingresses; may be given more than once")
	flags.StringVar(&o.namespace, "namespace", "", "the operator's own namespace, for its lease and its certificates (default: that of its Pod)")
	flags.BoolVar(&o.leaderElect, "leader-elect", false, "run the controllers on one replica at a time")
	flags.IntVar(&o.maxSwitches, "max-switches", 100, "the most switches that a Machine may have, from 1 to 1000")
	flags.IntVar(&o.controllers.Machine.ConcurrentSyncs, "concurrent-machine-syncs", machine.DefaultConcurrentSyncs,
		"how many Machines are reconciled at a time, from 1 to 256")
	flags.StringVar(&o.controllers.Schedule.DefaultTimeZone, "default-time-zone", "UTC", "the time zone of schedules that name none, by its IANA name")
	flags.StringVar(&o.controllers.VirtualMachine.Image, "vm-image", virtualmachine.DefaultImage,
		"what the servers of virtual machines run; its user must not be root")
	flags.DurationVar(&o.controllers.VirtualMachine.UsageInterval, "vm-usage-interval", virtualmachine.DefaultUsageInterval,
		"how often to ask what virtual machines use, at least 1s")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443", "where to serve metrics; 0 for nowhere")
	flags.BoolVar(&o.metricsSecure, "metrics-secure", true, "serve metrics over HTTPS, to those who may read them")
	flags.StringVar(&o.metricsCertDir, "metrics-cert-dir", "", "folder with tls.crt and tls.key for the metrics (default: self-signed)")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "where to serve /healthz and /readyz; 0 for nowhere")
	flags.BoolVar(&o.webhooks, "webhooks", true, "serve the admission and conversion webhooks")
	flags.StringVar(&o.webhookHost, "webhook-host", "", "address to serve the webhooks on (default: all)")
	flags.IntVar(&o.webhookPort, "webhook-port", 9443, "port to serve the webhooks on")
	flags.StringVar(&o.webhookCertDir, "webhook-cert-dir", filepath.Join(os.TempDir(), "k8s-webhook-server", "serving-certs"),
		"folder with tls.crt and tls.key for the webhooks")
	flags.BoolVar(&o.selfManagedCerts, "self-managed-certs", false, "make and rotate the webhooks' certificates, rather than find them in the folder")
	flags.DurationVar(&o.shutdownDelay, "shutdown-delay", 0, "how long to go on after a signal to stop, while webhook clients turn to another replica")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	config.RegisterFlags(flags)
	o.log.BindFlags(flags)
	return flags
}

// selection returns what parses --controllers: the first one replaces the default, and each one more adds to it, so that
// every kustomize component can have its own.
func selection(into *[]string) func(string) error {
	var all []string
	return func(value string) error {
		all = append(all, strings.Split(value, ",")...)
		*into = all
		return nil
	}
}

// fromEnvironment sets the flags that were not given from their twins in the environment.
func fromEnvironment(flags *flag.FlagSet, getenv func(string) string) error {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		twin := "USELESS_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if given[f.Name] {
			return
		}
		for _, value := range values(f, getenv(twin)) {
			if err := flags.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("invalid value %q for environment variable %s: %w", value, twin, err))
			}
		}
	})
	return errors.Join(errs...)
}

// values are those that an environment variable has for a flag: annotations may have anything in them but line breaks, and
// are one a line.
func values(f *flag.Flag, variable string) []string {
	lines := []string{variable}
	if _, ok := f.Value.(*ingress.Annotations); ok {
		lines = strings.Split(variable, "\n")
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// validate returns an error for a wrong value. For the controllers, zero means the default: a user who gives it wants
// something else.
func (o *options) validate() error {
	if o.maxSwitches < 1 || o.maxSwitches > 1000 {
		return fmt.Errorf("invalid value %d for flag --max-switches: must be from 1 to 1000", o.maxSwitches)
	}
	if o.selfManagedCerts && o.namespace == "" {
		return errors.New("--self-managed-certs needs --namespace: the certificates are kept in a Secret there")
	}
	switch c := o.controllers; {
	case c.Machine.ConcurrentSyncs == 0:
		return errors.New("invalid value 0 for flag --concurrent-machine-syncs: must be from 1 to 256")
	case c.VirtualMachine.Image == "":
		return errors.New("invalid value \"\" for flag --vm-image: must be an image, such as " + virtualmachine.DefaultImage)
	case c.VirtualMachine.UsageInterval == 0:
		return errors.New("invalid value 0s for flag --vm-usage-interval: must be at least 1s, such as 30s")
	case c.PodCount.Label == "":
		return errors.New("invalid value \"\" for flag --pod-count-label: it is empty; for example, pod-count or example.com/pod-count")
	}
	return o.controllers.Validate()
}

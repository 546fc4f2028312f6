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
)

// options are the values of the flags. Each flag also has an environment variable: USELESS_MAX_SWITCHES for
// --max-switches. A Subscription of OLM can set environment variables, but no flags. A flag on the command line takes
// precedence.
type options struct {
	controllers      controller.Options
	namespace        string
	leaderElect      bool
	podUID           string
	maxSwitches      int
	metricsAddress   string
	metricsSecure    bool
	metricsCertDir   string
	probeAddress     string
	pprofAddress     string
	webhooks         bool
	webhookHost      string
	webhookPort      int
	webhookCertDir   string
	selfManagedCerts bool
	shutdownDelay    time.Duration
	checkWebhooks    bool
	version          bool
	log              zap.Options
}

// parse reads the flags. For each flag that is not on the command line, it reads the environment variable. For --help,
// it prints the flags and returns flag.ErrHelp.
func parse(args []string, getenv func(string) string) (*options, error) {
	o := &options{}
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
		return nil, fmt.Errorf("unexpected argument %q: all options are flags, which start with --", flags.Arg(0))
	}
	if err := fromEnvironment(flags, getenv); err != nil {
		return nil, err
	}
	o.controllers.Namespace = o.namespace
	return o, errors.Join(o.validate(), o.controllers.ValidateFlags(flags), rejectZero(flags))
}

func newFlagSet(o *options) *flag.FlagSet {
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	o.controllers.AddFlags(flags)
	flags.IntVar(&o.maxSwitches, "max-switches", 100, "the maximum number of switches of a Machine, from 1 to 1000")
	flags.BoolVar(&o.leaderElect, "leader-elect", false, "run the controllers on one replica at a time")
	flags.StringVar(&o.podUID, "pod-uid", "",
		"the UID of the operator's Pod; with it, a restarted container takes the Lease of its Pod immediately")
	flags.StringVar(&o.namespace, "namespace", "", "the operator's namespace; "+
		"--self-managed-certs and --check-webhooks need it (default for the Lease: the Pod's namespace)")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8443",
		"the address of the metrics endpoint; 0 disables it")
	flags.BoolVar(&o.metricsSecure, "metrics-secure", true,
		"serve metrics over HTTPS, with authentication and authorization")
	flags.StringVar(&o.metricsCertDir, "metrics-cert-dir", "",
		"the directory with tls.crt and tls.key of the metrics endpoint (default: the certificate of the webhooks, "+
			"or without webhooks a self-signed one)")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081",
		"the address of /healthz and /readyz; 0 disables them")
	flags.StringVar(&o.pprofAddress, "pprof-bind-address", "0",
		"the address of the Go profiles at /debug/pprof/, without authentication; 0 disables them")
	flags.BoolVar(&o.webhooks, "webhooks", true, "serve the admission and conversion webhooks")
	flags.StringVar(&o.webhookHost, "webhook-host", "", "the address of the webhook server (default: all addresses)")
	flags.IntVar(&o.webhookPort, "webhook-port", 9443, "the port of the webhook server")
	flags.StringVar(&o.webhookCertDir, "webhook-cert-dir",
		filepath.Join(os.TempDir(), "k8s-webhook-server", "serving-certs"),
		"the directory with tls.crt and tls.key of the webhook server")
	flags.BoolVar(&o.selfManagedCerts, "self-managed-certs", false,
		"create and rotate the webhook certificates, instead of reading them from --webhook-cert-dir")
	flags.DurationVar(&o.shutdownDelay, "shutdown-delay", 0,
		"how long the operator continues after SIGTERM, so that webhook clients can connect to another replica")
	flags.BoolVar(&o.checkWebhooks, "check-webhooks", false,
		"create Machines in a dry run, to check that the API server can call the webhooks, and exit")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	config.RegisterFlags(flags)
	o.log.BindFlags(flags)
	return flags
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
		// A variable can have several values, one per line, if its flag can be repeated.
		for _, value := range strings.FieldsFunc(getenv(variable), func(r rune) bool { return r == '\n' }) {
			if err := flags.Set(f.Name, value); err != nil {
				errs = append(errs,
					fmt.Errorf("invalid value %q for environment variable %s: %w", value, variable, err))
			}
		}
	})
	return errors.Join(errs...)
}

// validate returns an error if an option is out of range or invalid.
func (o *options) validate() error {
	if o.maxSwitches < 1 || o.maxSwitches > 1000 {
		return fmt.Errorf("invalid value %d for flag --max-switches: must be from 1 to 1000", o.maxSwitches)
	}
	if o.selfManagedCerts && o.namespace == "" {
		return errors.New("--self-managed-certs needs --namespace: it stores the certificates in a Secret")
	}
	return o.controllers.Validate()
}

// rejectZero returns an error if an option of a controller is set to zero or an empty value, and this is not its
// default. The controllers replace zero with the default, so such a flag would have no effect.
func rejectZero(flags *flag.FlagSet) error {
	var errs []error
	controllers := flag.NewFlagSet("controllers", flag.ContinueOnError)
	(&controller.Options{}).AddFlags(controllers)
	controllers.VisitAll(func(f *flag.Flag) {
		value := flags.Lookup(f.Name).Value.String()
		if zero := value == "" || value == "0" || value == "0s"; zero && value != f.DefValue {
			errs = append(errs,
				fmt.Errorf("invalid value %q for flag --%s: use for example %s", value, f.Name, f.DefValue))
		}
	})
	return errors.Join(errs...)
}

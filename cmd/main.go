// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager runs the operator's controllers and webhooks.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/certificates"
	"container.training/useless/internal/controller"
	"container.training/useless/internal/events"
	"container.training/useless/internal/informer"
	"container.training/useless/internal/migration"
	"container.training/useless/internal/webhook/admission"
	"container.training/useless/internal/webhook/conversion"
	"container.training/useless/internal/webhook/server"
)

// version is set by the linker.
var version = "unknown"

func main() {
	if err := run(ctrl.SetupSignalHandler(), os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args, os.Getenv)
	if err != nil {
		return err
	}
	if o.version {
		_, err := fmt.Println(version)
		return err
	}
	logger := zap.New(zap.UseFlagOptions(&o.log))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	if o.checkWebhooks {
		return check(ctx, o.namespace)
	}

	mgr, err := o.setup(ctx)
	if err != nil {
		return err
	}
	logger.Info("Starting useless-operator", "version", version, "webhooks", o.webhooks)
	return mgr.Start(delayed(ctx, o.shutdownDelay))
}

// setup returns a manager with the controllers, the storage version migration and the webhooks.
func (o *options) setup(ctx context.Context) (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("load the kubeconfig: %w", err)
	}
	events.Defer(config)
	webhookTLS := &tls.Config{}
	limitTLS(webhookTLS)
	managerOptions, err := o.manager(ctx, webhookTLS)
	if err != nil {
		return nil, err
	}
	mgr, err := o.newManager(config, managerOptions)
	if err != nil {
		return nil, fmt.Errorf("create the manager: %w", err)
	}
	if err := o.controllers.Setup(ctx, mgr, clock.RealClock{}, metrics.Registry); err != nil {
		return nil, err
	}
	if err := migration.Setup(mgr, clock.RealClock{}, metrics.Registry); err != nil {
		return nil, fmt.Errorf("set up the storage version migration: %w", err)
	}
	// The manager serves /healthz and /readyz only if there is a check.
	if err := errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping), o.exitAfterSuspension(mgr),
	); err != nil {
		return nil, err
	}
	if !o.webhooks {
		return mgr, nil
	}
	return mgr, o.setupWebhooks(ctx, mgr, webhookTLS)
}

// newScheme returns a scheme with the types of Kubernetes and of this operator.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(v1beta1.AddToScheme(scheme))
	utilruntime.Must(cloudnativev1alpha1.AddToScheme(scheme))
	return scheme
}

// limitTLS disables HTTP/2 because of the rapid reset attack (CVE-2023-44487), which needs no credentials. It also
// requires TLS 1.3, which all supported API servers and Prometheus support.
func limitTLS(c *tls.Config) {
	c.NextProtos = []string{"http/1.1"}
	c.MinVersion = tls.VersionTLS13
}

// manager returns the manager's options. When the context "running" is canceled, the webhook server begins to drain its
// connections.
func (o *options) manager(running context.Context, webhookTLS *tls.Config) (ctrl.Options, error) {
	scheme := newScheme()
	cacheOptions, err := o.controllers.CacheOptions(scheme)
	if err == nil && o.selfManagedCerts {
		secrets := certificates.CacheOptions(o.namespace)
		cacheOptions.ByObject, err = informer.Merge(scheme, cacheOptions.ByObject, secrets)
	}
	if err != nil {
		return ctrl.Options{}, err
	}
	return ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cacheOptions,
		NewCache:               informer.NewCache,
		Client:                 controller.ClientOptions(),
		Metrics:                o.metricsServer(webhookTLS),
		HealthProbeBindAddress: o.probeAddress,
		PprofBindAddress:       o.pprofAddress,
		// A standby replica fills its caches and queues, so that it can work immediately when it becomes the leader.
		Controller:                    config.Controller{EnableWarmup: new(true)},
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		RenewDeadline:                 new(renewDeadline),
		// A standby replica checks the Lease every 1 to 2.2 retry periods. If the leader releases the Lease, a flip is
		// therefore at most 2.5 s late.
		RetryPeriod: new(time.Second),
		// This is shorter than the termination grace period of the Pod, so that the Lease is released in time.
		GracefulShutdownTimeout: new(5 * time.Second),
		WebhookServer: server.New(
			running, net.JoinHostPort(o.webhookHost, strconv.Itoa(o.webhookPort)), webhookTLS),
	}, nil
}

// metricsServer returns the options of the metrics endpoint. If there are webhooks and no --metrics-cert-dir, it uses
// the webhooks' certificate. Prometheus can verify this certificate, because its CA certificate is in a Secret.
func (o *options) metricsServer(webhookTLS *tls.Config) metricsserver.Options {
	options := metricsserver.Options{
		BindAddress:   o.metricsAddress,
		SecureServing: o.metricsSecure,
		CertDir:       o.metricsCertDir,
		TLSOpts:       []func(*tls.Config){limitTLS},
	}
	if o.metricsSecure {
		options.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	if o.webhooks && o.metricsCertDir == "" {
		// The server calls the function when it starts. By then, setupCertificate has set webhookTLS.GetCertificate.
		options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) { c.GetCertificate = webhookTLS.GetCertificate })
	}
	return options
}

// setupWebhooks adds the webhooks to a manager. It also makes the TLS configuration use the webhooks' certificate.
func (o *options) setupWebhooks(ctx context.Context, mgr ctrl.Manager, config *tls.Config) error {
	if err := admission.Setup(ctx, mgr, int32(o.maxSwitches)); err != nil {
		return fmt.Errorf("set up the admission webhooks: %w", err)
	}
	if err := conversion.Setup(mgr); err != nil {
		return fmt.Errorf("set up the conversion webhook: %w", err)
	}
	if err := o.setupCertificate(ctx, mgr, config); err != nil {
		return fmt.Errorf("set up the certificate of the webhooks: %w", err)
	}
	return mgr.AddReadyzCheck("webhooks", mgr.GetWebhookServer().StartedChecker())
}

func (o *options) setupCertificate(ctx context.Context, mgr ctrl.Manager, config *tls.Config) error {
	if o.selfManagedCerts {
		source, err := certificates.Setup(ctx, mgr, o.namespace, o.webhookCertDir)
		if err != nil {
			return err
		}
		config.GetCertificate = source.GetCertificate
		return errors.Join(certificates.ExposeExpiration(metrics.Registry, source.GetCertificate),
			mgr.AddReadyzCheck("certificates", source.Injected))
	}
	watcher, err := certwatcher.New(
		filepath.Join(o.webhookCertDir, "tls.crt"), filepath.Join(o.webhookCertDir, "tls.key"))
	if err != nil {
		return err
	}
	config.GetCertificate = watcher.GetCertificate
	return errors.Join(certificates.ExposeExpiration(metrics.Registry, watcher.GetCertificate), mgr.Add(watcher))
}

// delayed returns a context that is canceled the given delay after its parent. During the delay, a stopping replica
// still serves webhook clients that are not yet connected to another replica.
func delayed(parent context.Context, delay time.Duration) context.Context {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	context.AfterFunc(parent, func() { time.AfterFunc(delay, cancel) })
	return ctx
}

// exitAfterSuspension makes the leader exit if it was suspended for renewDeadline or longer: another replica may be the
// leader now. Without exitAfterSuspension, the leader election would let the process continue for another renewDeadline
// with stale data. The process exits without releasing the Lease, because another replica may hold it.
func (o *options) exitAfterSuspension(mgr ctrl.Manager) error {
	if !o.leaderElect {
		return nil
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { // runs on the leader only
		if suspended := waitForSuspension(ctx, clock.RealClock{}); suspended > 0 {
			mgr.GetLogger().Info("Exiting: the process was suspended, and another replica may lead",
				"suspended", suspended.String())
			os.Exit(1)
		}
		return nil
	}))
}

// waitForSuspension waits until the process was suspended for renewDeadline or longer, and returns the duration. It
// returns 0 when the context is canceled.
func waitForSuspension(ctx context.Context, clock clock.WithTicker) time.Duration {
	ticker := clock.NewTicker(time.Second)
	defer ticker.Stop()
	for last := clock.Now(); ; {
		select {
		case <-ctx.Done():
			return 0
		case <-ticker.C():
			now := clock.Now()
			if suspended := now.Sub(last); suspended >= renewDeadline {
				return suspended
			}
			last = now
		}
	}
}

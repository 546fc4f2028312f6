// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"container.training/useless/api/useless/v1beta1"
)

// pollInterval is the time between two requests of a poll. A test has three to six polls. With a shorter interval, they
// would slow down the upgrade that the test measures.
const pollInterval = 100 * time.Millisecond

// poll is a client that repeats one request.
type poll struct {
	name    string
	asked   int
	longest time.Duration // longest time of a successful request
	outages []*outage
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// outage is a period in which every request failed.
type outage struct {
	from, to time.Time // start of the first failed request, and end of the last one
	requests int
	first    error
}

// startPoll sends requests until stop is called or the test ends.
func startPoll(t *testing.T, name string, ask func(context.Context, dynamic.Interface) error) *poll {
	t.Helper()
	config := clientConfig(t)
	config.Timeout = 30 * time.Second
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &poll{name: name, cancel: cancel}
	p.done.Go(func() {
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		var current *outage
		for ctx.Err() == nil {
			current = p.ask(ctx, current, func() error { return ask(ctx, client) })
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	t.Cleanup(p.stop)
	return p
}

// clientConfig returns a client configuration for the kubeconfig's cluster, without a limit on the rate of requests.
func clientConfig(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	return config
}

// ask sends one request. It returns the current outage, or nil after a success.
func (p *poll) ask(ctx context.Context, current *outage, request func() error) *outage {
	start := time.Now()
	err := request()
	if ctx.Err() != nil {
		return current // the end of the test canceled the request
	}
	p.asked++
	if err == nil {
		p.longest = max(p.longest, time.Since(start))
		return nil
	}
	if current == nil {
		current = &outage{from: start, first: err}
		p.outages = append(p.outages, current)
	}
	current.to = time.Now()
	current.requests++
	return current
}

func (p *poll) stop() {
	p.cancel()
	p.done.Wait()
}

// mustNotHaveFailed stops the poll. No request may have failed.
func (p *poll) mustNotHaveFailed(t *testing.T) {
	t.Helper()
	p.mustHaveFailedAtMost(t, 0)
}

// mustHaveFailedAtMost stops the poll. The sum of all outages must not exceed a bound.
func (p *poll) mustHaveFailedAtMost(t *testing.T, bound time.Duration) {
	t.Helper()
	p.stop()
	t.Logf("%s: %d requests, slowest success %s, %d outages", p.name, p.asked, p.longest.Round(time.Millisecond), len(p.outages))
	if p.longest == 0 {
		t.Errorf("%s: no request succeeded", p.name)
	}
	var total time.Duration
	for _, o := range p.outages {
		length := o.to.Sub(o.from)
		t.Logf("%s: outage of %.2f s from %s, %d failed requests, the first: %v",
			p.name, length.Seconds(), o.from.Format("15:04:05.00"), o.requests, o.first)
		total += length
	}
	if total > bound {
		t.Errorf("%s: outages of %s in total, want at most %s", p.name, total, bound)
	}
}

// clientRetries is the longest time for which client-go repeats a request. If the API server answers with
// "Retry-After: 1", client-go repeats the request ten times.
const clientRetries = 10 * time.Second

// listDelay is the time after an outage of gets in which lists can still fail. The API server reads all objects again
// before it answers lists. It tries that every second.
const listDelay = 2 * time.Second

// mustHaveWaitedFor stops both polls, and limits the outages of p, a poll of lists. gets is a poll of gets in the same
// version. While the API server cannot convert objects, it rejects a get at once, but asks clients to repeat a list. So
// a list may fail only if an outage of gets, together with listDelay, is longer than clientRetries. Two outages count
// as one if lists can still fail between them.
func (p *poll) mustHaveWaitedFor(t *testing.T, gets *poll) {
	t.Helper()
	gets.stop()
	var bound time.Duration
	for i := 0; i < len(gets.outages); {
		from, to := gets.outages[i].from, gets.outages[i].to
		for i++; i < len(gets.outages) && gets.outages[i].from.Sub(to) < listDelay; i++ {
			to = gets.outages[i].to
		}
		if length := to.Sub(from) + listDelay; length > clientRetries {
			bound += length
		}
	}
	p.mustHaveFailedAtMost(t, bound)
}

// workInBothVersions starts three polls. Two of them read the only machine of a namespace, each in a different version.
// The third poll creates machines in v1alpha1, as a dry run.
func workInBothVersions(t *testing.T, namespace string) []*poll {
	t.Helper()
	return []*poll{
		startPoll(t, "lists in v1beta1", listMachines("v1beta1", namespace, 1)),
		startPoll(t, "gets in v1alpha1", getMachine("v1alpha1", namespace, "machine")),
		startPoll(t, "writes in v1alpha1", createMachine("v1alpha1", namespace)),
	}
}

// listMachines lists all machines of a namespace in a version, and checks their number.
func listMachines(version, namespace string, want int) func(context.Context, dynamic.Interface) error {
	return func(ctx context.Context, client dynamic.Interface) error {
		list, err := machines(client, version, namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if got := len(list.Items); got != want {
			return fmt.Errorf("got %d machines, want %d", got, want)
		}
		return nil
	}
}

// getMachine gets one machine. The API server reads it from etcd. Lists come from its cache.
func getMachine(version, namespace, name string) func(context.Context, dynamic.Interface) error {
	return func(ctx context.Context, client dynamic.Interface) error {
		_, err := machines(client, version, namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	}
}

// onceServed ignores the error that the API server returns before it serves a version.
func onceServed(ask func(context.Context, dynamic.Interface) error) func(context.Context, dynamic.Interface) error {
	return func(ctx context.Context, client dynamic.Interface) error {
		err := ask(ctx, client)
		if err != nil && strings.Contains(err.Error(), "the server could not find the requested resource") {
			return nil
		}
		return err
	}
}

// createMachine creates a machine as a dry run. The API server calls the validating webhook and, for v1alpha1, also the
// conversion webhook.
func createMachine(version, namespace string) func(context.Context, dynamic.Interface) error {
	return func(ctx context.Context, client dynamic.Interface) error {
		machine := &unstructured.Unstructured{}
		machine.SetAPIVersion("useless.container.training/" + version)
		machine.SetKind("Machine")
		machine.SetGenerateName("checked-")
		_, err := machines(client, version, namespace).Create(ctx, machine, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
}

func machines(client dynamic.Interface, version, namespace string) dynamic.ResourceInterface {
	group := v1beta1.GroupVersion
	group.Version = version
	return client.Resource(group.WithResource("machines")).Namespace(namespace)
}

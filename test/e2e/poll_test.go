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

// pollInterval is how often a poll asks.
const pollInterval = 20 * time.Millisecond

// poll is a client that asks one question again and again.
type poll struct {
	name    string
	asked   int
	longest time.Duration // that an answer took
	outages []*outage
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// outage is a time in which every question failed.
type outage struct {
	from, to  time.Time // of the first and of the last failure
	questions int
	first     error
}

// startPoll asks until stop is called. The test's end stops it, too.
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

// clientConfig is for clients of the cluster of the kubeconfig.
func clientConfig(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	return config
}

// ask asks once, and returns the outage that there is then.
func (p *poll) ask(ctx context.Context, current *outage, question func() error) *outage {
	start := time.Now()
	err := question()
	if ctx.Err() != nil {
		return current // it was the end of the test that failed
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
	current.questions++
	return current
}

func (p *poll) stop() {
	p.cancel()
	p.done.Wait()
}

// mustNotHaveFailed ends the poll.
func (p *poll) mustNotHaveFailed(t *testing.T) {
	t.Helper()
	p.mustHaveFailedAtMost(t, 0)
}

// mustHaveFailedAtMost ends a poll that may have failed for a while, all outages together.
func (p *poll) mustHaveFailedAtMost(t *testing.T, bound time.Duration) {
	t.Helper()
	p.stop()
	t.Logf("%s: asked %d times, answered within %s at most, %d outages", p.name, p.asked, p.longest.Round(time.Millisecond), len(p.outages))
	if p.longest == 0 {
		t.Errorf("%s: no answer at all", p.name)
	}
	var total time.Duration
	for _, o := range p.outages {
		length := o.to.Sub(o.from)
		t.Logf("%s: no answer for %.2f s, to %d questions, the first: %v", p.name, length.Seconds(), o.questions, o.first)
		total += length
	}
	if total > bound {
		t.Errorf("%s: no answer for %s, want at most %s", p.name, total, bound)
	}
}

// workInBothVersions reads the one machine of a namespace in both versions, and has others checked in v1alpha1.
func workInBothVersions(t *testing.T, namespace string) []*poll {
	t.Helper()
	return []*poll{
		startPoll(t, "lists in v1beta1", listMachines("v1beta1", namespace, 1)),
		startPoll(t, "gets in v1alpha1", getMachine("v1alpha1", namespace, "machine")),
		startPoll(t, "writes in v1alpha1", createMachine("v1alpha1", namespace)),
	}
}

// listMachines asks for all machines of a namespace in one version, and for how many there have to be.
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

// getMachine asks for one machine, which the API server reads from its store, and not from a cache as it does for lists.
func getMachine(version, namespace, name string) func(context.Context, dynamic.Interface) error {
	return func(ctx context.Context, client dynamic.Interface) error {
		_, err := machines(client, version, namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	}
}

// onceServed takes it for no failure that a version is not served yet.
func onceServed(ask func(context.Context, dynamic.Interface) error) func(context.Context, dynamic.Interface) error {
	return func(ctx context.Context, client dynamic.Interface) error {
		err := ask(ctx, client)
		if err != nil && strings.Contains(err.Error(), "the server could not find the requested resource") {
			return nil
		}
		return err
	}
}

// createMachine asks the API server to check a machine, through the conversion and the validating webhook.
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

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
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
	name     string
	start    time.Time
	asked    int
	failures []failure
	cancel   context.CancelFunc
	done     sync.WaitGroup
}

type failure struct {
	after time.Duration
	err   error
}

// startPoll asks until stop is called. The test's end stops it, too.
func startPoll(t *testing.T, name string, ask func(context.Context, dynamic.Interface) error) *poll {
	t.Helper()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Timeout, config.WarningHandler = -1, 30*time.Second, rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &poll{name: name, start: time.Now(), cancel: cancel}
	p.done.Go(func() {
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := ask(ctx, client); err != nil && ctx.Err() == nil {
				p.failures = append(p.failures, failure{time.Since(p.start), err})
			}
			p.asked++
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	t.Cleanup(func() { p.stop() })
	return p
}

// stop ends the poll and returns what failed.
func (p *poll) stop() []failure {
	p.cancel()
	p.done.Wait()
	return p.failures
}

// mustNotHaveFailed ends the poll.
func (p *poll) mustNotHaveFailed(t *testing.T) {
	t.Helper()
	failures := p.stop()
	t.Logf("%s: asked %d times in %.1f s, %d failures", p.name, p.asked, time.Since(p.start).Seconds(), len(failures))
	for i, f := range failures {
		if i == 0 || i == len(failures)-1 {
			t.Errorf("%s: after %.2f s: %v", p.name, f.after.Seconds(), f.err)
		}
	}
}

// workInBothVersions reads the one machine of a namespace in both versions, and has others checked in v1alpha1.
func workInBothVersions(t *testing.T, namespace string) []*poll {
	t.Helper()
	return []*poll{
		startPoll(t, "reads in v1alpha1", listMachines("v1alpha1", namespace, 1)),
		startPoll(t, "reads in v1beta1", listMachines("v1beta1", namespace, 1)),
		startPoll(t, "writes through both webhooks", createMachine("v1alpha1", namespace)),
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

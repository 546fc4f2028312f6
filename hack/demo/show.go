// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

// restTimeout limits the time until all samples are at rest.
const restTimeout = time.Minute

// draw shows the view on a terminal until Ctrl-C.
func (d *demo) draw(ctx context.Context) error {
	fmt.Print("\x1b[?25l\x1b[2J") // hide the cursor, clear the screen
	defer fmt.Print("\x1b[?25h\n")
	err := d.watch(ctx, func(v view) (done bool) {
		width, height, err := term.GetSize(int(os.Stdout.Fd()))
		if err != nil || width == 0 || height == 0 { // some programs start a terminal without a size
			width, height = 80, 24
		}
		text := screen(v, d.page.URL, d.path(local, "kubeconfig"), time.Now(), width, height)
		fmt.Print("\x1b[H", strings.ReplaceAll(text, "\n", "\x1b[K\n"), "\x1b[J") // overwrite, to avoid flicker
		return false
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// report prints a line for each change until all samples are at rest.
func (d *demo) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, restTimeout, fmt.Errorf("gave up after %s", restTimeout))
	defer cancel()
	fmt.Printf("export KUBECONFIG=%s\n", d.path(local, "kubeconfig"))
	turned, written := turnedUp(d.samples), map[string]string{}
	var pending []string
	err := d.watch(ctx, func(v view) (done bool) {
		for _, l := range lines(v) {
			if written[l.about] != l.text {
				written[l.about] = l.text
				fmt.Println(l.text)
			}
		}
		pending = notAtRest(v, turned)
		return len(v.machines) > 0 && len(v.others) > 0 && len(pending) == 0
	})
	if err != nil {
		return fmt.Errorf("these samples are not at rest: %s: %w", strings.Join(pending, ", "), err)
	}
	fmt.Println("every sample is at rest")
	return nil
}

// watch reads the state and calls look, four times a second, until look returns true. It returns an error if a read
// fails, or if the context or the operator ends first.
func (d *demo) watch(ctx context.Context, look func(view) (done bool)) error {
	scheme := runtime.NewScheme()
	err := errors.Join(
		clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme), cloudnativev1alpha1.AddToScheme(scheme),
	)
	if err != nil {
		return err
	}
	c, err := client.New(d.plane.Config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		var machines v1beta1.MachineList
		var events eventsv1.EventList
		others, err := readOthers(ctx, c)
		err = errors.Join(err, c.List(ctx, &machines), c.List(ctx, &events))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("read the objects and events: %w", err)
		}
		if look(newView(machines.Items, others, events.Items)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.operator.Done():
			return errors.Join(errors.New("the operator has exited"), d.operator.Err())
		case <-tick.C:
		}
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"

	"container.training/useless/api/useless/v1beta1"
)

func (o *options) newSleep() *cobra.Command {
	var until string
	c := &cobra.Command{
		Use: "sleep KIND/NAME", Short: "Stop a workload until the next start of its schedule",
		Long: "Stop a workload as the operator does. This also ends an uptime that the command wake has started.\n" +
			"The next start of its schedule restores it. With --until, earlier starts and stops are skipped.",
		Example: "  kubectl useless sleep deployment/web\n" +
			"  kubectl useless sleep deployment/web --until 2026-11-30T07:00:00+01:00",
		ValidArgsFunction: o.completeWorkload,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := validUntil(until, o.clock.Now()); err != nil {
				return err
			}
			// Another client may change the workload between the read and the patch.
			return retry.RetryOnConflict(retry.DefaultRetry, func() error { return o.sleep(args, until) })
		},
	}
	c.Flags().StringVar(&until, "until", "", "a time (RFC 3339) before which no start and no stop is executed")
	return c
}

// sleep reads a workload and stops it. With until, it also skips the earlier starts and stops.
func (o *options) sleep(args []string, until string) error {
	w, err := o.scheduled(args)
	if err != nil {
		return err
	}
	if err := w.Stop(); err != nil {
		return err
	}
	if until != "" {
		w.object.GetAnnotations()[v1beta1.SuspendUntilAnnotation] = until
	}
	patch, err := stopPatch(w)
	if err != nil {
		return err
	}
	return o.patch(w.info, patch, "stopped")
}

func validUntil(text string, now time.Time) error {
	if text == "" {
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("--until %q is not a time with an offset: use for example --until %s", text,
			now.Add(24*time.Hour).Truncate(time.Hour).Format(time.RFC3339))
	}
	if !at.After(now) {
		return fmt.Errorf("--until %s is in the past: use a later time", text)
	}
	return nil
}

// stopPatch returns a patch with the fields that Stop has changed. The patch contains the resourceVersion, so that the
// API server rejects it if the object has changed since the read.
func stopPatch(w workload) (map[string]any, error) {
	changed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.object)
	if err != nil {
		return nil, err
	}
	before := w.info.Object.(*unstructured.Unstructured)
	annotations := map[string]any{}
	for key := range before.GetAnnotations() {
		if _, kept := w.object.GetAnnotations()[key]; !kept {
			annotations[key] = nil
		}
	}
	for key, value := range w.object.GetAnnotations() {
		if before.GetAnnotations()[key] != value {
			annotations[key] = value
		}
	}
	patch := annotationPatch(annotations)
	patch["metadata"].(map[string]any)["resourceVersion"] = before.GetResourceVersion()
	spec := map[string]any{}
	for _, field := range []string{"replicas", "suspend", "action", "minReplicas", "maxReplicas"} {
		if value, found, _ := unstructured.NestedFieldNoCopy(changed, "spec", field); found {
			spec[field] = value
		}
	}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	return patch, nil
}

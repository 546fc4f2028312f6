// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/retry"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

const fieldManager = "kubectl-useless"

func (o *options) newWake() *cobra.Command {
	var duration string
	c := &cobra.Command{
		Use: "wake KIND/NAME --for DURATION", Short: "Start a workload for some time, with the annotation start-until",
		Example: "  kubectl useless wake deployment/web --for 2h",
		RunE: func(_ *cobra.Command, args []string) error {
			if err := validDuration(duration); err != nil {
				return err
			}
			w, err := o.scheduled(args)
			if err != nil {
				return err
			}
			if !w.CanStart() {
				return fmt.Errorf("the replicas of %s before its stop are not known: set them once with\n"+
					"  kubectl annotate -n %s %[1]s %s=1",
					w.id(), w.object.GetNamespace(), v1beta1.StartReplicasAnnotation)
			}
			patch := annotationPatch(map[string]any{v1beta1.StartUntilAnnotation: duration})
			return o.patch(w.info, patch, "runs for "+duration)
		},
	}
	c.Flags().StringVar(&duration, "for", "", "how long the workload runs, from 1m to 30d")
	return c
}

// validDuration returns an error if start-until does not accept a duration.
func validDuration(text string) error {
	if text == "" {
		return errors.New("--for is missing: say how long, for example --for 2h")
	}
	d, err := model.ParseDuration(text)
	if err != nil || time.Duration(d) < time.Minute || time.Duration(d) > 30*24*time.Hour {
		return fmt.Errorf("--for %q is not a duration from 1m to 30d: use for example --for 2h", text)
	}
	return nil
}

// scheduled returns a workload that the operator starts and stops.
func (o *options) scheduled(args []string) (workload, error) {
	r, err := o.newReader()
	if err != nil {
		return workload{}, err
	}
	w, err := r.get(args)
	switch {
	case err != nil:
		return workload{}, err
	case w.IsIgnored():
		return workload{}, fmt.Errorf("the operator ignores %s: it is paused or being deleted, "+
			"or another object controls it", w.id())
	case w.State() == "":
		return workload{}, noSchedule(w)
	}
	if s, problems := w.Parse(); s == nil {
		_, note := schedule.Explain(problems)
		return workload{}, fmt.Errorf("the schedule of %s is invalid: %s", w.id(), note)
	}
	return w, nil
}

func (o *options) newSleep() *cobra.Command {
	var until string
	c := &cobra.Command{
		Use: "sleep KIND/NAME", Short: "Stop a workload until the next start of its schedule",
		Long: "Stop a workload like the operator does, and end its uptime on demand.\n" +
			"The next start of its schedule restores it. With --until, earlier starts and stops are skipped.",
		Example: "  kubectl useless sleep deployment/web\n" +
			"  kubectl useless sleep deployment/web --until 2026-11-30T07:00:00+01:00",
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

// stopPatch returns a patch with the fields that Stop has changed. It has the resourceVersion, so that the API server
// rejects a decision that is based on an old object.
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

func annotationPatch(annotations map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": annotations}}
}

// patch sends a merge patch, and prints what it did to the object.
func (o *options) patch(info *resource.Info, patch map[string]any, done string) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = resource.NewHelper(info.Client, info.Mapping).WithFieldManager(fieldManager).
		Patch(info.Namespace, info.Name, types.MergePatchType, data, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "%s/%s %s\n", info.Mapping.Resource.GroupResource(), info.Name, done)
	return nil
}

func (o *options) newFlip() *cobra.Command {
	return &cobra.Command{
		Use: "flip MACHINE", Short: "Turn all switches of a Machine up, so that the operator turns them down again",
		Example: "  kubectl useless flip machine-1",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return errors.New("write the name of one Machine, for example: kubectl useless flip machine-1")
			}
			namespace, err := o.namespace()
			if err != nil {
				return err
			}
			infos, err := resource.NewBuilder(o.config).Unstructured().NamespaceParam(namespace).DefaultNamespace().
				ResourceNames("machines.v1beta1.useless.container.training", args[0]).Latest().Do().Infos()
			if isAbsent(err) {
				return errors.New("the cluster has no kind Machine: install the operator first")
			}
			if err != nil {
				return fmt.Errorf("%w: kubectl get machines -n %s lists the Machines", err, namespace)
			}
			up := map[string]any{"spec": map[string]any{"position": v1beta1.PositionUp}}
			return o.patch(infos[0], up, "turned up")
		},
	}
}

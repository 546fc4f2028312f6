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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

const fieldManager = "kubectl-useless"

func (o *options) newWake() *cobra.Command {
	var duration string
	c := &cobra.Command{
		Use: "wake KIND/NAME --for DURATION", Short: "Start a workload for some time, with the annotation start-until",
		Example:           "  kubectl useless wake deployment/web --for 2h",
		ValidArgsFunction: o.completeWorkload,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := validDuration(duration); err != nil {
				return err
			}
			w, err := o.scheduled(args)
			if err != nil {
				return err
			}
			if w.IsDryRun() {
				return fmt.Errorf("a dry run applies to %s, so the operator would not start it: remove the annotation "+
					"%s from it and from its Namespace", w.id(), v1beta1.DryRunAnnotation)
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
		return errors.New("--for is missing: add a duration, for example --for 2h")
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

func annotationPatch(annotations map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": annotations}}
}

// patch sends a merge patch. After success, it prints the name of the object and the text done.
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

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

func (o *options) newSleep() *cobra.Command {
	var until string
	c := &cobra.Command{
		Use: "sleep KIND/NAME", Short: "Stop a workload until the next start of its schedule",
		Long: "Stop a workload as the operator does. This also ends an uptime that the command wake has started.\n" +
			"The next start of the schedule restores the workload. With --until, the operator skips starts and stops " +
			"before that time.",
		Example: "  kubectl useless sleep deployment/web\n" +
			"  kubectl useless sleep deployment/web --until 2026-11-30T07:00:00+01:00",
		ValidArgsFunction: o.completeWorkload,
		SuggestFor:        []string{"stop"},
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

// sleep reads a workload and stops it. With until, the operator also skips the starts and stops before that time.
func (o *options) sleep(args []string, until string) error {
	w, err := o.scheduled(args)
	if err != nil {
		return err
	}
	isAsleep := w.isAsleep(o.clock.Now())
	if until == "" && isAsleep {
		fmt.Fprintf(o.Out, "%s/%s is already stopped%s\n", w.info.Mapping.Resource.GroupResource(), w.info.Name,
			w.untilStart(o.clock.Now()))
		return nil
	}
	before := w.object.DeepCopyObject().(client.Object)
	if !isAsleep {
		if err := w.Stop(); err != nil {
			return err
		}
	}
	if until != "" {
		w.object.GetAnnotations()[v1beta1.SuspendUntilAnnotation] = until
	}
	patch, err := stopPatch(before, w.object)
	if err != nil {
		return err
	}
	return o.patch(w.info, patch, "stopped"+w.untilStart(o.clock.Now()))
}

// isAsleep reports whether the operator has stopped a workload, and nothing is due. Another stop would only replace the
// time from which the savings count.
func (w workload) isAsleep(now time.Time) bool {
	s, _ := w.Parse()
	if s == nil || w.Running(s) || w.Record().State != v1beta1.ScheduleStopped {
		return false
	}
	due := s.Due(w.Record(), false, now)
	return !due.IsDue && !due.IsUptime
}

// untilStart describes when a stopped workload starts again.
func (w workload) untilStart(now time.Time) string {
	s, _ := w.Parse()
	if s == nil {
		return ""
	}
	switch {
	case w.IsDryRun():
		return ": a dry run applies to it, so the operator will not start it"
	case !w.CanStart():
		command, err := w.StartCommand(w.target())
		if err != nil {
			return ": the operator cannot start it again"
		}
		return ": it did not run before, so no start restores it; to start it, use kubectl " + command
	}
	starts := *s
	starts.Stop = nil
	if next := w.nextEvent(&starts, schedule.Due{}, now); !next.At.IsZero() {
		return " until " + clockTime(s, next.At)
	}
	return fmt.Sprintf(": to start it, use kubectl useless wake %s -n %s --for 2h", w.id(), w.object.GetNamespace())
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

// stopPatch returns a merge patch with all differences between before and after. It contains the resourceVersion, so
// that the API server rejects it if the object has changed since the read.
func stopPatch(before, after client.Object) (json.RawMessage, error) {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}).Data(after)
}

const fieldManager = "kubectl-useless"

func (o *options) newWake() *cobra.Command {
	var duration string
	c := &cobra.Command{
		Use: "wake KIND/NAME --for DURATION", Short: "Start a workload for some time, with the annotation start-until",
		Example:           "  kubectl useless wake deployment/web --for 2h",
		SuggestFor:        []string{"start"},
		ValidArgsFunction: o.completeWorkload,
		RunE: func(_ *cobra.Command, args []string) error {
			if duration == "" {
				return errors.New("--for is missing: add a duration, for example --for 2h")
			}
			uptime, err := schedule.ParseDuration(duration)
			if err != nil {
				return fmt.Errorf("--for %q is not a duration from 1m to 30d: use for example --for 2h", duration)
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
				return cannotStart(w)
			}
			now := o.clock.Now()
			patch := annotationPatch(map[string]string{v1beta1.StartUntilAnnotation: duration})
			return o.patch(w.info, patch, "runs for "+duration+w.afterWake(now, now.Add(uptime)))
		},
	}
	c.Flags().StringVar(&duration, "for", "", "how long the workload runs, from 1m to 30d")
	return c
}

// cannotStart returns the error about a workload that wake cannot start.
func cannotStart(w workload) error {
	command, err := w.StartCommand(w.target())
	if err != nil {
		return err
	}
	return fmt.Errorf("the operator has not stopped %[1]s, so it cannot restore it: start %[1]s, for example with\n"+
		"  kubectl %[2]s\nand run wake again", w.id(), command)
}

// afterWake says how long the workload continues to run after an uptime from now to end. The result is empty if the
// workload stops at end, or if its schedule is invalid.
func (w workload) afterWake(now, end time.Time) string {
	parsed, _ := w.Parse()
	if parsed == nil {
		return ""
	}
	s := *parsed
	s.StartUntil, s.StartFor = end, 0 // replaces an earlier uptime
	record := schedule.Record{RunningSince: now}
	if since := w.Record().RunningSince; w.Running(&s) && !since.IsZero() {
		record.RunningSince = since
	}
	switch stop := next(&s, record, s.Due(record, true, now), now, firstStop); {
	case stop.At.Equal(end):
		return ""
	case s.Suspended:
		return ", and then until you stop it, because starts and stops are suspended"
	case stop.At.IsZero():
		return ", and then until you stop it"
	default:
		return ", and then until the stop on " + clockTime(&s, stop.At)
	}
}

// scheduled returns a workload that the operator starts and stops. It returns an error if the operator ignores the
// workload, or if the schedule is missing or invalid.
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
		return workload{}, fmt.Errorf("the operator ignores %s: %s", w.id(), w.ignoredBecause())
	case w.State() == "":
		return workload{}, noSchedule(w)
	}
	return w, w.invalid()
}

// invalid returns an error if the schedule is invalid.
func (w workload) invalid() error {
	s, problems := w.Parse()
	if s != nil {
		return nil
	}
	name := "the schedule of " + w.id()
	if len(w.ProblemsOfDefault()) > 0 {
		name = "the default schedule of Namespace " + w.object.GetNamespace()
	}
	_, note := schedule.Explain(problems)
	return fmt.Errorf("%s is invalid: %s", name, note)
}

func annotationPatch(annotations map[string]string) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": annotations}}
}

// patch sends a merge patch. After success, it prints the name of the object and the argument done.
func (o *options) patch(info *resource.Info, patch any, done string) error {
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

const machines = "machines.v1beta1.useless.container.training"

func (o *options) newFlip() *cobra.Command {
	return &cobra.Command{
		Use: "flip MACHINE", Short: "Turn all switches of a Machine up, so that the operator turns them down again",
		Example:           "  kubectl useless flip machine-1",
		ValidArgsFunction: o.completeMachine,
		RunE: func(_ *cobra.Command, args []string) error {
			name := machineNamed(args)
			if name == "" {
				return errors.New("write the name of one Machine, for example: kubectl useless flip machine-1")
			}
			absent := "the cluster has no kind Machine: install the operator first"
			info, err := o.find(machines, name, absent, "the Machines")
			if err != nil {
				return err
			}
			up := map[string]any{"spec": map[string]any{"position": v1beta1.PositionUp}}
			return o.patch(info, up, "turned up")
		},
	}
}

// machineNamed returns the name of a Machine in the argument NAME, machine/NAME or machines/NAME. The kind may have the
// group or the version of Machines, as in kindNamed. It returns an empty string for other arguments.
func machineNamed(args []string) string {
	if len(args) != 1 {
		return ""
	}
	kind, name, found := strings.Cut(args[0], "/")
	if !found {
		return args[0]
	}
	first, rest, _ := strings.Cut(strings.ToLower(kind), ".")
	isMachine := (first == "machine" || first == "machines") && matchesGroup(rest, machines)
	if strings.Contains(name, "/") || !isMachine {
		return ""
	}
	return name
}

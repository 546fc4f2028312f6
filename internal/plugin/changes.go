// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/resource"

	"container.training/useless/api/useless/v1beta1"
	controller "container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/plugin/legacy"
	"container.training/useless/internal/schedule"
)

// change is the translation of the schedules of other tools for one object.
type change struct {
	target    string         // KIND/NAME
	namespace string         // empty for a Namespace
	info      *resource.Info // of the target; nil for a SleepInfo, or if the target was not read
	legacy.Translation
	// obsolete has the annotations of the target's present schedule that the command must remove.
	obsolete []string
	// isManual means that the user has to read the reasons first, so --apply does not change the target.
	isManual bool
	// hasConflict means that the target would get two different schedules.
	hasConflict bool
}

// importer translates the schedules of other tools.
type importer struct {
	infos    []*resource.Info
	areFiles bool
	zone     *time.Location // the default time zone of the operator
	unread   []string       // the kinds that take a default schedule, and that the user has no permission to read

	namespaces map[string]*resource.Info // by name
	// defaults has the Namespaces that get a default schedule, with the SleepInfo that sets it. The SleepInfo is nil if
	// the annotations of the Namespace set it.
	defaults map[string]*legacy.SleepInfo
}

// changes returns the translations. Namespaces come last, so that workloads are excluded before the default of their
// Namespace takes effect.
func (i *importer) changes() ([]change, error) {
	i.namespaces, i.defaults = map[string]*resource.Info{}, map[string]*legacy.SleepInfo{}
	var sleepInfos, annotated []*resource.Info
	i.infos = slices.DeleteFunc(i.infos, isUnrelated)
	for _, info := range i.infos {
		u := info.Object.(*unstructured.Unstructured)
		if err := checkNames(u); err != nil {
			return nil, err
		}
		if isNamespace(u.GetAPIVersion(), u.GetKind()) {
			i.namespaces[u.GetName()] = info
		}
		switch {
		case isSleepInfo(u):
			sleepInfos = append(sleepInfos, info)
		case legacy.HasAny(u.GetAnnotations()):
			annotated = append(annotated, info)
		}
	}
	var changes []change
	for _, info := range annotated {
		changes = append(changes, i.changeOf(info))
	}
	for _, info := range sleepInfos {
		added, err := i.changesOfSleepInfo(info)
		if err != nil {
			return nil, err
		}
		changes = append(changes, added...)
	}
	all := joined(changes)
	for _, c := range all {
		i.addZone(c.Translation)
	}
	return i.checked(all), nil
}

// addZone adds the time zone UTC to a schedule without a time zone, because UTC is the default of the other tools. This
// is not necessary if it is also the default of the operator.
func (i *importer) addZone(t legacy.Translation) {
	_, hasStart := t.Annotations[v1beta1.StartScheduleAnnotation]
	_, hasStop := t.Annotations[v1beta1.StopScheduleAnnotation]
	_, hasZone := t.Annotations[v1beta1.TimeZoneAnnotation]
	if i.zone.String() != "UTC" && (hasStart || hasStop) && !hasZone {
		t.Annotations[v1beta1.TimeZoneAnnotation] = "UTC"
	}
}

// isUnrelated reports whether an object of files has no effect on the import, such as a Service.
func isUnrelated(info *resource.Info) bool {
	u := info.Object.(*unstructured.Unstructured)
	_, err := kindOf(u.GetAPIVersion(), u.GetKind())
	return err != nil && !isNamespace(u.GetAPIVersion(), u.GetKind()) && !isSleepInfo(u) &&
		!legacy.HasAny(u.GetAnnotations())
}

// checkNames returns an error if the kind, the namespace or the name could contain special characters of a shell. They
// become parts of printed commands. Only objects in files can have such names.
func checkNames(u *unstructured.Unstructured) error {
	problems := validation.IsDNS1123Subdomain(u.GetName())
	problems = append(problems, validation.IsDNS1123Label(strings.ToLower(u.GetKind()))...)
	if namespace := u.GetNamespace(); namespace != "" {
		problems = append(problems, validation.IsDNS1123Label(namespace)...)
	}
	if len(problems) > 0 {
		return fmt.Errorf("invalid object %q: %s", u.GetKind()+"/"+u.GetName(), problems[0])
	}
	return nil
}

// changeOf translates an object's annotations of kube-downscaler or GoKubeDownscaler.
func (i *importer) changeOf(info *resource.Info) change {
	u := info.Object.(*unstructured.Unstructured)
	if isNamespace(u.GetAPIVersion(), u.GetKind()) {
		t := legacy.Downscaler(u.GetAnnotations(), nil, "")
		if !schedule.IsUnscheduled(controller.DefaultsOf(u.GetName(), t.Annotations)) {
			i.defaults[u.GetName()] = nil
		}
		return change{target: namespaceTarget(u.GetName()), info: info, Translation: t}
	}
	c := change{target: strings.ToLower(u.GetKind()) + "/" + u.GetName(), namespace: u.GetNamespace(), info: info}
	k, err := kindOf(u.GetAPIVersion(), u.GetKind())
	if err != nil {
		c.Reasons = []string{fmt.Sprint("nothing is translated: ", err)}
		return c
	}
	c.Translation = legacy.Downscaler(u.GetAnnotations(), annotationsOf(i.namespaces[u.GetNamespace()]), k.plural)
	return c
}

func namespaceTarget(name string) string { return "namespace/" + name }

func (c change) isOfNamespace() bool {
	return c.namespace == "" && strings.HasPrefix(c.target, namespaceTarget(""))
}

// annotationsOf returns the annotations of an object, or nil if it was not read.
func annotationsOf(info *resource.Info) map[string]string {
	if info == nil {
		return nil
	}
	return info.Object.(*unstructured.Unstructured).GetAnnotations()
}

// joined merges all changes of the same object into one change.
func joined(changes []change) (all []change) {
	positions := map[string]int{}
	for _, c := range changes {
		key := c.namespace + " " + c.target
		if at, found := positions[key]; found {
			all[at].join(c)
			continue
		}
		positions[key] = len(all)
		all = append(all, c)
	}
	return all
}

// join adds another change of the same object. If both have a schedule, and the schedules differ, the object gets
// neither. If one of them has a schedule and the other has schedule=none, the object gets only the schedule. An object
// with its own schedule needs no schedule=none, because the default of the Namespace does not apply to it.
func (c *change) join(other change) {
	c.Reasons = append(c.Reasons, other.Reasons...)
	c.isManual = c.isManual || other.isManual
	c.addConflict(other.Annotations)
	if c.hasConflict {
		return
	}
	_, isExcluded := c.Annotations[v1beta1.ScheduleAnnotation]
	_, isOtherExcluded := other.Annotations[v1beta1.ScheduleAnnotation]
	annotations := map[string]string{}
	maps.Copy(annotations, other.Annotations)
	maps.Copy(annotations, c.Annotations)
	if isExcluded != isOtherExcluded && !schedule.IsUnscheduled(annotations) {
		delete(annotations, v1beta1.ScheduleAnnotation)
	}
	c.Annotations = annotations
}

// addConflict drops the schedule of a workload if another schedule differs.
func (c *change) addConflict(other map[string]string) {
	if schedule.IsUnscheduled(c.Annotations) || schedule.IsUnscheduled(other) || maps.Equal(c.Annotations, other) {
		return
	}
	c.Reasons = append(c.Reasons, fmt.Sprintf("nothing is translated: two schedules differ, %s and %s: annotate the "+
		"workload with one of them", quoted(c.Annotations), quoted(other)))
	c.Annotations, c.hasConflict = nil, true
}

// checked adds the steps that a user must do before the commands are safe. It also moves the Namespaces to the end.
func (i *importer) checked(changes []change) (all []change) {
	var namespaces []change
	unsafe := map[string][]string{} // workloads by namespace
	for _, c := range changes {
		if s := i.defaults[c.namespace]; s != nil && c.info != nil && selects(s, c.info) {
			t := s.Translate()
			i.addZone(t)
			c.addConflict(t.Annotations)
		}
		c.dropSystemDefault()
		i.dropUnscheduled(&c)
		c.checkReasons()
		c.checkExisting()
		switch {
		case c.isOfNamespace():
			namespaces = append(namespaces, c)
			continue
		case c.isUnsafe() && !c.isProtected():
			unsafe[c.namespace] = append(unsafe[c.namespace], c.target)
		}
		all = append(all, c)
	}
	for _, c := range namespaces {
		if !schedule.IsUnscheduled(c.Annotations) {
			name := strings.TrimPrefix(c.target, namespaceTarget(""))
			i.checkDefault(&c, append(unsafe[name], unsafe[""]...), i.addedBy(name))
			c.explainDependents(all, name)
		}
		all = append(all, c)
	}
	return all
}

// dropSystemDefault drops the schedule of a Namespace, such as kube-system, that cannot have a default schedule.
func (c *change) dropSystemDefault() {
	name := strings.TrimPrefix(c.target, namespaceTarget(""))
	if c.isOfNamespace() && !schedule.IsUnscheduled(c.Annotations) &&
		schedule.IsUnscheduled(controller.DefaultsOf(name, c.Annotations)) {
		c.Annotations, c.Reasons = nil, append(c.Reasons,
			"nothing is translated: this Namespace cannot have a default schedule; annotate its workloads")
	}
}

// dropUnscheduled drops annotations that the operator would reject, because neither the object nor its Namespace has a
// schedule. A Namespace that was not read may have one, so the annotations of its workloads stay.
func (i *importer) dropUnscheduled(c *change) {
	if !c.needsDefault() {
		return
	}
	reason := "the Namespace has no schedule"
	if !c.isOfNamespace() {
		if _, isKnown := i.namespaces[c.namespace]; i.hasDefault(c.namespace) || !isKnown {
			return
		}
		reason = "neither the workload nor its Namespace has a schedule"
	}
	c.Reasons = append(c.Reasons, quoted(c.Annotations)+" is not set: "+reason)
	c.Annotations = nil
}

// hasDefault reports whether a Namespace has a default schedule, or gets one. Some Namespaces cannot have one.
func (i *importer) hasDefault(namespace string) bool {
	annotations := annotationsOf(i.namespaces[namespace])
	if _, found := i.defaults[namespace]; found {
		annotations = map[string]string{v1beta1.StopScheduleAnnotation: "00:00"}
	}
	return !schedule.IsUnscheduled(controller.DefaultsOf(namespace, annotations))
}

// needsDefault reports whether the operator accepts the annotations of a change only with a schedule of the Namespace.
func (c *change) needsDefault() bool {
	_, isExcluded := c.Annotations[v1beta1.ScheduleAnnotation]
	return len(c.Annotations) > 0 && !isExcluded && schedule.IsUnscheduled(c.Annotations) &&
		schedule.IsUnscheduled(annotationsOf(c.info))
}

// explainDependents adds a comment to the workloads that need the default of their Namespace, if --apply does not set
// it. --apply annotates them nevertheless, so that the default cannot stop them once the user sets it.
func (c *change) explainDependents(changes []change, namespace string) {
	if !c.isManual || c.info == nil || !schedule.IsUnscheduled(annotationsOf(c.info)) {
		return
	}
	for n := range changes {
		if d := &changes[n]; d.namespace == namespace && d.needsDefault() && !d.isProtected() {
			d.Reasons = append(d.Reasons,
				"the operator reports an invalid schedule until "+c.target+" has its schedule")
		}
	}
}

// takesDefault reports whether the target is a workload to which the default of its Namespace can apply.
func (c *change) takesDefault() bool {
	if c.info == nil {
		return false
	}
	u := c.info.Object.(*unstructured.Unstructured)
	k, err := kindOf(u.GetAPIVersion(), u.GetKind())
	return err == nil && k.takesDefaults
}

// checkReasons sets isManual for a new schedule with reasons, because it may stop the target against its old
// annotations. A schedule with schedule=none never stops the target.
func (c *change) checkReasons() {
	_, isExcluded := c.Annotations[v1beta1.ScheduleAnnotation]
	if len(c.Reasons) > 0 && !isExcluded && !schedule.IsUnscheduled(c.Annotations) {
		c.isManual = true
	}
}

// isUnsafe reports whether the default of the Namespace could stop a workload against its old annotations, because they
// are not completely translated.
func (c *change) isUnsafe() bool {
	_, isExcluded := c.Annotations[v1beta1.ScheduleAnnotation]
	return c.takesDefault() && len(c.Reasons) > 0 && !isExcluded
}

// addedBy returns the workloads that the default of a Namespace stops, although kube-downscaler and GoKubeDownscaler
// stop only Deployments by default. Workloads with a schedule are not in the result. If the default comes from a
// SleepInfo, the result is empty, because changesOfWorkloads excludes the workloads that the SleepInfo does not stop.
func (i *importer) addedBy(namespace string) (added []string) {
	if i.defaults[namespace] != nil {
		return nil
	}
	for _, info := range i.infos {
		c := change{info: info}
		u := info.Object.(*unstructured.Unstructured)
		// Without metadata.namespace in a file, the workload may be in any Namespace.
		if c.takesDefault() && u.GetKind() != "Deployment" && cmp.Or(u.GetNamespace(), namespace) == namespace &&
			!c.isProtected() && !legacy.HasAny(u.GetAnnotations()) && metav1.GetControllerOfNoCopy(u) == nil {
			added = append(added, strings.ToLower(u.GetKind())+"/"+u.GetName())
		}
	}
	return added
}

// isProtected reports whether a workload already has a schedule of this operator, or excludes itself. The default of
// the Namespace then does not apply to it.
func (c *change) isProtected() bool {
	existing := annotationsOf(c.info)
	return !schedule.IsUnscheduled(existing) || existing[v1beta1.ScheduleAnnotation] == v1beta1.ScheduleNone
}

// checkDefault adds the reasons why the default schedule of a Namespace is unsafe. The default must not stop the
// workloads in unsafe, because some of their old annotations were not translated. It also stops the workloads in added.
func (i *importer) checkDefault(c *change, unsafe, added []string) {
	if c.info == nil && !i.areFiles {
		c.hold("you do not have permission to read the Namespace, so it may already have a schedule")
	}
	if len(i.unread) > 0 {
		c.hold(fmt.Sprintf("you do not have permission to read %s: first annotate the workloads that must not stop "+
			"with %s", strings.Join(i.unread, ", "), excluded))
	}
	for _, workload := range unsafe {
		c.hold(fmt.Sprintf("the schedule would apply to %s: first annotate this workload with a schedule or with %s",
			workload, excluded))
	}
	if len(added) > 0 {
		c.hold(fmt.Sprintf("the schedule also stops %s: first annotate the workloads that must not stop with %s",
			strings.Join(added, ", "), excluded))
	}
}

// hold adds a reason why --apply does not change the target.
func (c *change) hold(reason string) {
	c.Reasons, c.isManual = append(c.Reasons, reason), true
}

// checkExisting holds the change if the target already has another schedule of this operator, or is excluded. The
// command then also removes the annotations of the old schedule that the new one does not set.
func (c *change) checkExisting() {
	existing, hasNew := annotationsOf(c.info), !schedule.IsUnscheduled(c.Annotations)
	switch {
	case hasNew && existing[v1beta1.ScheduleAnnotation] == v1beta1.ScheduleNone:
		c.hold("it is excluded with schedule=none: run the command only to end this exclusion")
	case c.replacesSchedule():
		c.hold("it already has another schedule of this operator: run the command only to replace this schedule")
	default:
		return
	}
	for _, key := range []string{
		v1beta1.ExcludeDatesAnnotation, v1beta1.ScheduleAnnotation, v1beta1.StartReplicasAnnotation,
		v1beta1.StartScheduleAnnotation, v1beta1.StopAfterAnnotation, v1beta1.StopReplicasAnnotation,
		v1beta1.StopScheduleAnnotation, v1beta1.TimeZoneAnnotation,
	} {
		if _, found := existing[key]; found && hasNew && c.Annotations[key] == "" {
			c.obsolete = append(c.obsolete, key)
		}
	}
}

// replacesSchedule reports whether the target already has a schedule of this operator with other times.
func (c *change) replacesSchedule() bool {
	existing := annotationsOf(c.info)
	return len(c.Annotations) > 0 && !schedule.IsUnscheduled(existing) && slices.ContainsFunc([]string{
		v1beta1.StartScheduleAnnotation, v1beta1.StopScheduleAnnotation, v1beta1.StopAfterAnnotation,
		v1beta1.TimeZoneAnnotation,
	}, func(key string) bool { return existing[key] != c.Annotations[key] })
}

func isSleepInfo(u *unstructured.Unstructured) bool {
	return u.GetKind() == "SleepInfo" && strings.HasPrefix(u.GetAPIVersion(), "kube-green.com/")
}

// changesOfSleepInfo translates a SleepInfo of kube-green. With includeRef, the selected workloads get the schedule.
// Otherwise, the Namespace gets it, and the workloads that the SleepInfo does not stop are excluded. If the Namespace
// already gets another schedule, a SleepInfo without includeRef is not translated.
func (i *importer) changesOfSleepInfo(info *resource.Info) (changes []change, err error) {
	s := &legacy.SleepInfo{}
	u := info.Object.(*unstructured.Unstructured)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, s); err != nil {
		return nil, err
	}
	namespace := u.GetNamespace()
	own := change{target: "sleepinfo/" + u.GetName(), namespace: namespace, Translation: s.Translate()}
	switch _, hasDefault := i.defaults[namespace]; {
	case namespace == "":
		own.Translation = legacy.Translation{
			Reasons: []string{"nothing is translated: add its namespace to metadata.namespace in the file"},
		}
	case len(own.Annotations) == 0: // the reasons say why
	case s.HasIncludes():
		changes = i.changesOfWorkloads(s, namespace, own.Annotations)
		own.Annotations = nil
		own.Reasons = append(own.Reasons, i.remaining(s, len(changes))...)
	case hasDefault:
		own = i.changeOfDefault(namespace, legacy.Translation{Reasons: []string{"the schedule of SleepInfo " +
			u.GetName() + " is not translated: a Namespace has one schedule; annotate the workloads instead"}})
	default:
		i.defaults[namespace] = s
		changes = i.changesOfWorkloads(s, namespace, own.Annotations)
		own = i.changeOfDefault(namespace, own.Translation)
		own.Reasons = append(own.Reasons, i.remaining(s, len(changes))...)
	}
	own.isManual = len(own.Reasons) > 0
	return append(changes, own), nil
}

// changeOfDefault returns the change of a Namespace.
func (i *importer) changeOfDefault(namespace string, t legacy.Translation) change {
	return change{target: namespaceTarget(namespace), info: i.namespaces[namespace], Translation: t}
}

// changesOfWorkloads returns the changes of single workloads. With includeRef, the selected workloads get the
// annotations. Otherwise, each workload that the SleepInfo does not stop is excluded, unless it has its own schedule.
func (i *importer) changesOfWorkloads(
	s *legacy.SleepInfo, namespace string, annotations map[string]string,
) (changes []change) {
	if !s.HasIncludes() {
		annotations = map[string]string{v1beta1.ScheduleAnnotation: v1beta1.ScheduleNone}
	}
	for _, info := range i.infos {
		u := info.Object.(*unstructured.Unstructured)
		k, err := kindOf(u.GetAPIVersion(), u.GetKind())
		needsChange := s.HasIncludes() || schedule.IsUnscheduled(u.GetAnnotations())
		if err != nil || !k.takesDefaults || u.GetNamespace() != namespace || !needsChange ||
			metav1.GetControllerOfNoCopy(u) != nil || selects(s, info) != s.HasIncludes() {
			continue
		}
		changes = append(changes, change{
			target: k.singular + "/" + u.GetName(), namespace: namespace, info: info,
			Translation: legacy.Translation{Annotations: annotations},
		})
	}
	return changes
}

// selects reports whether a SleepInfo stops a workload.
func selects(s *legacy.SleepInfo, workload *resource.Info) bool {
	u := workload.Object.(*unstructured.Unstructured)
	return s.Selects(u, u.GetAPIVersion(), u.GetKind())
}

// excluded is the annotation of a workload that the default of its Namespace must not stop.
const excluded = v1beta1.ScheduleAnnotation + "=" + v1beta1.ScheduleNone

// remaining returns the manual steps that the changes of workloads do not cover. If the Namespace gets a default, the
// user must do them before that change.
func (i *importer) remaining(s *legacy.SleepInfo, changed int) []string {
	switch {
	case s.HasIncludes() && changed == 0:
		return []string{"includeRef selects no workload here: annotate the workloads with the schedule, " +
			"and not the Namespace"}
	case i.areFiles && s.HasIncludes():
		return []string{"includeRef may select workloads that are not in these files: annotate them, too"}
	case i.areFiles:
		return []string{"kube-green does not stop all workloads of the Namespace: if some workloads that it does " +
			"not stop are not in these files, first annotate them with " + excluded}
	}
	return nil
}

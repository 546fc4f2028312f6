// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controller "container.training/useless/internal/controller/schedule"
	"container.training/useless/internal/schedule"
)

const namespaceKind = "Namespace"

// kind has the names of a kind of workload that users can write.
type kind struct {
	plural, singular, short, title string
	// resource is plural.version.group, so that kubectl does not select the kind of another API group.
	resource      string
	takesDefaults bool // the annotations of a Namespace are the default of the kind
	isOptional    bool // the operator also runs in clusters that do not have the kind
	needsReplicas bool // a schedule with stops needs the annotation stop-replicas
}

var kinds = kindsOfController()

func kindsOfController() (all []kind) {
	for _, k := range controller.Describe() {
		all = append(all, kind{
			plural: k.Name, singular: strings.ToLower(k.Kind), short: k.ShortName, title: k.Kind,
			resource:      strings.Join([]string{k.Name, k.Version, k.Group}, "."),
			takesDefaults: k.TakesDefaults, isOptional: k.IsOptional, needsReplicas: k.NeedsReplicas,
		})
	}
	return all
}

// kindNamed returns the kind with a name in the format of kubectl, such as deploy or deployments.v1.apps. If the name
// contains a group or a version, they must match the kind.
func kindNamed(name string) (kind, error) {
	lower := strings.ToLower(name)
	first, rest, _ := strings.Cut(lower, ".")
	for _, k := range kinds {
		if !slices.Contains([]string{k.plural, k.singular, k.short}, first) {
			continue
		}
		if matchesGroup(rest, k.resource) {
			return k, nil
		}
		version, group := groupOf(k.resource)
		return kind{}, fmt.Errorf("unknown kind %q: use a %s of %s/%s", name, k.title, group, version)
	}
	valid := make([]string, 0, len(kinds))
	for _, k := range kinds {
		valid = append(valid, k.singular+" ("+k.short+")")
	}
	return kind{}, fmt.Errorf("unknown kind %q: use one of %s", name, strings.Join(valid, ", "))
}

// groupOf returns the version and the API group of a resource in the format plural.version.group.
func groupOf(resource string) (version, group string) {
	_, rest, _ := strings.Cut(resource, ".")
	version, group, _ = strings.Cut(rest, ".")
	return version, group
}

// matchesGroup reports whether text is empty, the group of a resource, or its version and group. The resource has the
// format plural.version.group.
func matchesGroup(text, resource string) bool {
	version, group := groupOf(resource)
	return text == "" || text == group || text == version+"."+group
}

// kindOf returns the kind of an object with an API version. A group in the API version must match, but the version may
// differ. Without a group, only the name of the kind must match.
func kindOf(apiVersion, name string) (kind, error) {
	if group, _, found := strings.Cut(apiVersion, "/"); found {
		name += "." + group
	}
	return kindNamed(name)
}

// isNamespace reports whether an object with an API version and a kind is a Namespace. A kind of another API group can
// have the same name.
func isNamespace(apiVersion, name string) bool {
	return name == namespaceKind && !strings.Contains(apiVersion, "/")
}

// parseTarget parses the arguments KIND/NAME, or KIND and NAME.
func parseTarget(args []string) (k kind, name string, err error) {
	const advice = "write KIND/NAME, for example deployment/web; kubectl useless schedule list shows them"
	if len(args) == 0 {
		return kind{}, "", errors.New("the workload is missing: " + advice)
	}
	most := 2 // KIND NAME
	if strings.Contains(args[0], "/") {
		most = 1 // KIND/NAME
	}
	if slices.ContainsFunc(args[1:], func(arg string) bool { return strings.Contains(arg, "/") }) || len(args) > most {
		return kind{}, "", fmt.Errorf("unexpected argument %q: write only one workload", args[len(args)-1])
	}
	text := strings.Join(args, "/")
	before, name, _ := strings.Cut(text, "/")
	if before == "" || name == "" || strings.Contains(name, "/") {
		return kind{}, "", fmt.Errorf("%q is not a workload: %s", text, advice)
	}
	k, err = kindNamed(before)
	return k, name, err
}

// workload is a workload that was read from a cluster.
type workload struct {
	controller.Workload
	kind     kind
	object   client.Object
	info     *resource.Info
	defaults defaults // of its Namespace
}

// defaults are the annotations of the default schedule of a Namespace.
type defaults struct {
	annotations map[string]string // empty if the Namespace has none
	unknown     error             // why the Namespace cannot be read; nil if it was read
}

// state is like State, but it also returns invalid if the workload has only invalid parts of a schedule. The operator
// emits a Warning event about them.
func (w workload) state() string {
	if state := w.State(); state != "" || w.IsIgnored() {
		return state
	}
	if _, problems := w.Parse(); len(problems) > 0 {
		return invalid
	}
	return ""
}

const invalid = "invalid"

// Parse returns the schedule that applies, or its problems. If the default of the Namespace applies, it must also be
// valid as annotations of a Namespace.
func (w workload) Parse() (*schedule.Schedule, []schedule.Problem) {
	if problems := w.ProblemsOfDefault(); len(problems) > 0 {
		return nil, problems
	}
	return w.Workload.Parse()
}

// reader reads the workloads of a cluster.
type reader struct {
	*options
	zone       *time.Location
	now        time.Time
	namespaces map[string]defaults // by name
	forbidden  error               // of the last kind that the user has no permission to list
	listed     bool                // at least one kind was listed
}

func (o *options) newReader() (*reader, error) {
	zone, err := o.location()
	return &reader{options: o, zone: zone, now: o.clock.Now(), namespaces: map[string]defaults{}}, err
}

// get returns one workload.
func (r *reader) get(args []string) (workload, error) {
	k, name, err := parseTarget(args)
	if err != nil {
		return workload{}, err
	}
	absent := fmt.Sprintf("the cluster has no kind %s: --context selects another cluster", k.title)
	info, err := r.find(k.resource, name, absent, "them")
	if err != nil {
		return workload{}, err
	}
	return r.convert(k, info)
}

// workloads returns the workloads of a kind. If the cluster does not have the kind, or the user has no permission, it
// returns none. It writes a note to stderr, unless the missing kind is optional.
func (r *reader) workloads(k kind, all bool) ([]workload, error) {
	infos, err := r.list(k.resource, all)
	switch {
	case isAbsent(err) && k.isOptional:
		return nil, nil // most clusters do not have KEDA
	case isAbsent(err):
		fmt.Fprintf(r.ErrOut, "note: %s are skipped: the cluster does not have this kind\n", k.plural)
		return nil, nil
	case apierrors.IsForbidden(err):
		fmt.Fprintf(r.ErrOut, "note: %s are skipped: you do not have permission to list them\n", k.plural)
		r.forbidden = err
		return nil, nil
	case err != nil:
		return nil, err
	}
	r.listed = true
	var workloads []workload
	for _, info := range infos {
		w, err := r.convert(k, info)
		if err != nil {
			return nil, err
		}
		workloads = append(workloads, w)
	}
	return workloads, nil
}

func (r *reader) convert(k kind, info *resource.Info) (workload, error) {
	o := controller.NewObject(k.plural)
	u := info.Object.(*unstructured.Unstructured)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return workload{}, err
	}
	d := r.defaults(info.Namespace)
	return workload{controller.NewWorkload(k.plural, o, d.annotations, r.zone, r.now), k, o, info, d}, nil
}

// defaults returns the default schedule of a Namespace. If the Namespace cannot be read, defaults writes a note to
// stderr.
func (r *reader) defaults(name string) defaults {
	d, isKnown := r.namespaces[name]
	if isKnown {
		return d
	}
	info, err := resource.NewBuilder(r.config).Unstructured().ResourceNames("namespaces", name).Latest().Do().Infos()
	if err != nil {
		fmt.Fprintf(r.ErrOut, "note: the default schedule of Namespace %s is unknown: %s\n", name, err)
		d.unknown = err
	} else {
		d.annotations = controller.DefaultsOf(name, annotationsOf(info[0]))
	}
	r.namespaces[name] = d
	return d
}

// listDefaults reads the default schedules of all Namespaces in one list. After an error, defaults reads them one by
// one.
func (r *reader) listDefaults() {
	infos, err := r.list("namespaces", true)
	if err != nil {
		return
	}
	for _, info := range infos {
		r.namespaces[info.Name] = defaults{annotations: controller.DefaultsOf(info.Name, annotationsOf(info))}
	}
}

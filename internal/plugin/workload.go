// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controller "container.training/useless/internal/controller/schedule"
)

const namespaceKind = "Namespace"

// kind is a kind of workload as users write it.
type kind struct {
	plural, singular, short, title string
	resource                       string // plural.version.group, so that another API group cannot be meant
}

var kinds = []kind{
	{"deployments", "deployment", "deploy", "Deployment", "deployments.v1.apps"},
	{"statefulsets", "statefulset", "sts", "StatefulSet", "statefulsets.v1.apps"},
	{"cronjobs", "cronjob", "cj", "CronJob", "cronjobs.v1.batch"},
	{"virtualmachines", "virtualmachine", "vm", "VirtualMachine", "virtualmachines.v1alpha1.cloudnative.tw"},
	{"horizontalpodautoscalers", "horizontalpodautoscaler", "hpa", "HorizontalPodAutoscaler",
		"horizontalpodautoscalers.v2.autoscaling"},
	{"scaledobjects", "scaledobject", "so", "ScaledObject", "scaledobjects.v1alpha1.keda.sh"},
}

// kindNamed returns the kind with a name as in kubectl. A group or version behind the name must be that of the kind.
func kindNamed(name string) (kind, error) {
	lower := strings.ToLower(name)
	first, rest, _ := strings.Cut(lower, ".")
	for _, k := range kinds {
		if !slices.Contains([]string{k.plural, k.singular, k.short}, first) {
			continue
		}
		_, full, _ := strings.Cut(k.resource, ".")
		if _, group, _ := strings.Cut(full, "."); rest == "" || rest == full || rest == group {
			return k, nil
		}
	}
	valid := make([]string, 0, len(kinds))
	for _, k := range kinds {
		valid = append(valid, k.singular+" ("+k.short+")")
	}
	return kind{}, fmt.Errorf("unknown kind %q: use one of %s", name, strings.Join(valid, ", "))
}

// parseTarget reads KIND/NAME, or KIND and NAME.
func parseTarget(args []string) (k kind, name string, err error) {
	text := strings.Join(args, "/")
	before, name, _ := strings.Cut(text, "/")
	if before == "" || name == "" || strings.Contains(name, "/") || len(args) > 2 {
		return kind{}, "", fmt.Errorf("%q is not a workload: write KIND/NAME, for example deployment/web", text)
	}
	k, err = kindNamed(before)
	return k, name, err
}

// workload is a workload that was read from a cluster.
type workload struct {
	controller.Workload
	kind   kind
	object client.Object
	info   *resource.Info
}

// reader reads the workloads of a cluster.
type reader struct {
	*options
	zone       *time.Location
	now        time.Time
	namespaces map[string]map[string]string
}

func (o *options) newReader() (*reader, error) {
	zone, err := o.location()
	return &reader{options: o, zone: zone, now: o.clock.Now(), namespaces: map[string]map[string]string{}}, err
}

// get returns one workload.
func (r *reader) get(args []string) (workload, error) {
	k, name, err := parseTarget(args)
	if err != nil {
		return workload{}, err
	}
	namespace, err := r.namespace()
	if err != nil {
		return workload{}, err
	}
	infos, err := resource.NewBuilder(r.config).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceNames(k.resource, name).Latest().Do().Infos()
	switch {
	case isAbsent(err):
		return workload{}, fmt.Errorf("the cluster has no kind %s", k.title)
	case apierrors.IsNotFound(err):
		return workload{}, fmt.Errorf("%w in namespace %s: -n selects another namespace", err, namespace)
	case err != nil:
		return workload{}, err
	}
	return r.convert(k, infos[0])
}

// list returns the workloads of a kind. If that is impossible, it says why on stderr and returns none.
func (r *reader) list(k kind, namespace string, all bool) ([]workload, error) {
	infos, err := resource.NewBuilder(r.config).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		AllNamespaces(all).ResourceTypes(k.resource).SelectAllParam(true).RequestChunksOf(500).Flatten().Do().Infos()
	switch {
	case isAbsent(err):
		fmt.Fprintf(r.ErrOut, "note: %s are skipped: the cluster does not have this kind\n", k.plural)
		return nil, nil
	case apierrors.IsForbidden(err):
		fmt.Fprintf(r.ErrOut, "note: %s are skipped: you may not list them\n", k.plural)
		return nil, nil
	case err != nil:
		return nil, err
	}
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

// isAbsent reports whether the cluster does not have a kind. The builder returns only a text if it does not know the
// resource.
func isAbsent(err error) bool {
	return err != nil && (meta.IsNoMatchError(err) || strings.Contains(err.Error(), "have a resource type"))
}

func (r *reader) convert(k kind, info *resource.Info) (workload, error) {
	o := controller.NewObject(k.plural)
	u := info.Object.(*unstructured.Unstructured)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return workload{}, err
	}
	defaults := r.defaults(info.Namespace)
	return workload{controller.NewWorkload(k.plural, o, defaults, r.zone, r.now), k, o, info}, nil
}

// defaults returns the default schedule of a Namespace. If it cannot be read, it says so on stderr.
func (r *reader) defaults(name string) map[string]string {
	defaults, known := r.namespaces[name]
	if known {
		return defaults
	}
	info, err := resource.NewBuilder(r.config).WithScheme(scheme, corev1.SchemeGroupVersion).
		ResourceNames("namespaces", name).Latest().Do().Infos()
	if err != nil {
		fmt.Fprintf(r.ErrOut, "note: the default schedule of Namespace %s is unknown: %s\n", name, err)
	} else {
		defaults = controller.DefaultsOf(name, info[0].Object.(*corev1.Namespace).Annotations)
	}
	r.namespaces[name] = defaults
	return defaults
}

// listDefaults reads the default schedules of all Namespaces in one list. If that is impossible, they are read one by
// one.
func (r *reader) listDefaults() {
	infos, err := resource.NewBuilder(r.config).WithScheme(scheme, corev1.SchemeGroupVersion).
		ResourceTypes("namespaces").SelectAllParam(true).RequestChunksOf(500).Flatten().Do().Infos()
	if err != nil {
		return
	}
	for _, info := range infos {
		r.namespaces[info.Name] = controller.DefaultsOf(info.Name, info.Object.(*corev1.Namespace).Annotations)
	}
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		panic(err)
	}
	return s
}()

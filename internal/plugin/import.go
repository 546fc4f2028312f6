// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/resource"

	"container.training/useless/internal/plugin/legacy"
	"container.training/useless/internal/schedule"
)

func (o *options) newImport() *cobra.Command {
	var files []string
	var all, apply bool
	c := &cobra.Command{
		Use:   "import",
		Short: "Translate the schedules of kube-downscaler, GoKubeDownscaler and kube-green",
		Long: "Print kubectl commands that add the annotations of this operator.\n" +
			"Without --apply, nothing is changed. The old annotations and SleepInfo objects stay.",
		Example: "  kubectl useless schedule import -A\n  kubectl useless schedule import -f old.yaml",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: use -f %[1]s for a file", args[0])
			}
			if apply && len(files) > 0 {
				return errors.New("--apply changes a cluster and not files: omit -f, or run the printed commands")
			}
			infos, err := o.legacyObjects(files, all, apply)
			if err != nil {
				return err
			}
			changes, err := changesOf(infos, len(files) > 0)
			if err != nil {
				return err
			}
			return o.translate(changes, apply)
		},
	}
	c.Flags().StringArrayVarP(&files, "filename", "f", nil, "read manifests instead of the cluster; - is stdin")
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "read all namespaces")
	c.Flags().BoolVar(&apply, "apply", false, "also add the annotations in the cluster")
	return c
}

// legacyObjects returns the objects that may have a schedule of another tool, from files or from the cluster.
func (o *options) legacyObjects(files []string, all, apply bool) ([]*resource.Info, error) {
	if len(files) > 0 {
		return readFiles(files)
	}
	return o.readCluster(all, apply)
}

// readFiles returns the objects in files.
func readFiles(files []string) ([]*resource.Info, error) {
	options := &resource.FilenameOptions{Filenames: files}
	infos, err := resource.NewLocalBuilder().Unstructured().FilenameParam(false, options).Flatten().Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("%w: use -f with manifests, or -f - for stdin", err)
	}
	return infos, nil
}

// readCluster returns the objects of a namespace, or of all namespaces. With apply, it must read all kinds, because a
// SleepInfo may exclude some of the workloads.
func (o *options) readCluster(all, apply bool) ([]*resource.Info, error) {
	namespace, err := o.namespace()
	if err != nil {
		return nil, err
	}
	var infos []*resource.Info
	var forbidden error
	listed := false
	for _, name := range legacyTypes() {
		b := resource.NewBuilder(o.config).Unstructured()
		if name == "namespaces" && !all {
			b = b.ResourceNames(name, namespace)
		} else {
			b = b.NamespaceParam(namespace).DefaultNamespace().AllNamespaces(all).
				ResourceTypes(name).SelectAllParam(true)
		}
		found, err := b.Flatten().Do().Infos()
		switch {
		case isAbsent(err):
		case apierrors.IsForbidden(err) && !apply:
			fmt.Fprintf(o.ErrOut, "note: %s are skipped: you do not have permission to read them\n", name)
			forbidden = err
		case err != nil:
			return nil, err
		default:
			listed = true
		}
		infos = append(infos, found...)
	}
	if !listed {
		return nil, forbidden
	}
	return infos, nil
}

// legacyTypes returns the kinds that import reads, as plural.version.group.
func legacyTypes() (types []string) {
	for _, k := range kinds {
		types = append(types, k.resource)
	}
	return append(types, "sleepinfos.v1alpha1.kube-green.com", "namespaces")
}

// change is the translation of a schedule of another tool, for one object.
type change struct {
	target    string // KIND/NAME
	namespace string // empty for a Namespace
	info      *resource.Info
	legacy.Translation
	// isIndirect means that info is a SleepInfo, and the target is its Namespace.
	isIndirect bool
}

// changesOf returns the translations. Namespaces come last, so that workloads are excluded before the default of their
// Namespace takes effect.
func changesOf(infos []*resource.Info, areFiles bool) (changes []change, err error) {
	defaults := map[string]map[string]string{}
	for _, info := range infos {
		if u := info.Object.(*unstructured.Unstructured); u.GetKind() == namespaceKind {
			defaults[u.GetName()] = u.GetAnnotations()
		}
	}
	for _, info := range infos {
		u := info.Object.(*unstructured.Unstructured)
		switch {
		case isSleepInfo(u):
			added, err := changesOfSleepInfo(info, infos, areFiles)
			if err != nil {
				return nil, err
			}
			changes = append(changes, added...)
		case legacy.HasAny(u.GetAnnotations()):
			changes = append(changes, newChange(info, defaults[u.GetNamespace()]))
		}
	}
	workloads := slices.DeleteFunc(slices.Clone(changes), change.isOfNamespace)
	namespaces := slices.DeleteFunc(changes, func(c change) bool { return !c.isOfNamespace() })
	changes = append(workloads, namespaces...)
	return withoutDuplicates(changes), nil
}

// newChange translates the annotations of kube-downscaler or GoKubeDownscaler of an object.
func newChange(info *resource.Info, defaults map[string]string) change {
	u := info.Object.(*unstructured.Unstructured)
	if u.GetKind() == namespaceKind {
		t := legacy.Downscaler(u.GetAnnotations(), nil, "")
		return change{target: namespaceTarget(u.GetName()), info: info, Translation: t}
	}
	c := change{target: strings.ToLower(u.GetKind()) + "/" + u.GetName(), namespace: u.GetNamespace(), info: info}
	k, err := kindNamed(u.GetKind())
	if err != nil {
		c.Reasons = []string{fmt.Sprint("nothing is translated: ", err)}
		return c
	}
	c.Translation = legacy.Downscaler(u.GetAnnotations(), defaults, k.plural)
	return c
}

func namespaceTarget(name string) string { return "namespace/" + name }

func (c change) isOfNamespace() bool { return strings.HasPrefix(c.target, namespaceTarget("")) }

// withoutDuplicates drops all but the first schedule of each Namespace, and says so.
func withoutDuplicates(changes []change) []change {
	seen := map[string]bool{}
	for i, c := range changes {
		if !c.isOfNamespace() || schedule.IsUnscheduled(c.Annotations) {
			continue
		}
		if seen[c.target] {
			changes[i].Annotations = nil
			kind := c.info.Object.GetObjectKind().GroupVersionKind().Kind
			changes[i].Reasons = append(c.Reasons, fmt.Sprintf("the schedule of %s %s is not translated: "+
				"a Namespace has one schedule; annotate the workloads instead", kind, c.info.Name))
		}
		seen[c.target] = true
	}
	return changes
}

// translate prints the changes. If apply is true, it also adds the annotations in the cluster.
func (o *options) translate(changes []change, apply bool) error {
	if len(changes) == 0 {
		fmt.Fprintln(o.ErrOut, "No object has a schedule of kube-downscaler, GoKubeDownscaler or kube-green.")
	}
	for _, c := range changes {
		for _, reason := range c.Reasons {
			fmt.Fprintf(o.Out, "# %s: %s\n", c.target, reason)
		}
		if len(c.Annotations) == 0 {
			continue
		}
		fmt.Fprintln(o.Out, c.command())
		if apply {
			if err := o.apply(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// command returns a kubectl command for a shell. It quotes each annotation.
func (c change) command() string {
	command := []string{"kubectl annotate --overwrite", c.target}
	if c.namespace != "" {
		command = append(command, "-n", c.namespace)
	}
	for _, key := range slices.Sorted(maps.Keys(c.Annotations)) {
		command = append(command, "'"+key+"="+strings.ReplaceAll(c.Annotations[key], "'", `'\''`)+"'")
	}
	return strings.Join(command, " ")
}

// apply adds the annotations of a change to an object. For a SleepInfo, it adds them to the Namespace. If the change
// has reasons, the user may have to exclude workloads first, and apply changes nothing.
func (o *options) apply(c change) error {
	info := c.info
	if c.isIndirect {
		if len(c.Reasons) > 0 {
			fmt.Fprintf(o.ErrOut, "note: %s is not changed: read the comments, then run its command\n", c.target)
			return nil
		}
		infos, err := resource.NewBuilder(o.config).Unstructured().ResourceNames("namespaces", info.Namespace).
			Do().Infos()
		if err != nil {
			return err
		}
		info = infos[0]
	}
	annotations := map[string]any{}
	for key, value := range c.Annotations {
		annotations[key] = value
	}
	streams := *o
	streams.Out = o.ErrOut // the commands are the data on stdout
	return streams.patch(info, annotationPatch(annotations), "annotated")
}

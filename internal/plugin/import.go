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
	"k8s.io/cli-runtime/pkg/resource"
)

func (o *options) newImport() *cobra.Command {
	var files []string
	var all, apply bool
	c := &cobra.Command{
		Use:   "import",
		Short: "Translate the schedules of kube-downscaler, GoKubeDownscaler and kube-green",
		Long: "Print kubectl commands that add the annotations of this operator.\n" +
			"Without --apply, nothing is changed. The old annotations and SleepInfo objects stay.",
		Example:           "  kubectl useless schedule import -A\n  kubectl useless schedule import -f old.yaml",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: use -f %[1]s for a file", args[0])
			}
			if apply && len(files) > 0 {
				return errors.New("--apply changes a cluster and not files: omit -f, or run the printed commands")
			}
			i, err := o.newImporter(files, all)
			if err != nil {
				return err
			}
			changes, err := i.changes()
			if err != nil {
				return err
			}
			return o.translate(changes, apply, i.areFiles || all)
		},
	}
	c.Flags().StringArrayVarP(&files, "filename", "f", nil, "read manifests instead of the cluster; - is stdin")
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "read all namespaces")
	c.Flags().BoolVar(&apply, "apply", false, "also add the annotations in the cluster")
	return c
}

// newImporter reads the objects in files. Without files, it reads them from the cluster.
func (o *options) newImporter(files []string, all bool) (i importer, err error) {
	if i.zone, err = o.location(); err != nil {
		return importer{}, err
	}
	if i.areFiles = len(files) > 0; i.areFiles {
		i.infos, err = readFiles(files)
	} else {
		i.infos, i.unread, err = o.readCluster(all)
	}
	return i, err
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

// readCluster returns the objects of a namespace, or of all namespaces, that may have a schedule of another tool. The
// result unread has the kinds that the user has no permission to read, if a Namespace's schedule applies to them.
func (o *options) readCluster(all bool) (infos []*resource.Info, unread []string, err error) {
	namespace, err := o.namespace()
	if err != nil {
		return nil, nil, err
	}
	var forbidden error
	listed := false
	for _, name := range legacyTypes() {
		var found []*resource.Info
		if name == "namespaces" && !all {
			found, err = resource.NewBuilder(o.config).Unstructured().ResourceNames(name, namespace).Do().Infos()
		} else {
			found, err = o.list(name, all)
		}
		switch {
		case isAbsent(err):
		case apierrors.IsForbidden(err):
			plural, _, _ := strings.Cut(name, ".")
			fmt.Fprintf(o.ErrOut, "note: %s are skipped: you do not have permission to read them\n", plural)
			forbidden = err
			if k, err := kindNamed(name); err == nil && k.takesDefaults {
				unread = append(unread, k.plural)
			}
		case apierrors.IsNotFound(err):
			return nil, nil, fmt.Errorf("%w: kubectl get namespaces lists them", err)
		case err != nil:
			return nil, nil, err
		default:
			listed = true
		}
		infos = append(infos, found...)
	}
	if !listed {
		return nil, nil, forbidden
	}
	return infos, unread, nil
}

// legacyTypes returns the kinds that import reads, as plural.version.group.
func legacyTypes() (types []string) {
	for _, k := range kinds {
		types = append(types, k.resource)
	}
	return append(types, "sleepinfos.v1alpha1.kube-green.com", "namespaces")
}

// describeNoChanges writes to stderr that there is nothing to translate. If isComplete is false, only one namespace was
// read.
func (o *options) describeNoChanges(isComplete bool) error {
	const schedules = "has a schedule of kube-downscaler, GoKubeDownscaler or kube-green."
	if isComplete {
		fmt.Fprintln(o.ErrOut, "No object", schedules)
		return nil
	}
	namespace, err := o.namespace()
	if err == nil {
		fmt.Fprintf(o.ErrOut, "No object in namespace %s %s -A reads all namespaces.\n", namespace, schedules)
	}
	return err
}

// translate prints the changes. If apply is true, it also adds the annotations in the cluster. If isComplete is false,
// only one namespace was read.
func (o *options) translate(changes []change, apply, isComplete bool) error {
	if len(changes) == 0 {
		return o.describeNoChanges(isComplete)
	}
	for _, c := range changes {
		for _, reason := range c.Reasons {
			fmt.Fprintf(o.Out, "# %s: %s\n", c.name(changes), reason)
		}
		if len(c.Annotations) == 0 {
			continue
		}
		fmt.Fprintln(o.Out, c.command())
		switch {
		case apply && c.isManual:
			fmt.Fprintf(o.ErrOut, "note: %s is not changed: read the comments, then run its command\n", c.target)
		case apply:
			if err := o.apply(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// name returns the target for a comment. It has the namespace if the changes are in more than one namespace.
func (c change) name(changes []change) string {
	inOther := func(other change) bool { return other.namespace != "" && other.namespace != c.namespace }
	if c.namespace == "" || !slices.ContainsFunc(changes, inOther) {
		return c.target
	}
	return c.target + " in namespace " + c.namespace
}

// command returns a kubectl command for a shell.
func (c change) command() string {
	command := "kubectl annotate --overwrite " + c.target
	if c.namespace != "" {
		command += " -n " + c.namespace
	}
	command += " " + quoted(c.Annotations)
	if len(c.obsolete) > 0 {
		command += " '" + strings.Join(c.obsolete, "-' '") + "-'"
	}
	return command
}

// quoted returns annotations as arguments of kubectl annotate, in quotes for a shell.
func quoted(annotations map[string]string) string {
	arguments := make([]string, 0, len(annotations))
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		arguments = append(arguments, "'"+key+"="+strings.ReplaceAll(annotations[key], "'", `'\''`)+"'")
	}
	return strings.Join(arguments, " ")
}

// apply adds the annotations of a change to its target.
func (o *options) apply(c change) error {
	streams := *o
	streams.Out = o.ErrOut // stdout is only for the commands and their comments
	return streams.patch(c.info, annotationPatch(c.Annotations), "annotated")
}

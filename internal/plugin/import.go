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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"

	"container.training/useless/internal/plugin/legacy"
)

func (o *options) newImport() *cobra.Command {
	var files []string
	var all, apply bool
	c := &cobra.Command{
		Use: "import", Args: cobra.NoArgs,
		Short: "Translate the schedules of kube-downscaler, GoKubeDownscaler and kube-green",
		Long: "Print kubectl commands that add the annotations of this operator.\n" +
			"Without --apply, nothing is changed. The old annotations and SleepInfo objects stay.",
		Example: "  kubectl useless schedule import -A\n  kubectl useless schedule import -f old.yaml",
		RunE: func(*cobra.Command, []string) error {
			if apply && len(files) > 0 {
				return errors.New("--apply changes a cluster and not files: omit -f, or run the printed commands")
			}
			infos, err := o.legacyObjects(files, all)
			if err != nil {
				return err
			}
			return o.translate(infos, apply)
		},
	}
	c.Flags().StringArrayVarP(&files, "filename", "f", nil, "read manifests instead of the cluster; - is stdin")
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "read all namespaces")
	c.Flags().BoolVar(&apply, "apply", false, "also add the annotations in the cluster")
	return c
}

// legacyObjects returns the objects that may have a schedule of another tool. Namespaces are the last ones, so that
// exclusions of workloads are applied before a default takes effect.
func (o *options) legacyObjects(files []string, all bool) ([]*resource.Info, error) {
	if len(files) > 0 {
		options := &resource.FilenameOptions{Filenames: files}
		return resource.NewLocalBuilder().Unstructured().FilenameParam(false, options).Flatten().Do().Infos()
	}
	namespace, err := o.namespace()
	if err != nil {
		return nil, err
	}
	types := []string{}
	for _, k := range kinds {
		types = append(types, k.resource)
	}
	var infos []*resource.Info
	for _, name := range append(types, "sleepinfos.v1alpha1.kube-green.com", "namespaces") {
		b := resource.NewBuilder(o.config).Unstructured().ContinueOnError()
		if name == "namespaces" && !all {
			b = b.ResourceNames(name, namespace)
		} else {
			b = b.NamespaceParam(namespace).DefaultNamespace().AllNamespaces(all).
				ResourceTypes(name).SelectAllParam(true)
		}
		found, err := b.Flatten().Do().Infos()
		switch {
		case isAbsent(err):
		case apierrors.IsForbidden(err):
			fmt.Fprintf(o.ErrOut, "note: %s are skipped: you may not list them\n", name)
		case err != nil:
			return nil, err
		}
		infos = append(infos, found...)
	}
	return infos, nil
}

// translate prints the translation of each object, and applies it if asked.
func (o *options) translate(infos []*resource.Info, apply bool) error {
	defaults := map[string]map[string]string{}
	for _, info := range infos {
		if u := info.Object.(*unstructured.Unstructured); u.GetKind() == namespaceKind {
			defaults[u.GetName()] = u.GetAnnotations()
		}
	}
	found := false
	for _, info := range infos {
		u := info.Object.(*unstructured.Unstructured)
		target, t, err := translation(u, defaults[u.GetNamespace()])
		if err != nil {
			return err
		}
		if target == "" {
			continue
		}
		found = true
		for _, reason := range t.Reasons {
			fmt.Fprintf(o.Out, "# %s: %s\n", target, reason)
		}
		if len(t.Annotations) == 0 {
			continue
		}
		fmt.Fprintln(o.Out, annotateCommand(target, u, t.Annotations))
		if apply {
			if err := o.apply(info, target, t); err != nil {
				return err
			}
		}
	}
	if !found {
		fmt.Fprintln(o.ErrOut, "No object has a schedule of kube-downscaler, GoKubeDownscaler or kube-green.")
	}
	return nil
}

// translation returns KIND/NAME of the object to annotate, and its annotations. The target is empty for an object
// without a schedule of another tool.
func translation(u *unstructured.Unstructured, defaults map[string]string) (string, legacy.Translation, error) {
	if u.GetKind() == "SleepInfo" && strings.HasPrefix(u.GetAPIVersion(), "kube-green.com/") {
		var info legacy.SleepInfo
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &info)
		return "namespace/" + u.GetNamespace(), info.Translate(), err
	}
	if !legacy.HasAny(u.GetAnnotations()) {
		return "", legacy.Translation{}, nil
	}
	if u.GetKind() == namespaceKind {
		return "namespace/" + u.GetName(), legacy.Downscaler(u.GetAnnotations(), nil, true), nil
	}
	k, unknown := kindNamed(u.GetKind())
	if unknown != nil {
		target := strings.ToLower(u.GetKind()) + "/" + u.GetName()
		return target, legacy.Translation{Reasons: []string{fmt.Sprint("nothing is translated: ", unknown)}}, nil
	}
	return k.singular + "/" + u.GetName(), legacy.Downscaler(u.GetAnnotations(), defaults, false), nil
}

// annotateCommand returns a command for a shell. It quotes each annotation.
func annotateCommand(target string, u *unstructured.Unstructured, annotations map[string]string) string {
	command := []string{"kubectl annotate --overwrite", target}
	if u.GetNamespace() != "" && !strings.HasPrefix(target, "namespace/") {
		command = append(command, "-n", u.GetNamespace())
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		command = append(command, "'"+key+"="+strings.ReplaceAll(annotations[key], "'", `'\''`)+"'")
	}
	return strings.Join(command, " ")
}

// apply adds annotations. For a SleepInfo, it adds them to the Namespace, unless a workload must be excluded first.
func (o *options) apply(info *resource.Info, target string, t legacy.Translation) error {
	name, isNamespace := strings.CutPrefix(target, "namespace/")
	if isNamespace && info.Mapping.Resource.Resource != "namespaces" {
		if len(t.Reasons) > 0 {
			fmt.Fprintf(o.ErrOut, "note: %s is not changed: read the comments, then run its command\n", target)
			return nil
		}
		infos, err := resource.NewBuilder(o.config).Unstructured().ResourceNames("namespaces", name).Do().Infos()
		if err != nil {
			return err
		}
		info = infos[0]
	}
	annotations := map[string]any{}
	for key, value := range t.Annotations {
		annotations[key] = value
	}
	streams := *o
	streams.Out = o.ErrOut // the commands are the data on stdout
	return streams.patch(info, annotationPatch(annotations), "annotated")
}

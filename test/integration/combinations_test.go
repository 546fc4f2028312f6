// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/machine"
	"container.training/useless/internal/controller/virtualmachine"
	"container.training/useless/test/internal/combinations"
)

// actions maps each component to a function that makes the operator use the component's permissions.
var actions = map[string]func(t *testing.T, namespace string){
	"machine":                  useMachine,
	"virtualmachine":           useVirtualMachine,
	"schedule":                 func(*testing.T, string) {}, // the actions for the kinds of workloads use its permissions
	"schedule/deployments":     useDeployment,
	"schedule/statefulsets":    useStatefulSet,
	"schedule/cronjobs":        useCronJob,
	"schedule/virtualmachines": useScheduledVirtualMachine,
	"schedule/horizontalpodautoscalers": func(t *testing.T, namespace string) {
		t.Helper()
		hpa := newScheduledAutoscaler(namespace, "hpa", "1")
		createObject(t, hpa)
		waitForWorkload(t, hpa, "stopped", func(hpa *autoscalingv2.HorizontalPodAutoscaler) bool { return hpa.Spec.MaxReplicas == 1 })
		waitForEvent(t, hpa, v1beta1.EventScheduledStop)
	},
	"schedule/scaledobjects": checkScaledObject,
	"podcount": func(t *testing.T, namespace string) {
		t.Helper()
		createReplicaSet(t, namespace, "rs", 0)
		waitForPodCount(t, namespace, "rs", "0")
	},
	"ingress": func(t *testing.T, namespace string) {
		t.Helper()
		o := createIngress(t, namespace, "ingress", nil)
		waitForAnnotations(t, namespace, "ingress", fooBar)
		waitForEvent(t, o, ingress.EventAnnotationsEnsured)
	},
}

func createObject(t *testing.T, o client.Object) {
	t.Helper()
	if err := admin(t).Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// useMachine lets the operator create Switches, turn one of them down, replace one of them, and delete one of them.
func useMachine(t *testing.T, namespace string) {
	t.Helper()
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) {
		spec.Switches.Count, spec.Flip.DelaySeconds = 2, new(int32(1))
	})
	waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	turnUp(t, namespace, "m-0")
	waitForPositions(t, namespace, "m", "ud", defaultTimeout)
	waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	replaced := getSwitch(t, namespace, "m-1")
	if err := admin(t).Delete(t.Context(), replaced); err != nil {
		t.Fatal(err)
	}
	eventually(t, defaultTimeout, func() (bool, string) {
		mine := switchesOf(t, getMachine(t, namespace, "m"))
		isOld := func(sw v1beta1.Switch) bool { return sw.UID == replaced.UID }
		return len(mine) == 2 && !slices.ContainsFunc(mine, isOld), "the switch was not replaced"
	})
	mergePatch(t, newMachine(namespace, "m"), `{"spec":{"switches":{"count":1}}}`)
	waitForPositions(t, namespace, "m", "d", defaultTimeout)
}

// useVirtualMachine lets the operator create, resize and delete a Pod.
func useVirtualMachine(t *testing.T, namespace string) {
	t.Helper()
	vm := waitForActive(t, createVirtualMachine(t, namespace, "vm", standin.Fate{}))
	waitForCondition(t, vm, v1alpha1.ConditionUsageAvailable, metav1.ConditionUnknown, v1alpha1.ReasonMetricsAPIUnavailable)
	if !olderThan(t, 33, noResize) {
		resize(t, vm, "3", "3G")
		eventually(t, defaultTimeout, func() (bool, string) {
			return getPod(t, vm).Spec.Containers[0].Resources.Requests.Cpu().String() == "3", "the Pod was not resized"
		})
	}
	setAction(t, vm, v1alpha1.ActionInactive)
	waitForReason(t, vm, v1alpha1.PhaseStopped, v1alpha1.ReasonStopped)
}

func useDeployment(t *testing.T, namespace string) {
	t.Helper()
	d := createDeployment(t, namespace, "d", nil)
	waitForReplicas(t, d, 0)
	waitForEvent(t, d, v1beta1.EventScheduledStop)
}

func useStatefulSet(t *testing.T, namespace string) {
	t.Helper()
	s := newStatefulSet(namespace, "s")
	createObject(t, s)
	waitForWorkload(t, s, "stopped", func(s *appsv1.StatefulSet) bool { return *s.Spec.Replicas == 0 })
	waitForEvent(t, s, v1beta1.EventScheduledStop)
}

func useCronJob(t *testing.T, namespace string) {
	t.Helper()
	c := newCronJob(namespace, "c")
	createObject(t, c)
	waitForWorkload(t, c, "suspended", func(c *batchv1.CronJob) bool { return c.Spec.Suspend != nil && *c.Spec.Suspend })
	waitForEvent(t, c, v1beta1.EventScheduledStop)
}

func useScheduledVirtualMachine(t *testing.T, namespace string) {
	t.Helper()
	vm := newVirtualMachine(namespace, "scheduled")
	vm.Annotations = newScheduled(namespace, "scheduled").Annotations
	createObject(t, vm)
	waitForWorkload(t, vm, "stopped", func(vm *v1alpha1.VirtualMachine) bool { return vm.Spec.Action == v1alpha1.ActionInactive })
	waitForEvent(t, vm, v1beta1.EventScheduledStop)
}

// unusedInCombinations maps permissions that the operator does not use in TestCombinations to the reason.
var unusedInCombinations = map[permission]string{
	{verb: "create", resource: "tokenreviews.authentication.k8s.io"}:                              noMetrics,
	{verb: "create", resource: "subjectaccessreviews.authorization.k8s.io"}:                       noMetrics,
	{verb: "update", resource: crdStatus, name: "machines." + v1beta1.GroupVersion.Group}:         noMigration,
	{verb: "update", resource: crdStatus, name: "switches." + v1beta1.GroupVersion.Group}:         noMigration,
	{verb: "get", resource: "ingresses.networking.k8s.io"}:                                        "used only if another client keeps changing an annotation",
	{"update", "leases.coordination.k8s.io", "schedule-dry-run.useless.container.training", true}: "used only with the flag --schedule-dry-run",
}

const (
	crdStatus   = "customresourcedefinitions.apiextensions.k8s.io/status"
	noMetrics   = "no client reads metrics"
	noMigration = "no object is stored in an older version"
)

// exceptionsOf returns the permissions that a combination has but does not use, with the reason.
func exceptionsOf(t *testing.T, c combinations.Combination, granted map[permission]string) map[permission]string {
	t.Helper()
	exceptions := maps.Clone(unusedInCombinations)
	maps.Copy(exceptions, unusedPermissions)
	if !slices.Contains(c.Controllers, machine.Name) {
		exceptions[permission{verb: "patch", resource: "machines.useless.container.training"}] = noMigration
		exceptions[permission{verb: "list", resource: "switches.useless.container.training"}] = noMigration
		exceptions[permission{verb: "patch", resource: "switches.useless.container.training"}] = noMigration
	}
	if olderThan(t, 33, noResize) {
		exceptions[permission{verb: "patch", resource: "pods/resize"}] = noResize
	}
	maps.DeleteFunc(exceptions, func(p permission, _ string) bool { return granted[p] == "" })
	return exceptions
}

// TestCombinations runs the operator with each combination of components. The operator has the flags and the
// permissions of the combination. It must use all these permissions except the result of exceptionsOf, and no
// others.
func TestCombinations(t *testing.T) {
	for _, c := range combinations.All {
		t.Run(c.Name, func(t *testing.T) { testCombination(t, c) })
	}
}

func testCombination(t *testing.T, c combinations.Combination) {
	useExclusiveCluster(t)
	rendered := render(t, c.Kustomization(combinations.CertManager))
	limitPermissions(t, rendered)
	args := append(c.Args(), "--namespace="+operatorNamespace, "--leader-elect")
	if slices.Contains(c.Controllers, virtualmachine.Name) {
		args = append(args, "--vm-usage-interval=1s")
	}
	if slices.Contains(c.Controllers, ingress.Name) {
		args = append(args, "--ingress-annotation=foo=bar")
	}
	if slices.Contains(c.Kinds, "scaledobjects") {
		installKEDA(t)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "leader.useless.container.training"}}
	if err := admin(t).Delete(t.Context(), lease); client.IgnoreNotFound(err) != nil { // so that the operator creates the Lease
		t.Fatal(err)
	}
	log := auditLogFromNow(t)
	operator := startOperator(t, []string{"KUBE_FEATURE_WatchListClient=false"}, args...) // so that the operator uses the verb list
	operator.waitUntilReady(t)
	namespace := newNamespace(t)
	for _, component := range c.Components() {
		use, ok := actions[component]
		if !ok {
			t.Fatalf("no action for the component %s", component)
		}
		use(t, namespace)
	}
	granted, err := permissionsOfRoles(rendered)
	if err != nil {
		t.Fatal(err)
	}
	problems := func() (bool, string) {
		used, err := log.permissions()
		if err != nil {
			return false, err.Error() // for example, the API server has written only a part of the last line
		}
		ignoreOptional(granted, used)
		found := comparePermissions(granted, used, exceptionsOf(t, c, granted), nil)
		return len(found) == 0, strings.Join(found, "\n")
	}
	eventually(t, defaultTimeout, problems) // the migration may still work
	operator.Stop(10 * time.Second)
	eventually(t, defaultTimeout, problems)
}

// render returns the objects of a kustomization. It writes the kustomization to a folder with a link to the repository.
// The link has the name useless-operator.
func render(t *testing.T, kustomization string) []*unstructured.Unstructured {
	t.Helper()
	clone, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rendered := filepath.Join(dir, "rendered.yaml")
	if err := errors.Join(
		os.Symlink(clone, filepath.Join(dir, "useless-operator")),
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rendered, []byte(mustKubectl(t, "", "kustomize", dir)), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := cluster.ReadManifests(rendered)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// limitPermissions gives the operator exactly the permissions of the rendered roles until the test ends.
func limitPermissions(t *testing.T, rendered []*unstructured.Unstructured) {
	t.Helper()
	installed, err := cluster.ReadManifests(installation)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range rbacOnlyIn(rendered, installed) {
		createObject(t, o.DeepCopy())
		t.Cleanup(func() { restore(t, admin(t).Delete(context.Background(), o)) })
	}
	for _, o := range rbacOnlyIn(installed, rendered) {
		if err := admin(t).Delete(t.Context(), o.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { restore(t, admin(t).Create(context.Background(), o.DeepCopy())) })
	}
}

// restore fails the test if err is not nil. err is the error of a request that undoes a change by the test.
func restore(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error("restore the permissions: ", err)
	}
}

// rbacOnlyIn returns the roles and bindings in objects that are not in others.
func rbacOnlyIn(objects, others []*unstructured.Unstructured) (only []*unstructured.Unstructured) {
	for _, o := range objects {
		if o.GroupVersionKind().Group == "rbac.authorization.k8s.io" && !slices.ContainsFunc(others, func(other *unstructured.Unstructured) bool {
			return other.GetKind() == o.GetKind() && other.GetName() == o.GetName()
		}) {
			only = append(only, o)
		}
	}
	return only
}

// An auditLog is the part of an audit log that the API server has written since a certain time.
type auditLog struct {
	file  *os.File
	start int64
}

func auditLogFromNow(t *testing.T) auditLog {
	t.Helper()
	file, err := os.Open(clusterOf(t).AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	start, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	return auditLog{file, start}
}

// permissions returns the permissions that the operator's requests have used.
func (l auditLog) permissions() (map[permission]string, error) {
	if _, err := l.file.Seek(l.start, io.SeekStart); err != nil {
		return nil, err
	}
	return usedPermissions(l.file)
}

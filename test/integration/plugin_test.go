// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/plugin"
)

func TestPlugin(t *testing.T) {
	runShared(t, []namespacedTest{
		{"a stopped deployment is listed and explained, wakes, and sleeps until its next start", testPluginSchedule},
		{"a workload without a schedule cannot wake", testPluginUnscheduled},
		{"a workload with the default of its Namespace is in the list of all Namespaces", testPluginDefault},
		{"a workload that the stop did not change wakes after the command in the error", testPluginUnknownState},
		{"a deployment that sleeps starts at the next start", testPluginNextStart},
		{"a deployment that sleeps until a time skips earlier starts", testPluginSleepUntil},
		{"a workload in a dry run cannot wake", testPluginDryRun},
		{"an import changes the workload only with --apply", testPluginImport},
		{"the error about a missing namespace has a command that lists all namespaces", testPluginUnknownNamespace},
		{"flip turns the switches of a machine up", testPluginFlip},
		{"a HorizontalPodAutoscaler wakes and sleeps", testPluginAutoscaler},
		{"names are completed", testPluginCompletion},
		{"a user without permissions gets advice", testPluginForbidden},
	})
}

// useless runs the plugin as an administrator, in a namespace.
func useless(t *testing.T, namespace string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	command := plugin.New(streams, clock.RealClock{})
	command.SetArgs(append(args, "-n", namespace, "--kubeconfig", clusterOf(t).Kubeconfig, "--cache-dir", t.TempDir()))
	err = command.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

// mustPrint runs the plugin. Its output must contain all texts.
func mustPrint(t *testing.T, namespace string, args []string, texts ...string) {
	t.Helper()
	stdout, stderr, err := useless(t, namespace, args...)
	for _, text := range texts {
		if err != nil || !strings.Contains(stdout, text) {
			t.Fatalf("%v: error %v, want %q in:\n%s%s", args, err, text, stdout, stderr)
		}
	}
}

func testPluginSchedule(t *testing.T, namespace string) {
	d := waitForReplicas(t, createDeployment(t, namespace, "web", nil), 0)
	mustPrint(t, namespace, []string{"schedule", "list"}, "KIND", "Deployment   web    stopped   stop 6", "own")
	mustPrint(t, namespace, []string{"schedule", "list", "-o", "json"}, `"kind": "ScheduleReport"`, `"state": "stopped"`)
	mustPrint(t, namespace, []string{"schedule", "explain", "deploy/web"}, "State:      stopped", "stop-schedule", "> ")

	mustPrint(t, namespace, []string{"wake", "deploy/web", "--for", "2h"}, "deployments.apps/web runs for 2h\n")
	d = waitForReplicas(t, d, 3)
	mustPrint(t, namespace, []string{"schedule", "explain", "deploy", "web"}, "start-until keeps it running until")

	mustPrint(t, namespace, []string{"sleep", "deployment/web"}, "deployments.apps/web stopped until ")
	stoppedAt := getDeployment(t, namespace, d.Name).Annotations[v1beta1.LastScheduleTimeAnnotation]
	mustPrint(t, namespace, []string{"sleep", "deployment/web"}, "deployments.apps/web is already stopped until ")
	d = getDeployment(t, namespace, d.Name)
	if at := d.Annotations[v1beta1.LastScheduleTimeAnnotation]; at != stoppedAt {
		t.Errorf("a second sleep changes the time of the stop from %s to %s", stoppedAt, at)
	}
	if *d.Spec.Replicas != 0 || d.Annotations[v1beta1.OriginalReplicasAnnotation] != "3" ||
		d.Annotations[v1beta1.StartUntilAnnotation] != "" {
		t.Errorf("after sleep, the deployment has %d replicas and the annotations %v", *d.Spec.Replicas, d.Annotations)
	}
	checkUnchanged(t, d, "that sleeps")
}

func testPluginUnscheduled(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", unscheduled)
	for _, args := range [][]string{
		{"wake", "deploy/web", "--for", "1h"}, {"sleep", "deploy/web"}, {"schedule", "explain", "deploy/web"},
	} {
		if _, _, err := useless(t, namespace, args...); err == nil || !strings.Contains(err.Error(), "add one, for example with") {
			t.Errorf("%v: error %v", args, err)
		}
	}
	runAdvice(t, namespace, "schedule", "explain", "deploy/web")
	if got := getDeployment(t, namespace, d.Name).Annotations[v1beta1.StopScheduleAnnotation]; got != "Mon-Fri 20:00" {
		t.Errorf("after the command in the error, stop-schedule is %q", got)
	}
	annotate(t, d, v1beta1.StopScheduleAnnotation, "")
	annotate(t, d, v1beta1.StartScheduleAnnotation, "")
	for target, want := range map[string]string{
		"sts/none": "kubectl get statefulsets -n " + namespace + " lists them",
		"so/none":  "no kind ScaledObject",
	} {
		_, _, err := useless(t, namespace, "wake", target, "--for", "1h")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s does not exist: error %v, want %q", target, err, want)
		}
	}
	if stdout, stderr, err := useless(t, namespace, "schedule", "list"); err != nil || stdout != "" ||
		strings.Contains(stderr, "note: ") || !strings.Contains(stderr, "To add one") {
		t.Errorf("an empty list: error %v, stdout %q, stderr %q", err, stdout, stderr)
	}
}

func testPluginUnknownNamespace(t *testing.T, _ string) {
	const want = `"not-there" not found: kubectl get namespaces lists them`
	for _, args := range [][]string{{"schedule", "list"}, {"schedule", "import"}, {"sleep", "deploy/web"}, {"flip", "m"}} {
		if _, _, err := useless(t, "not-there", args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %s", args, err, want)
		}
	}
}

// argument matches one argument of a shell command.
var argument = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)

// runAdvice runs the plugin, which must fail. Then it runs the kubectl command in the error message.
func runAdvice(t *testing.T, namespace string, args ...string) {
	t.Helper()
	_, _, err := useless(t, namespace, args...)
	if err == nil {
		t.Fatalf("%v: no error", args)
	}
	_, command, found := strings.Cut(err.Error(), "\n  kubectl ")
	if !found {
		t.Fatalf("%v: no command in the error %v", args, err)
	}
	command, _, _ = strings.Cut(command, "\n")
	var advised []string
	for _, arg := range argument.FindAllString(command, -1) {
		advised = append(advised, strings.Trim(arg, `'"`))
	}
	mustKubectl(t, "", advised...)
}

// testPluginUnknownState creates workloads whose spec the stop does not change. So the operator does not know the state
// that a start must restore.
func testPluginUnknownState(t *testing.T, namespace string) {
	d, s, c := newDeployment(namespace, "d"), newStatefulSet(namespace, "s"), newCronJob(namespace, "c")
	vm := newVirtualMachine(namespace, "vm")
	d.Spec.Replicas, s.Spec.Replicas, c.Spec.Suspend = new(int32(0)), new(int32(0)), new(true)
	vm.ObjectMeta, vm.Spec.Action = newScheduled(namespace, "vm"), v1alpha1.ActionInactive
	hpa := newScheduledAutoscaler(namespace, "hpa", "2")
	hpa.Spec.MinReplicas, hpa.Spec.MaxReplicas = new(int32(1)), 2
	for _, test := range []struct {
		target string
		object client.Object
	}{{"deploy/d", d}, {"sts/s", s}, {"cj/c", c}, {"vm/vm", vm}, {"hpa/hpa", hpa}} {
		createObject(t, test.object)
		eventually(t, defaultTimeout, func() (bool, string) {
			got := getUnstructured(t, test.object).GetAnnotations()
			return got[v1beta1.ScheduleStateAnnotation] == v1beta1.ScheduleStopped, fmt.Sprint(test.target, " has ", got)
		})
		runAdvice(t, namespace, "wake", test.target, "--for", "2h")
		mustPrint(t, namespace, []string{"wake", test.target, "--for", "2h"}, "runs for 2h\n")
	}
}

func testPluginDefault(t *testing.T, namespace string) {
	createDeployment(t, namespace, "web", unscheduled)
	annotateNamespace(t, namespace, v1beta1.StopAfterAnnotation, "1d")
	mustPrint(t, namespace, []string{"schedule", "list", "-A", "-o", "json"}, `"namespace": "`+namespace+`"`)
}

// testPluginNextStart puts a Deployment to sleep, and then changes its start schedule, so that a start is due at once.
func testPluginNextStart(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.StartScheduleAnnotation: timeOfDayIn(-time.Hour)}
	})
	d = waitForWorkload(t, d, "started", func(d *appsv1.Deployment) bool {
		return d.Annotations[v1beta1.ScheduleStateAnnotation] == v1beta1.ScheduleStarted
	})
	mustPrint(t, namespace, []string{"sleep", "deploy/web"}, "stopped")
	d = waitForReplicas(t, d, 0)
	checkUnchanged(t, d, "that sleeps although its last event was a start")
	annotate(t, d, v1beta1.StartScheduleAnnotation, timeOfDayIn(-2*time.Hour))
	waitForReplicas(t, d, 3)
}

// testPluginSleepUntil changes the start time twice after the sleep. The suspension must prevent the first start. The
// second change also ends the suspension, so the Deployment must start.
func testPluginSleepUntil(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.StartScheduleAnnotation: timeOfDayIn(-time.Hour)}
	})
	d = waitForWorkload(t, d, "started", func(d *appsv1.Deployment) bool {
		return d.Annotations[v1beta1.ScheduleStateAnnotation] == v1beta1.ScheduleStarted
	})
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	mustPrint(t, namespace, []string{"sleep", "deploy/web", "--until", until}, "stopped")
	d = waitForReplicas(t, d, 0)
	if got := d.Annotations[v1beta1.SuspendUntilAnnotation]; got != until {
		t.Errorf("after sleep, suspend-until is %q, want %s", got, until)
	}
	stoppedAt := d.Annotations[v1beta1.LastScheduleTimeAnnotation]
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // the annotation has whole seconds
	later := time.Now().Add(2 * time.Hour).UTC().Format(time.RFC3339)
	mustPrint(t, namespace, []string{"sleep", "deploy/web", "--until", later}, "stopped")
	d = waitForWorkload(t, d, "suspended longer", func(d *appsv1.Deployment) bool {
		return d.Annotations[v1beta1.SuspendUntilAnnotation] == later
	})
	if at := d.Annotations[v1beta1.LastScheduleTimeAnnotation]; at != stoppedAt {
		t.Errorf("a second sleep with --until changes the time of the stop from %s to %s", stoppedAt, at)
	}
	annotate(t, d, v1beta1.StartScheduleAnnotation, timeOfDayIn(-2*time.Hour))
	waitUntilScheduleProcessed(t, namespace)
	waitForReplicas(t, d, 0)
	annotate(t, d, v1beta1.StartScheduleAnnotation, timeOfDayIn(-3*time.Hour), v1beta1.SuspendUntilAnnotation, "")
	waitForReplicas(t, d, 3)
}

func testPluginDryRun(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", func(d *appsv1.Deployment) { d.Annotations[v1beta1.DryRunAnnotation] = "true" })
	const want = "a dry run applies to deployment/web"
	if _, _, err := useless(t, namespace, "wake", "deploy/web", "--for", "1h"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	checkUnchanged(t, d, "in a dry run")
}

func testPluginFlip(t *testing.T, namespace string) {
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 2 })
	waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	mustPrint(t, namespace, []string{"flip", "m"}, "machines.useless.container.training/m turned up\n")
	waitForPositions(t, namespace, "m", "uu", defaultTimeout)
	if _, _, err := useless(t, namespace, "flip", "none"); err == nil || !strings.Contains(err.Error(), "lists the Machines") {
		t.Errorf("a missing Machine: error %v", err)
	}
}

func testPluginImport(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{"downscaler/downscale-period": "Mon-Sun 19:00-20:00 UTC"}
	})
	const command = "kubectl annotate --overwrite deployment/web -n "
	mustPrint(t, namespace, []string{"schedule", "import"}, command, "stop-schedule=19:00")
	checkUnchanged(t, d, "of an import without --apply")
	mustPrint(t, namespace, []string{"schedule", "import", "--apply"}, command)
	d = waitForReplicas(t, d, 0)
	annotate(t, d, v1beta1.StopScheduleAnnotation, "22:00")
	mustPrint(t, namespace, []string{"schedule", "import", "--apply"}, "# deployment/web: it already has another schedule", command)
	if got := getDeployment(t, namespace, "web").Annotations[v1beta1.StopScheduleAnnotation]; got != "22:00" {
		t.Errorf("the import has replaced the newer schedule with %s", got)
	}
}

// testPluginAutoscaler creates an autoscaler that the operator stops at once.
func testPluginAutoscaler(t *testing.T, namespace string) {
	d := newDeployment(namespace, "web")
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: newScheduled(namespace, "web"),
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name},
			MinReplicas:    new(int32(4)), MaxReplicas: 9,
		},
	}
	hpa.Annotations[v1beta1.StopReplicasAnnotation] = "2"
	if err := admin(t).Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	hpa = waitForWorkload(t, hpa, "stopped", limits(2, 2))
	mustPrint(t, namespace, []string{"schedule", "list"}, "HorizontalPodAutoscaler   web    stopped")
	mustPrint(t, namespace, []string{"wake", "hpa/web", "--for", "2h"}, "horizontalpodautoscalers.autoscaling/web runs for 2h\n")
	hpa = waitForWorkload(t, hpa, "awake", limits(4, 9))
	mustPrint(t, namespace, []string{"sleep", "hpa/web"}, "horizontalpodautoscalers.autoscaling/web stopped until ")
	hpa = waitForWorkload(t, hpa, "asleep", limits(2, 2))
	if hpa.Annotations[v1beta1.OriginalReplicasAnnotation] != "9" || hpa.Annotations[v1beta1.OriginalMinReplicasAnnotation] != "4" {
		t.Errorf("after sleep, the annotations are %v", hpa.Annotations)
	}
}

// testPluginCompletion completes the names of workloads, Machines and namespaces. The workload wiki has no schedule, so
// its name must not be completed.
func testPluginCompletion(t *testing.T, namespace string) {
	createDeployment(t, namespace, "web", nil)
	createDeployment(t, namespace, "worker", nil)
	createDeployment(t, namespace, "wiki", unscheduled)
	createMachine(t, namespace, "m", nil)
	for _, c := range []struct{ args, want string }{
		{"wake deploy/w", "deploy/web deploy/worker :4"},
		{"sleep deployment we", "web :4"},
		{"schedule explain Deployment/wo", "Deployment/worker :4"},
		{"schedule explain sts/", ":4"},
		{"wake pods/w", ":4"},
		{"flip m", "m :4"},
		{"flip --namespace=" + namespace, namespace + " :4"},
	} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		command := plugin.New(streams, clock.RealClock{})
		command.SetArgs(append([]string{
			cobra.ShellCompNoDescRequestCmd, "-n", namespace, "--kubeconfig", clusterOf(t).Kubeconfig, "--cache-dir", t.TempDir(),
		}, strings.Fields(c.args)...))
		err := command.ExecuteContext(t.Context())
		if got := strings.Join(strings.Fields(out.String()), " "); err != nil || got != c.want {
			t.Errorf("%s: error %v, got %q, want %q", c.args, err, got, c.want)
		}
	}
}

func testPluginForbidden(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", nil)
	createMachine(t, namespace, "m", nil)
	for _, args := range [][]string{
		{"schedule", "list"}, {"schedule", "list", "-A"}, {"schedule", "explain", "deploy/web"},
		{"schedule", "import"}, {"schedule", "import", "--apply"}, {"wake", "deploy/web", "--for", "1h"}, {"sleep", "deploy/web"}, {"flip", "m"},
	} {
		_, _, err := useless(t, namespace, append(args, "--as=guest")...)
		want := "kubectl auth can-i --list shows what you may do; -n selects another namespace"
		if slices.Contains(args, "-A") {
			want = "use -n NAMESPACE instead of -A"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v", args, err)
		}
	}
	waitForReplicas(t, d, 0) // the operator has stopped it
}

// TestPluginOptionalKinds installs the CustomResourceDefinitions of KEDA and kube-green.
func TestPluginOptionalKinds(t *testing.T) {
	useExclusiveCluster(t)
	installKEDA(t)
	installKubeGreen(t)
	runOperatorFor(t, operatorOptions{})
	for _, c := range []namespacedTest{
		{"a ScaledObject wakes and sleeps", testPluginScaledObject},
		{"an import excludes workloads before it annotates the Namespace", testPluginImportExcludes},
		{"an import does not annotate a Namespace whose uptime is forced", testPluginImportForced},
		{"an import with missing permissions does not annotate the Namespace", testPluginImportPartly},
		{"an import with includeRef does not annotate the Namespace", testPluginImportIncludes},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newNamespace(t)) })
	}
}

func testPluginScaledObject(t *testing.T, namespace string) {
	mustKubectl(t, `
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: events
  annotations:
    useless.container.training/start-schedule: "`+timeOfDayIn(-2*time.Hour)+`"
    useless.container.training/stop-schedule: "`+timeOfDayIn(-time.Hour)+`"
spec:
  scaleTargetRef: {name: events}
  triggers: [{type: cron, metadata: {timezone: UTC, start: 0 6 * * *, end: 0 20 * * *, desiredReplicas: "3"}}]
`, "apply", "-n", namespace, "-f", "-")
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	o.SetNamespace(namespace)
	o.SetName("events")
	paused := func(want string) func(*metav1.PartialObjectMetadata) bool {
		return func(o *metav1.PartialObjectMetadata) bool { return o.Annotations[pausedReplicas] == want }
	}
	o = waitForWorkload(t, o, "paused", paused("0"))
	mustPrint(t, namespace, []string{"schedule", "list"}, "ScaledObject   events   stopped")
	mustPrint(t, namespace, []string{"wake", "so/events", "--for", "2h"}, "scaledobjects.keda.sh/events runs for 2h\n")
	o = waitForWorkload(t, o, "awake", paused(""))
	mustPrint(t, namespace, []string{"sleep", "so/events"}, "scaledobjects.keda.sh/events stopped until ")
	o = waitForWorkload(t, o, "asleep", paused("0"))
	if o.Annotations[v1beta1.OriginalStateAnnotation] != v1beta1.OriginalStateActive {
		t.Errorf("after sleep, the annotations are %v", o.Annotations)
	}
}

// installKubeGreen installs a minimal CustomResourceDefinition of kube-green's SleepInfo until the test ends.
func installKubeGreen(t *testing.T) {
	t.Helper()
	mustKubectl(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sleepinfos.kube-green.com}
spec:
  group: kube-green.com
  names: {kind: SleepInfo, listKind: SleepInfoList, plural: sleepinfos, singular: sleepinfo}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, "create", "-f", "-")
	t.Cleanup(func() {
		out, err := clusterOf(t).Kubectl(context.Background(), "delete", "crd", "sleepinfos.kube-green.com").CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	mustKubectl(t, "", "wait", "--for=condition=Established", "crd/sleepinfos.kube-green.com", "--timeout=1m")
}

// createSleepInfo creates a SleepInfo whose last stop was an hour ago. refs is a further line of its spec.
// createSleepInfo also creates two Deployments and a CronJob without schedules.
func createSleepInfo(t *testing.T, namespace, refs string) (web, db *appsv1.Deployment) {
	t.Helper()
	mustKubectl(t, `
apiVersion: kube-green.com/v1alpha1
kind: SleepInfo
metadata: {name: night}
spec:
  weekdays: "*"
  sleepAt: "`+timeOfDayIn(-time.Hour)+`"
  `+refs+`
`, "create", "-n", namespace, "-f", "-")
	job := newCronJob(namespace, "report")
	job.Annotations = nil
	if err := admin(t).Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	web = createDeployment(t, namespace, "web", func(d *appsv1.Deployment) { d.Annotations = nil })
	db = createDeployment(t, namespace, "db", func(d *appsv1.Deployment) {
		d.Annotations, d.Labels = nil, map[string]string{"tier": "database"}
	})
	return web, db
}

func testPluginImportExcludes(t *testing.T, namespace string) {
	web, db := createSleepInfo(t, namespace, "excludeRef: [{matchLabels: {tier: database}}]")
	commands := []string{
		"kubectl annotate --overwrite deployment/db -n " + namespace + " 'useless.container.training/schedule=none'\n",
		"kubectl annotate --overwrite cronjob/report -n " + namespace + " 'useless.container.training/schedule=none'\n",
		"kubectl annotate --overwrite namespace/" + namespace + " 'useless.container.training/stop-schedule=",
	}
	mustPrint(t, namespace, []string{"schedule", "import"}, commands...)
	if got := getDeployment(t, namespace, "db"); got.Annotations[v1beta1.ScheduleAnnotation] != "" {
		t.Errorf("an import without --apply has changed the annotations to %v", got.Annotations)
	}
	mustPrint(t, namespace, []string{"schedule", "import", "--apply"}, commands...)
	waitForReplicas(t, web, 0)
	waitUntilScheduleProcessed(t, namespace)
	waitForReplicas(t, db, 3)
	job := waitForWorkload(t, newCronJob(namespace, "report"), "excluded", func(job *batchv1.CronJob) bool {
		return job.Annotations[v1beta1.ScheduleAnnotation] == v1beta1.ScheduleNone
	})
	if job.Spec.Suspend != nil && *job.Spec.Suspend {
		t.Error("the CronJob is suspended, although the SleepInfo does not suspend CronJobs")
	}
}

// testPluginImportForced imports a Namespace with force-uptime. This annotation has no equivalent on a Namespace. On a
// workload, it ends after three hours. The import must change neither of them, because the operator would stop the
// workload.
func testPluginImportForced(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{"downscaler/downtime-replicas": "1"}
	})
	dependent := createDeployment(t, namespace, "dependent", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{"downscaler/exclude-until": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}
	})
	mustKubectl(t, "", "annotate", "namespace", namespace, "downscaler/downscale-period=Mon-Sun 19:00-20:00 UTC",
		"downscaler/force-uptime=true")
	stdout, stderr, err := useless(t, namespace, "schedule", "import", "--apply")
	for _, text := range []string{
		"# namespace/" + namespace + ": force-uptime is not translated: on a Namespace, set start-until to a time\n",
		"kubectl annotate --overwrite namespace/" + namespace + " ", "note: namespace/" + namespace + " is not changed",
		"# deployment/web: the Namespace's force-uptime: the uptime ends after 3 hours; 30d is the maximum\n",
		"note: deployment/web is not changed",
		"# deployment/dependent: the operator reports an invalid schedule until namespace/" + namespace + " has its schedule\n",
	} {
		if err != nil || !strings.Contains(stdout+stderr, text) {
			t.Errorf("error %v, want %q in:\n%s%s", err, text, stdout, stderr)
		}
	}
	if out := mustKubectl(t, "", "get", "namespace", namespace, "-o", "yaml"); strings.Contains(out, v1beta1.StopScheduleAnnotation) {
		t.Errorf("the import has annotated the Namespace:\n%s", out)
	}
	checkUnchanged(t, d, "of a Namespace with force-uptime")
	checkUnchanged(t, dependent, "that needs the default of its Namespace")
	if got := getDeployment(t, namespace, "dependent"); got.Annotations[v1beta1.StartUntilAnnotation] == "" || *got.Spec.Replicas != 3 {
		t.Errorf("got %d replicas and the annotations %v, want 3 and start-until", *got.Spec.Replicas, got.Annotations)
	}
}

// testPluginImportPartly imports as two users. Each of them lacks the permission to read one of the resources.
func testPluginImportPartly(t *testing.T, namespace string) {
	createSleepInfo(t, namespace, "suspendDeployments: true")
	const common = "deployments.apps,statefulsets.apps,horizontalpodautoscalers.autoscaling,scaledobjects.keda.sh," +
		"sleepinfos.kube-green.com,virtualmachines.cloudnative.tw,"
	for _, c := range []struct{ user, resource, reason string }{
		{"without-cronjobs", "namespaces", "read cronjobs: first annotate the workloads that must not stop with " +
			"useless.container.training/schedule=none"},
		{"without-namespaces", "cronjobs.batch", "read the Namespace, so it may already have a schedule"},
	} {
		mustKubectl(t, "", "create", "role", c.user, "-n", namespace, "--verb=get,list,patch", "--resource="+common+c.resource)
		mustKubectl(t, "", "create", "rolebinding", c.user, "-n", namespace, "--role="+c.user, "--user="+c.user)
		stdout, stderr, err := useless(t, namespace, "schedule", "import", "--apply", "--as="+c.user)
		for _, text := range []string{
			"# namespace/" + namespace + ": you do not have permission to " + c.reason + "\n",
			"kubectl annotate --overwrite namespace/" + namespace + " ", "note: namespace/" + namespace + " is not changed",
		} {
			if err != nil || !strings.Contains(stdout+stderr, text) {
				t.Errorf("%s: error %v, want %q in:\n%s%s", c.user, err, text, stdout, stderr)
			}
		}
	}
	if out := mustKubectl(t, "", "get", "namespace", namespace, "-o", "yaml"); strings.Contains(out, v1beta1.StopScheduleAnnotation) {
		t.Errorf("the import has annotated the Namespace:\n%s", out)
	}
}

func testPluginImportIncludes(t *testing.T, namespace string) {
	web, db := createSleepInfo(t, namespace, "includeRef: [{apiVersion: apps/v1, kind: Deployment, name: web}]")
	mustPrint(t, namespace, []string{"schedule", "import", "--apply"}, "kubectl annotate --overwrite deployment/web -n "+namespace)
	waitForReplicas(t, web, 0)
	waitUntilScheduleProcessed(t, namespace)
	waitForReplicas(t, db, 3)
	if out := mustKubectl(t, "", "get", "namespace", namespace, "-o", "yaml"); strings.Contains(out, v1beta1.StopScheduleAnnotation) {
		t.Errorf("the import has annotated the Namespace:\n%s", out)
	}
}

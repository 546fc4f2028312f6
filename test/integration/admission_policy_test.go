// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cloudnativev1alpha1 "container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/podcount"
)

// TestAdmissionPolicies sends allowed and forbidden requests with the operator's username. The group system:masters
// gives this client every RBAC permission, so only the policies in config/admission-policy can deny its requests. All
// requests are dry runs.
func TestAdmissionPolicies(t *testing.T) {
	useSharedCluster(t) // with a running operator, because the API server calls its webhooks
	config := rest.CopyConfig(clusterOf(t).Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:useless-system:" + operatorAccount, Groups: []string{"system:masters"},
	}
	operator, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	f := &policyTest{
		namespace: newNamespace(t), operator: client.NewDryRunClient(operator), admin: client.NewDryRunClient(admin(t)),
	}
	f.populate(t)
	f.bindOptionalPolicies(t)
	t.Run("changes", f.testChanges)
	t.Run("status of custom resource definitions", f.testCRDStatus)
	t.Run("pods", f.testPods)
	t.Run("deletions", f.testDeletions)
	t.Run("resizes", f.testResizes)
}

// policyTest has two dry-run clients, and paused objects that the running operator does not change.
type policyTest struct {
	namespace       string
	operator, admin client.Client
	machine         *v1beta1.Machine
	vm              *cloudnativev1alpha1.VirtualMachine
}

// check sends a request as the operator. If denied is empty, the request must succeed. Otherwise, a policy must deny it
// with a message that contains denied. Then the same request by another user must succeed.
func (f *policyTest) check(t *testing.T, denied string, do func(client.Client) error) {
	t.Helper()
	err := do(f.operator)
	if denied == "" {
		if err != nil {
			t.Errorf("the request failed, want success: %v", err)
		}
		return
	}
	const policy = "ValidatingAdmissionPolicy 'useless-operator-"
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), policy) || !strings.Contains(err.Error(), denied) {
		t.Errorf("a policy must deny the request with %q, got %v", denied, err)
	}
	if err := do(f.admin); err != nil {
		t.Errorf("the same request by another user failed: %v", err)
	}
}

// populate creates the objects that the requests change or delete.
func (f *policyTest) populate(t *testing.T) {
	t.Helper()
	paused := map[string]string{v1beta1.PausedAnnotation: "true"}
	f.machine = newMachine(f.namespace, "m")
	f.vm = newVirtualMachine(f.namespace, "vm")
	own, foreign := newSwitch(f.namespace, "own"), newSwitch(f.namespace, "foreign")
	for _, object := range []client.Object{f.machine, f.vm, own, foreign} {
		object.SetAnnotations(paused)
	}
	create := func(object client.Object) {
		eventually(t, defaultTimeout, func() (bool, string) { // a new namespace may lack its default ServiceAccount
			err := admin(t).Create(t.Context(), object)
			return err == nil, fmt.Sprint(err)
		})
	}
	create(f.machine)
	create(f.vm)
	own.OwnerReferences = []metav1.OwnerReference{f.ownedByMachine()}
	otherPod := f.podOfVM("other-pod")
	otherPod.OwnerReferences = nil
	for _, object := range []client.Object{
		own, foreign, f.podOfVM("vm-pod"), otherPod,
		newDeployment(f.namespace, "deployment"), newReplicaSet(f.namespace, "rs", 0), newIngress(f.namespace, "ingress", nil),
		newStatefulSet(f.namespace, "statefulset"), newCronJob(f.namespace, "cronjob"),
		newScheduledAutoscaler(f.namespace, "autoscaler", "1"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "admin"}},
	} {
		create(object)
	}
}

// bindOptionalPolicies binds the policies of the optional controllers, and waits until they are in effect.
func (f *policyTest) bindOptionalPolicies(t *testing.T) {
	t.Helper()
	for component, object := range map[string]client.Object{
		podcount.Name: newReplicaSet(f.namespace, "rs", 0), ingress.Name: newIngress(f.namespace, "ingress", nil),
	} {
		bindings := filepath.Join(repository, "config", "components", component, "permissions", "bindings.yaml")
		mustKubectl(t, "", "apply", "-f", bindings, "-l", "app.kubernetes.io/component=admission-policy")
		eventually(t, defaultTimeout, func() (bool, string) {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/kept"]}}`))
			err := f.operator.Patch(t.Context(), object.DeepCopyObject().(client.Object), patch)
			return apierrors.IsForbidden(err), fmt.Sprintf("the policy for %s is not in effect: %v", component, err)
		})
	}
}

func (f *policyTest) ownedByMachine() metav1.OwnerReference {
	return *metav1.NewControllerRef(f.machine, v1beta1.GroupVersion.WithKind("Machine"))
}

// podOfVM returns a Pod that the operator may create for f.vm, with the given changes.
func (f *policyTest) podOfVM(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	resources := corev1.ResourceList{corev1.ResourceCPU: f.vm.Spec.Resource.CPU, corev1.ResourceMemory: f.vm.Spec.Resource.Memory}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.namespace, Name: name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(f.vm, cloudnativev1alpha1.GroupVersion.WithKind("VirtualMachine"))},
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "server", Image: "registry.example.com/server:v1",
				Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func (f *policyTest) testChanges(t *testing.T) {
	alphaMachine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "m"}}
	machine, sw, vm := newMachine(f.namespace, "m"), newSwitch(f.namespace, "own"), newVirtualMachine(f.namespace, "vm")
	deployment, replicaSet := newDeployment(f.namespace, "deployment"), newReplicaSet(f.namespace, "rs", 0)
	statefulSet, cronJob := newStatefulSet(f.namespace, "statefulset"), newCronJob(f.namespace, "cronjob")
	autoscaler := newScheduledAutoscaler(f.namespace, "autoscaler", "1")
	anIngress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "ingress"}}
	definition := crd(t, "machines")
	for _, tt := range []struct {
		reason string
		object client.Object
		patch  string
		denied string // part of the message; empty if the patch is allowed
	}{
		{"an empty patch, as the storage version migration sends", machine, `{}`, ""},
		{"add the Machine finalizer", machine, `{"metadata":{"finalizers":["useless.container.training/machine"]}}`, ""},
		{"set a Machine's position to down", machine, `{"spec":{"position":"down"}}`, ""},
		{
			"add a foreign finalizer to a Machine", machine,
			`{"metadata":{"finalizers":["example.com/kept"]}}`, "/metadata/finalizers/example.com/kept",
		},
		{"scale a Machine", machine, `{"spec":{"switches":{"count":7}}}`, "/spec/switches"},
		{
			"resume a Machine", machine,
			`{"metadata":{"annotations":null}}`, "/metadata/annotations/useless.container.training/paused",
		},
		{"scale a Machine in v1alpha1", alphaMachine, `{"spec":{"switches":7}}`, "/spec/switches"},

		{
			"turn a Switch down", sw,
			`{"metadata":{"annotations":{"useless.container.training/flipped-at":"now"}},"spec":{"position":"down"}}`, "",
		},
		{"turn a Switch up", sw, `{"spec":{"position":"up"}}`, ""},
		{"release a Switch", sw, `{"metadata":{"ownerReferences":null}}`, ""},
		{"change a Switch's labels", sw, `{"metadata":{"labels":{"machine":"other"}}}`, "/metadata/labels"},
		{
			"give a Switch an owner of another kind", sw,
			fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"c","uid":%q}]}}`, f.vm.UID),
			"/metadata/ownerReferences",
		},
		{
			"resume a Switch", sw,
			`{"metadata":{"annotations":{"useless.container.training/paused":null}}}`, "/metadata/annotations",
		},
		{
			"add a finalizer to a Switch", sw,
			`{"metadata":{"finalizers":["useless.container.training/machine"]}}`, "/metadata/finalizers",
		},

		{"add the VirtualMachine finalizer", vm, `{"metadata":{"finalizers":["cloudnative.tw/virtualmachine"]}}`, ""},
		{
			"stop a VirtualMachine", vm,
			`{"metadata":{"annotations":{"useless.container.training/original-state":"Active"}},"spec":{"action":"inactive"}}`, "",
		},
		{"resize a VirtualMachine", vm, `{"spec":{"resource":{"cpu":"64"}}}`, "/spec/resource"},
		{"label a VirtualMachine", vm, `{"metadata":{"labels":{"a":"b"}}}`, "/metadata/labels/a"},

		{
			"scale a Deployment to zero", deployment,
			`{"metadata":{"annotations":{"useless.container.training/original-replicas":"3"}},"spec":{"replicas":0}}`, "",
		},
		{
			"change a Deployment's ServiceAccount", deployment,
			`{"spec":{"template":{"spec":{"serviceAccountName":"admin"}}}}`, "/spec/template",
		},
		{"pause a Deployment", deployment, `{"spec":{"paused":true}}`, "/spec/paused"},
		{
			"set a Deployment's schedule", deployment,
			`{"metadata":{"annotations":{"useless.container.training/stop-schedule":"20:00"}}}`,
			"/metadata/annotations/useless.container.training/stop-schedule",
		},
		{"label a Deployment", deployment, `{"metadata":{"labels":{"a":"1"}}}`, "/metadata/labels/a"},

		{
			"scale a StatefulSet to zero", statefulSet,
			`{"metadata":{"annotations":{"useless.container.training/original-replicas":"3"}},"spec":{"replicas":0}}`, "",
		},
		{
			"change a StatefulSet's ServiceAccount", statefulSet,
			`{"spec":{"template":{"spec":{"serviceAccountName":"admin"}}}}`, "/spec/template",
		},
		{
			"suspend a CronJob", cronJob,
			`{"metadata":{"annotations":{"useless.container.training/original-state":"Active"}},"spec":{"suspend":true}}`, "",
		},
		{"run a CronJob more often", cronJob, `{"spec":{"schedule":"* * * * *"}}`, "/spec/schedule"},
		{
			"change the ServiceAccount of a CronJob's Jobs", cronJob,
			`{"spec":{"jobTemplate":{"spec":{"template":{"spec":{"serviceAccountName":"admin"}}}}}}`, "/spec/jobTemplate",
		},

		{
			"limit a HorizontalPodAutoscaler", autoscaler,
			`{"metadata":{"annotations":{"useless.container.training/original-min-replicas":"2"}},
				"spec":{"minReplicas":1,"maxReplicas":1}}`, "",
		},
		{
			"change the scale target of a HorizontalPodAutoscaler", autoscaler,
			`{"spec":{"scaleTargetRef":{"name":"other"}}}`, "/spec/scaleTargetRef",
		},

		{"set a ReplicaSet's pod-count label", replicaSet, `{"metadata":{"labels":{"pod-count":"3"}}}`, ""},
		{
			"set a label that --pod-count-label could name", replicaSet,
			`{"metadata":{"labels":{"example.com/pod-count":"0"}}}`, "",
		},
		{
			"set a ReplicaSet's pod-count label to a word", replicaSet,
			`{"metadata":{"labels":{"pod-count":"many"}}}`, "/metadata/labels/pod-count",
		},
		{"scale a ReplicaSet", replicaSet, `{"spec":{"replicas":3}}`, "/spec/replicas"},
		{
			"set another label of a ReplicaSet", replicaSet,
			`{"metadata":{"labels":{"pod-count":"3","a":"b"}}}`, "/metadata/labels/a",
		},
		{
			"set two labels of a ReplicaSet to numbers", replicaSet,
			`{"metadata":{"labels":{"pod-count":"3","a":"4"}}}`, "/metadata/labels/a",
		},
		{
			"set a label that the ReplicaSet's selector uses", replicaSet,
			`{"metadata":{"labels":{"app":"3"}}}`, "/metadata/labels/app",
		},
		{
			"set the label that the Deployment controller uses", replicaSet,
			`{"metadata":{"labels":{"pod-template-hash":"3"}}}`, "/metadata/labels/pod-template-hash",
		},
		{
			"set a label with a Kubernetes prefix", replicaSet,
			`{"metadata":{"labels":{"app.kubernetes.io/version":"3"}}}`, "/metadata/labels/app.kubernetes.io/version",
		},
		{
			"give a ReplicaSet the host network", replicaSet,
			`{"spec":{"template":{"spec":{"hostNetwork":true}}}}`, "/spec/template",
		},

		{"annotate an Ingress", anIngress, `{"metadata":{"annotations":{"foo":"bar"}}}`, ""},
		{
			"change an Ingress's backend", anIngress,
			`{"spec":{"defaultBackend":{"service":{"name":"other","port":{"number":80}}}}}`, "/spec/defaultBackend",
		},
		{"label an Ingress", anIngress, `{"metadata":{"labels":{"a":"b"}}}`, "/metadata/labels/a"},

		{
			"change the conversion webhook's CA bundle", definition,
			`{"spec":{"conversion":{"webhook":{"clientConfig":{"caBundle":null}}}}}`, "",
		},
		{
			"change the conversion webhook's URL", definition,
			`{"spec":{"conversion":{"webhook":{"clientConfig":{"url":"https://example.com"}}}}}`,
			"/spec/conversion/webhook/clientConfig/url",
		},
		{
			"turn conversion off", definition,
			`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`, "/spec/conversion/strategy",
		},
		{
			"change a CustomResourceDefinition's names", definition,
			`{"metadata":{"annotations":{"a":"b"}},"spec":{"preserveUnknownFields":false,"names":{"categories":["all"]}}}`,
			"/spec/names",
		},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			f.check(t, tt.denied, func(c client.Client) error {
				patch := client.RawPatch(types.MergePatchType, []byte(tt.patch))
				return c.Patch(t.Context(), tt.object.DeepCopyObject().(client.Object), patch)
			})
		})
	}
}

func (f *policyTest) testCRDStatus(t *testing.T) {
	for patch, denied := range map[string]string{
		`{"status":{"storedVersions":["v1beta1"]}}`:   "",
		`{"status":{"acceptedNames":{"kind":"Any"}}}`: "/status/acceptedNames",
	} {
		f.check(t, denied, func(c client.Client) error {
			return c.Status().Patch(t.Context(), crd(t, "machines"), client.RawPatch(types.MergePatchType, []byte(patch)))
		})
	}
}

func (f *policyTest) testPods(t *testing.T) {
	const addition, otherIdentity, privileged = "the Pod has ", "the Pod has another ServiceAccount", "the container of the Pod has privileges"
	const noVirtualMachine = "the controller of the Pod is not a VirtualMachine.cloudnative.tw"
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { change(&pod.Spec.Containers[0]) }
	}
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	for _, tt := range []struct {
		reason string
		change func(*corev1.Pod)
		denied string // part of the message; empty if the Pod is allowed
	}{
		{"the Pod of a VirtualMachine", func(*corev1.Pod) {}, ""},
		{"no controller", func(p *corev1.Pod) { p.OwnerReferences = nil }, noVirtualMachine},
		{"controlled by a Machine", func(p *corev1.Pod) { p.OwnerReferences[0] = f.ownedByMachine() }, noVirtualMachine},
		{"a finalizer", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/kept"} }, "no finalizers"},
		{"host network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, addition + "hostNetwork"},
		{"host PID namespace", func(p *corev1.Pod) { p.Spec.HostPID = true }, addition + "hostPID"},
		{"node name", func(p *corev1.Pod) { p.Spec.NodeName = "node" }, addition + "nodeName"},
		{
			"hostPath volume",
			volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), addition + "volumes",
		},
		{
			"Secret volume",
			volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), addition + "volumes",
		},
		{"environment variables from a Secret", container(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		}), addition + "container.envFrom"},
		{"command", container(func(c *corev1.Container) { c.Command = []string{"sh"} }), addition + "container.command"},
		{"host port", container(func(c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		}), addition + "container.ports"},
		{"init container", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}}
		}, addition + "initContainers"},
		{"second container", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c", Image: "c"})
		}, "more than one container"},
		{"ServiceAccount token", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }, addition + "volumes"},
		{"another ServiceAccount", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "admin" }, otherIdentity},
		{"priority class", func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }, otherIdentity},
		{"root user", func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsNonRoot = nil }, "the Pod lacks runAsNonRoot"},
		{"unconfined seccomp profile", func(p *corev1.Pod) {
			p.Spec.SecurityContext.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined
		}, "the Pod lacks runAsNonRoot or"},
		{"root user of the container", container(func(c *corev1.Container) {
			c.SecurityContext.RunAsNonRoot = new(false)
		}), privileged},
		{"privilege escalation", container(func(c *corev1.Container) {
			c.SecurityContext.AllowPrivilegeEscalation = nil
		}), privileged},
		{"capability", container(func(c *corev1.Container) {
			c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
		}), privileged},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			f.check(t, tt.denied, func(c client.Client) error {
				return c.Create(t.Context(), f.podOfVM("new", tt.change))
			})
		})
	}
}

func (f *policyTest) testDeletions(t *testing.T) {
	for _, tt := range []struct {
		object client.Object
		denied string // part of the message; empty if the deletion is allowed
	}{
		{newSwitch(f.namespace, "own"), ""},
		{newSwitch(f.namespace, "foreign"), "the controller of the Switch is not a Machine.useless.container.training"},
		{newPod(f.namespace, "vm-pod", nil), ""},
		{newPod(f.namespace, "other-pod", nil), "the controller of the Pod is not a VirtualMachine.cloudnative.tw"},
	} {
		t.Run(tt.object.GetName(), func(t *testing.T) {
			f.check(t, tt.denied, func(c client.Client) error { return c.Delete(t.Context(), tt.object) })
		})
	}
}

func (f *policyTest) testResizes(t *testing.T) {
	if olderThan(t, 33, noResize) {
		t.Skip("the API server has no pods/resize")
	}
	const patch = `{"spec":{"containers":[{"name":"server","resources":{"requests":{"cpu":"1"},"limits":{"cpu":"1"}}}]}}`
	for name, denied := range map[string]string{
		"vm-pod": "", "other-pod": "the controller of the Pod is not a VirtualMachine.cloudnative.tw",
	} {
		t.Run(name, func(t *testing.T) {
			f.check(t, denied, func(c client.Client) error {
				return c.SubResource("resize").Patch(t.Context(), newPod(f.namespace, name, nil),
					client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
			})
		})
	}
}

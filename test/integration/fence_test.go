// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
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
)

// TestFence has somebody with the operator's identity, whom no role keeps from anything, do what it may do and what it
// may not: only the policies of config/admission-policy are in the way. Nothing of it is stored.
func TestFence(t *testing.T) {
	shared(t) // for the webhooks
	config := rest.CopyConfig(clusterOf(t).Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:useless-system:" + operatorAccount, Groups: []string{"system:masters"},
	}
	operator, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	f := &fence{namespace: newNamespace(t), operator: client.NewDryRunClient(operator), others: client.NewDryRunClient(admin(t))}
	f.populate(t)
	t.Run("changes", f.testChanges)
	t.Run("status of custom resource definitions", f.testCRDStatus)
	t.Run("pods", f.testPods)
	t.Run("deletions", f.testDeletions)
	t.Run("resizes", f.testResizes)
}

// A fence has two clients that store nothing, and objects in a namespace that the running operator leaves alone.
type fence struct {
	namespace        string
	operator, others client.Client
	machine          *v1beta1.Machine
	vm               *cloudnativev1alpha1.VirtualMachine
}

// check does something as the operator. What is refused is refused by a policy, with a message that has the given text in
// it, and only to the operator.
func (f *fence) check(t *testing.T, refused string, do func(client.Client) error) {
	t.Helper()
	err := do(f.operator)
	if refused == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'useless-operator-") || !strings.Contains(err.Error(), refused) {
		t.Errorf("want it forbidden because of %q, got %v", refused, err)
	}
	if err := do(f.others); err != nil {
		t.Errorf("refused to somebody else: %v", err)
	}
}

func (f *fence) populate(t *testing.T) {
	t.Helper()
	paused := map[string]string{v1beta1.PausedAnnotation: "true"}
	f.machine = aMachine(f.namespace, "m")
	f.vm = aVirtualMachine(f.namespace, "vm")
	own, foreign := aSwitch(f.namespace, "own"), aSwitch(f.namespace, "foreign")
	for _, object := range []client.Object{f.machine, f.vm, own, foreign} {
		object.SetAnnotations(paused)
	}
	create := func(object client.Object) {
		eventually(t, patience, func() (bool, string) { // a new namespace has no ServiceAccount for Pods yet
			err := admin(t).Create(t.Context(), object)
			return err == nil, fmt.Sprint(err)
		})
	}
	create(f.machine)
	create(f.vm)
	own.OwnerReferences = []metav1.OwnerReference{f.ownedByMachine()}
	pod := f.aServer("pod")
	pod.OwnerReferences = nil
	for _, object := range []client.Object{
		own, foreign, f.aServer("server"), pod, aDeployment(f.namespace, "deployment"), aReplicaSet(f.namespace, "rs", 0),
		anIngress(f.namespace, "ingress", nil), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "admin"}},
	} {
		create(object)
	}
}

func (f *fence) ownedByMachine() metav1.OwnerReference {
	return *metav1.NewControllerRef(f.machine, v1beta1.GroupVersion.WithKind("Machine"))
}

// aServer is a Pod as the operator makes it for a VirtualMachine, with changes.
func (f *fence) aServer(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
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

func (f *fence) testChanges(t *testing.T) {
	alphaMachine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "m"}}
	machine, sw, vm := aMachine(f.namespace, "m"), aSwitch(f.namespace, "own"), aVirtualMachine(f.namespace, "vm")
	deployment, replicaSet := aDeployment(f.namespace, "deployment"), aReplicaSet(f.namespace, "rs", 0)
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "ingress"}}
	definition := crd(t, "machines")
	for _, tt := range []struct {
		reason  string
		object  client.Object
		patch   string
		refused string // empty for what is allowed
	}{
		{"nothing is changed, as by the migration", machine, `{}`, ""},
		{"a machine gets its finalizer", machine, `{"metadata":{"finalizers":["useless.container.training/machine"]}}`, ""},
		{"a machine is lowered", machine, `{"spec":{"position":"down"}}`, ""},
		{"a machine gets another finalizer", machine, `{"metadata":{"finalizers":["example.com/kept"]}}`, "/metadata/finalizers/example.com/kept"},
		{"a machine gets more switches", machine, `{"spec":{"switches":{"count":7}}}`, "/spec/switches"},
		{"a machine goes on", machine, `{"metadata":{"annotations":null}}`, "/metadata/annotations/useless.container.training/paused"},
		{"a machine gets more switches in another version", alphaMachine, `{"spec":{"switches":7}}`, "/spec/switches"},

		{"a switch is turned down", sw, `{"metadata":{"annotations":{"useless.container.training/flipped-at":"now"}},"spec":{"position":"down"}}`, ""},
		{"a switch is turned up", sw, `{"spec":{"position":"up"}}`, ""},
		{"a switch is released", sw, `{"metadata":{"ownerReferences":null}}`, ""},
		{"a switch is relabelled", sw, `{"metadata":{"labels":{"machine":"other"}}}`, "/metadata/labels"},
		{"a switch goes to something else", sw, fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"c","uid":%q}]}}`, f.vm.UID), "/metadata/ownerReferences"},
		{"a switch goes on", sw, `{"metadata":{"annotations":{"useless.container.training/paused":null}}}`, "/metadata/annotations"},
		{"a switch cannot be deleted any more", sw, `{"metadata":{"finalizers":["useless.container.training/machine"]}}`, "/metadata/finalizers"},

		{"a virtual machine gets its finalizer", vm, `{"metadata":{"finalizers":["cloudnative.tw/virtualmachine"]}}`, ""},
		{"a virtual machine is stopped", vm, `{"spec":{"action":"inactive"}}`, "/spec/action"},
		{"a virtual machine grows", vm, `{"spec":{"resource":{"cpu":"64"}}}`, "/spec/resource"},
		{"a virtual machine is labelled", vm, `{"metadata":{"labels":{"a":"b"}}}`, "/metadata/labels/a"},

		{"a deployment is stopped", deployment, `{"metadata":{"annotations":{"useless.container.training/original-replicas":"3"}},"spec":{"replicas":0}}`, ""},
		{"a deployment gets another account", deployment, `{"spec":{"template":{"spec":{"serviceAccountName":"admin"}}}}`, "/spec/template"},
		{"a deployment is paused", deployment, `{"spec":{"paused":true}}`, "/spec/paused"},
		{"a deployment gets a schedule", deployment, `{"metadata":{"annotations":{"useless.container.training/stop-schedule":"20:00"}}}`, "/metadata/annotations/useless.container.training/stop-schedule"},
		{"a deployment is relabelled", deployment, `{"metadata":{"labels":{"a":"b"}}}`, "/metadata/labels/a"},

		{"pods are counted", replicaSet, `{"metadata":{"labels":{"pod-count":"3"}}}`, ""},
		{"a replica set is scaled", replicaSet, `{"spec":{"replicas":3}}`, "/spec/replicas"},
		{"a replica set is relabelled", replicaSet, `{"metadata":{"labels":{"pod-count":"3","a":"b"}}}`, "/metadata/labels/a"},
		{"a label begins like that one", replicaSet, `{"metadata":{"labels":{"pod-count/a":"3"}}}`, "/metadata/labels/pod-count/a"},
		{"a replica set gets the node's network", replicaSet, `{"spec":{"template":{"spec":{"hostNetwork":true}}}}`, "/spec/template"},

		{"an ingress is annotated", ingress, `{"metadata":{"annotations":{"foo":"bar"}}}`, ""},
		{"an ingress leads elsewhere", ingress, `{"spec":{"defaultBackend":{"service":{"name":"other","port":{"number":80}}}}}`, "/spec/defaultBackend"},
		{"an ingress is labelled", ingress, `{"metadata":{"labels":{"a":"b"}}}`, "/metadata/labels/a"},

		{"a certificate authority is written", definition, `{"spec":{"conversion":{"webhook":{"clientConfig":{"caBundle":null}}}}}`, ""},
		{"conversion goes elsewhere", definition, `{"spec":{"conversion":{"webhook":{"clientConfig":{"url":"https://example.com"}}}}}`, "/spec/conversion/webhook/clientConfig/url"},
		{"conversion is turned off", definition, `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`, "/spec/conversion/strategy"},
		{"a schema is opened", definition, `{"metadata":{"annotations":{"a":"b"}},"spec":{"preserveUnknownFields":false,"names":{"categories":["all"]}}}`, "/spec/names"},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			f.check(t, tt.refused, func(c client.Client) error {
				return c.Patch(t.Context(), tt.object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(tt.patch)))
			})
		})
	}
}

func (f *fence) testCRDStatus(t *testing.T) {
	for patch, refused := range map[string]string{
		`{"status":{"storedVersions":["v1beta1"]}}`:   "",
		`{"status":{"acceptedNames":{"kind":"Any"}}}`: "/status/acceptedNames",
	} {
		f.check(t, refused, func(c client.Client) error {
			return c.Status().Patch(t.Context(), crd(t, "machines"), client.RawPatch(types.MergePatchType, []byte(patch)))
		})
	}
}

func (f *fence) testPods(t *testing.T) {
	const notPlain, notPeer, privileged = "it has ", "it runs as somebody else, or", "its container has privileges"
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { change(&pod.Spec.Containers[0]) }
	}
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	for _, tt := range []struct {
		reason  string
		change  func(*corev1.Pod)
		refused string
	}{
		{"a virtual machine gets a server", func(*corev1.Pod) {}, ""},
		{"a server of nobody", func(p *corev1.Pod) { p.OwnerReferences = nil }, "its controller is no VirtualMachine.cloudnative.tw"},
		{"a server of a machine", func(p *corev1.Pod) { p.OwnerReferences[0] = f.ownedByMachine() }, "its controller is no VirtualMachine.cloudnative.tw"},
		{"a server that does not go", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/kept"} }, "no finalizers"},
		{"the node's network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, notPlain + "hostNetwork"},
		{"the node's processes", func(p *corev1.Pod) { p.Spec.HostPID = true }, notPlain + "hostPID"},
		{"a node of its choice", func(p *corev1.Pod) { p.Spec.NodeName = "node" }, notPlain + "nodeName"},
		{"the node's files", volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), notPlain + "volumes"},
		{"a secret", volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), notPlain + "volumes"},
		{"a secret in its environment", container(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		}), notPlain + "container.envFrom"},
		{"another program", container(func(c *corev1.Container) { c.Command = []string{"sh"} }), notPlain + "container.command"},
		{"the node's port", container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}} }), notPlain + "container.ports"},
		{"a container before", func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}} }, notPlain + "initContainers"},
		{"a container beside", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c", Image: "c"})
		}, "more than one container"},
		{"a token", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }, notPlain + "volumes"},
		{"somebody else", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "admin" }, notPeer},
		{"before all others", func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }, notPeer},
		{"root", func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsNonRoot = nil }, "its user may be root"},
		{"every system call", func(p *corev1.Pod) { p.Spec.SecurityContext.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined }, "its user may be root, or"},
		{"root in the container", container(func(c *corev1.Container) { c.SecurityContext.RunAsNonRoot = new(false) }), privileged},
		{"privileges", container(func(c *corev1.Container) { c.SecurityContext.AllowPrivilegeEscalation = nil }), privileged},
		{"a capability", container(func(c *corev1.Container) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"} }), privileged},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			f.check(t, tt.refused, func(c client.Client) error { return c.Create(t.Context(), f.aServer("new", tt.change)) })
		})
	}
}

func (f *fence) testDeletions(t *testing.T) {
	for _, tt := range []struct {
		object  client.Object
		refused string
	}{
		{aSwitch(f.namespace, "own"), ""},
		{aSwitch(f.namespace, "foreign"), "its controller is no Machine.useless.container.training"},
		{aPod(f.namespace, "server", nil), ""},
		{aPod(f.namespace, "pod", nil), "its controller is no VirtualMachine.cloudnative.tw"},
	} {
		t.Run(tt.object.GetName(), func(t *testing.T) {
			f.check(t, tt.refused, func(c client.Client) error { return c.Delete(t.Context(), tt.object) })
		})
	}
}

func (f *fence) testResizes(t *testing.T) {
	if olderThan(t, 33, noResize) {
		t.Skip("the API server has no pods/resize")
	}
	const patch = `{"spec":{"containers":[{"name":"server","resources":{"requests":{"cpu":"1"},"limits":{"cpu":"1"}}}]}}`
	for name, refused := range map[string]string{"server": "", "pod": "its controller is no VirtualMachine.cloudnative.tw"} {
		t.Run(name, func(t *testing.T) {
			f.check(t, refused, func(c client.Client) error {
				return c.SubResource("resize").Patch(t.Context(), aPod(f.namespace, name, nil), client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
			})
		})
	}
}

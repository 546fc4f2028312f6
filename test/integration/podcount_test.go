// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/podcount"
)

func TestPodCount(t *testing.T) {
	useExclusiveCluster(t)
	runPodCount(t)
	runParallel(t, []namespacedTest{
		{"the label of a Deployment's ReplicaSet has the number of Pods, also if there are none", testPodCountDocumented},
		{"a ReplicaSet without labels gets the label and no other change", testPodCountNilLabels},
		{"two ReplicaSets with the same template labels are counted separately", testPodCountSameLabels},
		{"a Pod whose owner changes is counted once", testPodCountOwnerChanges},
		{"Pods that are being deleted are not counted", testPodCountTerminating},
		{"a ReplicaSet that is being deleted is not changed", testPodCountDeleted},
		{"a paused ReplicaSet is not changed until it is unpaused", testPodCountPaused},
		{"a label that a user changes is restored", testPodCountReverted},
	})
}

// runPodCount runs an operator that has only the controller podcount. It returns the counter of the operator's
// requests.
func runPodCount(t *testing.T) *requestCounter {
	t.Helper()
	grantPermissions(t, podcount.Name)
	requests := newRequestCounter()
	runOperatorFor(t, operatorOptions{
		controllers: func(options *controller.Options) { options.Selection = []string{podcount.Name} },
		noWebhooks:  true,
		transport:   func(config *rest.Config) { config.Wrap(requests.wrap) },
	})
	return requests
}

// newReplicaSet returns a ReplicaSet whose Pods have the label app=web.
func newReplicaSet(namespace, name string, replicas int32) *appsv1.ReplicaSet {
	labels := map[string]string{"app": "web"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example.com/web:v1"}}},
			},
		},
	}
}

func createReplicaSet(t *testing.T, namespace, name string, replicas int32, change ...func(*appsv1.ReplicaSet)) *appsv1.ReplicaSet {
	t.Helper()
	rs := newReplicaSet(namespace, name, replicas)
	for _, change := range change {
		change(rs)
	}
	if err := admin(t).Create(t.Context(), rs); err != nil {
		t.Fatal(err)
	}
	return rs
}

// waitForPodCount waits until the pod-count label of a ReplicaSet has the value count, or is absent if count is empty.
// It returns the ReplicaSet.
func waitForPodCount(t *testing.T, namespace, name, count string) *appsv1.ReplicaSet {
	t.Helper()
	rs := &appsv1.ReplicaSet{}
	eventually(t, defaultTimeout, func() (bool, string) {
		if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, rs); err != nil {
			return false, err.Error()
		}
		return rs.Labels[podcount.DefaultLabel] == count, fmt.Sprintf("labels of %s are %v, want %s Pods", name, rs.Labels, count)
	})
	return rs
}

// podsOf lists the Pods that a ReplicaSet controls, without Pods that are being deleted. It reads them from the API
// server, not from a cache.
func podsOf(t *testing.T, rs *appsv1.ReplicaSet) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	if err := admin(t).List(t.Context(), list, client.InNamespace(rs.Namespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		return !metav1.IsControlledBy(&pod, rs) || !pod.DeletionTimestamp.IsZero()
	})
}

func testPodCountDocumented(t *testing.T, namespace string) {
	mustKubectl(t, documented(t, "podcount.md"), "apply", "-n", namespace, "-f", "-")
	var rs *appsv1.ReplicaSet
	eventually(t, defaultTimeout, func() (bool, string) {
		list := &appsv1.ReplicaSetList{}
		if err := admin(t).List(t.Context(), list, client.InNamespace(namespace)); err != nil || len(list.Items) == 0 {
			return false, fmt.Sprintf("no ReplicaSet: %v", err)
		}
		rs = &list.Items[0]
		return true, ""
	})
	waitForPodCount(t, namespace, rs.Name, "3")
	mustKubectl(t, "", "scale", "deployment", "web", "--replicas=5", "-n", namespace)
	waitForPodCount(t, namespace, rs.Name, "5")
	mustKubectl(t, "", "scale", "deployment", "web", "--replicas=0", "-n", namespace)
	waitForPodCount(t, namespace, rs.Name, "0")
}

func testPodCountNilLabels(t *testing.T, namespace string) {
	created := createReplicaSet(t, namespace, "web", 0)
	if created.Labels != nil {
		t.Fatalf("the new ReplicaSet has labels %v, want none", created.Labels)
	}
	rs := waitForPodCount(t, namespace, "web", "0")
	if diff := cmp.Diff(map[string]string{"pod-count": "0"}, rs.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(created.Spec, rs.Spec); diff != "" || rs.Generation != created.Generation {
		t.Errorf("generation %d, was %d; spec (-before +after):\n%s", rs.Generation, created.Generation, diff)
	}
	if !slices.ContainsFunc(rs.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager == "useless-operator-podcount" }) {
		t.Errorf("no managedFields entry has the manager useless-operator-podcount: %v", rs.ManagedFields)
	}
}

func testPodCountSameLabels(t *testing.T, namespace string) {
	createReplicaSet(t, namespace, "a", 2)
	createReplicaSet(t, namespace, "b", 3)
	waitForPodCount(t, namespace, "a", "2")
	waitForPodCount(t, namespace, "b", "3")
}

func testPodCountOwnerChanges(t *testing.T, namespace string) {
	a, b := createReplicaSet(t, namespace, "a", 2), createReplicaSet(t, namespace, "b", 2)
	waitForPodCount(t, namespace, "a", "2")
	waitForPodCount(t, namespace, "b", "2")
	moved := podsOf(t, a)[0]
	before := moved.DeepCopy()
	moved.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(b, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	if err := admin(t).Patch(t.Context(), &moved, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	// kube-controller-manager creates a Pod for the ReplicaSet a, and deletes a Pod of b.
	for _, rs := range []*appsv1.ReplicaSet{a, b} {
		eventually(t, defaultTimeout, func() (bool, string) {
			n := len(podsOf(t, rs))
			return n == 2, fmt.Sprintf("%s has %d Pods", rs.Name, n)
		})
	}
	waitUntilPodCountProcessed(t, namespace)
	waitForPodCount(t, namespace, "a", "2")
	waitForPodCount(t, namespace, "b", "2")
}

func testPodCountTerminating(t *testing.T, namespace string) {
	rs := createReplicaSet(t, namespace, "web", 2)
	waitForPodCount(t, namespace, "web", "2")
	for _, pod := range podsOf(t, rs) {
		mergePatch(t, &pod, `{"metadata":{"finalizers":["example.com/wait"]}}`)
	}
	mustKubectl(t, "", "scale", "replicaset", "web", "--replicas=0", "-n", namespace)
	waitForPodCount(t, namespace, "web", "0")
	list := &corev1.PodList{}
	if err := admin(t).List(t.Context(), list, client.InNamespace(namespace)); err != nil || len(list.Items) != 2 {
		t.Errorf("%d Pods exist, want the two that are being deleted; error %v", len(list.Items), err)
	}
	for _, pod := range list.Items {
		mergePatch(t, &pod, `{"metadata":{"finalizers":null}}`)
	}
}

func testPodCountDeleted(t *testing.T, namespace string) {
	rs := createReplicaSet(t, namespace, "web", 2, func(rs *appsv1.ReplicaSet) { rs.Finalizers = []string{"example.com/wait"} })
	waitForPodCount(t, namespace, "web", "2")
	mustKubectl(t, "", "delete", "replicaset", "web", "-n", namespace, "--wait=false")
	for _, pod := range podsOf(t, rs) {
		mustKubectl(t, "", "delete", "pod", pod.Name, "-n", namespace)
	}
	waitUntilPodCountProcessed(t, namespace)
	waitForPodCount(t, namespace, "web", "2")
	mergePatch(t, rs, `{"metadata":{"finalizers":null}}`)
}

func testPodCountPaused(t *testing.T, namespace string) {
	paused := createReplicaSet(t, namespace, "web", 2, func(rs *appsv1.ReplicaSet) {
		rs.Annotations = map[string]string{"useless.container.training/paused": "true"}
	})
	eventually(t, defaultTimeout, func() (bool, string) {
		n := len(podsOf(t, paused))
		return n == 2, fmt.Sprintf("%d Pods", n)
	})
	waitUntilPodCountProcessed(t, namespace)
	if rs := waitForPodCount(t, namespace, "web", ""); rs.Labels != nil {
		t.Errorf("the paused ReplicaSet has the labels %v", rs.Labels)
	}
	setPaused(t, paused, false)
	waitForPodCount(t, namespace, "web", "2")
}

func testPodCountReverted(t *testing.T, namespace string) {
	rs := createReplicaSet(t, namespace, "web", 1)
	waitForPodCount(t, namespace, "web", "1")
	for _, value := range []string{`"7"`, "null"} {
		mergePatch(t, rs, `{"metadata":{"labels":{"pod-count":%s}}}`, value)
		waitForPodCount(t, namespace, "web", "1")
	}
}

// TestPodCountWrites lets kube-controller-manager create 500 Pods and delete them, at its default rate of about 20 per
// second. The operator writes the label after half a second without changes. If the changes continue, it writes the
// label every ten seconds. On a busy computer, kube-controller-manager pauses more often, and a pause can be longer for
// the operator than for this test. So the test also allows a write for each pause of at least 100 ms. In any case, it
// allows one write per 100 changes. The unit tests of package podcount check the times exactly.
func TestPodCountWrites(t *testing.T) {
	const bursts = 3 // the new ReplicaSet, its 500 Pods, and their deletion
	const pause, longestDelay = 100 * time.Millisecond, 10 * time.Second
	useExclusiveCluster(t)
	requests := runPodCount(t)
	namespace := newNamespace(t)
	start, pods := time.Now(), record[*corev1.Pod](t, &corev1.PodList{}, namespace)
	createReplicaSet(t, namespace, "web", 0)
	waitForPodCount(t, namespace, "web", "0")
	for _, replicas := range []int{500, 0} {
		mustKubectl(t, "", "scale", "replicaset", "web", "--replicas="+strconv.Itoa(replicas), "-n", namespace)
		eventually(t, 5*time.Minute, func() (bool, string) {
			rs := &appsv1.ReplicaSet{}
			err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, rs)
			return err == nil && rs.Labels[podcount.DefaultLabel] == strconv.Itoa(replicas), fmt.Sprintf("labels %v; %v", rs.Labels, err)
		})
	}
	waitUntilPodCountProcessed(t, namespace)
	writes := requests.of(namespace)["PATCH replicasets"] - 1 // waitUntilPodCountProcessed causes the other write
	pauses, changes := 0, pods.all(t)
	for i := 1; i < len(changes); i++ {
		if changes[i].at.Sub(changes[i-1].at) >= pause {
			pauses++
		}
	}
	took := time.Since(start)
	t.Logf("%d writes and %d pauses in %s", writes, pauses, took.Round(time.Second))
	if most := max(bursts+int(took/longestDelay)+pauses, len(changes)/100); writes > most {
		t.Errorf("%d writes of the label for %d changes in %s with %d pauses, want at most %d",
			writes, len(changes), took.Round(time.Second), pauses, most)
	}
}

// waitUntilPodCountProcessed gives the operator the time to process earlier changes in a namespace. It creates another
// ReplicaSet, with other labels, and waits until the operator has labelled it.
func waitUntilPodCountProcessed(t *testing.T, namespace string) {
	t.Helper()
	createReplicaSet(t, namespace, "barrier", 0, func(rs *appsv1.ReplicaSet) {
		rs.Spec.Selector.MatchLabels["app"] = "barrier"
	})
	waitForPodCount(t, namespace, "barrier", "0")
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

func TestScaling(t *testing.T) {
	runShared(t, []namespacedTest{
		{"status.positions follows the numbers in the names of the switches", testNaturalOrder},
		{"a machine limited by a quota emits one warning and grows when the quota is raised", testQuotaRaised},
		{"a machine limited by a quota turns its switches down on time", testQuotaFlip},
	})
}

func testNaturalOrder(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 12)
	waitForPositions(t, namespace, "m", strings.Repeat("d", 12), defaultTimeout)
	turnUp(t, namespace, "m-2")
	turnUp(t, namespace, "m-10")
	m := waitForPositions(t, namespace, "m", "ddudddddddud", defaultTimeout)
	if counts := m.Status.Switches; counts != (v1beta1.SwitchCounts{Total: 12, Up: 2, Down: 10}) {
		t.Errorf("counts %+v", counts)
	}
}

func testQuotaRaised(t *testing.T, namespace string) {
	quota := createQuota(t, namespace, 3)
	slowMachine(t, namespace, "m", 5)
	m := waitForQuotaExceeded(t, namespace, "m")
	waitForNames(t, m, "m-0", "m-1", "m-2")
	mergePatch(t, quota, `{"spec":{"hard":{%q:"5"}}}`, switchQuota)
	waitForNames(t, m, "m-0", "m-1", "m-2", "m-3", "m-4")
	waitForTotal(t, namespace, "m", 5)
	onlyOneQuotaWarning(t, m)
}

// testQuotaFlip has a long flip delay. When the switch becomes due, the backoff between attempts to create the missing
// switches has grown to many seconds. The flip must not wait for the next attempt.
func testQuotaFlip(t *testing.T, namespace string) {
	createQuota(t, namespace, 3)
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) {
		spec.Switches.Count = 5
		spec.Flip.DelaySeconds = new(int32(12))
	})
	m := waitForQuotaExceeded(t, namespace, "m")
	waitForNames(t, m, "m-0", "m-1", "m-2")
	switches := recordSwitches(t, namespace)
	ups := map[string]time.Time{"m-1": time.Now()}
	turnUp(t, namespace, "m-1")
	switches.untilObject(t, "m-1", "is turned down", flipped)
	found := flips(switches.all(t), ups)
	if len(found) != 1 {
		t.Fatalf("%d flips, want 1:\n%s", len(found), describe(switches.all(t)))
	}
	checkFlips(t, found, 12*time.Second, 5*time.Second)
	if late := lateness(found, 12*time.Second, 5*time.Second)[0]; late > 8*time.Second {
		t.Errorf("turned down %s late", late)
	}
	if found := meta.FindStatusCondition(getMachine(t, namespace, "m").Status.Conditions, v1beta1.ConditionScaled); found.Reason != v1beta1.ReasonQuotaExceeded {
		t.Errorf("condition Scaled is %+v", found)
	}
	onlyOneQuotaWarning(t, m)
}

const switchQuota = "count/switches.useless.container.training"

// createQuota limits the number of Switches in a namespace. It returns when the API server enforces the quota, which
// can be later than the quota's status shows. Dry runs cannot show that a limit above zero is enforced, because they do
// not use up the quota. Therefore the quota also allows no Secrets, and createQuota waits until the API server rejects
// a Secret in a dry run.
func createQuota(t *testing.T, namespace string, switches int64) *corev1.ResourceQuota {
	t.Helper()
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "switches"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			switchQuota:     *apiresource.NewQuantity(switches, apiresource.DecimalSI),
			"count/secrets": apiresource.MustParse("0"),
		}},
	}
	if err := admin(t).Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "too-many"}}
	waitForQuotaRejection(t, quota.Name, secret)
	if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(quota), quota); err != nil {
		t.Fatal(err)
	}
	return quota
}

// waitForQuotaRejection waits until a quota rejects the creation of an object, in a dry run.
func waitForQuotaRejection(t *testing.T, quota string, object client.Object) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
		rejected := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: "+quota)
		return rejected, fmt.Sprintf("the quota is not enforced: %v", err)
	})
}

// waitForQuotaExceeded waits until a Machine has three switches and reports that the quota prevents more.
func waitForQuotaExceeded(t *testing.T, namespace, name string) *v1beta1.Machine {
	t.Helper()
	var m *v1beta1.Machine
	eventually(t, defaultTimeout, func() (bool, string) {
		m = getMachine(t, namespace, name)
		scaled := meta.FindStatusCondition(m.Status.Conditions, v1beta1.ConditionScaled)
		return scaled != nil && scaled.Status == metav1.ConditionFalse && scaled.Reason == v1beta1.ReasonQuotaExceeded &&
			m.Status.Switches.Total == 3, fmt.Sprintf("status %+v", m.Status)
	})
	waitForEvent(t, m, v1beta1.ReasonQuotaExceeded)
	return m
}

// onlyOneQuotaWarning checks that the operator emitted exactly one event about the quota, and that it is a Warning.
func onlyOneQuotaWarning(t *testing.T, m *v1beta1.Machine) {
	t.Helper()
	events := eventsOn(t, m, v1beta1.ReasonQuotaExceeded)
	if len(events) != 1 || events[0].Series != nil || events[0].Type != corev1.EventTypeWarning {
		t.Errorf("events about the quota: %+v; want one warning", events)
	}
}

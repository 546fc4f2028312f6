// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/operator-framework/api/crds"
	operatorsv2 "github.com/operator-framework/api/pkg/operators/v2"
	"golang.org/x/sync/errgroup"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

var plurals = []string{"machines", "switches"}

// TestStorageMigration upgrades from a release that stored objects as v1alpha1.
func TestStorageMigration(t *testing.T) {
	useExclusiveCluster(t)
	u := &upgrade{olm: installOLM(t), rested: newNamespace(t), busy: newNamespace(t)}
	u.storeAlpha(t)
	t.Run("without a conversion webhook the operator waits and changes no Machine", u.testWithoutConverter)
	u.runController(t)
	t.Run("after an operator is killed the next one can continue", u.testKilled)
	t.Run("all objects are rewritten while a user updates and deletes some", u.testRewritten)
	t.Run("the migration changes no fields and the Machine controller writes nothing", u.checkUnchanged)
	t.Run("a second migration writes nothing", u.testNothingToDo)
	// After the roll-back, a release without v1beta1 can run again.
	t.Run("a roll-back stores all objects as v1alpha1", func(t *testing.T) { u.checkMove(t, beta, alpha) })
	t.Run("another upgrade stores all objects as v1beta1", func(t *testing.T) {
		if testing.Short() {
			t.Skip("it repeats the first migration: make test-all runs it")
		}
		u.checkMove(t, alpha, beta)
	})
}

var migrated = flag.Int("migrated", 200, "number of Machines to migrate; with -short or the race detector, three tenths of it")

// restedMachines returns the number of Machines that only the migration changes.
func restedMachines() int {
	if testing.Short() || hasRaceDetector {
		return *migrated * 3 / 10
	}
	return *migrated
}

// busyMachines is the number of Machines that a user changes during the migration.
const busyMachines = 20

// An upgrade is the state of TestStorageMigration. Two operators run, so the test can distinguish their writes. One
// operator migrates and does not run the Machine controller. The other one runs the Machine controller.
type upgrade struct {
	olm          olm
	rested, busy string          // only the migration changes the Machines in rested; a user also changes the Machines in busy
	before       map[string]any  // the objects in rested before the migration, from readAll
	requests     *requestCounter // requests of the operator with the Machine controller
	machines     *recording[*v1beta1.Machine]
	switches     *recording[*v1beta1.Switch]
	events       *recording[*eventsv1.Event]
}

// migrator starts the operator that migrates.
func (u *upgrade) migrator(t *testing.T, args ...string) *operatorProcess {
	t.Helper()
	args = append([]string{"--controllers=-machine", "--webhooks=false"}, args...)
	return startOperatorIn(t, u.olm.launcher, u.olm.env, args...)
}

// storeAlpha creates objects that are stored as v1alpha1. Then it sets the storage version to v1beta1.
func (u *upgrade) storeAlpha(t *testing.T) {
	t.Helper()
	stop := runOperatorFor(t, operatorOptions{})
	storeIn(t, alpha)
	createAlphaMachines(t, u.rested, restedMachines())
	createAlphaMachines(t, u.busy, busyMachines)
	held := newMachine(u.busy, "held") // its finalizer delays its deletion until the test ends
	held.Finalizers = []string{"example.com/kept"}
	for _, err := range []error{admin(t).Create(t.Context(), held), admin(t).Delete(t.Context(), held)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	u.before = readAll(t, u.rested)
	stored := storedIn(t, "machines/"+u.rested+"/", "switches/"+u.rested+"/")
	if diff := cmp.Diff(map[string]int{alpha: 2 * restedMachines()}, stored); diff != "" {
		t.Fatalf("number of objects by stored version (-want +got):\n%s", diff)
	}
	storeIn(t, beta)
	// These functions wait until the API server's watch cache contains all objects. After that, the API server can list
	// the objects without the operator's conversion webhook.
	u.machines = recordMachines(t, u.rested)
	u.switches = recordSwitches(t, u.rested)
	stop()
}

// runController runs the conversion webhook and the Machine controller. The controller has nothing to change.
func (u *upgrade) runController(t *testing.T) {
	t.Helper()
	u.requests = newRequestCounter()
	runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) { config.Wrap(u.requests.wrap) }})
	t.Cleanup(func() {
		dropFinalizers(t, u.busy, "held")
		deleteMachines(t, u.rested, u.busy)
	})
	u.events = record[*eventsv1.Event](t, &eventsv1.EventList{}, u.rested)
	u.requests.waitUntilIdle(t)
	u.requests.reset()
}

func (u *upgrade) testWithoutConverter(t *testing.T) {
	port := freePort(t)
	operator := u.migrator(t, fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port), "--metrics-secure=false")
	waitForLog(t, operator, "The storage version migration failed and will be retried")
	operator.waitUntilReady(t)
	waitForBadness(t, "UselessMigrationFails", port)
	// Without the conversion webhook, the API server rejects the first rewrite. An API server that lists from etcd
	// already rejects the list of Machines.
	u.olm.waitForUpgradeable(t, metav1.ConditionFalse, "Rewriting stored objects in the storage version: ")
	if err := operator.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := operator.ended(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	const held = 1
	stored := storedIn(t, "machines/"+u.rested+"/", "machines/"+u.busy+"/")
	if diff := cmp.Diff(map[string]int{alpha: restedMachines() + busyMachines + held}, stored); diff != "" {
		t.Errorf("number of Machines by stored version (-want +got):\n%s", diff)
	}
}

// testKilled kills an operator during the migration. An admission policy rejects the rewrite of the last Machine, so
// the migration cannot end earlier.
func (u *upgrade) testKilled(t *testing.T) {
	names := make([]string, restedMachines())
	for i := range names {
		names[i] = fmt.Sprintf("m%d", i)
	}
	last := newMachine(u.rested, slices.Max(names)) // the operator rewrites objects in the order of their names
	const patch = `{"metadata":{"labels":{"held":"back"}}}`
	allow := forbidUpdates(t, last, v1beta1.GroupVersion.Group, "machines", "false", patch)
	operator := u.migrator(t)
	u.machines.until(t, "some Machines are rewritten", func(changes []change[*v1beta1.Machine]) bool { return len(changes) >= 5 })
	operator.Kill()
	stored := storedIn(t, "machines/"+u.rested+"/")
	t.Logf("number of Machines by stored version when the operator was killed: %v", stored)
	if stored[alpha] == 0 {
		t.Error("the operator had rewritten all Machines before it was killed, although the policy prevents that")
	}
	allow()
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Patch(t.Context(), last.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		return err == nil, fmt.Sprint("the API server still enforces the policy: ", err)
	})
	for _, plural := range plurals {
		if versions := crd(t, plural).Status.StoredVersions; !slices.Contains(versions, alpha) {
			t.Errorf("status.storedVersions of %s is %v, want v1alpha1 in it", plural, versions)
		}
	}
	for _, plural := range plurals {
		if dropVersion(t, plural, alpha) == nil {
			t.Errorf("the API server allows the removal of v1alpha1 of %s before the migration", plural)
		}
	}
}

func (u *upgrade) testRewritten(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var changing errgroup.Group
	changing.Go(func() error { return changeMachines(ctx, admin(t), u.busy) })
	operator := u.migrate(t, beta)
	cancel()
	if err := changing.Wait(); err != nil {
		t.Error(err)
	}
	u.olm.waitForUpgradeable(t, metav1.ConditionTrue, "All objects")
	for line := range strings.Lines(operator.Log()) {
		if strings.Contains(line, `"logger":"migration"`) {
			t.Log(strings.TrimSpace(line))
		}
	}
	if stored := storedIn(t, "machines/", "switches/"); stored[alpha] != 0 || stored[beta] < 2*restedMachines() {
		t.Errorf("number of objects by stored version: %v, want none in v1alpha1", stored)
	}
	for _, plural := range plurals {
		if err := dropVersion(t, plural, alpha); err != nil {
			t.Errorf("the API server rejects the removal of v1alpha1 of %s: %v", plural, err)
		}
	}
}

func (u *upgrade) checkUnchanged(t *testing.T) {
	t.Helper()
	u.checkRewrittenOnce(t)
	if changes := u.events.all(t); len(changes) > 0 {
		t.Errorf("the migration caused events:\n%s", describe(changes))
	}
	u.requests.check(t, u.rested, nil)
	if diff := cmp.Diff(u.before, readAll(t, u.rested)); diff != "" {
		t.Errorf("the migration changed objects (-before +after):\n%s", diff)
	}
}

// checkMove changes the storage version, as an upgrade or a roll-back does. It checks that the operator migrates all
// objects to the new storage version.
func (u *upgrade) checkMove(t *testing.T, from, to string) {
	t.Helper()
	storeIn(t, to) // this ends all watches, so the test starts new recordings below
	for _, plural := range plurals {
		if dropVersion(t, plural, from) == nil {
			t.Errorf("the API server allows the removal of %s of %s before the migration", from, plural)
		}
	}
	u.machines, u.switches = recordMachines(t, u.rested), recordSwitches(t, u.rested)
	u.requests.waitUntilIdle(t)
	u.requests.reset()
	u.migrate(t, to)
	if diff := cmp.Diff(map[string]int{to: 2 * restedMachines()}, storedIn(t, "machines/"+u.rested+"/", "switches/"+u.rested+"/")); diff != "" {
		t.Errorf("number of objects by stored version (-want +got):\n%s", diff)
	}
	for _, plural := range plurals {
		if err := dropVersion(t, plural, from); err != nil {
			t.Errorf("the API server rejects the removal of %s of %s: %v", from, plural, err)
		}
	}
	u.checkUnchanged(t)
}

func (u *upgrade) testNothingToDo(t *testing.T) {
	u.olm.leaveNotUpgradeable(t)
	before := map[string]string{}
	for _, plural := range plurals {
		before[plural] = crd(t, plural).ResourceVersion
	}
	u.migrate(t, beta)
	u.olm.waitForUpgradeable(t, metav1.ConditionTrue, "All objects")
	for _, plural := range plurals {
		if version := crd(t, plural).ResourceVersion; version != before[plural] {
			t.Errorf("the CustomResourceDefinition of %s was written", plural)
		}
	}
	u.checkRewrittenOnce(t)
}

// checkRewrittenOnce checks the recorded changes of Machines and Switches in the namespace rested. Each object must be
// modified exactly once. No object may be created or deleted.
func (u *upgrade) checkRewrittenOnce(t *testing.T) {
	t.Helper()
	want := map[string]int{}
	for i := range restedMachines() {
		want[fmt.Sprintf("m%d %s", i, watch.Modified)] = 1
		want[fmt.Sprintf("m%d-0 %s", i, watch.Modified)] = 1
	}
	got := map[string]int{}
	for _, change := range u.machines.all(t) {
		got[fmt.Sprintf("%s %s", change.object.Name, change.kind)]++
	}
	for _, change := range u.switches.all(t) {
		got[fmt.Sprintf("%s %s", change.object.Name, change.kind)]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("number of events in the watch by object (-want +got):\n%s", diff)
	}
}

// createAlphaMachines creates v1alpha1 Machines with one switch each and waits until all of them are ready.
func createAlphaMachines(t *testing.T, namespace string, count int) {
	t.Helper()
	start := time.Now()
	var creating errgroup.Group
	creating.SetLimit(20)
	for i := range count {
		m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("m%d", i), Labels: map[string]string{"number": fmt.Sprint(i)}}}
		m.Spec = v1alpha1.MachineSpec{
			Switches:            1,
			Template:            v1beta1.SwitchTemplate{Metadata: v1beta1.TemplateMetadata{Annotations: map[string]string{"number": fmt.Sprint(i)}}},
			FlipDelaySeconds:    new(int32(i)),
			FlipIntervalSeconds: new(int32(2 * i)),
		}
		creating.Go(func() error { return admin(t).Create(t.Context(), m) })
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	list := &v1beta1.MachineList{}
	eventuallyWithProgress(t, func() (bool, string) {
		if err := admin(t).List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			return false, err.Error()
		}
		ready := 0
		for _, m := range list.Items {
			if meta.IsStatusConditionTrue(m.Status.Conditions, v1beta1.ConditionReady) {
				ready++
			}
		}
		return ready == count, fmt.Sprintf("%d of %d Machines are ready", ready, count)
	})
	t.Logf("%d Machines are ready after %s", count, time.Since(start))
}

// changeMachines updates Machines, deletes some of them and creates them again, until the context ends.
func changeMachines(ctx context.Context, c client.Client, namespace string) error {
	for i := 0; ; i++ {
		m := newMachine(namespace, fmt.Sprintf("m%d", i%busyMachines))
		var err error
		switch round := i / busyMachines; {
		case i%4 != 0:
			err = c.Patch(ctx, m, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"round":"%d"}}}`, round)))
		case round%2 == 0:
			err = client.IgnoreNotFound(c.Delete(ctx, m))
		default:
			err = client.IgnoreAlreadyExists(c.Create(ctx, m))
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// deleteMachines deletes all Machines in the namespaces and waits until they are gone. If a request takes longer than
// the API server allows, deleteMachines repeats the request. On a busy computer, the deletion of a thousand Machines
// takes more than a minute.
func deleteMachines(t *testing.T, namespaces ...string) {
	t.Helper()
	start, ctx := time.Now(), context.Background()
	for _, namespace := range namespaces {
		deleted := false
		eventuallyWithProgress(t, func() (bool, string) {
			if !deleted {
				err := admin(t).DeleteAllOf(ctx, &v1beta1.Machine{}, client.InNamespace(namespace))
				if deleted = err == nil; err != nil && !apierrors.IsTimeout(err) {
					t.Fatal(err)
				}
			}
			list := &v1beta1.MachineList{}
			if err := admin(t).List(ctx, list, client.InNamespace(namespace), client.Limit(1)); err != nil {
				t.Fatal(err)
			}
			left := int64(len(list.Items)) + ptr.Deref(list.RemainingItemCount, 0)
			return deleted && left == 0, fmt.Sprintf("%d Machines are left", left)
		})
	}
	t.Logf("the Machines were deleted in %s", time.Since(start))
}

// readAll returns all Machines and Switches of a namespace in both versions, without their resourceVersion.
func readAll(t *testing.T, namespace string) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for _, version := range []string{alpha, beta} {
		for _, kind := range []string{"Machine", "Switch"} {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion(v1beta1.GroupVersion.Group + "/" + version)
			list.SetKind(kind + "List")
			if err := admin(t).List(t.Context(), list, client.InNamespace(namespace)); err != nil {
				t.Fatal(err)
			}
			for _, item := range list.Items {
				item.SetResourceVersion("")
				objects[version+" "+kind+" "+item.GetName()] = item.Object
			}
		}
	}
	return objects
}

func crd(t *testing.T, plural string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := admin(t).Get(context.Background(), client.ObjectKey{Name: plural + "." + v1beta1.GroupVersion.Group}, crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// dropVersion removes a version from a CustomResourceDefinition in a dry run. The API server rejects the removal if the
// version is in status.storedVersions.
func dropVersion(t *testing.T, plural, version string) error {
	t.Helper()
	without := crd(t, plural)
	without.Spec.Versions = slices.DeleteFunc(without.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })
	return admin(t).Update(t.Context(), without, client.DryRunAll)
}

// storeIn sets the storage version of Machines and Switches. It waits until the API server stores new objects in this
// version. When the test ends, v1beta1 is the storage version again.
func storeIn(t *testing.T, version string) {
	t.Helper()
	namespace := newNamespace(t)
	for _, plural := range plurals {
		setStorage(t, plural, version)
	}
	if version != beta {
		t.Cleanup(func() {
			for _, plural := range plurals {
				setStorage(t, plural, beta)
			}
		})
	}
	for kind, plural := range map[string]string{"Machine": "machines", "Switch": "switches"} {
		eventually(t, defaultTimeout, func() (bool, string) {
			probe := &unstructured.Unstructured{}
			probe.SetAPIVersion(v1beta1.GroupVersion.Group + "/" + version)
			probe.SetKind(kind)
			probe.SetNamespace(namespace)
			probe.SetGenerateName("probe-")
			if err := admin(t).Create(t.Context(), probe); err != nil {
				return false, err.Error()
			}
			stored := etcd(t, plural+"/"+namespace+"/")
			return stored[namespace+"/"+probe.GetName()] == version,
				fmt.Sprintf("the stored versions of %s are %v, want %s", plural, stored, version)
		})
	}
	// A later list of these Machines would need the conversion webhook. Without an operator, the list would fail.
	deleteMachines(t, namespace)
}

// setStorage sets the storage version in a CustomResourceDefinition.
func setStorage(t *testing.T, plural, version string) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		changed := crd(t, plural)
		for i := range changed.Spec.Versions {
			changed.Spec.Versions[i].Storage = changed.Spec.Versions[i].Name == version
		}
		return admin(t).Update(context.Background(), changed)
	})
	if err != nil {
		t.Errorf("set the storage version of %s to %s: %v", plural, version, err)
	}
}

// etcd returns the stored versions of the objects below a path in etcd. The keys of the map are "namespace/name".
func etcd(t *testing.T, below string) map[string]string {
	t.Helper()
	prefix := "/registry/" + v1beta1.GroupVersion.Group + "/" + below
	end := prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
	query, err := json.Marshal(map[string][]byte{"key": []byte(prefix), "range_end": []byte(end)})
	if err != nil {
		t.Fatal(err)
	}
	response, err := clusterOf(t).Etcd().Post("http://etcd/v3/kv/range", "application/json", bytes.NewReader(query))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var result struct{ Kvs []struct{ Key, Value []byte } }
	if err := json.NewDecoder(response.Body).Decode(&result); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, pair := range result.Kvs {
		var object metav1.PartialObjectMetadata
		if err := json.Unmarshal(pair.Value, &object); err != nil {
			t.Fatal(err)
		}
		versions[object.Namespace+"/"+object.Name] = object.GroupVersionKind().Version
	}
	return versions
}

// storedIn counts the objects below some paths in etcd by their stored version.
func storedIn(t *testing.T, paths ...string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, path := range paths {
		for _, version := range etcd(t, path) {
			counts[version]++
		}
	}
	return counts
}

// An olm simulates OLM. It has the environment of an operator that OLM runs, and an OperatorCondition. It is empty if
// users cannot create mount namespaces on this computer. Then the tests do not check the OperatorCondition.
type olm struct {
	condition     client.ObjectKey
	launcher, env []string // for startOperatorIn
}

// olmNamespace and olmName are the namespace and name of the OperatorCondition.
const olmNamespace, olmName = "useless-system", "useless-operator.v0.1.0"

// olmLauncher returns a command that starts a program in a new mount namespace of Linux. As in a Pod, the program can
// read the name of its Kubernetes namespace from a file.
func olmLauncher() []string {
	const folder = "/var/run/secrets/kubernetes.io/serviceaccount"
	script := fmt.Sprintf(`mount -t tmpfs tmpfs /var/run && mkdir -p %[1]s && printf %[2]s >%[1]s/namespace && exec setpriv --pdeathsig KILL "$@"`,
		folder, olmNamespace)
	return []string{"unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"}
}

// noMountNamespaces returns the error of olmLauncher's command on this computer, or nil if the command works.
var noMountNamespaces = sync.OnceValue(func() error {
	command := append(olmLauncher(), "true")
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w %s", err, out)
	}
	return nil
})

// installOLM creates the objects that OLM creates for an operator: an OperatorCondition, and a Role to write it. If
// users cannot create mount namespaces, it creates nothing and returns an empty olm.
func installOLM(t *testing.T) olm {
	t.Helper()
	if noMountNamespaces() != nil {
		return olm{}
	}
	definition := crds.OperatorCondition()
	objectMeta := metav1.ObjectMeta{Namespace: olmNamespace, Name: olmName}
	for _, object := range []client.Object{
		definition,
		&rbacv1.Role{ObjectMeta: objectMeta, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get", "update", "patch"}, APIGroups: []string{operatorsv2.GroupVersion.Group},
			Resources: []string{"operatorconditions"}, ResourceNames: []string{olmName},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: objectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: olmName},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: olmNamespace, Name: "useless-controller-manager"}},
		},
		&operatorsv2.OperatorCondition{ObjectMeta: objectMeta},
	} {
		eventually(t, defaultTimeout, func() (bool, string) {
			err := admin(t).Create(t.Context(), object) // fails until the API server serves the new kind
			return err == nil, fmt.Sprint(err)
		})
		t.Cleanup(func() {
			if err := admin(t).Delete(context.Background(), object); client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
				t.Error(err)
			}
		})
	}
	return olm{
		condition: client.ObjectKey{Namespace: olmNamespace, Name: olmName},
		launcher:  olmLauncher(),
		env:       []string{"OPERATOR_CONDITION_NAME=" + olmName},
	}
}

// waitForUpgradeable waits until the condition Upgradeable of the OperatorCondition has this status, and a message that
// begins with message. It runs as a subtest, which is skipped if o is empty.
func (o olm) waitForUpgradeable(t *testing.T, status metav1.ConditionStatus, message string) {
	t.Helper()
	passed := t.Run("the condition Upgradeable is "+string(status), func(t *testing.T) {
		if o.launcher == nil {
			t.Skipf("users cannot create mount namespaces on this computer: %v", noMountNamespaces())
		}
		eventually(t, defaultTimeout, func() (bool, string) {
			condition := &operatorsv2.OperatorCondition{}
			if err := admin(t).Get(t.Context(), o.condition, condition); err != nil {
				return false, err.Error()
			}
			upgradeable := meta.FindStatusCondition(condition.Spec.Conditions, operatorsv2.Upgradeable)
			ok := upgradeable != nil && upgradeable.Status == status && strings.HasPrefix(upgradeable.Message, message)
			return ok, fmt.Sprintf("the condition Upgradeable is %v, want %s with %q", upgradeable, status, message)
		})
	})
	if !passed {
		t.FailNow()
	}
}

// leaveNotUpgradeable sets the condition Upgradeable to False, as after a crash of the operator during a migration.
func (o olm) leaveNotUpgradeable(t *testing.T) {
	t.Helper()
	if o.launcher == nil {
		return
	}
	condition := &operatorsv2.OperatorCondition{}
	if err := admin(t).Get(t.Context(), o.condition, condition); err != nil {
		t.Fatal(err)
	}
	meta.SetStatusCondition(&condition.Spec.Conditions, metav1.Condition{
		Type: operatorsv2.Upgradeable, Status: metav1.ConditionFalse, Reason: "MigrationRunning", Message: "left behind",
	})
	if err := admin(t).Update(t.Context(), condition); err != nil {
		t.Fatal(err)
	}
}

// migrate starts an operator that migrates, and waits until it logs that it has migrated all objects. While the operator
// sends patches, migrate continues to wait. It does not poll the API server, because polling would load the API server
// as much as the migration itself.
func (u *upgrade) migrate(t *testing.T, to string) *operatorProcess {
	t.Helper()
	start, port := time.Now(), freePort(t)
	operator := u.migrator(t, fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port), "--metrics-secure=false")
	eventuallyWithProgress(t, func() (bool, string) {
		operator.checkRuns(t)
		patches := patchRequests.FindAllString(scrape(t, port), -1)
		return strings.Contains(operator.Log(), "All objects are stored in the storage version"),
			fmt.Sprintf("the migration is not complete; the operator's metrics of its patches are %q", patches)
	})
	t.Logf("migrated in %s", time.Since(start))
	for _, plural := range plurals {
		if diff := cmp.Diff([]string{to}, crd(t, plural).Status.StoredVersions); diff != "" {
			t.Errorf("status.storedVersions of %s (-want +got):\n%s", plural, diff)
		}
	}
	return operator
}

// patchRequests matches the counter of an operator's successful patches in its metrics.
var patchRequests = regexp.MustCompile(`(?m)^rest_client_requests_total\{code="200".*method="PATCH".*$`)

// waitForLog waits until the operator's log contains a text.
func waitForLog(t *testing.T, operator *operatorProcess, text string) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		return strings.Contains(operator.Log(), text), fmt.Sprintf("the log does not contain %q", text)
	})
}

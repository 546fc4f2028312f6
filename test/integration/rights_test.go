// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"container.training/useless/hack/cluster"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/internal/controller/schedule"
)

// Who the operator is.
const (
	operatorNamespace = "useless-system"
	operatorAccount   = "useless-controller-manager"
)

// wrongdoer is the user agent of a test that does as the operator what the operator must not.
const wrongdoer = "wrongdoer"

// operatorUser is who the operator is to the API server.
var operatorUser = serviceaccount.MakeUsername(operatorNamespace, operatorAccount)

// A right is one thing that may be asked of the API server.
type right struct {
	verb, resource string
	name           string // empty where it is for objects of any name
	own            bool   // in the operator's own namespace only
}

// unusedRights are those that the operator has without ever using them here, with the reason.
var unusedRights = map[right]string{
	{verb: "patch", resource: "events.events.k8s.io"}: "if the same is told twice of one revision, the library makes a series of it",
	{verb: "update", resource: "customresourcedefinitions.apiextensions.k8s.io/status", name: "virtualmachines.cloudnative.tw"}: "it has had one version so far",
	{verb: "update", resource: "machines.useless.container.training/finalizers"}:                                                ownerReferencesAdmission,
	{verb: "update", resource: "virtualmachines.cloudnative.tw/finalizers"}:                                                     ownerReferencesAdmission,
}

const ownerReferencesAdmission = "no request: the admission plugin OwnerReferencesPermissionEnforcement, where it is on, asks whether it is granted"

// othersRights are those that are used here and that the installation does not grant, with the reason.
var othersRights = map[right]string{
	{"list", "leases.coordination.k8s.io", "", true}:                                       "TestLeaseIsServedApart has it refused",
	{"get", "operatorconditions.operators.coreos.com", "useless-operator.v0.1.0", true}:    grantedByOLM,
	{"update", "operatorconditions.operators.coreos.com", "useless-operator.v0.1.0", true}: grantedByOLM,
}

const grantedByOLM = "OLM grants it"

// allTestsSelected reports whether the command line asked for all tests, of which alone it can be told what the
// operator does not need.
func allTestsSelected() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}

// checkPermissions compares what the operator was granted with what it has used in all tests of this package. The audit
// logs of the API servers show what it used. No permission may be missing, and none may be unused.
func checkPermissions() error {
	granted, err := grantedRights()
	if err != nil {
		return err
	}
	used := map[right]string{}
	for _, c := range clusters.all {
		more, err := readUsedRights(c.AuditLog())
		if err != nil {
			return err
		}
		maps.Copy(used, more)
	}
	others := maps.Clone(othersRights)
	if noMountNamespaces() != nil {
		maps.DeleteFunc(others, func(_ right, reason string) bool { return reason == grantedByOLM }) // there was no OLM
	}
	if problems := compareRights(granted, used, unusedRights, others); len(problems) > 0 {
		return errors.New("\n\t" + strings.Join(problems, "\n\t"))
	}
	return nil
}

func readUsedRights(path string) (map[right]string, error) {
	log, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	return usedRights(log)
}

// grantedRights are those of all roles that the installation and the components of optional controllers bind to the
// operator, with the roles that have them.
func grantedRights() (map[right]string, error) {
	components, err := filepath.Glob(filepath.Join(repository, "config", "components", "*", "*", "*.yaml"))
	if err != nil {
		return nil, err
	}
	granted := map[right]string{}
	for _, path := range append(components, installation) {
		if filepath.Base(path) == "kustomization.yaml" {
			continue
		}
		objects, err := cluster.ReadManifests(path)
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			var role rbacv1.ClusterRole // a Role has the same rules
			kind := object.GetKind()
			if kind != "ClusterRole" && kind != "Role" || forPeople(object.GetName()) {
				continue
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
				return nil, err
			}
			for _, rule := range role.Rules {
				for _, right := range rightsOf(rule, kind == "Role") {
					granted[right] = role.Name
				}
			}
		}
	}
	return granted, nil
}

// forPeople reports whether a role is not for the operator.
func forPeople(role string) bool {
	return slices.Contains([]string{"useless-viewer-role", "useless-editor-role", "useless-metrics-reader"}, role)
}

func rightsOf(rule rbacv1.PolicyRule, own bool) (rights []right) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					rights = append(rights, right{verb, qualified(group, resource), name, own})
				}
			}
		}
	}
	return rights
}

// qualified is a resource as kubectl auth can-i takes it, such as deployments.apps/scale.
func qualified(group, resource string) string {
	resource, subresource, found := strings.Cut(resource, "/")
	resource = schema.GroupResource{Group: group, Resource: resource}.String()
	if found {
		resource += "/" + subresource
	}
	return resource
}

// usedRights reads an audit log: all that the operator has asked for, and why the API server granted or refused it.
func usedRights(log io.Reader) (map[right]string, error) {
	used := map[right]string{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		object := event.ObjectRef
		if event.User.Username != operatorUser || event.UserAgent == wrongdoer || object == nil { // the last is discovery, which everybody may use
			continue
		}
		resource := strings.TrimSuffix(object.Resource+"/"+object.Subresource, "/")
		asked := right{event.Verb, qualified(object.APIGroup, resource), object.Name, object.Namespace == operatorNamespace}
		used[asked] = event.Annotations["authorization.k8s.io/decision"] + ": " + event.Annotations["authorization.k8s.io/reason"]
	}
	return used, lines.Err()
}

// compareRights says what is granted and not used, and what is used and not granted, unless there is a reason for
// either. What is granted in all namespaces has to be used outside the operator's own.
func compareRights(granted, used, unusedReasons, othersReasons map[right]string) (problems []string) {
	unused, others := maps.Clone(granted), map[right]string{}
	for asked, why := range used {
		isGranted := slices.ContainsFunc(asked.grantedBy(), func(r right) bool { return granted[r] != "" })
		if !isGranted && !everybodys(why) || strings.HasPrefix(why, "forbid") {
			others[asked] = why
		}
		delete(unused, asked)
		delete(unused, right{asked.verb, asked.resource, "", asked.own})
	}
	report := func(format string, found, reasons map[right]string) {
		for right, why := range found {
			if _, ok := reasons[right]; !ok {
				problems = append(problems, fmt.Sprintf(format, right, why))
			}
		}
		for right, reason := range reasons {
			if _, ok := found[right]; !ok {
				problems = append(problems, fmt.Sprintf("%s: the reason %q is none any more", right, reason))
			}
		}
	}
	report("%s: granted by %s, and never used", unused, unusedReasons)
	report("%s: used, and not granted (%s)", others, othersReasons)
	slices.Sort(problems)
	return problems
}

// grantedBy are the rights of which each is enough.
func (r right) grantedBy() (all []right) {
	for _, name := range []string{r.name, ""} {
		for _, own := range []bool{r.own, false} {
			all = append(all, right{r.verb, r.resource, name, own})
		}
	}
	return all
}

// everybodys reports whether a request was granted by what Kubernetes lets everybody do.
func everybodys(why string) bool {
	return strings.HasPrefix(why, `allow: RBAC: allowed by ClusterRoleBinding "system:basic-user"`)
}

// String is what kubectl auth can-i takes.
func (r right) String() string {
	text := strings.TrimSpace(r.verb + " " + r.resource + " " + r.name)
	if r.own {
		text += " --namespace=" + operatorNamespace
	}
	return text
}

// TestListsThatAreNotStreamed has an operator fill its caches with lists, as it does on an API server before 1.34. On a
// newer one, the operator's client asks for no stream.
func TestListsThatAreNotStreamed(t *testing.T) {
	alone(t)
	grant(t, podcount.Name)
	grant(t, ingress.Name)
	restoreWebhooks(t)
	env := []string{"KUBE_FEATURE_WatchListClient=false"}
	if olderThan(t, 34, noStreams) {
		env = nil
	}
	operator := startOperator(t, env, "--controllers=*,podcount,ingress", "--ingress-annotation=foo=bar",
		"--namespace=useless-system", "--self-managed-certs", "--webhook-cert-dir="+t.TempDir())
	operator.waitUntilReady(t)
	if !strings.Contains(operator.Log(), "the API server does not stream them") {
		t.Error("the operator's log does not say that it reads with lists")
	}
	namespace := newNamespace(t)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	createReplicaSet(t, namespace, "rs", 0)
	createIngress(t, namespace, "ingress", nil)
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[schedule.StopScheduleAnnotation] = hence(-time.Hour)
	})
	waitForActive(t, vm)
	waitForPodCount(t, namespace, "rs", "0")
	waitForAnnotations(t, namespace, "ingress", fooBar)
	waitForReplicas(t, d, 0)
}

// TestRightsAreCompared is about the comparison itself, with a log that is written here.
func TestRightsAreCompared(t *testing.T) {
	t.Parallel()
	const log = `{"verb":"get","requestURI":"/apis","annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"list","objectRef":{"resource":"pods"},"annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"patch","objectRef":{"resource":"pods","subresource":"resize","name":"a"},"annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"get","objectRef":{"resource":"leases","apiGroup":"coordination.k8s.io","name":"mine","namespace":"useless-system"},"annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"create","objectRef":{"resource":"selfsubjectaccessreviews","apiGroup":"authorization.k8s.io"},"annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding \"system:basic-user\" of"}}
`
	const others = `{"user":{"username":"admin"},"verb":"delete","objectRef":{"resource":"pods"},"annotations":{"authorization.k8s.io/decision":"allow"}}
`
	all := []right{
		{verb: "list", resource: "pods"}, {verb: "patch", resource: "pods/resize"}, {"get", "leases.coordination.k8s.io", "mine", true},
	}
	for _, tt := range []struct {
		reason  string
		granted []right
		more    string
		reasons map[right]string
		want    []string
	}{
		{reason: "what is used is granted, and nothing else", granted: all},
		{
			reason: "a right of one verb too many", granted: slices.Concat(all, []right{{verb: "watch", resource: "pods"}}),
			want: []string{"watch pods: granted by role, and never used"},
		},
		{
			reason: "a right for an object that is not used", granted: slices.Concat(all, []right{{"get", "leases.coordination.k8s.io", "yours", true}}),
			want: []string{"get leases.coordination.k8s.io yours --namespace=useless-system: granted by role, and never used"},
		},
		{
			reason: "a right in all namespaces that is used in one", granted: slices.Concat(all[:2], []right{{verb: "get", resource: "leases.coordination.k8s.io", name: "mine"}}),
			want: []string{"get leases.coordination.k8s.io mine: granted by role, and never used"},
		},
		{
			reason: "a right in one namespace that is used in others", granted: slices.Concat(all[1:], []right{{verb: "list", resource: "pods", own: true}}),
			want: []string{
				"list pods --namespace=useless-system: granted by role, and never used",
				"list pods: used, and not granted (allow: )",
			},
		},
		{
			reason: "an unused right that there is a reason for", granted: slices.Concat(all, []right{{verb: "watch", resource: "pods"}}),
			reasons: map[right]string{{verb: "watch", resource: "pods"}: "later"},
		},
		{
			reason: "a reason that has become none", granted: all,
			reasons: map[right]string{{verb: "list", resource: "pods"}: "later"},
			want:    []string{`list pods: the reason "later" is none any more`},
		},
		{
			reason: "a right that somebody else has given", granted: all[:2],
			want: []string{"get leases.coordination.k8s.io mine --namespace=useless-system: used, and not granted (allow: )"},
		},
		{
			reason: "a right that there is for another namespace", granted: all,
			more: `{"verb":"list","objectRef":{"resource":"pods"},"annotations":{"authorization.k8s.io/decision":"forbid"}}`,
			want: []string{"list pods: used, and not granted (forbid: )"},
		},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			asked := strings.ReplaceAll(log+tt.more, `{"verb"`, `{"user":{"username":"`+operatorUser+`"},"verb"`)
			used, err := usedRights(strings.NewReader(others + asked))
			if err != nil {
				t.Fatal(err)
			}
			granted := map[right]string{}
			for _, right := range tt.granted {
				granted[right] = "role"
			}
			if diff := cmp.Diff(tt.want, compareRights(granted, used, tt.reasons, nil)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

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
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/podcount"
)

// The operator's ServiceAccount.
const (
	operatorNamespace = "useless-system"
	operatorAccount   = "useless-controller-manager"
)

// negativeTestUserAgent is the user agent of negative tests. They use the operator's username for requests that the
// operator must not send. The permission check ignores these requests.
const negativeTestUserAgent = "negative-test"

// operatorUser is the operator's username at the API server.
var operatorUser = serviceaccount.MakeUsername(operatorNamespace, operatorAccount)

// A permission allows one verb on one resource.
type permission struct {
	verb, resource string
	name           string // the name of the only permitted object; empty permits all objects
	ownNamespace   bool   // limits the permission to the operator's own namespace
}

// unusedPermissions are permissions that the operator has but does not use in these tests, with the reason.
var unusedPermissions = map[permission]string{
	{
		verb: "update", resource: "customresourcedefinitions.apiextensions.k8s.io/status",
		name: "virtualmachines.cloudnative.tw",
	}: "this CustomResourceDefinition has had only one version",
	{verb: "update", resource: "machines.useless.container.training/finalizers"}: ownerReferencesAdmission,
	{verb: "update", resource: "virtualmachines.cloudnative.tw/finalizers"}:      ownerReferencesAdmission,
}

// optionalPermissions are permissions that the operator uses only in some runs of these tests, with the reason.
var optionalPermissions = map[permission]string{
	{verb: "patch", resource: "events.events.k8s.io"}: "the events library patches an event into a series " +
		"if the same event occurs again before the object changes",
}

const ownerReferencesAdmission = "no request uses it: " +
	"the admission plugin OwnerReferencesPermissionEnforcement, if enabled, checks it"

// externalPermissions are permissions that these tests use but that the installation does not grant, with the reason.
var externalPermissions = map[permission]string{
	{"list", "leases.coordination.k8s.io", "", true}:                                       "denied in TestLeaseHasItsOwnPriorityLevel",
	{"get", "operatorconditions.operators.coreos.com", "useless-operator.v0.1.0", true}:    grantedByOLM,
	{"update", "operatorconditions.operators.coreos.com", "useless-operator.v0.1.0", true}: grantedByOLM,
}

const grantedByOLM = "OLM grants it"

// allTestsSelected reports whether the command line selects all tests. Only all tests together can show which
// permissions the operator does not need.
func allTestsSelected() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}

// checkPermissions reports missing and unused permissions of the operator. It compares the granted permissions with the
// permissions that the operator used in all tests of this package. It reads the used permissions from the audit logs of
// the API servers.
func checkPermissions() error {
	granted, err := grantedPermissions()
	if err != nil {
		return err
	}
	used := map[permission]string{}
	for _, c := range clusters.all {
		more, err := readUsedPermissions(c.AuditLog())
		if err != nil {
			return err
		}
		maps.Copy(used, more)
	}
	for optional := range optionalPermissions {
		if granted[optional] == "" {
			return fmt.Errorf("%s: an optional permission that is not granted", optional)
		}
	}
	ignoreOptional(granted, used)
	external := maps.Clone(externalPermissions)
	if noMountNamespaces() != nil {
		// The tests had no OLM environment.
		maps.DeleteFunc(external, func(_ permission, reason string) bool { return reason == grantedByOLM })
	}
	if problems := comparePermissions(granted, used, unusedPermissions, external); len(problems) > 0 {
		return errors.New("\n\t" + strings.Join(problems, "\n\t"))
	}
	return nil
}

// readUsedPermissions returns the usedPermissions of the audit log at a path.
func readUsedPermissions(path string) (map[permission]string, error) {
	log, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	return usedPermissions(log)
}

// grantedPermissions returns the permissions that the installation and the components of optional controllers grant to
// the operator. The values are the names of the roles.
func grantedPermissions() (map[permission]string, error) {
	files, err := filepath.Glob(filepath.Join(repository, "config", "components", "*", "permissions", "role.yaml"))
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, path := range append(files, installation) {
		more, err := cluster.ReadManifests(path)
		if err != nil {
			return nil, err
		}
		objects = append(objects, more...)
	}
	return permissionsOfRoles(objects)
}

// permissionsOfRoles returns the permissions that the roles of the operator grant. The values are the names of the
// roles.
func permissionsOfRoles(objects []*unstructured.Unstructured) (map[permission]string, error) {
	granted := map[permission]string{}
	for _, object := range objects {
		var role rbacv1.ClusterRole // a Role has the same rules
		kind := object.GetKind()
		if kind != "ClusterRole" && kind != "Role" || isUserRole(object.GetName()) {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
			return nil, err
		}
		for _, rule := range role.Rules {
			for _, permission := range permissionsOf(rule, kind == "Role") {
				granted[permission] = role.Name
			}
		}
	}
	return granted, nil
}

// ignoreOptional removes optionalPermissions from granted. From used, it removes all permissions with the same verb and
// resource.
func ignoreOptional(granted, used map[permission]string) {
	for optional := range optionalPermissions {
		delete(granted, optional)
		maps.DeleteFunc(used, func(p permission, _ string) bool { return p.verb == optional.verb && p.resource == optional.resource })
	}
}

// isUserRole reports whether a role is for users and not for the operator.
func isUserRole(role string) bool {
	return slices.Contains([]string{"useless-viewer-role", "useless-editor-role", "useless-metrics-reader"}, role)
}

// permissionsOf returns the permissions that a rule grants.
func permissionsOf(rule rbacv1.PolicyRule, ownNamespace bool) (permissions []permission) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					permissions = append(permissions, permission{verb, qualified(group, resource), name, ownNamespace})
				}
			}
		}
	}
	return permissions
}

// qualified returns a resource with its group and its subresource, such as deployments.apps/scale.
func qualified(group, resource string) string {
	resource, subresource, found := strings.Cut(resource, "/")
	resource = schema.GroupResource{Group: group, Resource: resource}.String()
	if found {
		resource += "/" + subresource
	}
	return resource
}

// usedPermissions reads an audit log. It returns the permissions that the operator's requests used. The values are the
// API server's decision and the reason for it.
func usedPermissions(log io.Reader) (map[permission]string, error) {
	used := map[permission]string{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		object := event.ObjectRef
		// Requests without an object are discovery requests, which all users may send.
		if event.User.Username != operatorUser || event.UserAgent == negativeTestUserAgent || object == nil {
			continue
		}
		resource := strings.TrimSuffix(object.Resource+"/"+object.Subresource, "/")
		ownNamespace := object.Namespace == operatorNamespace
		request := permission{event.Verb, qualified(object.APIGroup, resource), object.Name, ownNamespace}
		used[request] = event.Annotations["authorization.k8s.io/decision"] + ": " +
			event.Annotations["authorization.k8s.io/reason"]
	}
	return used, lines.Err()
}

// comparePermissions returns a line for each permission that is granted but not used, or used but not granted. It skips
// the exceptions in unusedReasons and externalReasons. A permission in all namespaces counts as unused if the operator
// uses it only in its own namespace. comparePermissions also returns a line for each exception that is no longer
// needed.
func comparePermissions(granted, used, unusedReasons, externalReasons map[permission]string) (problems []string) {
	unused, external := maps.Clone(granted), map[permission]string{}
	for request, why := range used {
		isGranted := slices.ContainsFunc(request.grantedBy(), func(r permission) bool { return granted[r] != "" })
		if !isGranted && !isBasicUser(why) || strings.HasPrefix(why, "forbid") {
			external[request] = why
		}
		delete(unused, request)
		delete(unused, permission{request.verb, request.resource, "", request.ownNamespace})
	}
	report := func(format string, found, reasons map[permission]string) {
		for permission, why := range found {
			if _, ok := reasons[permission]; !ok {
				problems = append(problems, fmt.Sprintf(format, permission, why))
			}
		}
		for permission, reason := range reasons {
			if _, ok := found[permission]; !ok {
				problems = append(problems, fmt.Sprintf("%s: the exception with the reason %q is no longer needed",
					permission, reason))
			}
		}
	}
	report("%s: granted by %s, but never used", unused, unusedReasons)
	report("%s: used, but not granted (%s)", external, externalReasons)
	slices.Sort(problems)
	return problems
}

// grantedBy returns r and all wider permissions. Each of them allows a request that needs r.
func (r permission) grantedBy() (all []permission) {
	for _, name := range []string{r.name, ""} {
		for _, ownNamespace := range []bool{r.ownNamespace, false} {
			all = append(all, permission{r.verb, r.resource, name, ownNamespace})
		}
	}
	return all
}

// isBasicUser reports whether a request was allowed by a permission that Kubernetes grants to all authenticated users.
func isBasicUser(why string) bool {
	return strings.HasPrefix(why, `allow: RBAC: allowed by ClusterRoleBinding "system:basic-user"`)
}

// String returns the permission as text for a failure message, such as
// "get leases.coordination.k8s.io mine --namespace=useless-system".
func (r permission) String() string {
	text := strings.TrimSpace(r.verb + " " + r.resource + " " + r.name)
	if r.ownNamespace {
		text += " --namespace=" + operatorNamespace
	}
	return text
}

// TestCachesWithoutStreamedLists checks how an operator fills its caches without streamed lists. The tested releases
// before 1.34 do not stream lists. On later releases, the test disables streaming in the operator's client. The
// operator must log each ordinary list of a kind with a binary format. With streaming, it must log no list.
func TestCachesWithoutStreamedLists(t *testing.T) {
	useExclusiveCluster(t)
	grantPermissions(t, podcount.Name)
	grantPermissions(t, ingress.Name)
	restoreWebhooks(t)
	args := []string{
		"--controllers=*,podcount,ingress", "--ingress-annotation=foo=bar",
		"--namespace=useless-system", "--self-managed-certs", "--webhook-cert-dir=" + t.TempDir(),
	}
	const message = "because the API server does not stream them"
	var env []string
	if !olderThan(t, 34, noStreams) {
		env = []string{"KUBE_FEATURE_WatchListClient=false"}
		streaming := startedOperator(t, args...)
		if log := streaming.Log(); strings.Contains(log, message) {
			t.Errorf("the operator logs lists, although the API server streams them:\n%s", log)
		}
		streaming.Kill()
	}
	operator := startOperator(t, env, args...)
	operator.waitUntilReady(t)
	for _, kind := range []string{
		"*v1.Deployment", "*v2.HorizontalPodAutoscaler", "*v1.Pod", "*v1.PartialObjectMetadata", "*v1.Secret",
	} {
		line := regexp.MustCompile(message + `.*"type":"` + regexp.QuoteMeta(kind) + `"`)
		if log := operator.Log(); !line.MatchString(log) {
			t.Errorf("the operator's log does not say that it lists objects of the type %s:\n%s", kind, log)
		}
	}
	namespace := newNamespace(t)
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	createReplicaSet(t, namespace, "rs", 0)
	createIngress(t, namespace, "ingress", nil)
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[v1beta1.StopScheduleAnnotation] = timeOfDayIn(-time.Hour)
	})
	waitForActive(t, vm)
	waitForPodCount(t, namespace, "rs", "0")
	waitForAnnotations(t, namespace, "ingress", fooBar)
	waitForReplicas(t, d, 0)
}

// TestComparePermissions tests comparePermissions with a fixed audit log.
func TestComparePermissions(t *testing.T) {
	t.Parallel()
	const log = `{"verb":"get","requestURI":"/apis","annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"list","objectRef":{"resource":"pods"},"annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"patch","objectRef":{"resource":"pods","subresource":"resize","name":"a"},"annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"get","objectRef":{"resource":"leases","apiGroup":"coordination.k8s.io","name":"mine","namespace":"useless-system"},"annotations":{"authorization.k8s.io/decision":"allow"}}
{"verb":"create","objectRef":{"resource":"selfsubjectaccessreviews","apiGroup":"authorization.k8s.io"},"annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding \"system:basic-user\" of"}}
`
	const otherUser = `{"user":{"username":"admin"},"verb":"delete","objectRef":{"resource":"pods"},"annotations":{"authorization.k8s.io/decision":"allow"}}
`
	all := []permission{
		{verb: "list", resource: "pods"}, {verb: "patch", resource: "pods/resize"}, {"get", "leases.coordination.k8s.io", "mine", true},
	}
	for _, tt := range []struct {
		reason  string
		granted []permission
		more    string
		reasons map[permission]string
		want    []string
	}{
		{reason: "exactly the used permissions are granted", granted: all},
		{
			reason: "an unused verb", granted: slices.Concat(all, []permission{{verb: "watch", resource: "pods"}}),
			want: []string{"watch pods: granted by role, but never used"},
		},
		{
			reason:  "an unused object name",
			granted: slices.Concat(all, []permission{{"get", "leases.coordination.k8s.io", "yours", true}}),
			want:    []string{"get leases.coordination.k8s.io yours --namespace=useless-system: granted by role, but never used"},
		},
		{
			reason:  "a permission in all namespaces that is used only in the operator's own namespace",
			granted: slices.Concat(all[:2], []permission{{verb: "get", resource: "leases.coordination.k8s.io", name: "mine"}}),
			want:    []string{"get leases.coordination.k8s.io mine: granted by role, but never used"},
		},
		{
			reason:  "a permission in the operator's own namespace that is used in other namespaces",
			granted: slices.Concat(all[1:], []permission{{verb: "list", resource: "pods", ownNamespace: true}}),
			want: []string{
				"list pods --namespace=useless-system: granted by role, but never used",
				"list pods: used, but not granted (allow: )",
			},
		},
		{
			reason:  "an unused permission with an exception",
			granted: slices.Concat(all, []permission{{verb: "watch", resource: "pods"}}),
			reasons: map[permission]string{{verb: "watch", resource: "pods"}: "later"},
		},
		{
			reason: "an exception that is no longer needed", granted: all,
			reasons: map[permission]string{{verb: "list", resource: "pods"}: "later"},
			want:    []string{`list pods: the exception with the reason "later" is no longer needed`},
		},
		{
			reason: "a used permission that the installation does not grant", granted: all[:2],
			want: []string{"get leases.coordination.k8s.io mine --namespace=useless-system: used, but not granted (allow: )"},
		},
		{
			reason: "a request that the API server denied", granted: all,
			more: `{"verb":"list","objectRef":{"resource":"pods"},"annotations":{"authorization.k8s.io/decision":"forbid"}}`,
			want: []string{"list pods: used, but not granted (forbid: )"},
		},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			entries := strings.ReplaceAll(log+tt.more, `{"verb"`, `{"user":{"username":"`+operatorUser+`"},"verb"`)
			used, err := usedPermissions(strings.NewReader(otherUser + entries))
			if err != nil {
				t.Fatal(err)
			}
			granted := map[permission]string{}
			for _, permission := range tt.granted {
				granted[permission] = "role"
			}
			if diff := cmp.Diff(tt.want, comparePermissions(granted, used, tt.reasons, nil)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestLeaseHasItsOwnPriorityLevel checks which FlowSchema and priority level the API server uses for the operator's
// requests. The renewal of the leader's Lease has its own FlowSchema, so it does not queue behind the operator's other
// writes.
func TestLeaseHasItsOwnPriorityLevel(t *testing.T) {
	useSharedCluster(t)
	config, err := clientcmd.BuildConfigFromFlags("", clusterOf(t).operatorKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	operator, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	const (
		leases   = "/apis/coordination.k8s.io/v1/namespaces/useless-system/leases"
		lease    = leases + "/leader.useless.container.training"
		machines = "/apis/useless.container.training/v1beta1/namespaces/useless-system/machines"
	)
	for _, c := range []struct {
		reason, method, path  string
		schema, priorityLevel string
	}{
		{"get the Lease", http.MethodGet, lease, "useless-leader-election", "leader-election"},
		{"create the Lease", http.MethodPost, leases, "useless-leader-election", "leader-election"},
		{"renew the Lease", http.MethodPut, lease, "useless-leader-election", "leader-election"},
		{"list Leases", http.MethodGet, leases, "service-accounts", "workload-low"},
		{"list Machines", http.MethodGet, machines, "service-accounts", "workload-low"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			schema, level := &flowcontrolv1.FlowSchema{}, &flowcontrolv1.PriorityLevelConfiguration{}
			for name, object := range map[string]client.Object{c.schema: schema, c.priorityLevel: level} {
				if err := admin(t).Get(t.Context(), client.ObjectKey{Name: name}, object); err != nil {
					t.Fatal(err)
				}
			}
			// The API server needs a moment to use a new FlowSchema.
			eventually(t, defaultTimeout, func() (bool, string) {
				diff := cmp.Diff([]string{string(schema.UID), string(level.UID)}, classified(t, operator, c.method, config.Host+c.path))
				return diff == "", fmt.Sprintf("FlowSchema and priority level (-want +got):\n%s", diff)
			})
		})
	}
}

// classified sends a request without a body. It returns the UIDs of the FlowSchema and the priority level of the
// request. It ignores the status of the response.
func classified(t *testing.T, c *http.Client, method, url string) []string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return []string{
		response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID),
		response.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID),
	}
}

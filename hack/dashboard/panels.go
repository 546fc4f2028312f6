// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// row is a group of graphs with a title.
type row struct {
	title  string
	graphs []graph
}

// graph is a panel with the results of its queries.
type graph struct {
	title, description string
	unit               string // an ID of Grafana's units
	number             bool   // shows only the last value
	queries            []query
}

// query is a query of a panel. The function expand replaces the abbreviations in expr. The legend can contain labels in
// double braces.
type query struct{ expr, legend string }

// rows lists all panels. The gauges of all replicas count the same objects, so a query takes their maximum over the
// replicas. Only the leader increases the counters of controllers, so a query takes their sum.
var rows = []row{
	{"Operator", operator},
	{"Controllers", controllers},
	{"Webhooks", webhooks},
	{"Machines", machines},
	{"Schedules", schedules},
	{"VirtualMachines", virtualMachines},
	{"Optional controllers", optional},
}

// quantiles returns queries for the median and the 99th percentile of a histogram.
func quantiles(histogram, by string) (queries []query) {
	legend, labels := "", "le"
	if by != "" {
		legend, labels = "{{"+by+"}} ", by+", le"
	}
	for _, quantile := range []string{"0.5", "0.99"} {
		queries = append(queries, query{
			fmt.Sprintf("histogram_quantile(%s, sum by (%s) (rate(%s_bucket{JOB}[INTERVAL])))", quantile, labels, histogram),
			legend + "p" + map[string]string{"0.5": "50", "0.99": "99"}[quantile],
		})
	}
	return queries
}

var operator = []graph{
	{"Replicas", "Replicas that Prometheus can scrape. Every replica serves the webhooks.", "none", true, []query{
		{`sum(up{JOB})`, "replicas"},
	}},
	{"Leaders", "Replicas that run the controllers. The normal value is 1.", "none", true, []query{
		{`sum(leader_election_master_status{JOB, name="leader.useless.container.training"})`, "leaders"},
	}},
	{"Leader by Pod", "The leader has the value 1. A change is a failover.", "none", false, []query{
		{`max by (pod) (leader_election_master_status{JOB, name="leader.useless.container.training"})`, "{{pod}}"},
	}},
	{"CPU", "CPU time of each replica, in cores.", "none", false, []query{
		{`sum by (pod) (rate(process_cpu_seconds_total{JOB}[INTERVAL]))`, "{{pod}}"},
	}},
	{"Memory", "Resident memory of each replica, and Go's soft memory limit. If the memory stays near the limit, Go " +
		"needs more CPU time.", "bytes", false, []query{
		{`max by (pod) (process_resident_memory_bytes{JOB})`, "{{pod}}"},
		{`max(go_gc_gomemlimit_bytes{JOB}) < 2^62`, "GOMEMLIMIT"},
	}},
	{"Requests to the API server", "Requests of the operator to the API server, by status code. 409 is a conflict with " +
		"another client. The operator retries it.", "reqps", false, []query{
		{`sum by (code) (rate(rest_client_requests_total{JOB}[INTERVAL]))`, "{{code}}"},
	}},
	{"Storage version migration", "The current state has the value 1.", "none", false, []query{
		{`max by (state) (useless_storage_migration{JOB})`, "{{state}}"},
	}},
}

var controllers = []graph{
	{"Reconciles", "Reconciles of each controller.", "ops", false, []query{
		{`sum by (controller) (rate(controller_runtime_reconcile_total{JOB}[INTERVAL]))`, "{{controller}}"},
	}},
	{"Reconcile errors", "Failed reconciles, which the controller retries. The operator's log has the errors.",
		"ops", false,
		[]query{{`sum by (controller) (rate(controller_runtime_reconcile_errors_total{JOB}[INTERVAL]))`, "{{controller}}"}}},
	{"Duration of reconciles", "Time for one reconcile.", "s", false,
		quantiles("controller_runtime_reconcile_time_seconds", "controller")},
	{"Work queue", "Objects that wait for a reconcile. A number that grows for minutes means overload.",
		"none", false, []query{
			{`sum by (controller) (workqueue_depth{JOB})`, "{{controller}}"},
		}},
	{"Wait in the work queue", "Time that an object waits for a reconcile.", "s", false,
		quantiles("workqueue_queue_duration_seconds", "controller")},
	{"Busy workers", "Part of the workers of each controller that are busy.", "percentunit", false, []query{{
		`sum by (controller) (controller_runtime_active_workers{JOB}) ` +
			`/ sum by (controller) (controller_runtime_max_concurrent_reconciles{JOB})`, "{{controller}}",
	}}},
}

var webhooks = []graph{
	{"Webhook requests", "Requests of the API server, by webhook.", "reqps", false, []query{
		{`sum by (webhook) (rate(controller_runtime_webhook_requests_total{JOB}[INTERVAL]))`, "{{webhook}}"},
	}},
	{"Webhook errors", "Requests with an HTTP error. An admission webhook that rejects an object answers with 200.",
		"reqps",
		false, []query{{
			`sum by (webhook, code) (rate(controller_runtime_webhook_requests_total{JOB, code!="200"}[INTERVAL]))`,
			"{{webhook}} {{code}}",
		}}},
	{"Latency of webhooks", "Time from when a webhook receives a request until it answers.", "s", false,
		quantiles("controller_runtime_webhook_latency_seconds", "webhook")},
	{"Certificate", "Time until the webhooks' certificate expires. It is renewed automatically, unless you provide it.",
		"s",
		false, []query{{
			`min by (pod) (useless_webhook_certificate_expiration_timestamp_seconds{JOB} - time())`, "{{pod}}",
		}}},
}

var machines = []graph{
	{"Flips", "Switches that the operator turned down.", "ops", false, []query{
		{`sum(rate(useless_flips_total{JOB}[INTERVAL]))`, "flips"},
	}},
	{"Lateness of flips", "Time from when a switch was due until the operator turned it down.", "s", false,
		quantiles("useless_flip_lateness_seconds", "")},
	{"Machines by condition", "Machines by the status of each condition.", "none", false, []query{
		{`max by (condition, status) (useless_machines{JOB})`, "{{condition}} {{status}}"},
	}},
	{"Dropped events", "Events of Machines that the operator dropped because of the limit for each namespace.",
		"ops", false,
		[]query{{`sum(rate(useless_events_dropped_total{JOB}[INTERVAL]))`, "dropped"}}},
}

var schedules = []graph{
	{"Workloads by state", "Workloads with a schedule. If the state is overridden, another client has undone the " +
		"last start or stop. If it is invalid, the schedule does nothing.", "none", false, []query{{
		`sum by (state) (max by (namespace, kind, state) (useless_schedule_workloads{JOB, NAMESPACE}))`, "{{state}}",
	}}},
	{"Starts and stops", "Starts, stops and removed schedules in all namespaces, by result.",
		"none", false, []query{{
			`sum by (direction, result) (increase(useless_schedule_transitions_total{JOB}[INTERVAL]))`,
			"{{direction}} {{result}}",
		}}},
	{"Lateness of starts and stops", "Time from when a start or stop was due until the operator executed it. " +
		"Autoscalers, paused rollouts and failovers delay it.", "s", false, quantiles("useless_schedule_lag_seconds", "")},
	{"CPU saved now", "CPU requests of stopped replicas and VirtualMachines, in cores.", "none", false, []query{
		{`sum by (namespace) (max by (namespace, kind) (useless_schedule_saved_cpu_cores{JOB, NAMESPACE}))`, "{{namespace}}"},
	}},
	{"Memory saved now", "Memory requests of stopped replicas and VirtualMachines.", "bytes", false, []query{
		{`sum by (namespace) (max by (namespace, kind) (useless_schedule_saved_memory_bytes{JOB, NAMESPACE}))`,
			"{{namespace}}"},
	}},
	{"CPU saved in the time range", "Core hours that schedules saved. The operator adds them every ten minutes.",
		"none", true,
		[]query{{
			`sum by (namespace) (increase(useless_schedule_saved_cpu_core_seconds_total{JOB, NAMESPACE}[$__range])) / 3600`,
			"{{namespace}}",
		}}},
	{"Memory saved in the time range", "GiB hours that schedules saved. The operator adds them every ten minutes.",
		"none", true,
		[]query{{
			`sum by (namespace) (increase(useless_schedule_saved_memory_byte_seconds_total{JOB, NAMESPACE}[$__range])) ` +
				`/ 3600 / 2^30`, "{{namespace}}",
		}}},
}

var virtualMachines = []graph{
	{"VirtualMachines by phase", "VirtualMachines in all namespaces.", "none", false, []query{
		{`max by (phase) (useless_vm_phase{JOB})`, "{{phase}}"},
	}},
	{"Time until active", "Time from the creation of a Pod until it was first ready.", "s", false,
		quantiles("useless_vm_creation_to_active_seconds", "")},
	{"Duration of usage requests", "Time of one request to the metrics API for the usage of all VirtualMachines.",
		"s", false, quantiles("useless_vm_usage_poll_seconds", "")},
	{"Failed usage requests", "Failed requests to the metrics API. Without this API, the usage is unknown.",
		"ops", false, []query{
			{`sum(rate(useless_vm_usage_errors_total{JOB}[INTERVAL]))`, "errors"},
		}},
}

var optional = []graph{
	{"podcount: labels", "Writes of the label of ReplicaSets, by result.", "ops", false, []query{
		{`sum by (result) (rate(useless_podcount_patches_total{JOB}[INTERVAL]))`, "{{result}}"},
	}},
	{"ingress: annotations", "Writes of annotations of Ingresses, by result.", "ops", false, []query{
		{`sum by (result) (rate(useless_ingress_annotations_applied_total{JOB}[INTERVAL]))`, "{{result}}"},
	}},
	{"ingress: changes by others", "Changes by other clients to annotations that the operator has set. A rate that " +
		"stays above 0 means that another tool sets the same annotation.", "ops", false, []query{
		{`sum(rate(useless_ingress_annotations_reverts_total{JOB}[INTERVAL]))`, "changes"},
	}},
}

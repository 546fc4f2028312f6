// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// loadMachines is the number of machines during the measurement. Each has one to three switches.
const loadMachines = 200

// usage is the resource usage of a container.
type usage struct {
	memory float64 // bytes of the working set
	cpu    float64 // CPU seconds since the container's start
	at     time.Time
}

// checkResources compares the usage of the operator's Pods with their requests while many machines exist. It measures
// memory after all machines have been created, and CPU while the operator has nothing to do.
func checkResources(t *testing.T, namespace string) {
	t.Helper()
	user := newNamespace(t, "load")
	mustRead(t, manyMachines(loadMachines), "kubectl", "create", "-n", user, "-f", "-")
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine", "--all", "--timeout=2m")
	rest := time.Now()
	pods := operatorPods(t, namespace)
	before := map[string]usage{}
	for _, pod := range pods {
		before[pod.Name] = usageSince(t, &pod, rest)
	}
	for _, pod := range pods {
		after := usageSince(t, &pod, before[pod.Name].at.Add(20*time.Second))
		cpu := (after.cpu - before[pod.Name].cpu) / after.at.Sub(before[pod.Name].at).Seconds()
		requests := pod.Spec.Containers[0].Resources.Requests
		t.Logf("%s with %d machines: memory %.1f MiB, request %s; CPU %.2fm, request %s", pod.Name, loadMachines,
			after.memory/(1<<20), requests.Memory(), cpu*1000, requests.Cpu())
		if memory := requests.Memory().AsApproximateFloat64(); after.memory > memory || memory > 5*after.memory {
			t.Errorf("%s: the memory request must be 1 to 5 times the usage", pod.Name)
		}
		if cpu > requests.Cpu().AsApproximateFloat64() {
			t.Errorf("%s uses more CPU than it requests", pod.Name)
		}
	}
}

// usageSince waits until the kubelet has measured a Pod at or after start. The kubelet answers with its last measurement,
// which can be older than the operator's last work.
func usageSince(t *testing.T, pod *corev1.Pod, start time.Time) usage {
	t.Helper()
	var measured usage
	eventually(t, time.Minute, func() string {
		if measured = usageOf(t, pod); measured.at.Before(start) {
			return "the kubelet has no measurement since " + start.Format(time.RFC3339)
		}
		return ""
	})
	return measured
}

// usageOf reads a Pod's usage from the kubelet, through the API server.
func usageOf(t *testing.T, pod *corev1.Pod) usage {
	t.Helper()
	output, err := exec.Command("kubectl", "get", "--raw", "/api/v1/nodes/"+pod.Spec.NodeName+"/proxy/metrics/resource").Output()
	if err != nil {
		t.Fatal(err)
	}
	metrics := string(output)
	read := func(name string) (float64, time.Time) {
		line := regexp.MustCompile(name + `\{container="manager",namespace="` + pod.Namespace + `",pod="` + pod.Name + `"\} (\S+) (\d+)`)
		match := line.FindStringSubmatch(metrics)
		if match == nil {
			t.Fatalf("the kubelet has no %s of %s:\n%s", name, pod.Name, metrics)
		}
		value, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		millis, err := strconv.ParseInt(match[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return value, time.UnixMilli(millis)
	}
	memory, _ := read("container_memory_working_set_bytes")
	cpu, at := read("container_cpu_usage_seconds_total")
	return usage{memory, cpu, at}
}

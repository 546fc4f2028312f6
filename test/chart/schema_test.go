// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"
)

// wrongValues lists --set flags with a part of their error.
var wrongValues = []struct{ reason, set, want string }{
	{"an unknown value", "replica=1", "additional properties 'replica' not allowed"},
	{"an unknown controller", "controllers.machines.enabled=true", "at '/controllers': additional properties 'machines' not allowed"},
	{"a text instead of a number", "replicas=two", "at '/replicas': got string, want integer"},
	{"no Pods", "replicas=0", "at '/replicas': minimum: got 0, want 1"},
	{"an unknown mode", "certificates.mode=cert-manager", "at '/certificates/mode': value must be one of 'self', 'certManager', 'secret'"},
	{"an issuer without name", "certificates.issuerRef.kind=ClusterIssuer", "at '/certificates/issuerRef': properties 'name' required, if 'kind' exists"},
	{"an encoded certificate", "certificates.caBundle=LS0t", "at '/certificates/caBundle': 'LS0t' does not match pattern"},
	{"the singular of a kind", "schedule.kinds={deployment}", "at '/schedule/kinds/0': value must be one of 'deployments', "},
	{"a kind twice", "schedule.kinds={cronjobs,cronjobs}", "at '/schedule/kinds': items at 0 and 1 are equal"},
	{"no kinds", "schedule.kinds=null", "at '/schedule': missing property 'kinds'"},
	{"text instead of true", "schedule.dryRun=yes", "at '/schedule/dryRun': got string, want boolean"},
	{"an unknown policy", "ingress.annotationPolicy=Never", "at '/ingress/annotationPolicy': value must be one of 'Always', 'IfNotPresent'"},
	{"an annotation of the operator", `ingress.annotations.useless\.container\.training/paused=x`, "at '/ingress/annotations/useless.container.training~1paused': "},
	{"an annotation with a space", "ingress.annotations.foo bar=x", "at '/ingress/annotations': additional properties 'foo bar' not allowed"},
	{"a class with a capital", "ingress.classes={Nginx}", "at '/ingress/classes/0': 'Nginx' does not match pattern"},
	{"the port of the webhooks", "metrics.port=9443", "at '/metrics/port'"},
	{"a port that is too large", "metrics.port=65536", "at '/metrics/port': maximum: got 65,536, want 65,535"},
	{"a tag in the repository", "image.repository=registry.example.com/useless:v1", "at '/image/repository': "},
	{"a digest without algorithm", "image.digest=0123", "at '/image/digest': '0123' does not match pattern"},
	{"an unknown pull policy", "image.pullPolicy=Sometimes", "at '/image/pullPolicy': value must be one of '', 'Always', 'IfNotPresent', 'Never'"},
	{"Mi is a unit of Kubernetes; Go has MiB", "goMemLimit=200Mi", "at '/goMemLimit': '200Mi' does not match pattern"},
	{"a number as label", "podLabels.build=7", "at '/podLabels/build': got number, want string"},
	{"a flag that the chart sets", "extraArgs={--controllers=ingress}", "extraArgs: instead of --controllers=ingress, set controllers"},
	{"the default of two replicas, without leader election", "extraArgs={--leader-elect=false}", "extraArgs: --leader-elect=false contradicts other objects"},
	{"a port that no Service has", "extraArgs={--webhook-port=9444}", "extraArgs: --webhook-port=9444 contradicts other objects"},
	{"an annotation that changes the class, with a selection by class",
		"controllers.ingress.enabled=true,ingress.classes={nginx},ingress.annotations.kubernetes\\.io/ingress\\.class=nginx",
		"ingress.classes cannot be used with the annotation kubernetes.io/ingress.class"},
	{"a variable that the chart sets", "extraEnv[0].name=GOMEMLIMIT", "at '/extraEnv/0/name'"},
	{"a flag that identifies the leader", "extraArgs={--pod-uid=1}", "extraArgs: --pod-uid=1 contradicts other objects"},
	{"no controllers", "controllers.machine.enabled=false,controllers.schedule.enabled=false,controllers.virtualmachine.enabled=false", "controllers: enable at least one controller"},
	{"no Secret", "certificates.mode=secret", "certificates.secretName is required if certificates.mode is secret"},
	{"no CA certificate", "certificates.mode=secret,certificates.secretName=mine", "certificates.caBundle is required if certificates.mode is secret"},
	{"a Secret in another mode", "certificates.secretName=mine", "certificates.secretName and certificates.caBundle have no effect"},
	{"an issuer in another mode", "certificates.issuerRef.name=ca", "certificates.issuerRef has no effect: set certificates.mode=certManager"},
	{"annotations without the controller", "ingress.annotations.foo=bar", "ingress.annotations has no effect: set controllers.ingress.enabled=true"},
	{"a policy without annotations", "controllers.ingress.enabled=true,ingress.annotationPolicy=IfNotPresent", "have no effect without ingress.annotations"},
	{"one version of CRDs that are not installed", "crds.install=false,crds.serveV1alpha1=false", "crds.serveV1alpha1 has no effect: set crds.install=true"},
	{"a dry run without the controller", "controllers.schedule.enabled=false,schedule.dryRun=true", "schedule.dryRun has no effect: set controllers.schedule.enabled=true"},
	{"alerts without metrics", "metrics.enabled=false,metrics.rules.enabled=true", "metrics.serviceMonitor, metrics.rules and dashboards need metrics: set metrics.enabled=true"},
	{"a dashboard without metrics", "metrics.enabled=false,dashboards.enabled=true", "and dashboards need metrics: set metrics.enabled=true"},
	{"a label that is not a text", "dashboards.labels.team=7", "at '/dashboards/labels/team': got number, want string"},
}

// TestWrongValues checks that helm rejects wrong values. The error must name the value.
func TestWrongValues(t *testing.T) {
	for _, c := range wrongValues {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			if out, err := helmTemplate(t, namespace, c.set); err == nil {
				t.Errorf("--set %s: helm accepts it and renders %d bytes, want the error %q", c.set, len(out), c.want)
			} else if !strings.Contains(err.Error(), c.want) {
				t.Errorf("--set %s: got the error %v, want %q", c.set, err, c.want)
			}
		})
	}
}

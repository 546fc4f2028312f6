// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster"
)

// aWhile is the duration of a temporary fault.
const aWhile = 3 * time.Second

// replica starts a replica of the operator and waits until it is ready.
func (c *chaos) replica(args ...string) *replica {
	c.t.Helper()
	r, err := c.addReplica(args...)
	if err == nil {
		err = r.awaitReady(c.t.Context())
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// revive restarts all replicas that have exited, as a kubelet does.
func (c *chaos) revive() (err error) {
	for _, r := range c.replicas {
		err = errors.Join(err, r.revive())
	}
	return err
}

// kill kills the operator at a random time, perhaps during its start. Then it starts the operator again.
func (c *chaos) kill(ctx context.Context) error {
	<-time.After(c.upTo(2 * time.Second))
	r := c.replicas[0]
	r.Kill()
	if err := r.start(); err != nil {
		return err
	}
	if c.random.IntN(3) == 0 {
		return nil // the next disturbance then runs during the start
	}
	return r.awaitReady(ctx)
}

func (c *chaos) restartAPIServer(ctx context.Context) error {
	return errors.Join(c.plane.RestartAPIServer(ctx), c.revive())
}

// compact compacts etcd and resets the operator's connections. After that, etcd lacks the revisions from which the
// operator's watches resume. The API server's watch cache may still have them.
func (c *chaos) compact(ctx context.Context) error {
	if err := c.recorder.Compact(ctx); err != nil {
		return err
	}
	c.api.reset()
	return nil
}

func (c *chaos) slow(context.Context) error {
	c.api.slow(200 * time.Millisecond)
	<-time.After(aWhile)
	c.api.slow(0)
	return nil
}

func (c *chaos) reset(context.Context) error {
	c.api.reset()
	<-time.After(c.upTo(500 * time.Millisecond))
	c.webhooks.reset()
	return nil
}

// lose drops the bytes of open connections. The operator must detect that the API server does not answer.
func (c *chaos) lose(ctx context.Context) error {
	c.api.lose()
	return c.alive(ctx)
}

// alive waits until the operator has written the status of a new Machine.
func (c *chaos) alive(ctx context.Context) error {
	m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("alive-%d", time.Now().UnixNano())}}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := c.admin.Get(ctx, client.ObjectKeyFromObject(m), m)
		if apierrors.IsNotFound(err) {
			err = c.admin.Create(ctx, m)
		}
		return err == nil && m.Status.ObservedGeneration > 0, nil // here, rejections are temporary, so retry all errors
	})
	return errors.Join(err, c.admin.Delete(ctx, m))
}

// hideWebhooks makes the webhooks unreachable for the API server for a while.
func (c *chaos) hideWebhooks(ctx context.Context) error {
	c.webhooks.to("")
	<-time.After(aWhile)
	return c.replicas[0].awaitReady(ctx)
}

// rotate replaces the webhooks' certificate and its CA, as cert-manager and OLM do. The API server trusts both CAs for
// a while.
func (c *chaos) rotate(ctx context.Context) error {
	renewed := filepath.Join(c.certs, "new")
	ca, err := cluster.ServingCert(renewed)
	if err != nil {
		return err
	}
	if err := c.trust(ctx, bytes.Join([][]byte{c.server.CA, ca}, nil)); err != nil {
		return err
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Rename(filepath.Join(renewed, name), filepath.Join(c.certs, name)); err != nil {
			return err
		}
	}
	<-time.After(aWhile)
	c.server.CA = ca
	return c.trust(ctx, ca)
}

// trust sets the CA bundle that the API server trusts when it calls the webhooks.
func (c *chaos) trust(ctx context.Context, authorities []byte) error {
	always := func(error) bool { return true } // the write conflicts, or the API server is starting
	return retry.OnError(retry.DefaultBackoff, always, func() error {
		crd, configuration := &apiextensionsv1.CustomResourceDefinition{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := errors.Join(
			c.admin.Get(ctx, client.ObjectKey{Name: "machines." + v1beta1.GroupVersion.Group}, crd),
			c.admin.Get(ctx, client.ObjectKey{Name: "useless-validating-webhook-configuration"}, configuration),
		); err != nil {
			return err
		}
		crd.Spec.Conversion.Webhook.ClientConfig.CABundle = authorities
		for i := range configuration.Webhooks {
			configuration.Webhooks[i].ClientConfig.CABundle = authorities
		}
		return errors.Join(c.admin.Update(ctx, crd), c.admin.Update(ctx, configuration))
	})
}

// refuse creates a ResourceQuota in each namespace, and deletes it after a while. The quota allows fewer switches than
// exist.
func (c *chaos) refuse(ctx context.Context) error {
	var objects []client.Object
	for i := range namespaces {
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(i), Name: "few"}}
		quota.Spec.Hard = corev1.ResourceList{"count/switches." + corev1.ResourceName(v1beta1.GroupVersion.Group): resource.MustParse("3")}
		objects = append(objects, quota)
	}
	return c.forAWhile(ctx, objects...)
}

// throttle limits the operator's requests for Machines and switches for a while. The API server executes one of them at
// a time, and rejects the others with status 429.
func (c *chaos) throttle(ctx context.Context) error {
	level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "chaos"}}
	level.Spec.Type = flowcontrolv1.PriorityLevelEnablementLimited
	level.Spec.Limited = &flowcontrolv1.LimitedPriorityLevelConfiguration{
		NominalConcurrencyShares: new(int32(0)),
		LendablePercent:          new(int32(0)),
		BorrowingLimitPercent:    new(int32(0)),
		LimitResponse:            flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
	}
	schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "chaos"}}
	schema.Spec.PriorityLevelConfiguration.Name = level.Name
	schema.Spec.MatchingPrecedence = 100
	schema.Spec.Rules = []flowcontrolv1.PolicyRulesWithSubjects{{
		Subjects: []flowcontrolv1.Subject{{
			Kind:           flowcontrolv1.SubjectKindServiceAccount,
			ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: operatorNamespace, Name: operatorAccount},
		}},
		ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
			Verbs: []string{"*"}, APIGroups: []string{v1beta1.GroupVersion.Group}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true,
		}},
	}}
	return c.forAWhile(ctx, level, schema)
}

// forAWhile creates objects, waits and deletes them.
func (c *chaos) forAWhile(ctx context.Context, objects ...client.Object) (err error) {
	for _, object := range objects {
		err = errors.Join(err, c.admin.Create(ctx, object))
	}
	<-time.After(aWhile)
	for _, object := range objects {
		err = errors.Join(err, client.IgnoreNotFound(c.admin.Delete(ctx, object)))
	}
	return err
}

// stopLeader suspends the leader until the other replica leads, and resumes it. Then the former leader must exit.
func (c *chaos) stopLeader(ctx context.Context) error {
	leader, other, err := c.roles(ctx)
	if err != nil {
		return err
	}
	<-time.After(c.upTo(2 * time.Second))
	if err := leader.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	c.webhooks.to(other.webhooks)
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return other.leads(ctx), other.revive()
	})
	if err != nil {
		return fmt.Errorf("the other replica did not become the leader: %w", err)
	}
	<-time.After(c.upTo(2 * time.Second))
	if err := leader.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	select {
	case <-leader.Done():
	case <-time.After(patience):
		return fmt.Errorf("two replicas lead; the end of the log of the former leader:\n%s", leader.Log())
	}
	if !strings.Contains(leader.Log(), "another replica may lead") {
		return fmt.Errorf("the former leader exited for another reason: %w", leader.Err())
	}
	if err := leader.start(); err != nil {
		return err
	}
	return leader.awaitReady(ctx)
}

// roles waits until one of the two replicas leads. It returns the leader and the other replica.
func (c *chaos) roles(ctx context.Context) (leader, other *replica, err error) {
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		leader, other = c.replicas[0], c.replicas[1]
		if other.leads(ctx) {
			leader, other = other, leader
		}
		return leader.leads(ctx), c.revive()
	})
	if err != nil {
		err = fmt.Errorf("no replica became the leader: %w", err)
	}
	return leader, other, err
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

const (
	namespaces = 2
	machines   = 8 // in each namespace
	mostAsked  = 6 // maximum spec.switches.count

	// pause is a user's mean pause between two requests.
	pause = 100 * time.Millisecond
	// answerTimeout is the timeout of a user's request. It is longer than the timeout of the admission webhooks.
	answerTimeout = 15 * time.Second
)

// users sends random requests for Machines and switches. It does not retry failed requests.
type users struct {
	client client.Client

	mu         sync.Mutex
	sent       map[string]int // the number of requests of each kind
	rejected   map[string]int // the number of failed requests of each kind
	unexpected error          // errors that the API server must never return
}

// A request defines one kind of request that a user sends.
type request struct {
	what   string
	weight int // relative frequency
	do     func(*users, context.Context, *rand.Rand) error
}

// requests lists all kinds of requests of users.
var requests = []request{
	{"create in v1beta1", 4, (*users).createBeta},
	{"create in v1alpha1", 4, (*users).createAlpha},
	{"scale in v1beta1", 8, (*users).scaleBeta},
	{"scale in v1alpha1", 4, (*users).scaleAlpha},
	{"turn a switch up", 20, (*users).turnUp},
	{"turn all switches up", 2, (*users).raise},
	{"relabel a switch for another Machine", 6, (*users).relabel},
	{"add a switch by label", 3, (*users).addSwitch},
	{"delete a switch", 4, (*users).deleteSwitch},
	{"delete a Machine", 4, (*users).deleteMachine},
}

func newUsers(admin client.Client) *users {
	return &users{client: admin, sent: map[string]int{}, rejected: map[string]int{}}
}

func namespaceOf(i int) string { return fmt.Sprintf("chaos-%d", i) }

// prepare creates the namespaces.
func (u *users) prepare(ctx context.Context) error {
	for i := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(i)}}
		if err := u.client.Create(ctx, namespace); err != nil {
			return err
		}
	}
	return nil
}

// act sends requests until the context ends.
func (u *users) act(ctx context.Context, random *rand.Rand) {
	var weighted []request // contains each request as often as its weight
	for _, r := range requests {
		for range r.weight {
			weighted = append(weighted, r)
		}
	}
	for ctx.Err() == nil {
		r := weighted[random.IntN(len(weighted))]
		u.count(r.what, func() error {
			// Do not use ctx: it ends when the users stop, but requests in flight must complete.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
			defer cancel()
			return r.do(u, ctx, random)
		}())
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(random.Int64N(int64(2 * pause)))):
		}
	}
}

// count counts a request. If the request failed, count also adds it to rejected. It keeps the error if the API server
// must never return it.
func (u *users) count(what string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent[what]++
	if err == nil {
		return
	}
	u.rejected[what]++
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) {
		u.unexpected = errors.Join(u.unexpected, fmt.Errorf("%s: %w", what, err))
	}
}

// key returns the namespace and name of a random Machine, which may not exist.
func (u *users) key(random *rand.Rand) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespaceOf(random.IntN(namespaces)), Name: fmt.Sprintf("m-%d", random.IntN(machines))}
}

// switchKey returns the namespace and name of a random switch, which may not exist.
func (u *users) switchKey(random *rand.Rand) metav1.ObjectMeta {
	key := u.key(random)
	key.Name = fmt.Sprintf("%s-%d", key.Name, random.IntN(mostAsked))
	return key
}

func (u *users) patch(ctx context.Context, object client.Object, format string, args ...any) error {
	return u.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...)))
}

func (u *users) createBeta(ctx context.Context, random *rand.Rand) error {
	m := &v1beta1.Machine{ObjectMeta: u.key(random)}
	m.Spec.Switches.Count = 1 + random.Int32N(mostAsked)
	m.Spec.Flip = v1beta1.FlipSpec{DelaySeconds: new(random.Int32N(3)), IntervalSeconds: new(random.Int32N(2))}
	return u.client.Create(ctx, m)
}

func (u *users) createAlpha(ctx context.Context, random *rand.Rand) error {
	m := &v1alpha1.Machine{ObjectMeta: u.key(random)}
	m.Spec.Switches = 1 + random.Int32N(mostAsked)
	m.Spec.FlipDelaySeconds, m.Spec.FlipIntervalSeconds = new(random.Int32N(3)), new(random.Int32N(2))
	return u.client.Create(ctx, m)
}

func (u *users) scaleBeta(ctx context.Context, random *rand.Rand) error {
	return u.patch(ctx, &v1beta1.Machine{ObjectMeta: u.key(random)}, `{"spec":{"switches":{"count":%d}}}`, 1+random.IntN(mostAsked))
}

func (u *users) scaleAlpha(ctx context.Context, random *rand.Rand) error {
	return u.patch(ctx, &v1alpha1.Machine{ObjectMeta: u.key(random)}, `{"spec":{"switches":%d}}`, 1+random.IntN(mostAsked))
}

func (u *users) turnUp(ctx context.Context, random *rand.Rand) error {
	return u.patch(ctx, &v1beta1.Switch{ObjectMeta: u.switchKey(random)}, `{"spec":{"position":"up"}}`)
}

func (u *users) raise(ctx context.Context, random *rand.Rand) error {
	return u.patch(ctx, &v1beta1.Machine{ObjectMeta: u.key(random)}, `{"spec":{"position":"up"}}`)
}

// settledSwitch returns a random switch that was not turned down recently. The users of this test relabel and delete
// only these switches. The operator records a flip first in the switch, and later in the Machine. If the operator is
// killed between the two writes and a user removes the switch, no object records the flip. Then the next flip could be
// too early.
func (u *users) settledSwitch(ctx context.Context, random *rand.Rand) (*v1beta1.Switch, error) {
	sw := &v1beta1.Switch{ObjectMeta: u.switchKey(random)}
	if err := u.client.Get(ctx, client.ObjectKeyFromObject(sw), sw); err != nil {
		return nil, err
	}
	at, err := time.Parse(time.RFC3339Nano, sw.Annotations[v1beta1.FlippedAtAnnotation])
	if err == nil && time.Since(at) < answerTimeout {
		return nil, errors.New("the switch was turned down recently")
	}
	return sw, nil
}

func (u *users) relabel(ctx context.Context, random *rand.Rand) error {
	sw, err := u.settledSwitch(ctx, random)
	if err != nil {
		return err
	}
	return u.patch(ctx, sw, `{"metadata":{"resourceVersion":%q,"labels":{"machine":%q}}}`, sw.ResourceVersion, u.key(random).Name)
}

func (u *users) addSwitch(ctx context.Context, random *rand.Rand) error {
	key := u.key(random)
	sw := &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, GenerateName: "added-", Labels: map[string]string{v1beta1.MachineLabel: key.Name},
	}}
	sw.Spec.Position = v1beta1.PositionUp
	return u.client.Create(ctx, sw)
}

func (u *users) deleteSwitch(ctx context.Context, random *rand.Rand) error {
	sw, err := u.settledSwitch(ctx, random)
	if err != nil {
		return err
	}
	return u.client.Delete(ctx, sw, client.Preconditions{UID: &sw.UID, ResourceVersion: &sw.ResourceVersion})
}

func (u *users) deleteMachine(ctx context.Context, random *rand.Rand) error {
	policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan}
	return u.client.Delete(ctx, &v1beta1.Machine{ObjectMeta: u.key(random)}, client.PropagationPolicy(policies[random.IntN(len(policies))]))
}

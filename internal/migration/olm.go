// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"context"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	operatorsv2 "github.com/operator-framework/api/pkg/operators/v2"
	"github.com/operator-framework/operator-lib/conditions"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reasons of the condition Upgradeable.
const (
	reasonRunning = "MigrationRunning"
	reasonFailing = "MigrationFailing"
	reasonDone    = "Migrated"
)

// A reporter tells OLM whether the operator may be upgraded, through the OperatorCondition that OLM made for it. Where
// there is none, as in an installation without OLM, it does nothing.
type reporter struct {
	condition conditions.Condition
	log       logr.Logger
}

func newReporter(c client.Client, log logr.Logger) *reporter {
	if os.Getenv("OPERATOR_CONDITION_NAME") == "" {
		return &reporter{}
	}
	condition, err := conditions.InClusterFactory{Client: c}.NewCondition(operatorsv2.ConditionType(operatorsv2.Upgradeable))
	if err != nil {
		log.Info("Cannot tell OLM of migrations", "problem", err.Error())
		return &reporter{}
	}
	return &reporter{condition, log}
}

// running says that a migration is under way, and what keeps it from its end, if anything does. It is a courtesy: no
// upgrade loses anything, because OLM refuses a CustomResourceDefinition without a version that may be stored, and the
// next version begins anew. So a migration does not wait for it.
func (r *reporter) running(ctx context.Context, problem error) {
	if err := r.set(ctx, metav1.ConditionFalse, reason(problem), message(problem)); err != nil {
		r.log.Info("Cannot tell OLM that a migration is running", "problem", err.Error())
	}
}

// done says that nothing is left to migrate. Its error counts: what was said before would keep off every upgrade.
func (r *reporter) done(ctx context.Context) error {
	if err := r.set(ctx, metav1.ConditionTrue, reasonDone, "All objects are stored in the storage version"); err != nil {
		return fmt.Errorf("tell OLM that nothing is left to migrate: %w", err)
	}
	return nil
}

func reason(problem error) string {
	if problem != nil {
		return reasonFailing
	}
	return reasonRunning
}

func message(problem error) string {
	const text = "Rewriting stored objects in the storage version"
	if problem != nil {
		return text + ": " + problem.Error()
	}
	return text
}

func (r *reporter) set(ctx context.Context, status metav1.ConditionStatus, reason, message string) error {
	if r.condition == nil {
		return nil
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		return r.condition.Set(ctx, status, conditions.WithReason(reason), conditions.WithMessage(message))
	})
	if meta.IsNoMatchError(err) {
		return nil // there is no OLM
	}
	return client.IgnoreNotFound(err)
}

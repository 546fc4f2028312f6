// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"context"
	"fmt"
	"os"
	"time"

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
	reasonStopped = "OperatorStopped"
)

// stopTimeout limits the last report. It is shorter than the time that the manager gives the migration to stop.
const stopTimeout = 2 * time.Second

// reporter sets the condition Upgradeable in the OperatorCondition that OLM created for the operator. Without OLM it
// does nothing.
type reporter struct {
	condition conditions.Condition
	log       logr.Logger
}

func newReporter(c client.Client, log logr.Logger) *reporter {
	if os.Getenv("OPERATOR_CONDITION_NAME") == "" {
		return &reporter{}
	}
	upgradeable := operatorsv2.ConditionType(operatorsv2.Upgradeable)
	condition, err := conditions.InClusterFactory{Client: c}.NewCondition(upgradeable)
	if err != nil {
		log.Info("Cannot report migrations to OLM", "error", err.Error())
		return &reporter{}
	}
	return &reporter{condition, log}
}

// running reports that a migration is in progress, and the error of the last attempt, if any. The migration continues
// even if the report fails. An upgrade during the migration loses no data: OLM rejects a CustomResourceDefinition that
// lacks a stored version. After the upgrade, the new version of the operator starts the migration again.
func (r *reporter) running(ctx context.Context, failure error) {
	reason, message := reasonRunning, "Rewriting stored objects in the storage version"
	if failure != nil {
		reason, message = reasonFailing, message+": "+failure.Error()
	}
	if err := r.set(ctx, metav1.ConditionFalse, reason, message); err != nil {
		r.log.Info("Cannot report to OLM that a migration is running", "error", err.Error())
	}
}

// stopped reports that the process ends before the migration is complete. It sets the condition to True. Otherwise, if
// this version stops during an upgrade, OLM could read False forever and never install the new version. The next leader
// reports its migration again.
func (r *reporter) stopped(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := r.set(ctx, metav1.ConditionTrue, reasonStopped, "The operator has stopped"); err != nil {
		r.log.Info("Cannot report to OLM that a migration has stopped", "error", err.Error())
	}
}

// done reports that the migration is complete. If the report fails, the caller must retry, because an earlier report
// may still block upgrades.
func (r *reporter) done(ctx context.Context) error {
	err := r.set(ctx, metav1.ConditionTrue, reasonDone, "All objects are stored in the storage version")
	if err != nil {
		return fmt.Errorf("report the end of the migration to OLM: %w", err)
	}
	return nil
}

func (r *reporter) set(ctx context.Context, status metav1.ConditionStatus, reason, message string) error {
	if r.condition == nil {
		return nil
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		return r.condition.Set(ctx, status, conditions.WithReason(reason), conditions.WithMessage(message))
	})
	if meta.IsNoMatchError(err) {
		return nil // OLM is not installed
	}
	return client.IgnoreNotFound(err)
}

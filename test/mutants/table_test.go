// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutants makes known mistakes in copies of the operator's source, one at a time. Then it finds a test that
// fails. If no test fails, a test is missing.
package mutants

const repository = "../.."

// A mutant is a copy of the operator with one mistake.
type mutant struct {
	class   int    // class of the bug, see docs/reliability.md; zero for a mistake that is not in a class
	mistake string // description in docs/reliability.md, unique
	edits   []edit

	// tests are arguments of go test. These tests run instead of the simulations, after the tests of the edited
	// packages.
	tests []string
}

const (
	machine    = "internal/controller/machine"
	schedule   = "internal/controller/schedule"
	times      = "internal/schedule"
	ingress    = "internal/controller/ingress"
	patch      = "internal/patch"
	conversion = "internal/webhook/conversion"
	manifests  = "dist/install.yaml"
	crd        = "config/crd/bases/useless.container.training_machines.yaml"

	policy = "config/admission-policy/changes.yaml"

	flipInterval     = "flipIntervalSeconds:\n                default: "
	deploymentFields = "'deployments': variables.scheduleAnnotations + [\n"
)

// mutants lists all mistakes. A mistake with a class is a kind of bug that was found in other operators or controllers.
var mutants = []mutant{
	// Stale reads and unseen writes.
	{class: 1, mistake: "Switches get generated names, so a stale list creates too many", edits: []edit{
		{machine, "newSwitch", field, "Name", `GenerateName: $param1.Name + "-"`},
	}},
	{class: 2, mistake: "A deletion has no precondition: it may delete a newer object of the same name", edits: []edit{
		{machine, "action.delete", call, "client.Delete", `$0($1, $2)`},
	}},
	{class: 3, mistake: "A patch has no resourceVersion: a decision on stale data overwrites newer data", edits: []edit{
		{patch, "from", call, "client.MergeFromWithOptions", `client.MergeFrom($1)`},
	}},
	{class: 4, mistake: "The number of missing switches comes from the status, not from the switches", edits: []edit{
		{machine, "plan.scale", binary, "wanted", `int(wanted($param1)-$param1.Status.Switches.Total)`},
	}},
	{class: 5, mistake: "An object in the cache is changed in place", edits: []edit{
		{patch, "Object", statement, "DeepCopyObject", `$1 := $param3; $param3 = $2`},
	}},
	{class: 6, mistake: "The operator creates another switch if the cache has a switch that the plan does not have", edits: []edit{
		{machine, "action.missing", binary, "metav1.IsControlledBy", `$2 || true`},
	}},
	{class: 7, mistake: "Reads do not wait for the operator's own writes", edits: []edit{
		{"internal/controller", "ClientOptions", field, "EnableReadYourWritesConsistency", `EnableReadYourWritesConsistency: new(false)`},
	}},

	// Interrupted work and partial failures.
	{class: 8, mistake: "The flip of a switch and its time are not written in the same request", edits: []edit{
		{machine, "action.turnDown", statement, "metav1.SetMetaDataAnnotation", `_ = $3`},
	}},
	{class: 9, mistake: "Names depend on the clock: a retry after a lost response adds a switch", edits: []edit{
		{machine, "names", call, "strconv.Itoa", `strconv.FormatInt(time.Now().UnixNano()+int64($1), 10)`},
	}},
	{class: 10, mistake: "A failed step prevents later steps that do not depend on it", edits: []edit{
		{machine, "Controller.act", statement, "release", `$1 := $2; if $1 != nil { return outcome{stale: true}, $1 }`},
	}, tests: []string{"./test/integration -run ^TestRefusal$"}},
	{class: 11, mistake: "All switches are created at once, even if the first creation is rejected", edits: []edit{
		{machine, "action.create", expression, "1", `maxConcurrent`},
	}, tests: []string{"./test/integration -run ^TestScaling$|^TestRefusal$"}},

	// Ownership.
	{class: 12, mistake: "Switches are selected by label, regardless of their controller", edits: []edit{
		{machine, "own", call, "metav1.IsControlledBy", `$1.Labels[v1beta1.MachineLabel] == $2.Name`},
	}},
	{class: 13, mistake: "A Machine is not reconciled when it loses a switch to another owner", edits: []edit{
		{machine, "Controller.waking", statement, "changedByUser", `$0($1, $2, $4)`},
	}, tests: []string{"./test/integration -run ^TestOwnership$"}},
	{class: 14, mistake: "An owner may be in another namespace", edits: []edit{
		{machine, "ownerKey", statement, "string", `return string($param2)`},
	}},
	{class: 15, mistake: "The owner reference has a kind that does not exist", edits: []edit{
		{machine, "controllerRef", call, "GroupVersion.WithKind", `$0("Machines")`},
	}},
	{class: 16, mistake: "A deleted Machine adopts the switches that its deletion orphaned", edits: []edit{
		{machine, "Controller.act", ifStatement, "isUnchanged", ``},
	}},
	{class: 17, mistake: "An owner is identified by its name, even if it was deleted and created again", edits: []edit{
		{machine, "own", call, "metav1.IsControlledBy",
			`metav1.GetControllerOfNoCopy($1) != nil && metav1.GetControllerOfNoCopy($1).Name == $2.Name`},
		{machine, "indexByOwner", expression, "UID", `types.UID($1.Name)`},
		{machine, "Controller.read", expression, "UID", `types.UID($1.Name)`},
	}},

	// Lifecycle.
	{class: 18, mistake: "The operator removes its own finalizer and also the finalizers of other controllers", edits: []edit{
		{patch, "RemoveFinalizer", call, "controllerutil.RemoveFinalizer", `$1.SetFinalizers(nil)`},
	}, tests: []string{"./test/integration -run ^TestDeletion$"}},
	{class: 19, mistake: "A finalizer can only be removed while the webhook is available", edits: []edit{
		{manifests, "", text, "request.operation == 'CREATE' || object.?spec != oldObject.?spec", `"true"`},
	}, tests: []string{"./test/integration -run ^TestWithoutWebhook$"}},
	{class: 20, mistake: "A Machine is still reconciled while it is being deleted", edits: []edit{
		{machine, "Controller.Reconcile", statement, "finalize", `if err := $2; err != nil { return $1, err }`},
	}},
	{class: 21, mistake: "A switch that is being deleted counts as existing", edits: []edit{
		{machine, "own", binary, "DeletionTimestamp", `$2`},
	}},

	// Status and time.
	{class: 22, mistake: "The status is written to the main resource, which ignores it", edits: []edit{
		{patch, "Status", call, "Status", `any($param2).(client.Client)`},
	}},
	{class: 23, mistake: "The operator does not schedule a reconcile for the next flip", edits: []edit{
		{machine, "Controller.Reconcile", statement, "next", ``},
	}},
	{class: 23, mistake: "Times are truncated to seconds", edits: []edit{
		{machine, "microTime", call, "Truncate", `$param1.Truncate(time.Second)`},
	}},
	{class: 24, mistake: "The status is written even if it has not changed", edits: []edit{
		{patch, "Status", ifStatement, "reflect.DeepEqual", ``},
	}, tests: []string{"./test/integration -run ^TestWrites$|^TestIdle$"}},
	{class: 25, mistake: "The status has no observedGeneration", edits: []edit{
		{machine, "newStatus", assignment, "ObservedGeneration", ``},
	}},
	{class: 26, mistake: "The code reads the first letter of an empty position", edits: []edit{
		{machine, "isUp", binary, "PositionUp", `$1[0] == 'u'`},
	}},

	// API versions and upgrades.
	{class: 27, mistake: "A conversion loses a field", edits: []edit{
		{conversion, "SpecToV1alpha1", field, "FlipIntervalSeconds", ``},
	}},
	{class: 28, mistake: "API versions have different defaults", edits: []edit{
		{crd, "", text, flipInterval + "5", flipInterval + "6"},
		{manifests, "", text, flipInterval + "5", flipInterval + "6"},
	}, tests: []string{"./test/integration -run ^TestDefaultsAreTheSameInBothVersions$"}},
	{class: 29, mistake: "storedVersions keeps the old version after the storage version migration", edits: []edit{
		{"internal/migration", "Migrator.prune", assignment, "StoredVersions", ``},
	}, tests: []string{"./internal/migration"}},
	{class: 30, mistake: "A new CA certificate is not injected into the conversion webhook", edits: []edit{
		{"internal/certificates", "Setup", element, "CRDConversion", ``},
	}, tests: []string{"./test/integration -run ^TestSelfManagedCertificates$"}},

	// Scale and the control plane.
	{class: 31, mistake: "A rejected creation is not retried", edits: []edit{
		{machine, "action.create", statement, "fmt.Errorf",
			`log.FromContext($param1).Error($var{forEach}, "Cannot create switches")`},
	}},
	{class: 32, mistake: "All replicas are active at the same time", edits: []edit{
		{"cmd", "options.manager", field, "LeaderElection", `LeaderElection: $2 && $receiver.namespace == ""`},
	}, tests: []string{"./test/integration -run ^TestLeaderChange$"}},
	{class: 33, mistake: "The retry delay has no practical limit", edits: []edit{
		{"internal/queue", "LastRetry", expression, "time.Minute", `100 * time.Hour`},
	}},

	// Other controllers in place of the operator's Machine controller.
	{mistake: "The tutorial's controller replaces the Machine controller", edits: replaceController("Tutorial")},
	{mistake: "A controller like operator-sdk's sample replaces the Machine controller",
		edits: replaceController("Sample")},

	// Schedules.
	{mistake: "A start resumes a CronJob that a user had suspended before the stop", edits: []edit{
		{schedule, "kind.execute", call, "raise", `$0(max($1, 1), $2)`},
	}},
	{mistake: "A stop of a CronJob deletes the Jobs of its namespace", edits: []edit{
		{schedule, "Controller.act", statement, "patch.Object", `if $receiver.kind == cronJobs && $param3.transition == stop {
			if err := $receiver.client.DeleteAllOf($param1, &batchv1.Job{}, client.InNamespace($param2.GetNamespace())); err != nil {
				return err
			}
		}
		$1, $2 := $3`},
	}},
	{mistake: "A stop sets maxReplicas of a HorizontalPodAutoscaler, but not minReplicas", edits: []edit{
		{schedule, "kind.apply", ifStatement, "setLeast", ``},
	}},
	{mistake: "A start restores maxReplicas of a HorizontalPodAutoscaler, but not minReplicas", edits: []edit{
		{schedule, "plan.raise", call, "new", `nil`},
	}},
	{mistake: "A stop pauses a ScaledObject at 0 replicas and ignores stop-replicas", edits: []edit{
		{schedule, "scaledObjects", call, "cmp.Or", `$2`},
	}},
	{mistake: "A workload that another controller owns is stopped", edits: []edit{
		{schedule, "kind.leaveAlone", binary, "metav1.GetControllerOfNoCopy", `false`},
	}, tests: []string{"./test/integration -run ^TestSchedule$"}},

	{mistake: "The default schedule of a Namespace reaches kube-system", edits: []edit{
		{schedule, "defaultsOf", call, "slices.Contains", `false`},
	}},
	{mistake: "The default schedule of a Namespace reaches the operator's own Namespace", edits: []edit{
		{schedule, "Options.system", call, "append", `systemNamespaces`},
	}},
	{mistake: "Own annotations of a workload do not replace the default of its Namespace", edits: []edit{
		{times, "Effective", call, "hasOne", `false`},
	}},
	{mistake: "A workload cannot opt out of the default of its Namespace", edits: []edit{
		{times, "Effective", binary, "ScheduleNone", `false`},
	}},
	{mistake: "stop-after begins again when the operator restarts", edits: []edit{
		{times, "Record.since", binary, "IsZero", `true`},
	}},
	{mistake: "A start does not record since when the workload runs", edits: []edit{
		{schedule, "kind.execute", ifStatement, "StopAfter", ``},
	}},
	{mistake: "After an uptime on demand, the last stop before the uptime is not executed again", edits: []edit{
		{schedule, "plan.extend", statement, "record.Last", ``},
	}},
	{mistake: "A stop is repeated until the next start", edits: []edit{
		{times, "Record.Handled", call, "After", `true`},
	}},
	{mistake: "A dry run writes", edits: []edit{
		{schedule, "Controller.act", ifStatement, "isDryRun", ``},
	}},
	{mistake: "At the end of a dry run, its last stop is executed", edits: []edit{
		{schedule, "input.skip", binary, "isOfDryRun", `false`},
	}},
	{mistake: "In a dry run, the start after an announced stop is not announced", edits: []edit{
		{schedule, "input.current", binary, "isDryRun", `true`},
	}},
	{mistake: "A start that a user has undone is reported as the present state", edits: []edit{
		{schedule, "kind.isOverridden", binary, "ScheduleStarted", `false`},
	}},

	// Annotations of Ingresses.
	{mistake: "An overwritten value of another client is not saved", edits: []edit{
		{ingress, "plan.byMergePatch", call, "save", `true`},
	}},
	{mistake: "The operator treats annotations of other clients as its own, and removes them", edits: []edit{
		{ingress, "stateOf", call, "Union", `$0(sets.KeySet($param1.Annotations))`},
	}},
	{mistake: "The operator selects an Ingress by a class that the operator itself has set", edits: []edit{
		{ingress, "state.classOf", call, "theirs", `new($receiver.values[$1])`},
	}},
	{mistake: "The policy IfNotPresent overwrites values of other clients", edits: []edit{
		{ingress, "Options.wanted", binary, "PolicyIfNotPresent", `true`},
	}},
	{mistake: "An Ingress opts out while another client reverts the annotation, and must wait for the end of the delay", edits: []edit{
		{ingress, "history.saw", binary, "set", `false`},
	}},

	// Waiting and resuming.
	{mistake: "The finalizer of a Machine waits until its switches are deleted", edits: []edit{
		{machine, "Controller.finalize", statement, "patch.RemoveFinalizer",
			`if len($receiver.read($param2)) > 0 { return errors.New("switches exist") }; return $1`},
	}, tests: []string{"./test/integration -run ^TestDeletion$"}},
	{mistake: "A leader continues after it was suspended", edits: []edit{
		{"cmd", "waitForSuspension", binary, "renewDeadline", `false`},
	}, tests: []string{"./cmd -run ^TestWaitForSuspension$"}},
	{mistake: "A second process of the Pod leads at the same time", edits: []edit{
		{"cmd", "podIdentity", ifStatement, "bindForever", ``},
	}, tests: []string{"./cmd -run ^TestPodIdentity$"}},
	{mistake: "While flips of a Machine are due, its status is never written", edits: []edit{
		{machine, "Controller.updateStatus", binary, "statusDelay", `true`},
	}, tests: []string{"./test/sim -run ^TestStatusDuringEndlessFlips$"}},
	{mistake: "The status of a Machine waits without a limit until no flip of other Machines is due", edits: []edit{
		{machine, "Controller.hurryStatus", statement, "statuses.Set", ``},
	}, tests: []string{"./test/sim -run ^TestStatusDuringEndlessFlips$"}},
	{mistake: "A request for the position up is lost while the status still has the last request", edits: []edit{
		{machine, "action.lower", statement, "lowered.Keep", ``},
	}},
	{mistake: "A second request for the position up is executed again and again", edits: []edit{
		{machine, "Controller.act", statement, "lowered.Forget", ``},
	}, tests: []string{"./test/sim -run ^TestPositionUpAgain$"}},
	{mistake: "A leader with an old cache deletes Switches of a Machine that has been scaled out", edits: []edit{
		{machine, "decide", binary, "surplus", `false`},
	}},
	{mistake: "After a wait for the cache has timed out, the next reconcile plans from the old cache", edits: []edit{
		{machine, "Controller.settle", call, "unsettled.Keep", `$0($1, ownWrites{keys: $2.keys[:0]})`},
	}},

	// Permissions.
	{mistake: "An admission policy lets the operator change the Pod template of Deployments", edits: []edit{
		{policy, "", text, deploymentFields, deploymentFields + "          '/spec/template',\n"},
		{manifests, "", text, deploymentFields, deploymentFields + "          '/spec/template',\n"},
	}, tests: []string{"./test/integration -run ^TestAdmissionPolicies$"}},

	// Dry runs and migration.
	{mistake: "After a dry run in which nothing was due, an edit of the schedule is not executed", edits: []edit{
		{schedule, "dryRunMemory.after", ifStatement, "isInvalid", ``},
	}},
	{mistake: "The operator forgets a dry run although a stop in it is not recorded yet", edits: []edit{
		{schedule, "dryRunMemory.after", binary, "nothing", `true`},
	}},
	{mistake: "Without the conversion webhook, the migration removes the managed fields", edits: []edit{
		{"internal/migration", "Migrator.rewrite", call, "RawPatch", `client.RawPatch(types.MergePatchType, $2)`},
	}, tests: []string{"./internal/migration"}},
}

// replaceController replaces the operator's controllers in simulations by a controller of package baseline.
func replaceController(name string) []edit {
	add := `(baseline.` + name + `{}).Add($var{ctrl.NewManager})`
	return []edit{
		{"test/sim", "World.StartWithView", call, "Setup", add},
	}
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim is an in-memory API server. It is the transport of a rest.Config. The clients, caches and controllers
// that use the transport are the same code as in a cluster.
//
// It implements, for all kinds:
//   - resourceVersions, optimistic locking, watches and their history;
//   - label selectors and metadata-only responses;
//   - generations and the status subresource;
//   - defaults, pruning and validation by the schemas of CustomResourceDefinitions;
//   - preconditions, finalizers, and the three propagation policies of deletions;
//   - garbage collection by ownerReferences, and object count quotas.
//
// For existing Ingresses, it also implements server-side apply and field managers. For Pods, it also implements the
// resize subresource and the termination grace period.
//
// It does not implement:
//   - more than one version of a kind: all requests are for the storage version;
//   - webhooks, and authorization: every request is allowed;
//   - field managers of other kinds and of subresources;
//   - field selectors for other fields than the name and the namespace;
//   - paginated lists, and the scale subresource;
//   - deletion of namespaces, cycles of owners, the status of quotas, and compaction of the history;
//   - other features of built-in kinds: defaults, validation, rules for status updates, schedulers, nodes.
//
// Simulated caches do not resync, so a resync cannot hide a missed event. Real caches resync every ten hours.
//
// Simulations do not change a Machine's API version. test/integration creates and reads Machines in both versions on a
// real API server, and migrates stored Machines. The tests of internal/webhook/conversion convert every field in both
// directions.
//
// The caller controls the order of all activity. It decides when a request is served, when an event is delivered, and
// when the garbage collector runs.
package sim

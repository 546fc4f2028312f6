// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim is an API server in memory. It is the transport of a rest.Config: whatever is above that, the clients, the
// caches and the controllers of an operator, is what runs in a cluster.
//
// It has resourceVersions and the history of watches, label selectors, answers with metadata only, generations, the status
// subresource, defaults, pruning and validation by the schemas of CustomResourceDefinitions, optimistic locking and
// preconditions, finalizers and the three kinds of deletion, garbage collection by ownerReferences, and quotas of objects.
// Of Kubernetes' own kinds it has what is common to all, and in addition field managers and server-side apply of Ingresses
// that are there, and of Pods the subresource resize and that they are given time to end on a node.
//
// It knows neither of versions of a kind (all requests are for the one that is stored) nor of webhooks, rights (everything is
// allowed), field managers of other kinds and of subresources, field selectors, pages of lists, the subresource scale,
// namespaces that are being deleted, owners that own each other, the status of quotas, and compacted history; nor of what
// Kubernetes' own kinds have of their own beside that: defaults and validation, what a status may change, and schedulers and
// nodes, which are for the caller to play. Its caches do not resync, which real ones do each ten hours: what only a resync
// would mend is not mended here.
//
// A Machine's life therefore has no change of its version: test/integration makes and reads Machines in both versions, and
// migrates stored ones, on a real API server, and internal/conversion converts every field there and back.
//
// All that happens is decided by who calls it: a request is answered when it is served, an event is heard when it is
// delivered, and garbage is collected when that is asked for.
package sim

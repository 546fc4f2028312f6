// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package client contains the generated clients for Go programs that do not use controller-runtime. They cover the
// kinds of useless.container.training and cloudnative.tw. They work like the clients of client-go:
//   - [container.training/useless/client/versioned] is the clientset. Its package fake is for tests without a cluster.
//   - [container.training/useless/client/informers] keeps a copy of all objects up to date, and calls handlers for each
//     change.
//   - [container.training/useless/client/listers] reads that copy.
//
// make generate generates all packages below this one.
package client

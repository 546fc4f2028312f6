// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package integration

func init() { hasRaceDetector = true }

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import "fmt"

const (
	// DefaultConcurrentSyncs is how many Machines are reconciled at a time, unless a user says otherwise.
	DefaultConcurrentSyncs = 16

	mostConcurrentSyncs = 256
)

// Options are what users of the operator can choose.
type Options struct {
	// ConcurrentSyncs is how many Machines are reconciled at a time.
	ConcurrentSyncs int
}

// Validate returns an error for a number of Machines at a time that nobody can want.
func (o Options) Validate() error {
	if o.ConcurrentSyncs < 1 || o.ConcurrentSyncs > mostConcurrentSyncs {
		return fmt.Errorf("invalid value %d for flag --concurrent-machine-syncs: must be from 1 to %d", o.ConcurrentSyncs, mostConcurrentSyncs)
	}
	return nil
}

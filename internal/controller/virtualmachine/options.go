// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"errors"
	"fmt"
	"time"
)

// Options are what users of the operator can choose.
type Options struct {
	// Image is what servers run. It has to name a user that is not root by its number.
	Image string
	// UsageInterval is the time between two requests for the servers' usage.
	UsageInterval time.Duration
}

// Validate returns an error for an image that is none, and for an interval that would not leave the metrics API alone.
func (o Options) Validate() error {
	if o.Image == "" {
		return errors.New("invalid value \"\" for flag --vm-image: must be an image, such as " + DefaultImage)
	}
	if o.UsageInterval < time.Second {
		return fmt.Errorf("invalid value %s for flag --vm-usage-interval: must be at least 1s, such as 30s", o.UsageInterval)
	}
	return nil
}

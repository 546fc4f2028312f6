// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultLabel is the key of the label where no other is asked for.
const DefaultLabel = "pod-count"

// Options configure the controller.
type Options struct {
	// Label is the key of the label.
	Label string
}

// Validate returns an error if the label's key is none.
func (o Options) Validate() error {
	if problems := validation.IsQualifiedName(o.Label); len(problems) > 0 {
		return fmt.Errorf("invalid value %q for flag --pod-count-label: %s; for example, %s or example.com/%[3]s",
			o.Label, strings.Join(problems, "; "), DefaultLabel)
	}
	return nil
}

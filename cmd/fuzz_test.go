// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"container.training/useless/internal/controller/ingress"
)

// FuzzParse parses any flags, one per line, and any environment. If parse returns no error, some options must be within
// their ranges, see inRange.
func FuzzParse(f *testing.F) {
	f.Add("--max-switches=1000\n--controllers=*,-machine", "USELESS_LEADER_ELECT=true")
	f.Add("--self-managed-certs", "USELESS_NAMESPACE=useless-system")
	f.Add("--vm-usage-interval=1ns\n--default-time-zone=Local", "USELESS_MAX_SWITCHES=0")
	f.Add("--ingress-annotation=a=b\n--pod-count-label=", "USELESS_INGRESS_ANNOTATION=c=d")
	f.Add("--ingress-class=nginx\n--ingress-annotation-policy=IfNotPresent", "USELESS_INGRESS_CLASS=a,b")
	f.Add("switch", "USELESS_VERSION=perhaps")
	f.Fuzz(func(t *testing.T, lines, environment string) {
		args := strings.Split(lines, "\n")
		for _, arg := range args {
			if name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); name == "h" || name == "help" {
				t.Skip("--help prints the flags")
			}
		}
		variables := map[string]string{}
		for line := range strings.SplitSeq(environment, "\n") {
			name, value, _ := strings.Cut(line, "=")
			variables[name] = value
		}
		o, err := parse(args, func(name string) string { return variables[name] })
		if err != nil {
			if err.Error() == "" {
				t.Error("the error has no text")
			}
			if errors.Is(err, flag.ErrHelp) {
				t.Error("parse returns ErrHelp without --help")
			}
			return
		}
		if !inRange(o) {
			t.Errorf("parse accepts invalid options: %+v", o)
		}
	})
}

func inRange(o *options) bool {
	policy := o.controllers.Ingress.Policy
	return o.maxSwitches >= 1 && o.maxSwitches <= 1000 && (!o.selfManagedCerts || o.namespace != "") &&
		(policy == ingress.PolicyAlways || policy == ingress.PolicyIfNotPresent)
}

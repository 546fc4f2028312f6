// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// The libraries of this program are requirements of hack/tools/coredns.mod, not of the operator's module.
//go:build ignore

// Command coredns is CoreDNS with only the plugins that a node uses. Upstream's CoreDNS has all plugins, and therefore
// twice as many packages. Most of these packages are for cloud providers.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	dnsserver.Directives = []string{"bind", "errors", "kubernetes"}
	coremain.Run()
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// The operator's own module does not require this program's libraries. hack/tools/coredns.mod does.
//go:build ignore

// Command coredns is CoreDNS with only the plugins that a node uses. Upstream's CoreDNS has all plugins and needs twice
// as many packages. Most of the additional packages are for cloud providers.
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

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Command dashboard writes the Grafana dashboard of the operator to config/grafana. The panels are in panels.go.
//
// make dashboard runs it. It must run in the root folder of the repository.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// output is the file of the dashboard. hack/chart copies it into the Helm chart.
const output = "config/grafana/dashboard.json"

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "error: write the dashboard:", err)
		os.Exit(1)
	}
}

func write() error {
	raw, err := json.MarshalIndent(newDashboard(), "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(output, append(raw, '\n'), 0o666)
}

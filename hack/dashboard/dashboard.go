// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

const (
	// columns is the width of a dashboard in Grafana's units. perRow is the number of panels next to each other. width
	// and height are the size of a panel.
	columns, perRow = 24, 3
	width, height   = columns / perRow, 7
)

// prometheus is the data source that the user selects with the variable datasource.
var prometheus = &datasource{Type: "prometheus", UID: "${datasource}"}

func newDashboard() dashboard {
	return dashboard{
		UID:           "useless-operator",
		Title:         "useless-operator",
		Description:   "Metrics of useless-operator. docs/reference.md describes them.",
		Tags:          []string{"useless-operator"},
		SchemaVersion: 39,
		Timezone:      "browser",
		Refresh:       "30s",
		Time:          timeRange{From: "now-6h", To: "now"},
		Templating:    templating{List: variables()},
		Panels:        layout(rows),
	}
}

func variables() []variable {
	all := &current{Text: "All", Value: "$__all"}
	return []variable{
		{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus", Refresh: 1},
		{
			Name: "namespace", Label: "Namespace of the workloads", Type: "query", Datasource: prometheus, Refresh: 2,
			Query: expand("label_values(useless_schedule_workloads{JOB}, namespace)"),
			Multi: true, IncludeAll: true, AllValue: ".*", Current: all,
		},
	}
}

// expand replaces abbreviations in a query. All metrics of the operator have the same label job. Its value is the name
// of the Service that the ServiceMonitor selects.
func expand(query string) string {
	return strings.NewReplacer(
		"JOB", `job="useless-controller-manager-metrics-service"`,
		"NAMESPACE", `namespace=~"$namespace"`,
		"INTERVAL", "$__rate_interval",
	).Replace(query)
}

// layout returns the panels of all rows, with a title above each row. Each panel gets an ID and a position.
func layout(rows []row) (panels []panel) {
	y := 0
	for _, r := range rows {
		panels = append(panels, panel{
			ID: len(panels) + 1, Type: "row", Title: r.title, GridPos: gridPos{H: 1, W: columns, Y: y},
		})
		y++
		for i, g := range r.graphs {
			panels = append(panels, g.panel(len(panels)+1, gridPos{
				H: height, W: width, X: i % perRow * width, Y: y + i/perRow*height,
			}))
		}
		y += (len(r.graphs) + perRow - 1) / perRow * height
	}
	return panels
}

func (g graph) panel(id int, position gridPos) panel {
	p := panel{
		ID: id, Type: "timeseries", Title: g.title, Description: g.description, GridPos: position, Datasource: prometheus,
		FieldConfig: &fieldConfig{Defaults: fieldDefaults{Unit: g.unit}, Overrides: []any{}},
	}
	if g.number {
		p.Type = "stat"
	} else {
		p.FieldConfig.Defaults.Min = new(0)
	}
	for i, q := range g.queries {
		p.Targets = append(p.Targets, target{RefID: string(rune('A' + i)), Expr: expand(q.expr), LegendFormat: q.legend})
	}
	return p
}

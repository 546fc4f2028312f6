// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// The types in this file are the part of Grafana's JSON model that the dashboard needs. Grafana upgrades the model of
// an older schemaVersion when it loads a dashboard.

type dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	SchemaVersion int        `json:"schemaVersion"`
	Editable      bool       `json:"editable"`
	Timezone      string     `json:"timezone"`
	Refresh       string     `json:"refresh"`
	Time          timeRange  `json:"time"`
	Templating    templating `json:"templating"`
	Panels        []panel    `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type templating struct {
	List []variable `json:"list"`
}

// variable is a list of values above the dashboard. The user selects one or several values.
type variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`  // datasource or query
	Query      string      `json:"query"` // a type of data sources, or a query for label values
	Datasource *datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh"` // 1: when the dashboard loads; 2: also when the time range changes
	Multi      bool        `json:"multi"`
	IncludeAll bool        `json:"includeAll"`
	AllValue   string      `json:"allValue,omitempty"`
	Current    *current    `json:"current,omitempty"`
}

// current is the initial value of a variable.
type current struct {
	Text  string `json:"text"`
	Value string `json:"value"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// panel is a graph, a number, or the title of a row.
type panel struct {
	ID          int          `json:"id"`
	Type        string       `json:"type"` // timeseries, stat or row
	Title       string       `json:"title"`
	Description string       `json:"description,omitempty"`
	GridPos     gridPos      `json:"gridPos"`
	Datasource  *datasource  `json:"datasource,omitempty"`
	Targets     []target     `json:"targets,omitempty"`
	FieldConfig *fieldConfig `json:"fieldConfig,omitempty"`
}

// gridPos is the position and the size of a panel. The dashboard is 24 units wide.
type gridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

type fieldConfig struct {
	Defaults  fieldDefaults `json:"defaults"`
	Overrides []any         `json:"overrides"`
}

type fieldDefaults struct {
	Unit string `json:"unit"`
	Min  *int   `json:"min,omitempty"`
}

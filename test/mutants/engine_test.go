// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package mutants

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An edit replaces one node of the syntax tree of a function. The node is addressed by names that belong to the API of
// its package: functions, types, fields and constants. Local names, layout and the choice of file do not matter.
type edit struct {
	in       string // a package folder; for text, a file
	function string // "function", "Receiver.method" or the name of a package-level constant
	kind     kind
	name     string // an identifier, a dotted name, or the end of one: "Delete" and "client.Delete" match c.client.Delete
	with     string // the new source, see placeholders; empty removes the node
}

// kind is a kind of node. The comment says which node of that kind an edit replaces.
type kind string

const (
	assignment  kind = "assignment to"                // an assignment whose first left-hand side is name
	binary      kind = "smallest binary operation on" // a binary operation with name in its operands
	body        kind = "body"                         // the body of the function, or the value of the constant
	call        kind = "call of"                      // a call of name
	element     kind = "element with"                 // an element without a key, with name in it, of a composite literal
	expression  kind = "expression"                   // the selector or literal name
	field       kind = "field"                        // the field name, with its value, of a composite literal
	ifStatement kind = "if statement on"              // an if statement with name before its body
	statement   kind = "smallest statement with"      // an assignment, call or return statement with name in it
	text        kind = "text"                         // name itself, in a file that is not Go
)

// placeholders in new source stand for source text of the node that is replaced, and of its function:
//
//	$1, $2        arguments of a call, results of a return, operands, or left-hand sides of an assignment
//	$value        value of a field, or right-hand side of an assignment
//	$called       the function that a call calls
//	$of           what precedes the last dot of a selector or of a called function
//	$param1       name of the function's first parameter
//	$receiver     name of its receiver
//	$var{name}    the variable that is assigned an expression with name in it, as its first left-hand side
var placeholders = regexp.MustCompile(`\$(\w+)(?:\{([\w.]+)\})?`)

// imports are the packages that new source may need and the edited file may not import yet.
var imports = map[string]string{
	"baseline": "container.training/useless/test/bench/baseline",
	"client":   "sigs.k8s.io/controller-runtime/pkg/client",
	"log":      "sigs.k8s.io/controller-runtime/pkg/log",
	"metav1":   "k8s.io/apimachinery/pkg/apis/meta/v1",
	"strconv":  "strconv",
	"time":     "time",
	"types":    "k8s.io/apimachinery/pkg/types",
	"v1beta1":  "container.training/useless/api/useless/v1beta1",
}

// sources has file contents by path in the repository.
type sources map[string]string

// read returns the files that the edits of a mutant may change.
func (m mutant) read(dir string) (sources, error) {
	files := sources{}
	for _, e := range m.edits {
		pattern := e.in
		if e.kind != text {
			pattern += "/*.go"
		}
		found, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			data, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				return nil, err
			}
			if !strings.HasSuffix(file, "_test.go") {
				files[file] = string(data)
			}
		}
	}
	return files, nil
}

// apply returns the files that the mistake changes, with the mistake.
func (m mutant) apply(before sources) (after sources, err error) {
	after = maps.Clone(before)
	for _, e := range m.edits {
		if err := e.apply(after); err != nil {
			return nil, fmt.Errorf("mutant %q: %s, %s: %s %s: %w", m.mistake, e.in, e.function, e.kind, e.name, err)
		}
	}
	maps.DeleteFunc(after, func(file, content string) bool { return content == before[file] })
	return after, nil
}

func (e edit) apply(files sources) error {
	if e.kind == text {
		if n := strings.Count(files[e.in], e.name); n != 1 {
			return fmt.Errorf("found %d times, want 1", n)
		}
		files[e.in] = strings.Replace(files[e.in], e.name, e.with, 1)
		return nil
	}
	name, function, err := e.find(files)
	if err != nil {
		return err
	}
	nodes := e.nodes(function)
	if len(nodes) != 1 {
		return fmt.Errorf("found %d times, want 1", len(nodes))
	}
	src := files[name]
	with, err := e.expand(src, function, nodes[0])
	if err != nil {
		return err
	}
	rest := src[nodes[0].End()-1:]
	if with == "" && (e.kind == field || e.kind == element) {
		rest = strings.TrimPrefix(rest, ",")
	}
	after, err := e.fixImports(src, src[:nodes[0].Pos()-1]+with+rest)
	if err == nil {
		files[name] = after
	}
	return err
}

// parse parses one file. Its positions are byte offsets plus one.
func parse(src string) (*ast.File, error) {
	return parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
}

// find returns the declaration of the function or constant, and its file.
func (e edit) find(files sources) (name string, found ast.Node, err error) {
	count := 0
	for file, src := range files {
		if path.Dir(file) != e.in {
			continue
		}
		parsed, err := parse(src)
		if err != nil {
			return "", nil, err
		}
		for _, d := range declarations(parsed) {
			if declared(d) == e.function {
				name, found, count = file, d, count+1
			}
		}
	}
	if count != 1 {
		return "", nil, fmt.Errorf("the package declares %s %d times, want 1", e.function, count)
	}
	return name, found, nil
}

// declarations returns the functions and the package-level constants and variables of a file.
func declarations(file *ast.File) (nodes []ast.Node) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			nodes = append(nodes, d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if value, ok := spec.(*ast.ValueSpec); ok && len(value.Values) == 1 {
					nodes = append(nodes, value)
				}
			}
		}
	}
	return nodes
}

// declared returns the name that an edit has for a declaration.
func declared(d ast.Node) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return d.Name.Name
		}
		receiver := d.Recv.List[0].Type
		if star, ok := receiver.(*ast.StarExpr); ok {
			receiver = star.X
		}
		return dotted(receiver) + "." + d.Name.Name
	case *ast.ValueSpec:
		return d.Names[0].Name
	}
	return ""
}

// dotted returns a.b.c for such a selector, or its end where it starts with another expression. A literal is its source.
func dotted(n ast.Node) string {
	switch n := n.(type) {
	case *ast.Ident:
		return n.Name
	case *ast.BasicLit:
		return n.Value
	case *ast.SelectorExpr:
		return dotted(n.X) + "." + n.Sel.Name
	}
	return ""
}

// is reports whether a node is the name or a selector that ends with it.
func is(n ast.Node, name string) bool {
	full := dotted(n)
	return full == name || strings.HasSuffix(full, "."+name)
}

// mentions reports whether the name is anywhere in the nodes.
func mentions[N ast.Node](name string, nodes ...N) (found bool) {
	for _, n := range nodes {
		ast.Inspect(n, func(n ast.Node) bool {
			found = found || n != nil && is(n, name)
			return !found
		})
	}
	return found
}

// nodes returns the nodes of a function that match, without those that contain another one.
func (e edit) nodes(function ast.Node) (found []ast.Node) {
	ast.Inspect(function, func(n ast.Node) bool {
		found = append(found, e.match(n)...)
		return true
	})
	return slices.DeleteFunc(slices.Clone(found), func(outer ast.Node) bool {
		return slices.ContainsFunc(found, func(inner ast.Node) bool {
			return inner != outer && outer.Pos() <= inner.Pos() && inner.End() <= outer.End()
		})
	})
}

// match returns the node, or elements of it, if the edit addresses them.
func (e edit) match(n ast.Node) []ast.Node {
	matches := false
	switch n := n.(type) {
	case *ast.FuncDecl:
		if e.kind == body {
			return []ast.Node{n.Body}
		}
	case *ast.ValueSpec:
		if e.kind == body {
			return []ast.Node{n.Values[0]}
		}
	case *ast.CompositeLit:
		return e.elements(n)
	case *ast.AssignStmt:
		matches = e.kind == assignment && is(n.Lhs[0], e.name) || e.kind == statement && mentions(e.name, n)
	case *ast.ExprStmt, *ast.ReturnStmt:
		matches = e.kind == statement && mentions(e.name, n)
	case *ast.BinaryExpr:
		matches = e.kind == binary && mentions(e.name, n)
	case *ast.CallExpr:
		matches = e.kind == call && is(n.Fun, e.name)
	case *ast.SelectorExpr, *ast.BasicLit:
		matches = e.kind == expression && is(n, e.name)
	case *ast.KeyValueExpr:
		matches = e.kind == field && is(n.Key, e.name)
	case *ast.IfStmt:
		matches = e.kind == ifStatement && (mentions(e.name, n.Cond) || n.Init != nil && mentions(e.name, n.Init))
	}
	if matches {
		return []ast.Node{n}
	}
	return nil
}

func (e edit) elements(n *ast.CompositeLit) (found []ast.Node) {
	for _, elt := range n.Elts {
		if _, keyed := elt.(*ast.KeyValueExpr); e.kind == element && !keyed && mentions(e.name, elt) {
			found = append(found, elt)
		}
	}
	return found
}

// expand replaces the placeholders in the new source.
func (e edit) expand(src string, function, node ast.Node) (string, error) {
	source := func(from, to ast.Node) string { return src[from.Pos()-1 : to.End()-1] }
	values := map[string]string{}
	number := func(prefix string, nodes []ast.Expr) {
		for i, n := range nodes {
			values[prefix+strconv.Itoa(i+1)] = source(n, n)
		}
	}
	if f, ok := function.(*ast.FuncDecl); ok {
		number("param", names(f.Type.Params))
		if f.Recv != nil {
			values["receiver"] = names(f.Recv)[0].(*ast.Ident).Name
		}
	}
	if s, ok := node.(*ast.ExprStmt); ok {
		node = s.X
	}
	switch n := node.(type) {
	case *ast.CallExpr:
		number("", n.Args)
		values["called"] = source(n.Fun, n.Fun)
		if s, ok := n.Fun.(*ast.SelectorExpr); ok {
			values["of"] = source(s.X, s.X)
		}
	case *ast.SelectorExpr:
		values["of"] = source(n.X, n.X)
	case *ast.ReturnStmt:
		number("", n.Results)
	case *ast.BinaryExpr:
		number("", []ast.Expr{n.X, n.Y})
	case *ast.AssignStmt:
		number("", n.Lhs)
		values["value"] = source(n.Rhs[0], n.Rhs[len(n.Rhs)-1])
	case *ast.KeyValueExpr:
		values["value"] = source(n.Value, n.Value)
	}
	var err error
	with := placeholders.ReplaceAllStringFunc(e.with, func(placeholder string) string {
		parts := placeholders.FindStringSubmatch(placeholder)
		value, ok := values[parts[1]]
		if parts[1] == "var" {
			value, ok = variable(function, parts[2])
		}
		if !ok {
			err = fmt.Errorf("%s has no value, or more than one", placeholder)
		}
		return value
	})
	return with, err
}

// names returns the names of parameters.
func names(parameters *ast.FieldList) (names []ast.Expr) {
	for _, p := range parameters.List {
		for _, name := range p.Names {
			names = append(names, name)
		}
	}
	return names
}

// variable returns the first variable of the only assignment that has a name in its right-hand side.
func variable(function ast.Node, name string) (found string, ok bool) {
	assignments := 0
	ast.Inspect(function, func(n ast.Node) bool {
		if n, ok := n.(*ast.AssignStmt); ok && mentions(name, n.Rhs...) {
			found, assignments = dotted(n.Lhs[0]), assignments+1
		}
		return true
	})
	return found, assignments == 1
}

// fixImports adds the imports that the new source needs and removes those that only the old source needed.
func (e edit) fixImports(before, after string) (string, error) {
	old, err := parse(before)
	if err != nil {
		return "", err
	}
	changed, err := parse(after)
	if err != nil {
		return "", err
	}
	imported := map[string]bool{}
	for _, spec := range slices.Backward(changed.Imports) { // from the end, because a removal moves what follows
		name := path.Base(strings.Trim(spec.Path.Value, `"`))
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imported[name] = true
		if packageUsed(old, name) && !packageUsed(changed, name) {
			after = after[:spec.Pos()-1] + after[spec.End()-1:]
		}
	}
	for name, importPath := range imports {
		if regexp.MustCompile(`\b`+name+`\.`).MatchString(e.with) && !imported[name] {
			end := changed.Name.End() - 1
			after = after[:end] + fmt.Sprintf("\nimport %s %q\n", name, importPath) + after[end:]
		}
	}
	formatted, err := format.Source([]byte(after))
	return string(formatted), err
}

// packageUsed reports whether a file has a selector of the package with the name.
func packageUsed(file *ast.File, name string) (found bool) {
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		found = found || ok && dotted(s.X) == name
		return !found
	})
	return found
}

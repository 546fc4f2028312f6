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

// An edit replaces one node in the syntax tree of a function, constant or variable. It finds the node by a name, for
// example the name of a function, type or field. It depends neither on the layout nor on the name of the Go file. An
// edit of the kind text replaces a string in a file that is not Go.
type edit struct {
	in       string // a package folder; for text, a file
	function string // "function", "Receiver.method" or the name of a package-level constant or variable
	kind     kind
	name     string // a name, a literal, or the end of a dotted name: "client.Delete" matches c.client.Delete
	with     string // the new source, see placeholders; empty removes the node
}

// kind is a kind of node. The comment of each constant describes the node that an edit replaces.
type kind string

const (
	assignment  kind = "assignment to"                // an assignment whose first left-hand side is name
	binary      kind = "smallest binary operation on" // a binary operation with name in its operands
	call        kind = "call of"                      // a call of name
	element     kind = "element with"                 // an untyped composite literal with name in it
	expression  kind = "expression"                   // a selector or literal that is name
	field       kind = "field"                        // a field of a composite literal, if its key is name
	ifStatement kind = "if statement on"              // an if statement with name before its body
	statement   kind = "smallest statement with"      // an assignment, call or return statement with name in it
	text        kind = "text"                         // name itself, in a file that is not Go
)

// matches has one function for each kind except text. The function reports whether the node n matches an edit of
// this kind, with this name.
var matches = map[kind]func(n ast.Node, name string) bool{
	assignment: func(n ast.Node, name string) bool { a, ok := n.(*ast.AssignStmt); return ok && is(a.Lhs[0], name) },
	binary:     func(n ast.Node, name string) bool { b, ok := n.(*ast.BinaryExpr); return ok && mentions(name, b) },
	call:       func(n ast.Node, name string) bool { c, ok := n.(*ast.CallExpr); return ok && is(c.Fun, name) },
	field:      func(n ast.Node, name string) bool { f, ok := n.(*ast.KeyValueExpr); return ok && is(f.Key, name) },
	element: func(n ast.Node, name string) bool {
		c, ok := n.(*ast.CompositeLit)
		return ok && c.Type == nil && mentions(name, c)
	},
	expression: func(n ast.Node, name string) bool {
		_, isIdentifier := n.(*ast.Ident) // may be part of a selector
		return !isIdentifier && is(n, name)
	},
	ifStatement: func(n ast.Node, name string) bool {
		i, ok := n.(*ast.IfStmt)
		return ok && (mentions(name, i.Cond) || i.Init != nil && mentions(name, i.Init))
	},
	statement: func(n ast.Node, name string) bool {
		switch n.(type) {
		case *ast.AssignStmt, *ast.ExprStmt, *ast.ReturnStmt:
			return mentions(name, n)
		}
		return false
	},
}

// placeholders matches placeholders in new source. They stand for source text of the replaced node, or of its function:
//
//	$1, $2       the arguments of a call, the results of a return, the operands of a binary operation,
//	             the key and value of a field, the expression before the last dot of a selector,
//	             or the left-hand and then the right-hand sides of an assignment
//	$0           the function that a call calls
//	$param1      the name of the function's first parameter
//	$receiver    the name of its receiver
//	$var{name}   the first left-hand side of the only assignment with name in its right-hand side
var placeholders = regexp.MustCompile(`\$(\w+)(?:\{([\w.]+)\})?`)

// imports maps names to the packages that new source may need. fixImports adds them to the edited file.
var imports = map[string]string{
	"baseline": "container.training/useless/test/bench/baseline",
	"batchv1":  "k8s.io/api/batch/v1",
	"client":   "sigs.k8s.io/controller-runtime/pkg/client",
	"log":      "sigs.k8s.io/controller-runtime/pkg/log",
	"metav1":   "k8s.io/apimachinery/pkg/apis/meta/v1",
	"strconv":  "strconv",
	"time":     "time",
	"types":    "k8s.io/apimachinery/pkg/types",
	"v1beta1":  "container.training/useless/api/useless/v1beta1",
}

// sources maps paths in the repository to file contents.
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

// apply applies the edits of the mutant to a copy of the files. It returns the changed files only.
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
	nodes := smallest(function, func(n ast.Node) bool { return matches[e.kind](n, e.name) })
	if len(nodes) != 1 {
		return fmt.Errorf("found %d times, want 1", len(nodes))
	}
	src := files[name]
	with, err := e.expand(src, function, nodes[0])
	if err != nil {
		return err
	}
	rest := src[nodes[0].End()-1:]
	if with == "" {
		rest = strings.TrimPrefix(rest, ",") // the comma after a field or an element
	}
	after, err := e.fixImports(src, src[:nodes[0].Pos()-1]+with+rest)
	if err == nil {
		files[name] = after
	}
	return err
}

// parse parses one file. A position in the result is a byte offset plus one.
func parse(src string) (*ast.File, error) {
	return parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
}

// find returns the declaration of the function, constant or variable, and its file.
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
		ast.Inspect(parsed, func(n ast.Node) bool {
			if declared(n) == e.function {
				name, found, count = file, n, count+1
			}
			_, isFunction := n.(*ast.FuncDecl)
			return !isFunction
		})
	}
	if count != 1 {
		return "", nil, fmt.Errorf("the package declares %s %d times, want 1", e.function, count)
	}
	return name, found, nil
}

// declared returns the name of a function, constant or variable in the form of edit.function, or "" for other nodes.
func declared(n ast.Node) string {
	switch d := n.(type) {
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

// dotted returns the source of an identifier, a literal or a selector such as a.b.c. For f().b it returns .b.
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

// is reports whether a node is the name, or a selector that ends with the name.
func is(n ast.Node, name string) bool {
	full := dotted(n)
	return full == name || strings.HasSuffix(full, "."+name)
}

// mentions reports whether the name occurs in the nodes.
func mentions[N ast.Node](name string, nodes ...N) bool {
	return slices.ContainsFunc(nodes, func(n N) bool {
		return len(smallest(n, func(n ast.Node) bool { return is(n, name) })) > 0
	})
}

// smallest returns the matching nodes that contain no other matching node.
func smallest(root ast.Node, match func(ast.Node) bool) (found []ast.Node) {
	ast.Inspect(root, func(n ast.Node) bool {
		if n != nil && match(n) {
			found = append(found, n)
		}
		return true
	})
	return slices.DeleteFunc(slices.Clone(found), func(outer ast.Node) bool {
		return slices.ContainsFunc(found, func(inner ast.Node) bool {
			return inner != outer && outer.Pos() <= inner.Pos() && inner.End() <= outer.End()
		})
	})
}

// expand replaces the placeholders in the new source.
func (e edit) expand(src string, function, node ast.Node) (with string, err error) {
	values := map[string]string{}
	number := func(prefix string, nodes []ast.Expr) {
		for i, n := range nodes {
			values[prefix+strconv.Itoa(i)] = src[n.Pos()-1 : n.End()-1]
		}
	}
	number("", parts(node))
	if f, ok := function.(*ast.FuncDecl); ok {
		number("param", append([]ast.Expr{f.Name}, names(f.Type.Params)...))
		if f.Recv != nil {
			values["receiver"] = dotted(names(f.Recv)[0])
		}
	}
	with = placeholders.ReplaceAllStringFunc(e.with, func(placeholder string) string {
		match := placeholders.FindStringSubmatch(placeholder)
		value, ok := values[match[1]]
		if match[1] == "var" {
			value, ok = variable(function, match[2])
		}
		if !ok {
			err = fmt.Errorf("%s has no value, or more than one", placeholder)
		}
		return value
	})
	return with, err
}

// parts returns the parts of a node for the placeholders $0, $1 and so on. Only calls use $0.
func parts(node ast.Node) []ast.Expr {
	switch n := node.(type) {
	case *ast.ExprStmt:
		return parts(n.X)
	case *ast.CallExpr:
		return append([]ast.Expr{n.Fun}, n.Args...)
	case *ast.ReturnStmt:
		return slices.Concat(n.Results[:1], n.Results)
	case *ast.AssignStmt:
		return slices.Concat(n.Lhs[:1], n.Lhs, n.Rhs)
	case *ast.BinaryExpr:
		return []ast.Expr{n, n.X, n.Y}
	case *ast.SelectorExpr:
		return []ast.Expr{n, n.X}
	case *ast.KeyValueExpr:
		return []ast.Expr{n, n.Key, n.Value}
	}
	return nil
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

// variable returns the first variable on the left-hand side of an assignment. It finds the assignment by a name on the
// right-hand side. If the function has no such assignment, or more than one, ok is false.
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

// fixImports adds the imports that the new source needs. If only the old source needed an import, it renames the import
// to _.
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
	// Start at the end, because a change moves all later offsets.
	for _, spec := range slices.Backward(changed.Imports) {
		name := path.Base(strings.Trim(spec.Path.Value, `"`))
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imported[name] = true
		if packageUsed(old, name) && !packageUsed(changed, name) {
			after = after[:spec.Pos()-1] + "_ " + spec.Path.Value + after[spec.End()-1:]
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

// packageUsed reports whether a file uses a name of the package.
func packageUsed(file *ast.File, name string) bool {
	return len(smallest(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		return ok && dotted(s.X) == name
	})) > 0
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package mutants

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"path"
	"strings"
	"testing"
)

// TestEdits checks that the edits of every mutant can be applied. It is part of make test, and takes seconds. In
// contrast, make mutants runs the tests with each mutant, and takes minutes.
func TestEdits(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range mutants {
		if m.mistake == "" || seen[m.mistake] {
			t.Errorf("class %d: the description %q is empty or not unique", m.class, m.mistake)
		}
		seen[m.mistake] = true
		before, err := m.read(repository)
		if err != nil {
			t.Fatal(err)
		}
		// apply parses Go files after each edit.
		after, err := m.apply(before)
		if err != nil {
			t.Error(err)
		} else if len(after) == 0 {
			t.Errorf("mutant %q changes no file", m.mistake)
		}
	}
}

// TestEditsIgnoreLocalNames renames all local variables of the edited functions. The results of the edits may differ
// only in these names.
func TestEditsIgnoreLocalNames(t *testing.T) {
	for _, m := range mutants {
		before, err := m.read(repository)
		if err != nil {
			t.Fatal(err)
		}
		want, err := m.apply(before)
		if err != nil {
			t.Error(err)
			continue
		}
		renamed := maps.Clone(before)
		for _, e := range m.edits {
			if e.kind != text {
				renameLocals(t, renamed, e)
			}
		}
		got, err := m.apply(renamed)
		if err != nil {
			t.Errorf("after local variables are renamed: %v", err)
			continue
		}
		for file := range want {
			if strings.HasSuffix(file, ".go") && canonical(t, got[file]) != canonical(t, want[file]) {
				t.Errorf("mutant %q: %s differs after local variables are renamed:\n%s", m.mistake, file, got[file])
			}
		}
	}
}

// suffix is appended to the names of local variables.
const suffix = "Renamed"

// renameLocals renames the parameters and local variables of the edited function.
func renameLocals(t *testing.T, files sources, e edit) {
	t.Helper()
	for name, content := range files {
		if path.Dir(name) != e.in {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, content, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && declared(f) == e.function {
				rename(f, locals(f))
			}
		}
		var out bytes.Buffer
		if err := printer.Fprint(&out, fset, file); err != nil {
			t.Fatal(err)
		}
		files[name] = out.String()
	}
}

// locals returns the names that a function declares.
func locals(f *ast.FuncDecl) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		for _, name := range defined(n) {
			if id, ok := name.(*ast.Ident); ok && id.Name != "_" && !strings.HasSuffix(id.Name, suffix) {
				found[id.Name] = true
			}
		}
		return true
	})
	return found
}

// defined returns the names that one node declares.
func defined(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.FieldList:
		return names(n)
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			return n.Lhs
		}
	case *ast.RangeStmt:
		if n.Tok == token.DEFINE {
			return []ast.Expr{n.Key, n.Value}
		}
	case *ast.ValueSpec:
		return names(&ast.FieldList{List: []*ast.Field{{Names: n.Names}}})
	}
	return nil
}

// rename appends the suffix to the names of local variables, but not to fields, methods and types of the same name.
func rename(f *ast.FuncDecl, names map[string]bool) {
	keep := map[ast.Node]bool{f.Name: true}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			ast.Inspect(n.Type, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					keep[id] = true
				}
				return true
			})
		case *ast.SelectorExpr:
			keep[n.Sel] = true
		case *ast.KeyValueExpr:
			keep[n.Key] = true
		case *ast.Ident:
			if names[n.Name] && !keep[n] {
				n.Name += suffix
			}
		}
		return true
	})
}

// canonical returns source without comments, layout and the suffix of renamed variables.
func canonical(t *testing.T, src string) string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printer.Fprint(&out, fset, file); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(out.String(), suffix, "")), " ")
}

// TestEditsMatchOnce checks that an edit must match exactly one node. Otherwise, the error must name the mutant, the
// package and the function.
func TestEditsMatchOnce(t *testing.T) {
	files := sources{"pkg/a.go": "package pkg\n\nfunc (t *T) f() {\n\tg()\n\th()\n\th()\n}\n"}
	for _, test := range []struct{ function, name, problem string }{
		{"T.f", "g", ""},
		{"T.f", "h", "found 2 times, want 1"},
		{"T.f", "i", "found 0 times, want 1"},
		{"f", "g", "the package declares f 0 times, want 1"},
	} {
		m := mutant{mistake: "example", edits: []edit{{"pkg", test.function, statement, test.name, ""}}}
		after, err := m.apply(files)
		if test.problem == "" {
			if err != nil || after["pkg/a.go"] != "package pkg\n\nfunc (t *T) f() {\n\n\th()\n\th()\n}\n" {
				t.Errorf("%s in %s: %v, %q", test.name, test.function, err, after)
			}
			continue
		}
		want := fmt.Sprintf(`mutant "example": pkg, %s: %s %s: %s`, test.function, statement, test.name, test.problem)
		if err == nil || err.Error() != want {
			t.Errorf("%s in %s: error %v, want %s", test.name, test.function, err, want)
		}
	}
}

// TestEditsFixImports checks that an edit finds its function in any file of the package, and imports the packages that
// the new source needs.
func TestEditsFixImports(t *testing.T) {
	files := sources{
		"pkg/a.go": "package pkg\n\nfunc g() {}\n",
		"pkg/b.go": "package pkg\n\nimport \"fmt\"\n\nfunc f(n int) string { return fmt.Sprint(n) }\n",
	}
	m := mutant{mistake: "example", edits: []edit{{"pkg", "f", call, "fmt.Sprint", `strconv.Itoa($1)`}}}
	after, err := m.apply(files)
	if err != nil {
		t.Fatal(err)
	}
	want := "package pkg\n\nimport strconv \"strconv\"\n\nimport _ \"fmt\"\n\n" +
		"func f(n int) string { return strconv.Itoa(n) }\n"
	got := after["pkg/b.go"]
	if len(after) != 1 || canonical(t, got) != canonical(t, want) {
		t.Errorf("%d files change, and pkg/b.go is\n%s\nwant\n%s", len(after), got, want)
	}
}

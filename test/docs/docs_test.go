// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs checks what the documentation refers to: files, headings, declarations in Go files, and tests.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const (
	repository = "../.."
	tour       = "docs/tour.md"
)

// TestReferences checks all pages. A link to a Go file whose text is code, such as [`Machine.Reconcile`](machine.go),
// must name a declaration in this file. A link whose text begins with a digit is a quotation: its text must be in the
// linked page.
func TestReferences(t *testing.T) {
	for _, problem := range problems(t, os.DirFS(repository)) {
		t.Error(problem)
	}
}

// TestTourNamesDeclarations checks that each link to a Go file in the tour names a declaration, so that TestReferences
// checks it.
func TestTourNamesDeclarations(t *testing.T) {
	links := 0
	for _, l := range link.FindAllStringSubmatch(prose(read(t, os.DirFS(repository), tour)), -1) {
		if path.Ext(l[2]) != ".go" {
			continue
		}
		if links++; !code.MatchString(l[1]) {
			t.Errorf("%s: the text of the link %s is not code", tour, l[0])
		}
	}
	if links == 0 {
		t.Errorf("%s has no link to a Go file", tour)
	}
}

// TestProblems requires exactly one problem for each wrong reference.
func TestProblems(t *testing.T) {
	files := fstest.MapFS{
		"docs/other.md":   {Data: []byte("# Other page\n## `Twice`, here\n## Twice here\n```\n# no heading\n```\n")},
		"docs/figures.md": {Data: []byte("There is 1\nfigure.\n")},
		"pkg/code.go":     {Data: []byte("package pkg\n\nconst limit = 1\n\ntype T struct{}\n\nfunc (*T) method() {}\n")},
		"pkg/code_test.go": {
			Data: []byte("package pkg\n\nfunc TestOne(*testing.T) {}\n\nfunc TestTwo(*testing.T) {}\n"),
		},
	}
	for _, test := range []struct{ text, want string }{
		{"[page](docs/other.md), [heading](docs/other.md#other-page), [here](#start), [folder](docs)", ""},
		{"[second](docs/other.md#twice-here-1)", ""},
		{"[two\nlines](docs/none.md)", "README.md: docs/none.md does not exist"},
		{"[page](../README.md)", "README.md: ../README.md is outside of the repository"},
		{"[heading](docs/other.md#third)", "README.md: docs/other.md has no heading #third"},
		{"[heading](docs/other.md#no-heading)", "README.md: docs/other.md has no heading #no-heading"},
		{"[line](pkg/code.go#L3)", "README.md: pkg/code.go has no heading #L3"},
		{"[1 figure](docs/figures.md), [a\nfigure](docs/figures.md)", ""},
		{"[2 figures](docs/figures.md)", "README.md: docs/figures.md does not contain 2 figures"},
		{"[site](https://example.com/none), [mail](mailto:a@example.com)", ""},
		{"```\n[in code](none)\n```\n", ""},
		{"[`limit`](pkg/code.go), [`T`](pkg/code.go), [`T.method`](pkg/code.go), [the file](pkg/code.go)", ""},
		{"[`method`](pkg/code.go)", "README.md: pkg/code.go does not declare method"},
		{"`go test -run 'TestOne|^TestTwo$/sub' ./pkg` and `go test`", ""},
		{"`go test ./pkg -run\nTestOne`", "README.md: go test ./pkg -run: the names of the tests are not on this line"},
		{"```console\n$ go test ./pkg -run TestThree   # slow\n```\n", "README.md: ./pkg has no test TestThree"},
	} {
		files["README.md"] = &fstest.MapFile{Data: []byte("# Start\n" + test.text)}
		if diff := cmp.Diff(test.want, strings.Join(problems(t, files), "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.text, diff)
		}
	}
}

var (
	fence       = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	link        = regexp.MustCompile(`\[([^\]]*)\]\(([^()\s]+)\)`)
	scheme      = regexp.MustCompile(`^[a-z]+:`)
	heading     = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	punctuation = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	code        = regexp.MustCompile("^`([^`]+)`$")
	quotation   = regexp.MustCompile(`^\d`)
	goTest      = regexp.MustCompile("go test ([^`#\n]+)")
)

// problems returns the wrong references in all pages.
func problems(t *testing.T, files fs.FS) (found []string) {
	t.Helper()
	for _, page := range pages(t, files) {
		text := read(t, files, page)
		for _, l := range link.FindAllStringSubmatch(prose(text), -1) {
			if problem := checkLink(t, files, page, l[1], l[2]); problem != "" {
				found = append(found, page+": "+problem)
			}
		}
		for _, command := range goTest.FindAllStringSubmatch(text, -1) {
			if problem := checkTests(t, files, command[1]); problem != "" {
				found = append(found, page+": "+problem)
			}
		}
	}
	return found
}

// pages returns all Markdown files outside of hidden folders and of the folder for built programs.
func pages(t *testing.T, files fs.FS) (found []string) {
	t.Helper()
	err := fs.WalkDir(files, ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != "." && (entry.Name()[0] == '.' || file == "bin"):
			return fs.SkipDir
		case path.Ext(file) == ".md":
			found = append(found, file)
		}
		return nil
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("found the pages %v, error %v", found, err)
	}
	return found
}

// prose returns a page without its code blocks.
func prose(text string) string { return fence.ReplaceAllString(text, "") }

// checkLink returns what is wrong with a relative link, or an empty string.
func checkLink(t *testing.T, files fs.FS, page, text, target string) string {
	t.Helper()
	if scheme.MatchString(target) {
		return ""
	}
	name, anchor, hasAnchor := strings.Cut(target, "#")
	file := page
	if name != "" {
		file = path.Join(path.Dir(page), name)
	}
	if !fs.ValidPath(file) {
		return target + " is outside of the repository"
	}
	if _, err := fs.Stat(files, file); err != nil {
		return target + " does not exist"
	}
	if hasAnchor && (path.Ext(file) != ".md" || !slices.Contains(anchors(read(t, files, file)), anchor)) {
		return fmt.Sprintf("%s has no heading #%s", file, anchor)
	}
	return checkText(t, files, text, file)
}

// checkText returns what is wrong with the text of a link to an existing file, or an empty string.
func checkText(t *testing.T, files fs.FS, text, file string) string {
	t.Helper()
	if quotation.MatchString(text) && !strings.Contains(unwrapped(read(t, files, file)), unwrapped(text)) {
		return file + " does not contain " + text
	}
	declaration := code.FindStringSubmatch(text)
	if path.Ext(file) == ".go" && declaration != nil && !declared(t, files, file)[declaration[1]] {
		return fmt.Sprintf("%s does not declare %s", file, declaration[1])
	}
	return ""
}

// unwrapped returns a text on one line.
func unwrapped(text string) string { return strings.Join(strings.Fields(text), " ") }

// anchors returns the anchors of the headings of a page, as GitHub names them.
func anchors(text string) (found []string) {
	count := map[string]int{}
	for _, h := range heading.FindAllStringSubmatch(prose(text), -1) {
		title := strings.ToLower(link.ReplaceAllString(h[1], "$1"))
		anchor := strings.ReplaceAll(punctuation.ReplaceAllString(title, ""), " ", "-")
		if n := count[anchor]; n > 0 {
			found = append(found, fmt.Sprintf("%s-%d", anchor, n))
		} else {
			found = append(found, anchor)
		}
		count[anchor]++
	}
	return found
}

// checkTests returns what is wrong with the arguments of go test, or an empty string. Each alternative of -run must
// begin with the name of a test in one of the packages.
func checkTests(t *testing.T, files fs.FS, arguments string) string {
	t.Helper()
	words, known := strings.Fields(arguments), map[string]bool{}
	var folders []string
	for _, word := range words {
		folder, ok := strings.CutPrefix(word, "./")
		if !ok {
			continue
		}
		folders = append(folders, word)
		tests, err := fs.Glob(files, path.Join(folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range tests {
			maps.Copy(known, declared(t, files, file))
		}
	}
	run := slices.Index(words, "-run") + 1
	switch run {
	case 0:
		return ""
	case len(words):
		return "go test " + arguments + ": the names of the tests are not on this line"
	}
	for name := range strings.SplitSeq(strings.Trim(words[run], `'"`), "|") {
		name, _, _ = strings.Cut(name, "/")
		if name = strings.Trim(name, "^$"); !known[name] {
			return fmt.Sprintf("%s has no test %s", strings.Join(folders, " "), name)
		}
	}
	return ""
}

// declared returns the names that a Go file declares at the top level. A method is Type.method.
func declared(t *testing.T, files fs.FS, name string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, read(t, files, name), parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[receiver(d)+d.Name.Name] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names[s.Name.Name] = true
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names[name.Name] = true
					}
				}
			}
		}
	}
	return names
}

// receiver returns the type of the receiver and a dot, or an empty string for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	return of.(*ast.Ident).Name + "."
}

func read(t *testing.T, files fs.FS, name string) string {
	t.Helper()
	text, err := fs.ReadFile(files, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

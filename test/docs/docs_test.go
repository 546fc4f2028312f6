// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docs checks links of the documentation, declarations and tests that it names, and words in string literals.
package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
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

var update = flag.Bool("update", false, "write the current line numbers of declarations into the links of docs/tour.md")

// TestReferences checks all pages. If the text of a link to a Go file is code, such as
// [`Machine.Reconcile`](machine.go), the Go file must declare this name. If the link has line numbers, they must be the
// lines of the declaration. If the text of a link begins with a digit, the linked page must contain the text. If the
// text of a link to an issue has a number, this must be the number of the issue.
func TestReferences(t *testing.T) {
	if *update {
		updateLines(t)
	}
	for _, problem := range problems(t, os.DirFS(repository)) {
		t.Error(problem)
	}
}

// TestTourNamesDeclarations checks that each link to a Go file in the tour has a name in code and line numbers. Only
// then does TestReferences compare the line numbers with the declaration.
func TestTourNamesDeclarations(t *testing.T) {
	links := 0
	for _, l := range link.FindAllStringSubmatch(prose(read(t, os.DirFS(repository), tour)), -1) {
		file, anchor, _ := strings.Cut(l[2], "#")
		if path.Ext(file) != ".go" {
			continue
		}
		if links++; !code.MatchString(l[1]) || !lines.MatchString(anchor) {
			t.Errorf("%s: the link %s does not have a name in code and its lines, such as #L1-L9", tour, l[0])
		}
	}
	if links == 0 {
		t.Errorf("%s has no link to a Go file", tour)
	}
}

// updateLines writes the current line numbers of declarations into the links of the tour.
func updateLines(t *testing.T) {
	t.Helper()
	files := os.DirFS(repository)
	text := link.ReplaceAllStringFunc(read(t, files, tour), func(l string) string {
		parts := link.FindStringSubmatch(l)
		target, _, _ := strings.Cut(parts[2], "#")
		name := code.FindStringSubmatch(parts[1])
		if path.Ext(target) != ".go" || name == nil {
			return l
		}
		found := declared(t, files, path.Join(path.Dir(tour), target))[name[1]]
		return fmt.Sprintf("[%s](%s#%s)", parts[1], target, found)
	})
	if err := os.WriteFile(filepath.Join(repository, tour), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPagesAreReachable checks that links lead from README.md to each page in docs.
func TestPagesAreReachable(t *testing.T) {
	files := os.DirFS(repository)
	for _, page := range unreachable(t, files) {
		t.Errorf("no links lead from README.md to %s", page)
	}
}

// unreachable returns the pages in docs to which no links lead from README.md.
func unreachable(t *testing.T, files fs.FS) []string {
	t.Helper()
	reached, next := map[string]bool{}, []string{"README.md"}
	for len(next) > 0 {
		page := next[0]
		next = next[1:]
		if reached[page] {
			continue
		}
		reached[page] = true
		for _, l := range link.FindAllStringSubmatch(prose(read(t, files, page)), -1) {
			name, _, _ := strings.Cut(l[2], "#")
			if path.Ext(name) == ".md" && !scheme.MatchString(name) {
				next = append(next, path.Join(path.Dir(page), name))
			}
		}
	}
	return slices.DeleteFunc(pages(t, files), func(page string) bool {
		return reached[page] || !strings.HasPrefix(page, "docs/")
	})
}

func TestUnreachable(t *testing.T) {
	files := fstest.MapFS{
		"README.md": {Data: []byte("[a](docs/a.md#start)")},
		"OTHER.md":  {Data: []byte("[c](docs/sub/c.md)")},
		"docs/a.md": {
			Data: []byte("[b](sub/b.md), [site](https://example.com/docs/sub/c.md)\n```\n[c](sub/c.md)\n```\n"),
		},
		"docs/sub/b.md": {Data: []byte("[a](../a.md)")},
		"docs/sub/c.md": {Data: []byte("nothing")},
	}
	if diff := cmp.Diff([]string{"docs/sub/c.md"}, unreachable(t, files)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestIndex checks that docs/README.md has a link to each page in docs.
func TestIndex(t *testing.T) {
	files := os.DirFS(repository)
	index := read(t, files, "docs/README.md")
	for _, page := range pages(t, files) {
		name, inDocs := strings.CutPrefix(page, "docs/")
		if inDocs && name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md has no link to %s", name)
		}
	}
}

// TestReadmeIsShort limits the length of README.md, because the pages in docs have the details.
func TestReadmeIsShort(t *testing.T) {
	if n, most := strings.Count(read(t, os.DirFS(repository), "README.md"), "\n"), 120; n > most {
		t.Errorf("README.md has %d lines, want at most %d", n, most)
	}
}

// TestReadmeIsInOrder checks that a newcomer finds the parts of README.md in this order.
func TestReadmeIsInOrder(t *testing.T) {
	rest := read(t, os.DirFS(repository), "README.md")
	for _, part := range []string{
		"**Status:**", "docs/images/demo.svg", "$ make demo", "$ make test", "docs/images/demo.png", "## Install",
		"$ make deploy", "$ helm install", "$ operator-sdk run bundle", "## What it does", "## Documentation",
	} {
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Fatalf("README.md has no %q after the parts before it", part)
		}
		rest = after
	}
}

// TestReadmeCommands checks that the page about the installation has the same commands as README.md. test/integration
// and test/e2e run the commands of that page.
func TestReadmeCommands(t *testing.T) {
	page := read(t, os.DirFS(repository), "docs/installing.md")
	for _, command := range []string{"$ make docker-buildx ", "$ make deploy ", "$ operator-sdk run bundle "} {
		_, after, _ := strings.Cut(read(t, os.DirFS(repository), "README.md"), command)
		arguments, _, _ := strings.Cut(after, "\n")
		if !strings.Contains(page, "\n"+command+arguments+"\n") {
			t.Errorf("docs/installing.md has no command %s%s", command, arguments)
		}
	}
}

// TestTourChapters checks that each chapter of the tour has four parts, a mutation test, and a link to lines of code.
func TestTourChapters(t *testing.T) {
	chapters := strings.Split(read(t, os.DirFS(repository), tour), "\n## ")[1:]
	for _, chapter := range chapters {
		name, rest, _ := strings.Cut(chapter, "\n")
		for _, part := range []string{"**Naive.**", "**How it breaks.**", "$ make mutants ", "**Ours.**", ".go#L", "**What it costs.**"} {
			_, after, found := strings.Cut(rest, part)
			if !found {
				t.Errorf("%s: the chapter %s has no %s after the parts before it", tour, name, part)
				break
			}
			rest = after
		}
	}
	if len(chapters) != 10 {
		t.Errorf("%s has %d chapters, want 10, as its first paragraph says", tour, len(chapters))
	}
}

// TestProblems requires exactly one problem for each wrong reference.
func TestProblems(t *testing.T) {
	files := fstest.MapFS{
		"docs/other.md":   {Data: []byte("# Other page\n## `Twice`, here\n## Twice here\n```\n# no heading\n```\n")},
		"docs/figures.md": {Data: []byte("There is 1\nfigure.\n")},
		"pkg/code.go": {
			Data: []byte("package pkg\n\nconst limit = 1\n\ntype T struct{}\n\nfunc (*T) method() {\n\t_ = 1\n}\n"),
		},
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
		{"[`limit`](pkg/code.go#L3), [`T.method`](pkg/code.go#L7-L9)", ""},
		{"[`limit`](pkg/code.go#L5)", "README.md: pkg/code.go#L5: limit is at L3; -update corrects the tour"},
		{"[`T.method`](pkg/code.go#L7)", "README.md: pkg/code.go#L7: T.method is at L7-L9; -update corrects the tour"},
		{"[`other`](pkg/code.go#L7)", "README.md: pkg/code.go does not declare other"},
		{"[1 figure](docs/figures.md), [a\nfigure](docs/figures.md)", ""},
		{"[2 figures](docs/figures.md)", "README.md: docs/figures.md does not contain 2 figures"},
		{"[site](https://example.com/none), [mail](mailto:a@example.com)", ""},
		{"[Site #1](https://github.com/owner/name/issues/1)", ""},
		{
			"[Site #1](https://github.com/owner/name/issues/2)",
			"README.md: the text of the link to https://github.com/owner/name/issues/2 is Site #1",
		},
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
	issue       = regexp.MustCompile(`^https://github\.com/[\w-]+/[\w-]+/issues/(\d+)$`)
	heading     = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	punctuation = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	code        = regexp.MustCompile("^`([^`]+)`$")
	lines       = regexp.MustCompile(`^L\d+(-L\d+)?$`)
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

// checkLink returns what is wrong with a link, or an empty string. Of links to other sites, it checks only those to
// issues.
func checkLink(t *testing.T, files fs.FS, page, text, target string) string {
	t.Helper()
	if scheme.MatchString(target) {
		return checkIssue(text, target)
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
	if path.Ext(file) == ".go" && code.MatchString(text) {
		return checkDeclaration(t, files, file, code.FindStringSubmatch(text)[1], anchor)
	}
	if hasAnchor && (path.Ext(file) != ".md" || !slices.Contains(anchors(read(t, files, file)), anchor)) {
		return fmt.Sprintf("%s has no heading #%s", file, anchor)
	}
	return checkText(t, files, text, file)
}

// checkIssue returns what is wrong with the number in the text of a link to an issue, or an empty string.
func checkIssue(text, target string) string {
	_, number, hasNumber := strings.Cut(text, " #")
	if got := issue.FindStringSubmatch(target); hasNumber && got != nil && got[1] != number {
		return fmt.Sprintf("the text of the link to %s is %s", target, text)
	}
	return ""
}

// checkText returns what is wrong with the text of a link to an existing file, or an empty string.
func checkText(t *testing.T, files fs.FS, text, file string) string {
	t.Helper()
	if quotation.MatchString(text) && !strings.Contains(unwrapped(read(t, files, file)), unwrapped(text)) {
		return file + " does not contain " + text
	}
	return ""
}

// checkDeclaration returns what is wrong with a link to a declaration in a Go file, or an empty string. The anchor may
// be empty.
func checkDeclaration(t *testing.T, files fs.FS, file, name, anchor string) string {
	t.Helper()
	switch found := declared(t, files, file)[name]; {
	case found == "":
		return fmt.Sprintf("%s does not declare %s", file, name)
	case anchor != "" && anchor != found:
		return fmt.Sprintf("%s#%s: %s is at %s; -update corrects the tour", file, anchor, name, found)
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
	words, known := strings.Fields(arguments), map[string]string{}
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
		if name = strings.Trim(name, "^$"); known[name] == "" {
			return fmt.Sprintf("%s has no test %s", strings.Join(folders, " "), name)
		}
	}
	return ""
}

// declared returns the names that a Go file declares at the top level, and their lines, such as L1-L9. A method is
// Type.method.
func declared(t *testing.T, files fs.FS, name string) map[string]string {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, read(t, files, name), parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	add := func(name string, node ast.Node) {
		first, last := set.Position(node.Pos()).Line, set.Position(node.End()).Line
		if names[name] = fmt.Sprintf("L%d", first); last > first {
			names[name] += fmt.Sprintf("-L%d", last)
		}
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(receiver(d)+d.Name.Name, d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					add(s.Name.Name, s)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						add(name.Name, s)
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

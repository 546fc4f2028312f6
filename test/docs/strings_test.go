// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestWordsInStrings applies the word lists of hack/vale to string literals and to the texts for OLM. Vale checks only
// Markdown and comments. But users also read flags, logs, events and errors.
func TestWordsInStrings(t *testing.T) {
	files, avoided := os.DirFS(repository), avoidedWords(t)
	err := fs.WalkDir(files, ".", func(file string, entry fs.DirEntry, err error) error {
		switch folder := path.Dir(file); {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "bin" || len(entry.Name()) > 1 && entry.Name()[0] == '.'):
			return fs.SkipDir
		case path.Ext(file) == ".go":
			for _, literal := range literals(t, file, read(t, files, file)) {
				check(t, avoided, file, literal)
			}
		case folder == "config/manifests/bases" && !entry.IsDir():
			check(t, avoided, file, read(t, files, file))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// avoidedWords returns a regular expression that matches the words in the lists of hack/vale. It ignores letter case.
func avoidedWords(t *testing.T) *regexp.Regexp {
	t.Helper()
	var words []string
	lists, err := fs.Glob(os.DirFS(repository), "hack/vale/English/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		var style struct {
			Swap   map[string]string
			Tokens []string
		}
		if err := yaml.Unmarshal([]byte(read(t, os.DirFS(repository), list)), &style); err != nil {
			t.Fatal(err)
		}
		for word := range style.Swap {
			words = append(words, word)
		}
		for _, word := range style.Tokens {
			if !strings.Contains(word, "(?<") { // Go has no lookbehind
				words = append(words, word)
			}
		}
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(words, "|") + `)\b`)
}

// literals returns the string literals of a Go file.
func literals(t *testing.T, name, src string) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			found = append(found, literal.Value)
		}
		return true
	})
	return found
}

func check(t *testing.T, avoided *regexp.Regexp, file, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if word := avoided.FindString(line); word != "" {
			t.Errorf("%s: do not write %q, see hack/vale: %s", file, word, line)
		}
	}
}

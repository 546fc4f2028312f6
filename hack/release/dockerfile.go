// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// stage is the last stage of a Dockerfile.
type stage struct {
	base    string
	config  v1.Config
	entries []entry // files from the build context
	built   []entry // files from another stage; source is their path there
}

// parseDockerfile reads the last stage of a Dockerfile. So an image of a release has the same labels, user and commands
// as an image from a container tool. parseDockerfile fails if it does not know an instruction.
func parseDockerfile(root, file, version string) (*stage, error) {
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, err
	}
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(data), "")
	text = strings.ReplaceAll(text, "\\\n", " ")
	start := strings.LastIndex("\n"+text, "\nFROM ")
	if start < 0 {
		return nil, fmt.Errorf("%s has no FROM", file)
	}
	s := &stage{config: v1.Config{Labels: map[string]string{}, WorkingDir: "/"}}
	for line := range strings.Lines(text[start:]) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest = strings.ReplaceAll(strings.TrimSpace(rest), "$VERSION", "v"+version)
		if err := s.apply(root, instruction, rest); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, strings.TrimSpace(line), err)
		}
	}
	return s, nil
}

var label = regexp.MustCompile(`(\S+?)=(?:"([^"]*)"|(\S+))`)

func (s *stage) apply(root, instruction, rest string) error {
	switch instruction {
	case "", "ARG":
	case "FROM":
		s.base = rest
	case "LABEL":
		for _, match := range label.FindAllStringSubmatch(rest, -1) {
			s.config.Labels[match[1]] = match[2] + match[3]
		}
	case "USER":
		s.config.User = rest
	case "ENTRYPOINT":
		return json.Unmarshal([]byte(rest), &s.config.Entrypoint)
	case "CMD":
		return json.Unmarshal([]byte(rest), &s.config.Cmd)
	case "COPY":
		return s.copy(root, strings.Fields(rest))
	default:
		return fmt.Errorf("hack/release does not support %s", instruction)
	}
	return nil
}

func (s *stage) copy(root string, words []string) error {
	switch {
	case len(words) == 2:
		entries, err := entriesOf(filepath.Join(root, words[0]), strings.TrimPrefix(path.Clean(words[1]), "/"))
		s.entries = append(s.entries, entries...)
		return err
	case len(words) == 3 && words[0] == "--from=builder":
		s.built = append(s.built, entry{name: strings.TrimPrefix(words[2], "/"), source: words[1], program: true})
		return nil
	}
	return fmt.Errorf("hack/release supports only COPY FOLDER TO, and COPY --from=builder FILE TO")
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"

	"container.training/useless/hack/console"
)

const current = "0.1.0"

// gitConfig replaces the user's and the system's git configuration. The clone may belong to another user. A user may
// ignore files in all repositories. A release must notice untracked files even if git status does not show them.
const gitConfig = `
[safe]
	directory = *
[core]
	excludesFile =
[status]
	showUntrackedFiles = no
[user]
	name = test
	email = test@example.com
`

// TestMain runs the tests without the user's git settings. Git sets variables such as GIT_DIR for its hooks. With these
// variables, the tests would change the user's repository.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "release-test-")
	if err != nil {
		log.Fatal(err)
	}
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "GIT_") {
			err = errors.Join(err, os.Unsetenv(name))
		}
	}
	config := filepath.Join(dir, "gitconfig")
	err = errors.Join(err, os.WriteFile(config, []byte(gitConfig), 0o600),
		os.Setenv("GIT_CONFIG_GLOBAL", config), os.Setenv("GIT_CONFIG_NOSYSTEM", "1"))
	if err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// copyTree copies files of this repository to a new repository with one commit. So the test also works with changes
// that are not committed.
func copyTree(t *testing.T, paths ...string) (root string) {
	t.Helper()
	root = t.TempDir()
	args := append([]string{"-C", "../..", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, paths...)
	list, err := exec.Command("git", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for file := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		writeFile(t, filepath.Join(root, file), readFile(t, "../..", file))
		copyMode(t, filepath.Join(root, file), filepath.Join("../..", file))
	}
	git(t, root, "init", "--quiet")
	commit(t, root)
	return root
}

// copyMode gives a file the mode of another file, because the scripts must be executable.
func copyMode(t *testing.T, file, from string) {
	t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, info.Mode()); err != nil {
		t.Fatal(err)
	}
}

// versionedFiles returns the files whose version a release checks.
func versionedFiles() []string {
	files := []string{"CHANGELOG.md"}
	for _, place := range versions {
		files = append(files, place.file)
	}
	return files
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, elements ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func git(t *testing.T, root string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", args[0], err, output)
	}
}

func commit(t *testing.T, root string) {
	t.Helper()
	git(t, root, "add", "--all")
	git(t, root, "commit", "--quiet", "--message", "A release")
}

// newRelease returns a release of a tree. All its programs are the same small program, which compiles fast.
func newRelease(t *testing.T, root string) *release {
	t.Helper()
	return &release{
		root: root, version: current, log: t.Output(), url: "https://example.com/releases",
		platforms: []string{"linux/amd64", "linux/s390x"}, pluginPlatforms: []string{"linux-amd64", "windows-arm64"},
		created: time.Unix(1700000000, 0).UTC(),
		build: func(_ context.Context, _ program, _, file string) error {
			small, err := smallProgram()
			if err != nil {
				return err
			}
			return os.WriteFile(file, small, 0o755)
		},
	}
}

var smallProgram = sync.OnceValues(func() ([]byte, error) {
	folder, err := os.MkdirTemp("", "release-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	source, file := filepath.Join(folder, "main.go"), filepath.Join(folder, "program")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		return nil, err
	}
	if output, err := exec.Command("go", "build", "-o", file, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, output)
	}
	return os.ReadFile(file)
})

// TestTwoRuns makes the same release twice, in different folders and at different times. The checksums must be equal.
func TestTwoRuns(t *testing.T) {
	paths := append(versionedFiles(), "LICENSE", "*Dockerfile", "go.mod", "go.sum", "bundle", "catalog", "charts",
		"cmd/kubectl-useless/krew.yaml", "hack/sbom", "hack/tool", "hack/tools/helm.*")
	var out string
	var sums []string
	for range 2 {
		out = filepath.Join(t.TempDir(), "release")
		if err := newRelease(t, copyTree(t, paths...)).publish(t.Context(), out); err != nil {
			t.Fatal(err)
		}
		sums = append(sums, readFile(t, out, checksumFile))
		checkFiles(t, out)
	}
	if diff := cmp.Diff(sums[0], sums[1]); diff != "" {
		t.Errorf("two runs differ (-first +second):\n%s", diff)
	}
	if !testing.Short() { // compiles this package again
		checkDocumentedPush(t, out)
	}
}

// checkDocumentedPush runs the commands of docs/installing.md that verify a release and push its images.
func checkDocumentedPush(t *testing.T, out string) {
	t.Helper()
	host := startRegistry(t)
	replace := strings.NewReplacer("/tmp/release", out, "registry.example.com", host)
	for _, block := range console.Blocks(readFile(t, "../../docs/installing.md")) {
		if !strings.HasPrefix(block.Commands[0].Text, "(cd /tmp/release") {
			continue
		}
		for _, command := range block.Commands {
			shell := exec.CommandContext(t.Context(), "bash", "-ec", replace.Replace(command.Text))
			shell.Dir, shell.Env = "../..", append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
			if output, err := shell.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", command.Text, err, output)
			}
		}
		for _, image := range []string{"useless-operator", "useless-operator-bundle", "useless-operator-catalog"} {
			pull(t, host+"/"+image+":v"+current, "s390x")
		}
		return
	}
	t.Error("docs/installing.md has no commands that push the images of a release")
}

// startRegistry starts a registry for images, and returns its address. The registry stops at the end of the test.
func startRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// checkFiles checks the names of all files, and the content that no other test checks.
func checkFiles(t *testing.T, out string) {
	t.Helper()
	want := []string{
		"SHA256SUMS", "catalog.yaml", "install.yaml", "kubectl-useless-linux-amd64.tar.gz",
		"kubectl-useless-windows-arm64.zip", "kubectl-useless.cdx.json", "notes.md", "useless-operator-0.1.0.tgz",
		"useless-operator-bundle-v0.1.0.oci.tar", "useless-operator-bundle-v0.1.0.tar.gz",
		"useless-operator-catalog-v0.1.0.oci.tar", "useless-operator-catalog.cdx.json",
		"useless-operator-v0.1.0.oci.tar", "useless-operator.cdx.json", "useless.yaml",
	}
	if diff := cmp.Diff(want, names(t, out)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	sums := readFile(t, out, checksumFile)
	if got := strings.Count(sums, "\n"); got != len(want)-1 {
		t.Errorf("%s has %d files, want %d", checksumFile, got, len(want)-1)
	}
	if notes := readFile(t, out, "notes.md"); !strings.HasPrefix(notes, "### Added\n") {
		t.Errorf("notes.md is not the version's section of CHANGELOG.md:\n%.200s", notes)
	}
	checkKrew(t, out, sums)
	windows, err := zip.OpenReader(filepath.Join(out, "kubectl-useless-windows-arm64.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer windows.Close()
	if first := windows.File[1]; first.Name != "kubectl-useless.exe" || first.Mode().Perm() != 0o755 {
		t.Errorf("the archive for Windows has %s with mode %s", first.Name, first.Mode())
	}
}

func checkKrew(t *testing.T, out, sums string) {
	t.Helper()
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct{ URI, SHA256, Bin string }
		}
	}
	if err := yaml.Unmarshal([]byte(readFile(t, out, "useless.yaml")), &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Spec.Version != "v0.1.0" || len(manifest.Spec.Platforms) != 2 {
		t.Errorf("unexpected manifest for krew: %+v", manifest)
	}
	for _, platform := range manifest.Spec.Platforms {
		file := strings.TrimPrefix(platform.URI, "https://example.com/releases/")
		if !strings.Contains(sums, platform.SHA256+"  "+file+"\n") {
			t.Errorf("the checksum of %s in the manifest for krew is not in %s", file, checksumFile)
		}
	}
}

func names(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// TestRefusals checks the cases in which make release must fail. It must leave no file. If one of its checks fails, the
// error must name the remedy.
func TestRefusals(t *testing.T) {
	tree := copyTree(t, versionedFiles()...)
	for reason, test := range map[string]struct {
		change  func(t *testing.T, root string, r *release)
		wantErr string
	}{
		"a file is not committed": {
			func(t *testing.T, root string, _ *release) {
				t.Helper()
				writeFile(t, filepath.Join(root, "new.go"), "")
			},
			"the working tree has changes; commit or remove them:\n?? new.go",
		},
		"the version is not in the manifests": {
			func(_ *testing.T, _ string, r *release) { r.version = "0.2.0" },
			"config/manager/kustomization.yaml has version 0.1.0, not 0.2.0; set newTag, and commit the change",
		},
		"a generated file has an older version": {
			replace("dist/install.yaml", "useless-operator:v0.1.0", "useless-operator:v0.0.9"),
			"dist/install.yaml has version 0.0.9, not 0.1.0; run make build-installer, and commit the change",
		},
		"the version is not in the changelog": {
			replace("CHANGELOG.md", "## 0.1.0", "## 0.3.0"),
			`CHANGELOG.md has no version 0.1.0; add the heading "## 0.1.0 - DATE" above its changes`,
		},
		"the tag is set, but the changelog has no date": {
			func(t *testing.T, root string, _ *release) { t.Helper(); git(t, root, "tag", "v0.1.0") },
			`the commit has the tag v0.1.0, but CHANGELOG.md has the heading "0.1.0 - Unreleased"; replace Unreleased with a date`,
		},
		"the version has the wrong format": {
			func(_ *testing.T, _ string, r *release) { r.version = "v0.1.0" },
			`version "v0.1.0": Invalid character(s) found in major number "v0"; for example, use VERSION=0.1.0`,
		},
		"a program does not compile": {
			func(_ *testing.T, _ string, r *release) {
				r.build = func(context.Context, program, string, string) error { return errors.New("a syntax error") }
			},
			"compile the programs: compile manager for linux/amd64: a syntax error",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			root, parent := filepath.Join(t.TempDir(), "clone"), t.TempDir()
			git(t, ".", "clone", "--quiet", "--no-tags", tree, root)
			r := newRelease(t, root)
			test.change(t, root, r)
			err := r.publish(t.Context(), filepath.Join(parent, "release"))
			if err == nil || !strings.HasPrefix(err.Error(), test.wantErr) {
				t.Errorf("got error %v, want %s", err, test.wantErr)
			}
			if left := names(t, parent); len(left) > 0 {
				t.Errorf("files remain: %v", left)
			}
		})
	}
}

// replace returns a function that changes a file and commits the change.
func replace(file, from, to string) func(*testing.T, string, *release) {
	return func(t *testing.T, root string, _ *release) {
		t.Helper()
		writeFile(t, filepath.Join(root, file), strings.ReplaceAll(readFile(t, root, file), from, to))
		commit(t, root)
	}
}

// TestFullFolder checks that publish rejects a folder that contains files, and does not change these files.
func TestFullFolder(t *testing.T) {
	out := t.TempDir()
	writeFile(t, filepath.Join(out, "mine"), "text")
	err := newRelease(t, "../..").publish(t.Context(), out)
	if want := "the folder " + out + " is not empty; use a new folder, or remove its files"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if diff := cmp.Diff([]string{"mine"}, names(t, out)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestSettings compiles a program with the Go settings of two users. Both builds must give the same file.
func TestSettings(t *testing.T) {
	r := newRelease(t, "../..")
	sbom, folder := program{"sbom", "./hack/sbom", ""}, t.TempDir()
	var sums []string
	for user, settings := range map[string][]string{
		"first":  {"GOAMD64=v1", "GOFLAGS=", "GOFIPS140=off"},
		"second": {"GOAMD64=v3", "GOFLAGS=-tags=netgo", "GOFIPS140=v1.0.0"},
	} {
		for _, setting := range settings {
			name, value, _ := strings.Cut(setting, "=")
			t.Setenv(name, value)
		}
		file := filepath.Join(folder, user)
		if err := r.goBuild(t.Context(), sbom, "linux/amd64", file); err != nil {
			t.Fatal(err)
		}
		sum, err := checksum(file)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, sum)
	}
	if sums[0] != sums[1] {
		t.Error("the settings of the user change the program")
	}
}

// TestPush pushes the images of a release to a registry, and pulls them for each platform.
func TestPush(t *testing.T) {
	r := newRelease(t, "../..")
	r.out, r.programs = t.TempDir(), t.TempDir()
	if err := errors.Join(r.compile(t.Context()), r.images(t.Context())); err != nil {
		t.Fatal(err)
	}
	host := startRegistry(t) + "/useless"
	var pushed bytes.Buffer
	if err := push(t.Context(), r.out, host, &pushed); err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]v1.Config{
		"useless-operator":         {User: "65532:65532", Entrypoint: []string{"/manager"}},
		"useless-operator-bundle":  {},
		"useless-operator-catalog": {User: "1001", Entrypoint: []string{"/bin/opm"}, Cmd: []string{"serve", "/configs"}},
	} {
		t.Run(image, func(t *testing.T) {
			reference := host + "/" + image
			if !strings.Contains(pushed.String(), reference+"@sha256:") {
				t.Errorf("the output has no digest of %s:\n%s", reference, pushed.String())
			}
			for _, platform := range []string{"amd64", "s390x"} {
				got := pull(t, reference+":v0.1.0", platform)
				if got.Architecture != platform || !got.Created.Equal(r.created) || len(got.Config.Labels) == 0 {
					t.Errorf("unexpected image %+v", got)
				}
				config := v1.Config{User: got.Config.User, Entrypoint: got.Config.Entrypoint, Cmd: got.Config.Cmd}
				if diff := cmp.Diff(want, config); diff != "" {
					t.Errorf("config (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func pull(t *testing.T, reference, architecture string) *v1.ConfigFile {
	t.Helper()
	tag, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestDockerfile checks that an image has the settings of its Dockerfile, and that unsupported instructions are errors.
func TestDockerfile(t *testing.T) {
	const from = "FROM golang AS builder\nRUN go build\nFROM scratch\n"
	for reason, test := range map[string]struct {
		text    string
		want    stage
		wantErr string
	}{
		"earlier stages and comments are ignored": {
			text: from + "# USER 0\nARG VERSION\nUSER 1:2\nENTRYPOINT [\"/manager\", \"-x\"]\nCMD [\"y\"]\n",
			want: stage{base: "scratch", config: v1.Config{User: "1:2", Entrypoint: []string{"/manager", "-x"}, Cmd: []string{"y"}}},
		},
		"several labels in one instruction": {
			text: from + "LABEL a=\"one word\" \\\n      b=$VERSION\nLABEL c=x/y\n",
			want: stage{base: "scratch", config: v1.Config{Labels: map[string]string{"a": "one word", "b": "v1.2.3", "c": "x/y"}}},
		},
		"files of the build context and of another stage": {
			text: from + "COPY files /to/\nCOPY --from=builder /manager /bin/manager\n",
			want: stage{
				base:    "scratch",
				entries: []entry{{name: "to/sub/file", source: "files/sub/file"}},
				built:   []entry{{name: "bin/manager", source: "/manager", program: true}},
			},
		},
		"a command that needs a container": {
			text:    from + "RUN mkdir /x\n",
			wantErr: "Dockerfile: RUN mkdir /x: hack/release does not support RUN",
		},
		"a changed owner": {
			text:    from + "COPY --chown=1 files /to/\n",
			wantErr: "Dockerfile: COPY --chown=1 files /to/: hack/release supports only COPY FOLDER TO, and COPY --from=builder FILE TO",
		},
	} {
		t.Run(reason, func(t *testing.T) {
			root := t.TempDir()
			writeFile(t, filepath.Join(root, "files/sub/file"), "text")
			writeFile(t, filepath.Join(root, "Dockerfile"), test.text)
			got, err := parseDockerfile(root, "Dockerfile", "1.2.3")
			if test.wantErr != "" {
				if err == nil || err.Error() != test.wantErr {
					t.Errorf("got error %v, want %s", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.entries {
				got.entries[i].source = strings.TrimPrefix(got.entries[i].source, root+"/")
			}
			test.want.config.WorkingDir = "/"
			if diff := cmp.Diff(&test.want, got, cmp.AllowUnexported(stage{}, entry{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("stage (-want +got):\n%s", diff)
			}
		})
	}
}

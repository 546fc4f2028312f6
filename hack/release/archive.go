// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file in an archive, or a folder for temporary files.
type entry struct {
	name    string // slash-separated
	source  string // path of the file; empty for a folder that all users can write to
	program bool   // users can run it
}

func (e entry) mode() fs.FileMode {
	if e.program {
		return 0o755
	}
	return 0o644
}

// entriesOf returns an entry for each file of a folder. to is their folder in the archive; empty means the root.
func entriesOf(folder, to string) (entries []entry, err error) {
	err = filepath.WalkDir(folder, func(file string, found fs.DirEntry, err error) error {
		if err != nil || found.IsDir() {
			return err
		}
		relative, err := filepath.Rel(folder, file)
		entries = append(entries, entry{name: path.Join(to, filepath.ToSlash(relative)), source: file})
		return err
	})
	return entries, err
}

// create writes a file. If it fails, part of the file remains: publish removes the folder of an incomplete release.
func create(file string, write func(io.Writer) error) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := write(out); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// writeTar writes the entries, sorted by name. The owner, mode and time of the source files do not affect the archive.
func writeTar(out io.Writer, created time.Time, entries []entry) error {
	archive := tar.NewWriter(out)
	for _, e := range sorted(entries) {
		if err := writeEntry(archive, created, e); err != nil {
			return err
		}
	}
	return archive.Close()
}

func writeEntry(archive *tar.Writer, created time.Time, e entry) error {
	if e.source == "" {
		return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: e.name + "/", Mode: 0o1777, ModTime: created})
	}
	info, err := os.Stat(e.source)
	if err != nil {
		return err
	}
	header := &tar.Header{Name: e.name, Mode: int64(e.mode()), Size: info.Size(), ModTime: created}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	return copyFile(archive, e.source)
}

// writeTarGz is writeTar with compression. The gzip header contains no name and no time, so the archive is
// reproducible.
func writeTarGz(out io.Writer, created time.Time, entries []entry) error {
	compressed := gzip.NewWriter(out)
	if err := writeTar(compressed, created, entries); err != nil {
		return err
	}
	return compressed.Close()
}

// writeZip writes the entries as a ZIP archive, for Windows. All entries must be files.
func writeZip(out io.Writer, created time.Time, entries []entry) error {
	archive := zip.NewWriter(out)
	for _, e := range sorted(entries) {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: created}
		header.SetMode(e.mode())
		file, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if err := copyFile(file, e.source); err != nil {
			return err
		}
	}
	return archive.Close()
}

func sorted(entries []entry) []entry {
	return slices.SortedFunc(slices.Values(entries), func(a, b entry) int { return strings.Compare(a.name, b.name) })
}

func copyFile(out io.Writer, file string) error {
	return read(file, func(in io.Reader) error { return copyAll(out, in) })
}

// unpackTarGz is unpackTar for a compressed archive.
func unpackTarGz(archive, folder string) error {
	return read(archive, func(file io.Reader) error {
		uncompressed, err := gzip.NewReader(file)
		if err != nil {
			return err
		}
		return unpackTar(uncompressed, folder)
	})
}

// unpackTar writes the files of an archive to a folder. It fails if a path in the archive is outside of the folder.
func unpackTar(archive io.Reader, folder string) error {
	for entries := tar.NewReader(archive); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("the archive contains the path %s", header.Name)
		}
		target := filepath.Join(folder, header.Name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := create(target, func(out io.Writer) error { return copyAll(out, entries) }); err != nil {
			return err
		}
	}
}

func read(file string, use func(io.Reader) error) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	return use(in)
}

func copyAll(out io.Writer, in io.Reader) error {
	_, err := io.Copy(out, in)
	return err
}

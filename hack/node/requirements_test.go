// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMissingPackages(t *testing.T) {
	static, dynamic := executable(t, elf.PT_LOAD), executable(t, elf.PT_INTERP)
	for _, test := range []struct {
		reason string
		path   map[string][]byte
		want   []string
	}{{
		reason: "nothing is missing",
		path:   map[string][]byte{"runc": dynamic, "nft": dynamic, "mount": dynamic, busybox: static},
	}, {
		reason: "all missing packages are named by their Debian names",
		want:   []string{"runc", "nftables", "mount", "busybox-static"},
	}, {
		reason: "a dynamically linked busybox is not enough",
		path:   map[string][]byte{"runc": dynamic, "nft": dynamic, "mount": dynamic, busybox: dynamic},
		want:   []string{"busybox-static"},
	}, {
		reason: "a busybox that is not an ELF file is not enough",
		path:   map[string][]byte{"runc": dynamic, "nft": dynamic, "mount": dynamic, busybox: []byte("#!/bin/sh\n")},
		want:   []string{"busybox-static"},
	}} {
		t.Run(test.reason, func(t *testing.T) {
			bin := t.TempDir()
			for name, text := range test.path {
				if err := os.WriteFile(filepath.Join(bin, name), text, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", bin)
			if diff := cmp.Diff(test.want, missingPackages()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// executable returns the headers of an ELF file with one segment.
func executable(t *testing.T, segment elf.ProgType) []byte {
	t.Helper()
	var text bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
		},
		elf.Prog64{Type: uint32(segment)},
	} {
		if err := binary.Write(&text, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return text.Bytes()
}

// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"container.training/useless/hack/cluster"
)

// registryAddress is the address of the node's image registry. The node pulls all images from it, even if an image name
// contains another registry.
const registryAddress = address + ":5000"

// busybox is the program that provides the shell in images.
const busybox = "busybox"

// serveImages starts an image registry in this process.
func serveImages(n *node) error {
	logFile, err := os.OpenFile(n.path("log", "registry.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	logger := log.New(logFile, "", log.LstdFlags)
	blobs := n.path("registry")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	cert, err := tls.LoadX509KeyPair(n.path("registry.crt"), n.path("registry.key"))
	if err != nil {
		return err
	}
	// The server does not offer HTTP/2. With HTTP/2, concurrent uploads of large layers waited forever for their shared
	// flow-control window.
	listener, err := tls.Listen("tcp", registryAddress,
		&tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:  registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)), registry.Logger(logger)),
		ErrorLog: logger,
	}
	go func() { logger.Print(server.Serve(listener)) }()
	return nil
}

// image is a container image. Besides the listed files and links, it contains only /tmp, and busybox if there are
// links.
type image struct {
	name   string            // without the registry
	files  map[string]string // source file by path in the image
	links  []string          // commands that are links to busybox
	entry  []string
	labels map[string]string
}

// imageVersions returns the tags of upstream's images. A key is the name of a file in hack/tools, without .mod.
func imageVersions() (map[string]string, error) {
	versions := map[string]string{}
	for _, file := range []string{"olm", "opm", "operator-sdk"} {
		version, err := cluster.Version(file)
		if err != nil {
			return nil, err
		}
		versions[file] = version
	}
	return versions, nil
}

// images returns the pause image, and the images that OLM and its tools need. They are as small as possible.
func images(n *node) ([]image, error) {
	versions, err := imageVersions()
	if err != nil {
		return nil, err
	}
	program := func(name string) string { return n.path("bin", name) }
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the commands of busybox: %w", err)
	}
	shell := strings.Fields(string(applets))
	return []image{{
		name:  pauseImage,
		links: []string{"sh", "sleep"},
		// Process 1 receives SIGTERM only if it has a handler.
		entry: []string{"/bin/sh", "-c", "trap exit TERM; sleep infinity & wait"},
	}, {
		name: "operator-framework/olm:" + versions["olm"],
		files: map[string]string{
			"bin/catalog":        program("catalog"),
			"bin/copy-content":   program("copy-content"),
			"bin/cpb":            program("cpb"),
			"bin/olm":            program("olm"),
			"bin/package-server": program("package-server"),
		},
		links: []string{"cp"},
		entry: []string{"/bin/olm"},
	}, {
		// hack/images/buildah makes its own version of this image, because that script must also work without a node.
		name: "operator-framework/opm:" + versions["opm"],
		files: map[string]string{
			"bin/grpc_health_probe": program("grpc-health-probe"),
			"bin/opm":               program("opm"),
			"configs/.keep":         os.DevNull,
		},
		links:  shell,
		entry:  []string{"/bin/opm"},
		labels: map[string]string{"operators.operatorframework.io.index.configs.v1": "/configs"},
	}, {
		name:  "operator-framework/scorecard-test:" + versions["operator-sdk"],
		files: map[string]string{"usr/local/bin/scorecard-test": program("scorecard-test")},
		entry: []string{"/usr/local/bin/scorecard-test"},
	}, {
		// operator-sdk unpacks catalogs with this image.
		name: "ubi9/ubi:9.7", links: shell,
	}, {
		name: "library/busybox:1", links: shell,
	}}, nil
}

// pushImages pushes the images to the registry. It calls reportReady for each image.
func pushImages(ctx context.Context, n *node, reportReady func(string)) error {
	ca, err := os.ReadFile(n.path("ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	all, err := images(n)
	if err != nil {
		return err
	}
	for _, i := range all {
		if err := i.push(ctx, registryAddress, transport); err != nil {
			return fmt.Errorf("make image %s: %w", i.name, err)
		}
		reportReady("image " + i.name)
	}
	debug.FreeOSMemory() // the registry has read each image into memory
	return nil
}

func (i image) push(ctx context.Context, registry string, transport http.RoundTripper) error {
	to, err := name.ParseReference(registry + "/" + i.name)
	if err != nil {
		return err
	}
	// Do not compress: the image stays on this computer, so compression would not save time.
	layer, err := tarball.LayerFromOpener(i.open, tarball.WithCompressionLevel(gzip.NoCompression))
	if err != nil {
		return err
	}
	built, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := built.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = runtime.GOOS, runtime.GOARCH
	config.Config = v1.Config{
		Entrypoint: i.entry,
		Env:        []string{"PATH=/usr/local/bin:/bin"},
		Labels:     i.labels,
		User:       "1001", // a number, so that the kubelet can check that it is not root
		WorkingDir: "/",
	}
	if built, err = mutate.ConfigFile(built, config); err != nil {
		return err
	}
	return remote.Write(to, built, remote.WithContext(ctx), remote.WithTransport(transport))
}

// open returns the image's only layer, a tar archive.
func (i image) open() (io.ReadCloser, error) {
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(i.write(tar.NewWriter(writer))) }()
	return reader, nil
}

func (i image) write(w *tar.Writer) error {
	files := maps.Clone(i.files)
	if len(i.links) > 0 {
		path, err := exec.LookPath(busybox)
		if err != nil {
			return err
		}
		if files == nil {
			files = map[string]string{}
		}
		files["bin/"+busybox] = path
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
		return err
	}
	for _, to := range slices.Sorted(maps.Keys(files)) {
		if err := writeFile(w, to, files[to]); err != nil {
			return err
		}
	}
	for _, link := range i.links {
		if link == busybox {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + link, Linkname: busybox}); err != nil {
			return err
		}
	}
	return w.Close()
}

func writeFile(w *tar.Writer, to, from string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Name: to, Mode: 0o755}
	if info.Mode().IsRegular() {
		header.Size = info.Size()
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

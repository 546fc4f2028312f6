ARG VERSION=devel

# The builder runs on the build machine's platform. Go cross-compiles, so no emulation is needed.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26 AS builder
WORKDIR /src
# Download the modules in a layer of their own, because they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY internal internal
# These arguments have no defaults, because the container tool sets the target platform of the image.
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w -X main.version=$VERSION" -o /manager ./cmd

# The image contains only the binary. It needs no CA certificates: the Pod's ServiceAccount volume has the API server's
# CA.
FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="useless-operator" \
      org.opencontainers.image.description="Stops and starts the workloads of a Kubernetes cluster on time and on demand" \
      org.opencontainers.image.vendor="The useless-operator Authors" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version=$VERSION
COPY --from=builder /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]

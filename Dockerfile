ARG VERSION=devel

# The builder runs on the build machine's platform. Go cross-compiles, so no emulation is needed.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26 AS builder
WORKDIR /src
# Modules first: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY internal internal
# No defaults: the container tool sets the target platform of the image.
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /manager ./cmd

# Only the binary: the Pod's service account provides the CA of the API server.
FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="useless-operator" \
      org.opencontainers.image.description="A Kubernetes operator for useless machines" \
      org.opencontainers.image.vendor="The useless-operator Authors" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version=$VERSION
COPY --from=builder /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]

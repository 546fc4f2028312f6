ARG VERSION=devel

# On the machine's own platform, whatever the image is for: Go compiles for another one, and nothing is emulated.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26 AS builder
WORKDIR /src
# Modules first: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY internal internal
# Without a default, so that the image gets the platform it is built for.
ARG TARGETOS
ARG TARGETARCH
ARG VERSION
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /manager ./cmd

# Nothing but the binary: the API server's CA comes with the Pod's service account.
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

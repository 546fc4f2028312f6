FROM docker.io/library/golang:1.26 AS builder
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
ARG VERSION=devel
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /manager ./cmd

# Nothing but the binary: the API server's CA comes with the Pod's service account.
FROM scratch
COPY --from=builder /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]

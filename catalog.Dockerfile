# The builder runs on the build machine's platform, because the cache is the same on all platforms.
FROM --platform=$BUILDPLATFORM quay.io/operator-framework/opm:v1.65.0 AS builder
COPY catalog/useless-operator /configs/useless-operator
# Build the cache once here, and not in every Pod. opm creates a lock file next to the cache. Set
# grpcPodConfig.extractContent if the root file system is read-only.
RUN ["/bin/opm", "serve", "/configs", "--cache-dir=/tmp/cache", "--cache-only"]

FROM quay.io/operator-framework/opm:v1.65.0
ENTRYPOINT ["/bin/opm"]
CMD ["serve", "/configs", "--cache-dir=/tmp/cache"]
COPY --from=builder /configs /configs
COPY --from=builder /tmp/cache /tmp/cache
LABEL operators.operatorframework.io.index.configs.v1=/configs

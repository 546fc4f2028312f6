# On the machine's own platform, whatever the image is for: a cache is the same on all.
FROM --platform=$BUILDPLATFORM quay.io/operator-framework/opm:v1.65.0 AS builder
COPY catalog/useless-operator /configs/useless-operator
# Once here and not in every pod. opm locks it by a file: set grpcPodConfig.extractContent where the root is read-only.
RUN ["/bin/opm", "serve", "/configs", "--cache-dir=/tmp/cache", "--cache-only"]

FROM quay.io/operator-framework/opm:v1.65.0
ENTRYPOINT ["/bin/opm"]
CMD ["serve", "/configs", "--cache-dir=/tmp/cache"]
COPY --from=builder /configs /configs
COPY --from=builder /tmp/cache /tmp/cache
LABEL operators.operatorframework.io.index.configs.v1=/configs

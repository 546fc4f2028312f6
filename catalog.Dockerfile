FROM quay.io/operator-framework/opm:v1.65.0 AS builder
COPY catalog/useless-operator /configs/useless-operator
# Once here and not in every pod. opm locks it by a file, so a pod whose root is read-only takes it by extractContent.
RUN ["/bin/opm", "serve", "/configs", "--cache-dir=/tmp/cache", "--cache-only"]

FROM quay.io/operator-framework/opm:v1.65.0
ENTRYPOINT ["/bin/opm"]
CMD ["serve", "/configs", "--cache-dir=/tmp/cache"]
COPY --from=builder /configs /configs
COPY --from=builder /tmp/cache /tmp/cache
LABEL operators.operatorframework.io.index.configs.v1=/configs

FROM quay.io/operator-framework/opm:v1.65.0
ENTRYPOINT ["/bin/opm"]
# opm builds its cache when the Pod starts. For one package, this takes less than a second. A cache in the image would
# make each build different, because opm adds a random number to it. Set grpcPodConfig.extractContent if the root file
# system is read-only.
CMD ["serve", "/configs"]
COPY catalog/useless-operator /configs/useless-operator
LABEL operators.operatorframework.io.index.configs.v1=/configs

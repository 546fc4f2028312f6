# These values replace GOWORK, GOFLAGS and CGO_ENABLED in the user's environment. A command line can still set them, for
# example with make test GOFLAGS=-v. Without -buildvcs=false, go build runs git, which rejects a clone that belongs to
# another user. Without C code and debug information, programs compile and link faster. All commands use the same flags,
# so that the tests and the tools share packages in Go's cache.
export GOWORK := off
export GOFLAGS := -buildvcs=false -mod=readonly -trimpath -gcflags=all=-dwarf=false -ldflags=-w
export CGO_ENABLED := 0
# With auto, an older go command downloads the version of Go that go.mod requires. With local, the user forbids this.
export GOTOOLCHAIN := $(or $(filter local,$(GOTOOLCHAIN)),auto)
# Without HOME, Go has no folder for its caches.
ifeq ($(HOME),)
export HOME := $(CURDIR)/.local/home
endif
# With GOGC=400, Go's tools and the tests collect garbage less often. The compiler needs about 15 % less processor time,
# but more memory. hack/cluster removes this variable from the environment of the programs that it starts.
export GOGC ?= 400
# make before version 4.4 does not pass exported variables to $(shell), so these commands set them again.
SHELL_ENV = GOWORK=off GOFLAGS='$(GOFLAGS)' GOTOOLCHAIN='$(GOTOOLCHAIN)' HOME='$(HOME)'
# Commands with C code set CGO_ENABLED to this value: 1 with a C compiler, otherwise 0.
CGO = $(if $(filter command%,$(origin CGO_ENABLED)),$(CGO_ENABLED),$(shell env -u CGO_ENABLED $(SHELL_ENV) go env CGO_ENABLED))

# The version of this tree, from the image tag in config/manager.
VERSION ?= $(shell sed -n 's/^ *newTag: *v\([^ ]*\).*/\1/p' config/manager/kustomization.yaml)
# The image name in config/manager. make deploy and make bundle replace it with IMG.
CONFIG_IMAGE := container.training/useless-operator
IMAGE_TAG_BASE ?= $(CONFIG_IMAGE)
IMG ?= $(IMAGE_TAG_BASE):v$(VERSION)
BUNDLE_IMG ?= $(IMAGE_TAG_BASE)-bundle:v$(VERSION)
CATALOG_IMG ?= $(IMAGE_TAG_BASE)-catalog:v$(VERSION)

# The kustomization for deploy and undeploy: config/default (the operator issues its own certificates) or
# config/certmanager.
OVERLAY ?= config/default

# The program that builds images: docker or podman. Without access to registries, use hack/images/buildah. The Makefile
# passes BUILD_FLAGS and PUSH_FLAGS to it unchanged.
CONTAINER_TOOL ?= docker
KUBECTL ?= kubectl
FUZZTIME ?= 10s

TOOLS := $(filter-out go,$(basename $(notdir $(wildcard hack/tools/*.mod))))

# $(call tool,NAME) runs a program at the version that hack/tools/NAME.mod pins.
tool = '$(CURDIR)/hack/tool' $(1)

# make rebuilds bin/operator-sdk, bin/scorecard-test and bin/opm when their module in hack/tools changes. Without the
# build tag, these programs need a C library. The other flags are the same as in hack/cluster, so that both share the
# packages in Go's cache.
SDK := github.com/operator-framework/operator-sdk
SDK_VERSION := $(shell sed -n 's|.*$(SDK) \(v[0-9.]*\).*|\1|p' hack/tools/operator-sdk.mod)
operator-sdk := bin/operator-sdk
opm := bin/opm
olm-build = @CGO_ENABLED=0 go build -modfile=hack/tools/$(1).mod -trimpath -gcflags=all=-dwarf=false -tags=containers_image_openpgp -o $@

bin/operator-sdk: hack/tools/operator-sdk.mod
	$(call olm-build,operator-sdk) -ldflags="-X $(SDK)/internal/version.Version=$(SDK_VERSION)" $(SDK)/cmd/operator-sdk

bin/scorecard-test: hack/tools/operator-sdk.mod
	$(call olm-build,operator-sdk) $(SDK)/images/scorecard-test

bin/opm: hack/tools/opm.mod
	$(call olm-build,opm) github.com/operator-framework/operator-registry/cmd/opm

.DEFAULT_GOAL := help

##@ General

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Develop

# The API versions of all groups, such as useless/v1beta1.
API_VERSIONS := $(patsubst api/%/,%,$(sort $(dir $(wildcard api/*/*/groupversion_info.go))))
MODULE := container.training/useless

# $(call code-generator,PROGRAM,/FOLDER) runs a program that uses code-generator. It writes to the folder client/FOLDER.
code-generator = go run -modfile=hack/tools/code-generator.mod $(1) --go-header-file hack/boilerplate.go.txt \
	--output-dir client$(2) --output-pkg $(MODULE)/client$(2)

.PHONY: generate
generate: generate-versioned generate-listers generate-informers ## Generate deep copies, clients, listers and informers

.PHONY: generate-deepcopy
generate-deepcopy:
	$(call tool,controller-gen) object:headerFile=hack/boilerplate.go.txt paths="./api/..."

.PHONY: generate-versioned generate-listers generate-informers
generate-versioned generate-listers generate-informers: generate-%: generate-deepcopy
	@rm -rf client/$*
	$(generate-$*)

generate-versioned = $(call code-generator,hack/client-gen/main.go) --clientset-name versioned \
	--input-base $(MODULE)/api $(API_VERSIONS:%=--input %)
generate-listers = $(call code-generator,k8s.io/code-generator/cmd/lister-gen,/listers) $(API_VERSIONS:%=$(MODULE)/api/%)
generate-informers = $(call code-generator,k8s.io/code-generator/cmd/informer-gen,/informers) \
	$(API_VERSIONS:%=$(MODULE)/api/%) --single-directory \
	--versioned-clientset-package $(MODULE)/client/versioned --listers-package $(MODULE)/client/listers

# Each controller has its own ClusterRole in config/components. Its rules are the markers in controller.go. Each kind of
# workload that schedules support also has a ClusterRole. Its rules are the markers of one file, such as deployment.go.
# The ClusterRole in config/rbac has the rules of all other packages. controller-gen reads a file only if its path begins
# without "./".
COMPONENTS := $(patsubst config/components/%/permissions/,%,$(dir $(wildcard \
	config/components/*/permissions/kustomization.yaml config/components/schedule/*/permissions/kustomization.yaml)))
marked-file = internal/controller/$(if $(filter schedule/%,$(1)),$(1:%s=%),$(1)/controller).go
MARKED := $(filter-out internal/controller/%,$(sort $(dir $(wildcard internal/*/*.go internal/*/*/*.go))))

.PHONY: manifests
manifests: api-docs $(COMPONENTS:%=manifests-%) ## Generate CRDs, the operator's ClusterRoles, the webhook configuration and docs/api.md
	$(call tool,controller-gen) crd rbac:roleName=manager-role webhook paths="./api/..." $(MARKED:%=paths="./%") \
		output:crd:artifacts:config=config/crd/bases

.PHONY: $(COMPONENTS:%=manifests-%)
$(COMPONENTS:%=manifests-%): manifests-%:
	@$(call tool,controller-gen) rbac:roleName=useless-$(subst /,-,$*)-role paths=$(call marked-file,$*) \
		output:rbac:dir=config/components/$*/permissions

.PHONY: api-docs
api-docs: ## Write docs/api.md from the comments in api/
	$(call tool,crd-ref-docs) --source-path=api --config=hack/api-docs/config.yaml \
		--templates-dir=hack/api-docs/templates --renderer=markdown --output-path=docs/api.md --log-level=ERROR

.PHONY: fmt
fmt: ## Format the code
	go fmt ./...

.PHONY: vet
vet: ## Run go vet
	go vet -tags e2e,mutants ./...

# golangci-lint, compiled with the plugin kube-api-linter. Only .golangci-kal.yml enables the plugin.
golangci-lint = $(call tool,golangci-lint)

.PHONY: lint
lint: lint-prose lint-workflows lint-rules helm-lint ## Run golangci-lint, kube-api-linter on api/, the other lint targets and helm-lint
	$(golangci-lint) run
	$(golangci-lint) run --config .golangci-kal.yml ./api/...

# Vale contains parsers in C, so it needs a C compiler. The first build prints a compiler warning about one parser.
PROSE := $(wildcard *.md) docs api charts cmd hack internal test

.PHONY: lint-prose
lint-prose: ## Check the English of the documentation and of Go comments with the style in hack/vale
ifeq ($(CGO),1)
	@CGO_ENABLED=1 $(call tool,vale) --no-global --output=line --glob='*.{md,go}' $(PROSE)
else
	@echo "lint-prose: skipped, because there is no C compiler"
endif

# Without the two empty flags, actionlint runs shellcheck and pyflakes on machines that have them. grep finds actions that
# are not pinned by their commit.
.PHONY: lint-workflows
lint-workflows: ## Check the workflows in .github/workflows with actionlint
	@$(call tool,actionlint) -shellcheck= -pyflakes= .github/workflows/*.yml
	@! grep -n 'uses:' .github/workflows/*.yml | grep -vE '@[0-9a-f]{40} # v[0-9.]+$$'

.PHONY: lint-rules
lint-rules: promtool ## Check and test the alerts in config/prometheus with promtool
	@go test -count=1 ./test/rules

# helm must not use the plugins and settings of the user. Without --kube-version, a helm that is built from its module
# assumes Kubernetes 1.20.
CHART := charts/useless-operator
helm-lint: export HELM_CACHE_HOME := $(CURDIR)/bin/helm
helm-lint: export HELM_CONFIG_HOME := $(CURDIR)/bin/helm
helm-lint: export HELM_DATA_HOME := $(CURDIR)/bin/helm

.PHONY: helm-lint
helm-lint: ## Check the Helm chart with its default values and with each example in its folder ci
	@for values in $(CHART)/values.yaml $(CHART)/ci/*.yaml; do \
		$(call tool,helm) lint --strict --quiet --values $$values $(CHART) && \
		$(call tool,helm) template useless $(CHART) --kube-version 1.30.0 --values $$values > /dev/null || exit 1; \
	done

# This target does not apply the fixes of kube-api-linter, because some of them change the API.
.PHONY: lint-fix
lint-fix: ## Run golangci-lint and apply its automatic fixes
	$(golangci-lint) run --fix

# The database is vuln.go.dev. The environment variable GOVULNDB selects another database.
.PHONY: govulncheck
govulncheck: ## Look for known vulnerabilities in the code that the operator calls; needs the internet
	$(call tool,govulncheck) ./cmd

.PHONY: tidy
tidy: ## Tidy go.mod and the modules in hack/tools
	go mod tidy
	cd hack/tools && for mod in $(TOOLS:=.mod); do go mod tidy -modfile=$$mod || exit 1; done

##@ Test

# The race detector needs a C compiler. The programs that the tests compile do not.
RACE = $(if $(filter 1,$(CGO)),-race -exec 'env CGO_ENABLED=0')

# Packages with tests that start a control plane or run simulations.
CLUSTER_TESTS := test/integration test/chaos test/browser client hack/cluster test/bundle test/mutants test/sim
UNIT_TESTS = $(filter-out $(CLUSTER_TESTS:%=$(MODULE)/%),$(shell $(SHELL_ENV) go list ./...))
# test/integration takes the longest time and mostly waits. Therefore it starts first, and the number of packages that are
# compiled or tested at the same time is one more than the number of processors.
PACKAGES_AT_ONCE = -p $$(($${GOMAXPROCS:-$$(getconf _NPROCESSORS_ONLN)} + 1))
ALL_TESTS := ./test/integration ./...

# The first run on a machine compiles a control plane, which takes minutes.
.PHONY: control-plane prometheus
control-plane:
	@go run ./hack/cluster/build

prometheus:
	@go run ./hack/cluster/build prometheus

# The time to compile promtool must not count for the timeout of a test.
.PHONY: promtool
promtool:
	@hack/tool -n prometheus github.com/prometheus/prometheus/cmd/promtool > /dev/null

# Several packages run these tools. Without test-tools, each of them would compile helm on the first run, at the same
# time as the others.
.PHONY: test-tools
test-tools:
	@echo "Compiling kustomize and helm for the tests, if they have changed" >&2
	@for tool in kustomize helm; do hack/tool -n $$tool > /dev/null || exit; done

# With -short, a long test runs only a fixed part of its cases. The tests do not run go vet, because make lint runs it.
.PHONY: test
test: control-plane test-tools ## Run all tests, but only a part of the long tests; TESTFLAGS="-run Machine" passes flags to go test
	@hack/gotest test -short -vet=off -timeout 30m $(PACKAGES_AT_ONCE) $(TESTFLAGS) $(ALL_TESTS)

.PHONY: test-unit
test-unit: test-tools ## Run the tests that do not need a control plane
	@hack/gotest test-unit -short -vet=off $(TESTFLAGS) $(UNIT_TESTS)

# test/integration runs before the other packages. With the race detector, all packages together would need more than
# two processors, and timeouts would expire. With the race detector, the simulations and two tests of test/integration
# run only a part of their cases. Therefore they run again without the race detector, with all cases.
.PHONY: test-all
test-all: prometheus promtool test-tools ## Run all tests at full length, with the race detector
	@CGO_ENABLED=$(CGO) hack/gotest test-all-integration $(RACE) -timeout 30m $(TESTFLAGS) ./test/integration
	@CGO_ENABLED=$(CGO) hack/gotest test-all $(RACE) -timeout 30m $(TESTFLAGS) $$(go list ./... | grep -v /test/integration$$)
	$(if $(RACE),@hack/gotest test-all-sim -timeout 10m $(TESTFLAGS) ./test/sim ./internal/controller/schedule)
	$(if $(RACE),@hack/gotest test-all-many -timeout 30m -run '^Test(StorageMigration|ScheduleBurst)$$' $(TESTFLAGS) ./test/integration)

.PHONY: e2e
e2e: ## Install the operator as its users do, on a node with OLM or on the cluster of E2E_KUBECONFIG
	@test/e2e/run

# The variable KUBERNETES=1.35 selects one release. This also works for all other targets. The tests take about six
# minutes for each release.
.PHONY: test-versions
test-versions: test-tools ## Run the user stories on each release of Kubernetes and write docs/versions.md; with TESTFLAGS, write nothing
	go run ./test/versions $(TESTFLAGS)

SEEDS ?= 10000

.PHONY: soak
soak: ## Simulate SEEDS (10000) random runs, every pair of faults, and years of a schedule
	go test ./test/sim -run '^Test(Random|Year|Crashes)$$' -count=1 -timeout 0 -v -seeds $(SEEDS)

.PHONY: mutants
mutants: control-plane ## Run the mutation tests, and write the test that finds each mutant to docs/reliability.md
	go test -tags mutants -count=1 -timeout 0 -parallel 4 -v -run '^TestMutants$$' $(TESTFLAGS) ./test/mutants

CHAOS ?= 1

.PHONY: chaos
chaos: ## Run chaos tests, uninstall in every order, migrate 1,000 Machines; CHAOS (1) multiplies the number of disturbances
	@$(MAKE) --no-print-directory -j2 chaos-disturbances chaos-migration

# The tests write logs and the history of all objects to bin/chaos. They mostly wait. Therefore four tests run at the
# same time, even on two processors.
.PHONY: chaos-disturbances
chaos-disturbances:
	@mkdir -p bin/chaos
	go test -count=1 -timeout 0 -parallel 4 -v -artifacts -outputdir '$(CURDIR)/bin/chaos' $(TESTFLAGS) ./test/chaos -args -times $(CHAOS)

.PHONY: chaos-migration
chaos-migration:
	go test -count=1 -timeout 30m -v -run StorageMigration ./test/integration -args -migrated 1000

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME (10s) and print the number of executions
	@hack/fuzz $(FUZZTIME)

# With BASE=REV, make bench compares the operator in this folder with the operator of the commit REV. It then does not
# write docs/performance.md.
.PHONY: bench
bench: bin/bench/bench ## Compare the operator with a minimal client and write docs/performance.md; BASE=REV compares it with a commit
	@bin/bench/bench $(BASE:%=-base %)
	@$(if $(BASE),,bin/bench/bench report bin/bench docs)

.PHONY: bench-big
bench-big: bin/bench/bench ## Measure up to 300,000 Switches, with 24 GB of memory, and write docs/performance/big.md
	@bin/bench/bench -only big -out bin/bench/big
	@bin/bench/bench report bin/bench/big docs

.PHONY: bench-quick
bench-quick: bin/bench/bench ## Run a short version of make bench, which does not write docs/performance.md
	@bin/bench/bench -quick $(BASE:%=-base %)

.PHONY: bin/bench/bench
bin/bench/bench:
	@go build -buildvcs=false -o $@ ./test/bench

.PHONY: microbench
microbench: export GOGC := 100
microbench: ## Run Go benchmarks, some of them on a control plane
	go test -run '^$$' -bench . -benchmem $(TESTFLAGS) ./internal/... ./test/integration

.PHONY: demo
demo: ## Run the operator and its samples on a local control plane
	@go build -buildvcs=false -o bin/demo ./hack/demo
	@bin/demo

# npm compares the packages with the hashes in package-lock.json.
AXE := bin/axe/node_modules/axe-core/axe.min.js
$(AXE): hack/tools/axe/package.json hack/tools/axe/package-lock.json
	@mkdir -p bin/axe && cp $^ bin/axe/
	@cd bin/axe && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

.PHONY: axe
axe: $(AXE) ## Download the packages that test/browser and lint-page need; needs npm

.PHONY: lint-page
lint-page: $(AXE) ## Validate the HTML of the demo's web page with html-validate; needs npm
	@bin/axe/node_modules/.bin/html-validate --max-warnings=0 hack/demo/page/index.html

.PHONY: screenshots
screenshots: control-plane ## Write docs/images/demo.png, a picture of the demo's web page; needs Chromium
	USELESS_BROWSER=required USELESS_SCREENSHOT='$(CURDIR)/docs/images/demo.png' \
		go test -count=1 -run TestScreenshot ./test/browser

.PHONY: recording
recording: control-plane ## Write docs/images/demo.svg, a moving picture of the quick start in README.md (on Linux)
	@go build -o bin/record ./hack/demo/record
	bin/record > bin/demo.svg
	@mv bin/demo.svg docs/images/demo.svg

.PHONY: cluster-build
cluster-build: bin/node ## Compile all programs of a Kubernetes node with OLM, once
	@bin/node build

.PHONY: cluster-up
cluster-up: bin/node ## Start a Kubernetes node with OLM, from source (on Linux, as root)
	@bin/node up

.PHONY: cluster-down
cluster-down: bin/node ## Stop the node of make cluster-up and remove its files
	@bin/node down

.PHONY: bin/node
bin/node:
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o $@ ./hack/node

# The steps of make verify run in parallel. A step that reads the output of another step runs after it. make lint
# includes go vet.
VERIFY := tidy generate manifests dashboard build-installer chart bundle catalog fmt lint build-platforms bundle-validate catalog-validate

.PHONY: verify
verify: ## Regenerate and check everything; fail if a file differs from the index of git or is untracked
	@$(MAKE) --no-print-directory -s -j4 $(VERIFY:%=verify-%)
	@echo "verify: no difference"
	@git diff --exit-code
	@untracked=$$(git ls-files --others --exclude-standard); \
		if [ -n "$$untracked" ]; then echo "not committed:"; echo "$$untracked"; exit 1; fi

verify-tidy verify-manifests verify-fmt: verify-generate
verify-lint verify-build-platforms: verify-fmt
verify-lint: verify-chart
verify-build-installer verify-chart verify-bundle: verify-manifests
verify-chart: verify-dashboard
verify-catalog verify-bundle-validate: verify-bundle
verify-catalog-validate: verify-catalog

.PHONY: $(VERIFY:%=verify-%)
verify-build-platforms: export PLATFORMS := linux/amd64,linux/arm64
$(VERIFY:%=verify-%): verify-%:
	@start=$$(date +%s); output=$$($(MAKE) $* 2>&1); code=$$?; \
		echo "verify: $* took $$(($$(date +%s) - start)) s$${output:+$$(printf '\n%s' "$$output")}"; exit $$code

##@ Build

.PHONY: build
build: ## Build bin/manager
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=v$(VERSION)" -o bin/manager ./cmd

.PHONY: kubectl-useless
kubectl-useless: ## Build the kubectl plugin bin/kubectl-useless
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=v$(VERSION)" -o bin/kubectl-useless ./cmd/kubectl-useless

# The platforms of the image. The labels and the node affinity in config/ must name the same platforms.
PLATFORMS ?= linux/amd64,linux/arm64,linux/ppc64le,linux/s390x

.PHONY: build-platforms
build-platforms: ## Compile the operator for all PLATFORMS and discard the result
	@for platform in $$(echo $(PLATFORMS) | tr , ' '); do \
		echo "$$platform"; CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -trimpath -o /dev/null ./cmd || exit 1; \
	done

.PHONY: sbom
sbom: build ## Write the modules of bin/manager to bin/sbom.cdx.json, in CycloneDX's format
	go run ./hack/sbom -version v$(VERSION) bin/manager > bin/sbom.cdx.json

# The time of all files in an image. It is the time of the commit, so that a later build produces the same image.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH

.PHONY: docker-build
docker-build: ## Build the operator's image IMG
	$(CONTAINER_TOOL) build --file Dockerfile --build-arg VERSION=v$(VERSION) --tag $(IMG) $(BUILD_FLAGS) .

.PHONY: docker-reproduce
docker-reproduce: ## Build the operator's image twice with hack/images/buildah; fail if the two images differ
	@hack/images/reproduce

.PHONY: docker-push
docker-push: ## Push the operator's image IMG
	$(CONTAINER_TOOL) push $(PUSH_FLAGS) $(IMG)

# Docker cannot store an image for several platforms locally, so buildx pushes it. Docker's default builder cannot build
# for several platforms, so this target creates another builder.
.PHONY: buildx-builder
buildx-builder:
	@$(CONTAINER_TOOL) buildx inspect useless-builder >/dev/null 2>&1 || $(CONTAINER_TOOL) buildx create --name useless-builder

buildx = $(CONTAINER_TOOL) buildx build --builder useless-builder --platform $(PLATFORMS) --push

.PHONY: docker-buildx
docker-buildx: buildx-builder ## Build and push IMG for all PLATFORMS with Docker's buildx
	$(buildx) --file Dockerfile --build-arg VERSION=v$(VERSION) --tag $(IMG) $(BUILD_FLAGS) .

.PHONY: build-installer
build-installer: ## Render config/default to dist/install.yaml
	@mkdir -p dist
	$(call tool,kustomize) build config/default -o dist/install.yaml

.PHONY: dashboard
dashboard: ## Write the Grafana dashboard in config/grafana from hack/dashboard
	go run ./hack/dashboard

.PHONY: chart
chart: ## Generate the templates of the Helm chart from config/, and its README from values.yaml
	go run ./hack/chart
	$(call tool,helm-docs) --chart-search-root=charts --log-level=warning

##@ OLM

# To generate a bundle in another folder:
# make bundle BUNDLE_DIR=/tmp/next/bundle VERSION=0.2.0 IMG=registry.example.com/useless-operator:v0.2.0
BUNDLE_DIR ?= bundle
# For the first stable release, add the channel stable and make it the default.
CHANNELS ?= candidate
DEFAULT_CHANNEL ?= candidate
# MONITORING=true adds a ServiceMonitor and a PrometheusRule. Use it only for clusters with the Prometheus operator,
# because OLM cannot install a bundle with a kind that the cluster does not have. The serverName in
# the ServiceMonitor contains the namespace useless-system.
MONITORING ?=

# A bundle in another folder gets a copy of bundle/metadata, because the metadata is the same in every version. The name
# of that folder must be bundle, so that bundle.Dockerfile can build it: docker build -f bundle.Dockerfile /tmp/next
.PHONY: bundle
bundle: $(operator-sdk) ## Generate the bundle in BUNDLE_DIR for VERSION and IMG
	@mkdir -p bin/bundle
	@printf '%s\n' resources: '- ../../config/manifests' $(if $(MONITORING),'- ../../config/olm/prometheus') > bin/bundle/kustomization.yaml
	@cd bin/bundle && $(call tool,kustomize) edit set image $(CONFIG_IMAGE)=$(IMG)
	@rm -rf $(BUNDLE_DIR)/manifests $(BUNDLE_DIR)/tests
	@$(call tool,kustomize) build --output bin/bundle/manifests.yaml bin/bundle
	cat bin/bundle/manifests.yaml | $(operator-sdk) generate bundle --quiet --manifests --version $(VERSION) --output-dir $(BUNDLE_DIR) # it reads only pipes
	go run ./hack/bundle $(BUNDLE_DIR)
ifeq ($(abspath $(BUNDLE_DIR)),$(CURDIR)/bundle)
	$(operator-sdk) generate bundle --quiet --metadata --channels $(CHANNELS) --default-channel $(DEFAULT_CHANNEL)
else
	cp -R bundle/metadata $(BUNDLE_DIR)/
endif

.PHONY: bundle-validate
bundle-validate: $(operator-sdk) bin/scorecard-test ## Check the bundle with OLM's validators and operator-sdk's scorecard tests; a warning is an error
	BUNDLE_TOOLS='$(CURDIR)/bin' BUNDLE_DIR='$(abspath $(BUNDLE_DIR))' go test -count=1 -run 'OperatorSDK|Scorecard|Validators' ./test/bundle

.PHONY: bundle-build
bundle-build: ## Build the bundle image BUNDLE_IMG from BUNDLE_DIR
	$(CONTAINER_TOOL) build --file bundle.Dockerfile --tag $(BUNDLE_IMG) $(BUILD_FLAGS) $(BUNDLE_DIR)/..

.PHONY: bundle-push
bundle-push: ## Push the bundle image BUNDLE_IMG
	$(CONTAINER_TOOL) push $(PUSH_FLAGS) $(BUNDLE_IMG)

# CATALOG_DIR contains the catalog's template and the rendered catalog. make catalog creates missing files. To use other
# folders and images:
# make catalog CATALOG_DIR=/tmp/next/catalog BUNDLE_DIR=/tmp/next/bundle BUNDLE_IMG=registry.example.com/bundle:v0.2.0
#
# To add the next release, set its version in config/manager, and the previous version as spec.replaces in
# config/manifests. Then run make bundle catalog.
CATALOG_DIR ?= catalog

.PHONY: catalog
catalog: $(opm) ## Add the bundle in BUNDLE_DIR, with the image BUNDLE_IMG, to the catalog in CATALOG_DIR, and render the catalog
	$(opm) render $(BUNDLE_DIR) --alpha-image-ref-template $(BUNDLE_IMG) --migrate-level bundle-object-to-csv-metadata | \
		go run ./hack/catalog $(CATALOG_DIR) $(BUNDLE_DIR)

.PHONY: catalog-validate
catalog-validate: $(opm) ## Check the catalog in CATALOG_DIR with opm
	$(opm) validate $(CATALOG_DIR)/useless-operator

.PHONY: catalog-build
catalog-build: ## Build the catalog image CATALOG_IMG from CATALOG_DIR
	$(CONTAINER_TOOL) build --file catalog.Dockerfile --tag $(CATALOG_IMG) $(BUILD_FLAGS) $(CATALOG_DIR)/..

.PHONY: catalog-push
catalog-push: ## Push the catalog image CATALOG_IMG
	$(CONTAINER_TOOL) push $(PUSH_FLAGS) $(CATALOG_IMG)

# The bundle image needs no such target: it contains no program, so it works on every platform.
.PHONY: catalog-buildx
catalog-buildx: buildx-builder ## Build and push CATALOG_IMG for all PLATFORMS with Docker's buildx
	$(buildx) --file catalog.Dockerfile --tag $(CATALOG_IMG) $(BUILD_FLAGS) $(CATALOG_DIR)/..

# This target does not change an existing ci.yaml, because the repository community-operators owns that file. The
# pipeline of that repository also generates catalog-templates/basic.yaml, from release-config.yaml and with its own
# bundle images. Therefore this target does not copy catalog/template.yaml. Otherwise the catalog would contain every
# bundle twice.
.PHONY: community
community: ## Copy the files to publish VERSION to OUT, a clone of the repository community-operators
	@test -d "$(OUT)" || { echo 'No folder "$(OUT)". Say where the clone is: make community OUT=../community-operators'; exit 1; }
	@rm -rf "$(OUT)/operators/useless-operator/$(VERSION)"
	@mkdir -p "$(OUT)/operators/useless-operator/$(VERSION)"
	@test -e "$(OUT)/operators/useless-operator/ci.yaml" || cp $(CATALOG_DIR)/community/ci.yaml "$(OUT)/operators/useless-operator/"
	cp -R $(BUNDLE_DIR)/manifests $(BUNDLE_DIR)/metadata $(BUNDLE_DIR)/tests $(CATALOG_DIR)/community/release-config.yaml \
		"$(OUT)/operators/useless-operator/$(VERSION)/"

##@ Release

# The platforms of the kubectl plugin, and the URL of the folder with its published archives.
PLUGIN_PLATFORMS ?= linux-amd64,linux-arm64,darwin-amd64,darwin-arm64,windows-amd64,windows-arm64
PLUGIN_URL ?= https://container.training/useless/releases/v$(VERSION)

.PHONY: release
release: ## Make all files of the release VERSION in the new folder OUT, from the commit in this folder
	@go run ./hack/release make -version '$(VERSION)' -out '$(OUT)' -platforms '$(PLATFORMS)' \
		-plugin-platforms '$(PLUGIN_PLATFORMS)' -url '$(PLUGIN_URL)'

# The script gets PLATFORMS and PLUGIN_PLATFORMS only if the user sets them. By default, the release is for linux/amd64.
.PHONY: release-reproduce
release-reproduce: ## Make the release VERSION twice, in two clones of the commit; fail if the two releases differ
	@hack/release/reproduce '$(VERSION)'

# The digests of the pushed images are the only output. Workflows sign them.
.PHONY: release-push
release-push: ## Push the images of the release in OUT to REGISTRY, and print their digests
	@go run ./hack/release push '$(OUT)' '$(REGISTRY)'

.PHONY: release-check
release-check: ## Install the release in OUT in all four ways on a node, and upgrade from it to a later release
	@RELEASE='$(OUT)' test/e2e/run

##@ Run on the cluster of the current kubeconfig

.PHONY: install
install: ## Install the CRDs for make run; Machines then work only in v1beta1, because there is no conversion webhook
	$(call tool,kustomize) build config/crd | $(KUBECTL) apply -f -

.PHONY: run
run: export GOGC := 100
run: ## Run the controllers on this machine, without webhooks; ARGS adds flags
	go run ./cmd --webhooks=false --metrics-bind-address=0 $(ARGS)

.PHONY: uninstall
uninstall: delete-objects ## Delete all objects, then the CRDs; keep make run running until then, because it removes the finalizers
	$(call tool,kustomize) build config/crd | $(KUBECTL) delete --ignore-not-found -f -

.PHONY: deploy
deploy: overlay ## Install the operator with the image IMG; OVERLAY=config/certmanager uses cert-manager's certificates
	$(call tool,kustomize) build bin/overlay | $(KUBECTL) apply -f -

.PHONY: undeploy
undeploy: delete-objects ## Delete all objects while the operator can remove their finalizers, then everything else
	$(call tool,kustomize) build $(OVERLAY) | $(KUBECTL) delete --ignore-not-found -f -

# This target sets IMG in a separate kustomization, so that no committed file changes.
.PHONY: overlay
overlay:
	@mkdir -p bin/overlay
	@printf 'resources:\n- ../../%s\n' '$(OVERLAY)' > bin/overlay/kustomization.yaml
	@cd bin/overlay && $(call tool,kustomize) edit set image $(CONFIG_IMAGE)=$(IMG)

# This target first reads the kinds of the cluster, because kubectl delete fails for an unknown kind.
.PHONY: delete-objects
delete-objects:
	@for group in useless.container.training cloudnative.tw; do \
		for kind in $$($(KUBECTL) api-resources --api-group=$$group -o name); do \
			$(KUBECTL) delete "$$kind" --all --all-namespaces --timeout=2m || exit 1; \
		done; \
	done

// cert-manager's CustomResourceDefinitions, for the tests of config/certmanager.
module container.training/useless/hack/tools

go 1.26.0

tool github.com/cert-manager/cert-manager/pkg/apis/certmanager

require github.com/cert-manager/cert-manager v1.21.2 // indirect

// KEDA's CustomResourceDefinitions, for the tests of schedules.
module container.training/useless/hack/tools

go 1.26.0

tool github.com/kedacore/keda/v2/version

require github.com/kedacore/keda/v2 v2.21.0 // indirect

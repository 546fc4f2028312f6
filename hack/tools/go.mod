// A module of its own, with no code, so that the operator's module knows nothing of the tools
// and `go mod tidy -modfile=NAME.mod` here sees nothing but the tools of that file.
module container.training/useless/hack/tools

go 1.26.0

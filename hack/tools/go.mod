// A separate module without code. It keeps the tools out of the operator's module. `go mod tidy -modfile=NAME.mod` in this
// folder therefore reads only the tools of that file.
module container.training/useless/hack/tools

go 1.26.0

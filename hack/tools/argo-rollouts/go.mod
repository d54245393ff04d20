module github.com/truefoundry/elasti-apiserver/hack/tools/argo-rollouts

go 1.26.0

require github.com/argoproj/argo-rollouts v1.8.3

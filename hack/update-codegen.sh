#!/usr/bin/env bash
# Generates everything under pkg/generated and every zz_generated file from pkg/apis.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

module=github.com/truefoundry/elasti-apiserver
boilerplate=hack/boilerplate.go.txt
go mod download k8s.io/code-generator
# The generators are installed into a folder of this project, so that they do
# not replace others in the user's GOBIN.
export GOBIN="${PWD}/_output/codegen/bin"
mkdir -p "${GOBIN}"

# shellcheck disable=SC1091
source "$(go list -m -f '{{.Dir}}' k8s.io/code-generator)/kube_codegen.sh"

kube::codegen::gen_helpers \
    --boilerplate "${boilerplate}" \
    pkg/apis

# The report lists the API rule violations, all of them in apimachinery's own
# types; a new one in this project fails the generation until it is reviewed.
update_report=()
if [[ "${UPDATE_API_VIOLATIONS:-}" == "true" ]]; then
    update_report=(--update-report)
fi
kube::codegen::gen_openapi \
    --output-dir pkg/generated/openapi \
    --output-pkg "${module}/pkg/generated/openapi" \
    --output-model-name-file zz_generated.model_name.go \
    --report-filename hack/api-violations.list \
    "${update_report[@]}" \
    --extra-pkgs k8s.io/api/autoscaling/v1 \
    --boilerplate "${boilerplate}" \
    pkg/apis

schema="$(mktemp)"
trap 'rm -f "${schema}"' EXIT
go run ./hack/models-schema >"${schema}"
kube::codegen::gen_client \
    --with-watch \
    --with-applyconfig \
    --applyconfig-openapi-schema "${schema}" \
    --output-dir pkg/generated \
    --output-pkg "${module}/pkg/generated" \
    --boilerplate "${boilerplate}" \
    pkg/apis

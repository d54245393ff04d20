# Builds the same images as hack/images/build.sh, for machines with Docker:
#
#   docker build --target elasti-apiserver --tag elasti-apiserver .
#   docker build --target elasti-resolver --tag elasti-resolver .

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY cmd cmd
COPY pkg pkg
ARG TARGETARCH
ARG VERSION=v0.0.0
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -o /out/ \
    -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$VERSION -X k8s.io/client-go/pkg/version.gitVersion=$VERSION" \
    ./cmd/elasti-apiserver ./cmd/elasti-resolver
RUN echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >/out/passwd && echo 'nonroot:x:65532:' >/out/group

FROM scratch AS base
COPY --from=build /out/passwd /out/group /etc/
USER 65532:65532
LABEL org.opencontainers.image.source=https://github.com/truefoundry/elasti-apiserver \
      org.opencontainers.image.licenses=Apache-2.0

FROM base AS elasti-resolver
COPY --from=build /out/elasti-resolver /elasti-resolver
LABEL org.opencontainers.image.title=elasti-resolver
ENTRYPOINT ["/elasti-resolver"]

FROM base AS elasti-apiserver
COPY --from=build /out/elasti-apiserver /elasti-apiserver
LABEL org.opencontainers.image.title=elasti-apiserver
ENTRYPOINT ["/elasti-apiserver"]

# The program as an image, for self-hosted runners, laptops and images of your own:
#
#   docker build -t untrusted-steps .                     with the tools of BASE
#   docker build -t untrusted-steps:program --target program .    14 MB, nothing else
#
# docs/container.md has the words it is started with: what a container may do
# unless told otherwise is not enough to make boxes. It is not the action, which is
# composite: an action that is an image cannot be given these words, and is handed
# the machine's docker.sock.
#
# Give both by digest (--build-arg BASE=debian:bookworm-slim@sha256:...) where a tag
# that moves is too little. BASE is what steps with `image: host` find: its tools,
# none of which the program itself needs.
ARG GO=golang:1.26
ARG BASE=debian:bookworm-slim

FROM ${GO} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags=-s -o /untrusted-steps ./cmd/action

# One static file, to be copied into another image: COPY --from. Run as it is, it
# has no tools to show a step, which then needs `image: rootfs:DIR`.
FROM scratch AS program
COPY --from=build /untrusted-steps /usr/local/bin/untrusted-steps
ENTRYPOINT ["/usr/local/bin/untrusted-steps"]
CMD ["help"]

FROM ${BASE}
# A volume, with the workspace to be mounted inside of it: what steps write is kept
# beside the workspace until it is committed, and neither an overlay nor mapped ids
# can be had in the container's own layers.
RUN mkdir -p -m 1777 /work
VOLUME /work
COPY --from=build /untrusted-steps /usr/local/bin/untrusted-steps
# Not root, who would need CAP_SYS_ADMIN. Say --user UID:GID of whom the workspace
# belongs to.
USER 1001:1001
WORKDIR /work/tree
ENTRYPOINT ["untrusted-steps"]
CMD ["help"]

# A small image of the program, for self-hosted runners and laptops. It is not
# the action: a Docker action gets the host's docker.sock and may not make the
# namespaces that boxes are made of. Here, too, boxes need user namespaces and
# mounts, which Docker's own seccomp and AppArmor profiles refuse by default.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags=-s -o /untrusted-steps ./cmd/action

FROM debian:bookworm-slim
COPY --from=build --chmod=755 /untrusted-steps /usr/local/bin/untrusted-steps
WORKDIR /workspace
ENTRYPOINT ["untrusted-steps"]
CMD ["help"]

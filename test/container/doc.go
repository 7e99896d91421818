// Package container runs the built program in containers, with the words that
// internal/container has for them and with each of these words left away.
//
// The containers are made with runc, which Docker, containerd and Podman make
// theirs with: no daemon has to be started, and what a word comes to is a field
// of the runtime's own form. Where there is a dockerd, it is started as well, and
// the words are given to docker as people type them.
package container

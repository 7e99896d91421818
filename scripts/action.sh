#!/usr/bin/env bash
# The action: find or build the program, fetch kern where it is wanted, run.
# Every value comes through the environment and is only ever quoted.
set -euo pipefail

# The token is for the program alone: not for a build, nor for what fetches kern.
export -n UNTRUSTED_STEPS_TOKEN

here=${UNTRUSTED_STEPS_ACTION:?}
engine=${UNTRUSTED_STEPS_ENGINE:-auto}

# No program of the workspace is started here, whatever PATH says and by whatever
# link, nor one of wherever we stand; nor is one that go looks up. What runs the steps
# has the caller's PATH again.
real() { (CDPATH='' cd -P -- "$1" 2>/dev/null && pwd -P); }
unread=()
for d in "${GITHUB_WORKSPACE:-}" "${UNTRUSTED_STEPS_WORKSPACE:-}"; do
  if [ -n "$d" ]; then unread+=("${d%/}" "$(real "$d" || true)"); fi
done
trusted() {
  local at of
  for at in "$1" "$(real "$1" || true)"; do
    for of in "${unread[@]}"; do
      case $of in '' | /) continue ;; esac
      case $at/ in "$of"/*) return 1 ;; esac
    done
  done
}
callers=$PATH
IFS=: read -r -a dirs <<<"$callers"
ours=
for d in "${dirs[@]}"; do
  case $d in /*) if trusted "$d"; then ours=${ours:+$ours:}$d; fi ;; esac
done
PATH=$ours

case $(uname -m) in
  x86_64) arch=amd64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) echo "untrusted-steps: no build for $(uname -m)" >&2; exit 3 ;;
esac

# A binary in the action's own tree is pinned with it, by the commit that the
# workflow names. Otherwise the same tree is built.
bin=$here/dist/untrusted-steps-linux-$arch
if [ ! -x "$bin" ]; then
  if ! command -v go >/dev/null; then
    echo "untrusted-steps: the action has no binary for $arch and there is no Go to build it; add actions/setup-go before it" >&2
    exit 3
  fi
  if ! dir=$(mktemp -d "${RUNNER_TEMP:-/tmp}/untrusted-steps-build-XXXXXX"); then
    echo "untrusted-steps: no folder to build the action in could be made, so nothing ran" >&2
    exit 3
  fi
  chmod 755 "$dir"
  # Nothing of the workspace takes part in the build: no go.work, no flags, and
  # no git, which would run what a repository around the tree configures. Nor does
  # Go's file of settings, which could name a program to run: only where modules
  # come from is read from it. What lies among modules in the workspace could be
  # another Go, which would be believed because it is there.
  build() {
    cd "$here"
    export GOWORK=off GOFLAGS='' CGO_ENABLED=0
    unset GOROOT GOTOOLDIR GOCACHEPROG
    names=(GOPROXY GONOPROXY GOPRIVATE GOSUMDB GONOSUMDB GOINSECURE GOMODCACHE GOCACHE)
    mapfile -t values < <(GOTOOLCHAIN=local go env "${names[@]}" 2>/dev/null)
    if [ "${#values[@]}" = "${#names[@]}" ]; then
      for i in "${!names[@]}"; do
        if [ -n "${values[i]}" ]; then export "${names[i]}=${values[i]}"; fi
      done
    fi
    for name in GOMODCACHE GOCACHE; do
      if [ -n "${!name:-}" ] && ! trusted "${!name}"; then
        export "$name=$dir/$name" GOFLAGS=-modcacherw
      fi
    done
    GOENV=off go build -trimpath -buildvcs=false -o "$dir/untrusted-steps" ./cmd/action
  }
  if ! (build) >&2; then
    # Not 1, which says that some step failed.
    echo "untrusted-steps: the action could not be built here, so nothing ran; what go said is above" >&2
    exit 3
  fi
  bin=$dir/untrusted-steps
fi

# A job that brings a kern of its own needs no other, and a merge runs nothing.
if [ -z "${KERN_BIN:-}${UNTRUSTED_STEPS_MERGE:-}" ] && { [ "$engine" = kern ] || [ "$engine" = auto ]; }; then
  if ! "$bin" kern install >&2; then
    # The program itself refuses a run whose engine is named and missing: it can
    # tell the summary, the outputs and a required check, and we cannot.
    case $engine in
      kern) echo "untrusted-steps: kern cannot be installed; the run is refused unless one is here" >&2 ;;
      auto) echo "untrusted-steps: kern cannot be installed; engine auto takes native" >&2 ;;
    esac
  fi
fi

if [ -n "${UNTRUSTED_STEPS_TOKEN:-}" ]; then
  export UNTRUSTED_STEPS_TOKEN
fi
PATH=$callers
exec "$bin"

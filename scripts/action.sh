#!/usr/bin/env bash
# The action: find or build the program, fetch kern where it is wanted, run.
# Every value comes through the environment and is only ever quoted.
set -euo pipefail

# The token is for the program alone: not for a build, nor for what fetches kern.
# Some runners show the inputs of an action by these names, too.
export -n UNTRUSTED_STEPS_TOKEN
unset INPUT_TOKEN

here=${UNTRUSTED_STEPS_ACTION:?}
engine=${UNTRUSTED_STEPS_ENGINE:-auto}

# append adds a line to a file of the runner's. A link or a pipe in its place is
# left alone, as the program does.
append() {
  if [ -n "$1" ] && [ ! -L "$1" ] && { [ -f "$1" ] || [ ! -e "$1" ]; }; then
    printf '%s\n' "$2" 2>/dev/null >>"$1" || true
  fi
}

# refuse says why there is no program to run, which would say so itself: nothing
# ran, and that is not 1, which says that some step failed.
refuse() {
  echo "untrusted-steps: $1" >&2
  append "${GITHUB_OUTPUT:-}" verdict=refused
  append "${GITHUB_STEP_SUMMARY:-}" "**untrusted-steps: refused, nothing ran.** There is no report: $1"
  exit 3
}

# real is a folder without the links on the way to it, and a dot; a relative one
# starts where we stand.
real() {
  case $1 in
    /*) cd -P -- "$1" 2>/dev/null ;;
    *) cd -P -- "$PWD/$1" 2>/dev/null ;;
  esac && printf '%s.' "$PWD"
}

# No program of the workspace is started here, whatever PATH says, nor one of
# wherever we stand. What a folder is called says little: the runner's word for the
# workspace may be a link, and a link elsewhere may lead there. What runs the steps
# has the caller's PATH again.
callers=$PATH
theirs=()
for d in "${GITHUB_WORKSPACE:-}" "${UNTRUSTED_STEPS_WORKSPACE:-}"; do
  if [ -n "${d%/}" ]; then
    theirs+=("${d%/}")
    if r=$(real "$d"); then theirs+=("${r%.}"); fi
  fi
done
within() {
  local w
  for w in ${theirs[@]+"${theirs[@]}"}; do
    case $1 in "$w" | "$w"/*) return 0 ;; esac
  done
  return 1
}
trusted() {
  local r
  ! within "$1" && { ! r=$(real "$1") || ! within "${r%.}"; }
}
IFS=: read -r -a dirs <<<"$callers"
ours=
for d in "${dirs[@]}"; do
  case $d in /*) ;; *) continue ;; esac
  # One that cannot be entered has nothing to start, and one with a colon in its name
  # would be two.
  if r=$(real "$d") && [ "$r" = "${r%:*}" ] && ! within "$d" && ! within "${r%.}"; then
    ours=${ours:+$ours:}${r%.}
  fi
done
PATH=${ours:-/usr/bin:/bin} # of nothing, wherever we stand would be it

case $(uname -m) in
  x86_64) arch=amd64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) refuse "no build for $(uname -m)" ;;
esac

# A binary in the action's own tree is pinned with it, by the commit that the
# workflow names. Otherwise the same tree is built.
bin=$here/dist/untrusted-steps-linux-$arch
if [ ! -x "$bin" ]; then
  if ! command -v go >/dev/null; then
    refuse "the action has no binary for $arch and there is no Go to build it; add actions/setup-go before it"
  fi
  if ! dir=$(mktemp -d "${RUNNER_TEMP:-/tmp}/untrusted-steps-build-XXXXXX"); then
    refuse "no folder to build the action in could be made, so nothing ran"
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
    refuse "the action could not be built here, so nothing ran; what go said is in the log"
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

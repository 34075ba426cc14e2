# Sourced by the scripts beside it: goes to the repository's root, and defines how they speak and build.
# shellcheck shell=bash
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C.UTF-8

step() { printf '\n==> %s\n' "$*"; }

fail() {
  printf '\n%s: %s\n' "$0" "$*" >&2
  exit 1
}

# A script that stops anywhere says where.
trap 'printf "\n%s: failed at line %s: %s\n" "$0" "$LINENO" "$BASH_COMMAND" >&2' ERR

# build PRESET [cmake --build arguments...]: configures and builds into build/PRESET.
build() {
  local preset=$1
  shift
  step "Build $preset into build/$preset"
  mkdir -p "build/$preset" || true
  [[ -w build/$preset ]] || fail "cannot write build/$preset, which another user made; remove build/ and try again"
  # A build folder that was configured elsewhere, or before the repository was moved, cannot be used again.
  if [[ -f build/$preset/CMakeCache.txt ]] &&
    ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "build/$preset/CMakeCache.txt"; then
    echo "build/$preset belongs to another place: starting afresh"
    rm -rf "build/$preset"
  fi
  if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER:-} ]] && command -v ccache >/dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache
  fi
  cmake --preset "$preset" || fail "configuring $preset failed, see above"
  cmake --build "build/$preset" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" "$@" ||
    fail "building $preset failed, see above"
}

#!/usr/bin/env bash
# `make check`: everything cheap that CI does, cheapest first, stops at the first failure.
#   tools/check.sh [fresh|version|floors|forbidden|symbols|warnings ...]
set -u
cd "$(dirname "$0")/.." || exit 1
flags=${WARNINGS:--Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
# A second translation unit in all but name: the header twice, strictest flags.
printf '#include "tinyscale.hpp"\n#include "tinyscale.hpp"\nint main() {}\n' > "$scratch/warnings.cpp"

fresh() {
  awk -v root=src -f tools/join.awk > "$scratch/joined.hpp" || return 1
  cmp -s "$scratch/joined.hpp" tinyscale.hpp && return 0
  echo "tinyscale.hpp is stale: run make header and commit it"
  return 1
}
version() {
  local newest
  newest=$(sed -n 's/^## *\[\{0,1\}v\{0,1\}\([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1)
  [ -n "$newest" ] && [ "$newest" = "$(bash tools/version.sh)" ] && return 0
  echo "the header says version $(bash tools/version.sh), the newest entry of CHANGELOG.md ${newest:-nothing}"
  return 1
}
warnings() {
  local cxx include
  for cxx in ${COMPILERS:-g++ clang++}; do
    command -v "$cxx" > /dev/null || { echo "$cxx is not here, skipped"; continue; }
    for include in src .; do
      "$cxx" -std=c++17 $flags -Werror -I"$include" -fsyntax-only "$scratch/warnings.cpp" || return 1
    done
    "$cxx" -std=c++20 $flags -Werror -I. -fsyntax-only "$scratch/warnings.cpp" ||
      { echo "with $cxx -std=c++20"; return 1; }
  done
}
floors() { bash tools/check_floors.sh; }
forbidden() { bash tools/check_forbidden.sh; }
symbols() { bash tools/check_symbols.sh; }

for step in ${@:-fresh version floors forbidden symbols warnings}; do
  if "$step" > "$scratch/log" 2>&1; then
    echo "ok   $step"
  else
    echo "FAIL $step"; head -n 60 "$scratch/log"; exit 1
  fi
done

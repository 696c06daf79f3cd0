#!/usr/bin/env bash
# `make check`: everything cheap that CI does, cheapest first (symbols beside), stops at the first failure.
# interpreter_symbols compiles all code and runs when it is named, as CI does.
#   tools/check.sh [fresh|version|floors|forbidden|symbols|warnings|interpreter_symbols ...]
set -u
cd "$(dirname "$0")/.." || exit 1
flags=${WARNINGS:--Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion}
scratch=$(mktemp -d) || exit 1
beside=""                                  # symbols compiles on one core while warnings does on another
trap '[ -z "$beside" ] || kill "$beside" 2> /dev/null; rm -rf "$scratch"' EXIT
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
    # The parts and the joined header are the same text: one standard each.
    for pair in src:17 .:20; do
      "$cxx" -std=c++"${pair#*:}" $flags -Werror -I"${pair%:*}" -fsyntax-only "$scratch/warnings.cpp" ||
        { echo "with $cxx -std=c++${pair#*:} -I${pair%:*}"; return 1; }
    done
  done
}
floors() { bash tools/check_floors.sh; }
forbidden() { bash tools/check_forbidden.sh; }
symbols() { bash tools/check_symbols.sh; }
interpreter_symbols() { bash tools/check_interpreter_symbols.sh; }

report() {                                 # report STEP CODE
  [ "$2" -eq 0 ] && { echo "ok   $1"; return; }
  echo "FAIL $1"; head -n 60 "$scratch/$1.log"; exit 1
}
[ $# -gt 0 ] && all=("$@") || all=(symbols fresh version floors forbidden warnings)
for step in "${all[@]}"; do
  if [ "$step" = symbols ] && [[ " ${all[*]} " == *" warnings "* ]]; then
    symbols > "$scratch/symbols.log" 2>&1 & beside=$!
    continue
  fi
  "$step" > "$scratch/$step.log" 2>&1
  report "$step" $?
done
[ -z "$beside" ] || { wait "$beside"; code=$?; beside=""; report symbols "$code"; }

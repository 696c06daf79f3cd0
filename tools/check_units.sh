#!/usr/bin/env bash
# Two translation units that include the header link to one program with one state. Compiled with
# different feature macros they do not link, and the linker names the two features.
#   tools/check_units.sh [compiler]
set -u
cd "$(dirname "$0")/.." || exit 1
cxx=${1:-${CXX:-g++}}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export LC_ALL=C
unit() { "$cxx" -std=c++17 -O0 -pthread "$@"; }

unit -O1 -Isrc tests/odr_a.cpp tests/odr_b.cpp -o "$scratch/parts" && "$scratch/parts" || exit 1
unit -I. -c tests/odr_a.cpp -o "$scratch/a.o" && unit -I. -c tests/odr_b.cpp -o "$scratch/b.o" || exit 1
unit "$scratch/a.o" "$scratch/b.o" -o "$scratch/joined" && "$scratch/joined" || exit 1

links=0
mixed() {                                  # mixed NAME FLAGS...: a unit with these flags beside one without
  local name=$1
  shift
  unit "$@" -I. -c tests/odr_b.cpp -o "$scratch/mixed.o" || exit 1
  if unit "$@" "$scratch/a.o" "$scratch/mixed.o" -o "$scratch/mixed" > "$scratch/log" 2>&1; then
    echo "units with and without $* link to one program"; links=1
  elif ! grep -qE "undefined reference to .sum_of_elsewhere\(tinyscale::v[0-9_]+_$name::Tensor const&\)" "$scratch/log"; then
    echo "the linker does not say that the features differ ($*):"; cat "$scratch/log"; links=1
  fi
}
mixed no_threads -DTINYSCALE_NO_THREADS
mixed load_kernels -DTINYSCALE_LOAD_KERNELS
mixed no_pool -DTINYSCALE_POOL=0
mixed scalar -DTINYSCALE_VECTOR_EXTENSIONS=0
[[ $(uname -m) == x86_64 ]] && mixed no_x86 -DTINYSCALE_X86=0
[[ $cxx == g++ ]] && mixed openmp -DTINYSCALE_USE_OPENMP -fopenmp
[ "$links" -eq 0 ] && echo "two units, $cxx: link with the same features, not with different ones"
exit "$links"

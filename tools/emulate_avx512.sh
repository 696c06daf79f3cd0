#!/usr/bin/env bash
# The tests on the paths of AVX-512, where the processor has none: a copy of the sources whose 64-byte
# vectors are two of 32 bytes, and whose built-in functions, units for low precision and tiles are loops
# (tests/avx512). What is tested is all else: tiles of 16 lanes, packing, edges, the choice of units.
#   tools/emulate_avx512.sh [build folder] [options of doctest]
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}/emulated
shift $(($# > 0 ? 1 : 0))
grep -qw avx2 /proc/cpuinfo 2> /dev/null || { echo "a processor with AVX2 is needed"; exit 77; }
case $(${CXX:-g++} --version) in *clang*) echo "g++ is needed: clang names other built-in functions"; exit 77 ;; esac
mkdir -p "$build"
for each in Makefile src tests tools examples notebooks bench docs; do
  rm -rf "${build:?}/$each"
  cp -r "$each" "$build/$each"
done

# put FILE WHAT WITH: a line that is no longer there is an error, not a test of something else.
put() {
  local file="$build/src/tinyscale/$1"
  grep -qE "$2" "$file" || { echo "$1 has no $2"; exit 1; }
  sed -E -i "s/$2/$3/" "$file"
}
put base/config.hpp 'target\("avx512f"\)' 'target("avx2,fma")'
put base/cpu.hpp '^  detect_low_precision\(info\);' '  detect_low_precision(info);\
  info.avx512f = info.avx512bw = info.avx512dq = info.avx512vl = true;\
  info.avx_vnni = info.avx512_vnni = info.avx512_bf16 = info.amx_bf16 = info.amx_int8 = true;'
for part in compute/lanes compute/lane_math compute/past_caches; do
  put $part.hpp '__builtin_ia32_([a-z]*512)' 'emulated::\1'
done
put compute/lanes.hpp '^(#include "tinyscale\/base\/cpu.hpp")' '\1\
#include "tinyscale\/compute\/builtins.hpp"'
cp tests/avx512/builtins.hpp tests/avx512/x86_units.hpp "$build/src/tinyscale/compute/"
put compute/gemm_bf16.hpp '<AmxTiles' '<SoftTiles'
put compute/gemm_int8.hpp '<AmxTiles' '<SoftTiles'
# What this machine reaches in such units is not asked.
put hardware/laptop_loops.hpp '= (tiles|dot)_(bf16|int8)(_512|_256)?;' '= fma_avx512;'
grep -rn '__builtin_ia32_[a-z]*512' "$build/src" && { echo "built-in functions that nothing stands in for"; exit 1; }

make --no-print-directory -C "$build" header tests-built CXXFLAGS='-Wno-psabi' || exit 1
code=0
for path in '' avx512 avx2; do               # tiles; units; units of 32 bytes
  echo "TINYSCALE_CPU=$path"
  env TINYSCALE_CPU=$path bash tools/run_tests.sh "$build/build/run_tests" "$@" || code=1
done
exit $code

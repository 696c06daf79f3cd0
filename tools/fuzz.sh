#!/usr/bin/env bash
# `make fuzz`: coverage-guided fuzzing (libFuzzer, address and undefined-behaviour sanitizers) of every
# reader of files, from the corpus in tests/fuzz/corpus. One line a target; an input that is a finding
# is kept, and its path printed: give it to the program again with build/fuzz/NAME PATH.
#   tools/fuzz.sh [seconds each, 30]     TARGETS='json gguf'  JOBS=2  BUILD=build/fuzz  OPT=-O1  FUZZ_TIMEOUT=2
#   MERGE=1 tools/fuzz.sh                puts what covers something new into the committed corpus
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C seconds=${1:-30} build=${BUILD:-build/fuzz} timeout=${FUZZ_TIMEOUT:-2} merge=${MERGE:-} opt=${OPT:--O1}
jobs=${JOBS:-$(nproc 2> /dev/null || sysctl -n hw.ncpu 2> /dev/null || echo 2)}
targets=${TARGETS:-$(ls tests/fuzz/*_fuzz.cpp | sed 's|.*/||; s|_fuzz.cpp||' | tr '\n' ' ')}
mkdir -p "$build/findings"

cxx=""
printf '#include <cstddef>\nextern "C" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }\n' > "$build/none.cpp"
for try in ${FUZZ_CXX:-} clang++-19 clang++ clang++-{22,21,20,18,17,16,15,14}; do
  if command -v "$try" > /dev/null 2>&1 &&
    "$try" -fsanitize=fuzzer,address,undefined "$build/none.cpp" -o "$build/none" > /dev/null 2>&1; then
    cxx=$try
    break
  fi
done
[ -n "$cxx" ] || { echo "no clang++ with libFuzzer: apt-get install clang (macOS: brew install llvm)"; exit 77; }
export cxx
symbolizer=$(command -v "llvm-symbolizer${cxx#clang++}" || command -v llvm-symbolizer) && export ASAN_SYMBOLIZER_PATH=$symbolizer
# One path of the kernels and no threads: what is tried here are the readers.
export flags="-std=c++17 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -DTINYSCALE_NO_THREADS -DTINYSCALE_X86=0 -Isrc -pthread"

# compile OUT FLAGS... SOURCE, if something it is made of is newer
compile() {
  local out=$1
  shift
  if [ -e "$out" ] && [ -z "$(find src tests/fuzz -name '*.?pp' -newer "$out" -print -quit)" ]; then return 0; fi
  "$cxx" $flags "$@" -o "$out" > "$out.log" 2>&1 || { echo "FAIL $out does not compile: $out.log"; return 1; }
}
make_one() {
  if [ "$1" = model_step ]; then
    compile "$build/model_step.o" -O0 -c tests/fuzz/model_step.cpp
  else
    compile "$build/$1.o" "$opt" -fsanitize=fuzzer-no-link -c "tests/fuzz/$1_fuzz.cpp"
  fi
}
# takes_less PROGRAM INPUT: than the limit, in seconds of a processor, and without a finding
takes_less() {
  local TIMEFORMAT=%U used
  used=$( { time "$1" "$2" > /dev/null 2>&1; } 2>&1) && awk -v used="$used" -v most="$timeout" 'BEGIN { exit !(used < most) }'
}
number() { sed -n "s/.*$1[: ]*\\([0-9][0-9]*\\).*/\\1/p" "$2" | tail -n 1; }

run_one() {
  local name=$1 step="" log="$build/$1.log" begin=$SECONDS code dict="" own="$build/corpus/$1"
  [ -e "$build/$name.o" ] || return 1
  grep -q model_step.hpp "tests/fuzz/${name}_fuzz.cpp" && step="$build/model_step.o"
  "$cxx" $flags -fsanitize=fuzzer "$build/$name.o" $step -o "$build/$name" > "$build/$name.link.log" 2>&1 ||
    { echo "FAIL $name does not link: $build/$name.link.log"; return 1; }
  [ -e "tests/fuzz/$name.dict" ] && dict="-dict=tests/fuzz/$name.dict"
  mkdir -p "$own" "tests/fuzz/corpus/$name"
  if [ -n "$merge" ]; then
    "$build/$name" -set_cover_merge=1 -use_counters=0 -max_len=4096 "tests/fuzz/corpus/$name" "$own" \
      > "$log" 2>&1 < /dev/null || { echo "FAIL $name: $log"; return 1; }
    # The seeds have names; of the others, which are named by their hash, the small ones stay.
    ls -S "tests/fuzz/corpus/$name" | grep -E '^[0-9a-f]{40}$' | while read -r file; do
      [ "$(cat "tests/fuzz/corpus/$name"/* | wc -c)" -gt 60000 ] && rm "tests/fuzz/corpus/$name/$file"
    done
    echo "ok   $name: $(ls "tests/fuzz/corpus/$name" | wc -l) files, $(cat "tests/fuzz/corpus/$name"/* | wc -c) bytes"
    return 0
  fi
  local left=$seconds input
  while :; do
    UBSAN_OPTIONS=print_stacktrace=1 "$build/$name" -max_total_time="$left" -timeout="$timeout" -timeout_exitcode=70 \
      -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=8192 -use_value_profile=1 -reload=0 $dict \
      -print_final_stats=1 -artifact_prefix="$build/findings/$name-" \
      "$own" "tests/fuzz/corpus/$name" > "$log" 2>&1 < /dev/null
    code=$?
    input=$(sed -n 's/.*Test unit written to //p' "$log")
    left=$((seconds - (SECONDS - begin)))
    # That time is the wall's: an input which needs less of a processor was held up by other programs.
    [ "$code" -eq 70 ] && [ -e "$input" ] && takes_less "$build/$name" "$input" || break
    rm "$input"
    code=0
    [ "$left" -gt 0 ] || break
    echo "     $name: held up by other programs, once more for $left s"
  done
  local said="$(number 'number_of_executed_units' "$log") executions, coverage $(number 'cov' "$log"), corpus of $(number 'corp' "$log"), $((SECONDS - begin)) s"
  if [ "$code" -eq 0 ]; then
    echo "ok   $name: $said"
  else
    echo "FAIL $name: $said: $log"
    grep -E 'broken promise|runtime error|ERROR: (Address|lib|Leak)|SUMMARY|uncaught|what\(\)' "$log" | head -n 5 | cut -c1-300
    sed -n 's/.*Test unit written to /  the input: /p' "$log"
  fi
  return "$code"
}
export -f compile make_one run_one takes_less number

objects=$targets
for name in $targets; do
  grep -q model_step.hpp "tests/fuzz/${name}_fuzz.cpp" && case $objects in model_step*) ;; *) objects="model_step $objects" ;; esac
done
printf '%s\n' $objects | xargs -P "$jobs" -I '{}' bash -c 'make_one {}'
rm -f "$build"/*.failed
printf '%s\n' $targets | xargs -P "$jobs" -I '{}' bash -c 'run_one {} || touch "$build/{}.failed"'
failed=$(ls "$build"/*.failed 2> /dev/null | wc -l)
total=$(wc -w <<< "$targets")
echo "$((total - failed)) passed, $failed failed"
exit $((failed > 0))

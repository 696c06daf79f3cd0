#!/usr/bin/env bash
# `make check-long`: what takes too long for every push. Every CPU path under the sanitizers (but for the
# cases marked slow, which add time and no code), all test cases, serial and OpenMP builds, both
# optimisation levels of the interpreter, every instruction of this processor, emulation of ARM and
# AVX-512, compilers of other years.
#   tools/check_long.sh [step name pattern]      only the steps whose name matches (an extended regular expression)
set -u
cd "$(dirname "$0")/.." || exit 1
only_steps=${1:-.}
unset MAKEFLAGS MFLAGS MAKELEVEL
export TINYSCALE_SHARED=${TINYSCALE_SHARED:-../shared}
logs=build/long/logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0
have() { command -v "$1" > /dev/null 2>&1; }
step() {
  local name=$1 begin=$SECONDS code log
  shift
  [[ $name =~ $only_steps ]] || return 0
  log="$logs/${name//[^a-zA-Z0-9]/_}.log"
  "$@" > "$log" 2>&1 < /dev/null
  code=$?
  case $code in
    0) echo "ok   $name ($((SECONDS - begin)) s)"; passed=$((passed + 1)) ;;
    77) echo "skipped $name: $(tail -n 1 "$log")"; skipped=$((skipped + 1)) ;;
    *) echo "FAIL $name (exit code $code): $log"; tail -n 40 "$log" | cut -c1-300; failed=$((failed + 1)) ;;
  esac
}
build() {                                    # build NAME MAKE-ARGUMENTS...
  local name=$1
  shift
  make --no-print-directory tests-built BUILD="build/long/$name" "$@"
}
fixed=""
setarch -R true 2> /dev/null && fixed="setarch -R"

# No kernel of a CPU path is in these: one path, and no emulation, is enough for them.
no_kernels='-sfe=*collective_test*,*mesh_test*,*mesh_scale_test*,*network_test*,*plan_test*,*plan_pictures_test*,*plan_program_test*,*serving*,*mfu_test*,*book*,*claims_test*,*config_test*,*preset_test*,*chip_test*,*quantity_test*,*layer_work_test*,*layout_search_test*,*machine_of_chips_test*,*memory_forms_test*,*step_cost_test*,*transformer_math_test*,*replay_test*,*sharded_test*'
paths="portable"
grep -qw avx2 /proc/cpuinfo 2> /dev/null && paths="$paths avx2"
grep -qw avx512f /proc/cpuinfo 2> /dev/null && paths="$paths avx512"
[ "$(uname -m)" = aarch64 ] && paths="$paths neon"

step "g++ -O2, every test whole" env TINYSCALE_LONG_TESTS=1 make --no-print-directory test BUILD=build/long/joined CXX=g++ TESTFLAGS=-O2
step "g++ without -O" make --no-print-directory test BUILD=build/long/plain CXX=g++ TESTFLAGS=-D_GLIBCXX_ASSERTIONS
step "topics, every inline function" bash tools/check_topics.sh g++ link
step "whole header in some tests" make --no-print-directory test BUILD=build/long/whole CXX=g++ HEADER_ONLY=1 INCLUDE=-I. \
  TESTFLAGS=-O2 TESTS='tests/tensor_test.cpp tests/mesh_test.cpp tests/train_report_test.cpp'
# In a vector's lanes clang++ finds no overflow; g++ does.
step "undefined behaviour, g++" make --no-print-directory test BUILD=build/long/undefined CXX=g++ ARGS='-tce=*[slow]*' \
  TESTFLAGS='-O1 -g1 -fsanitize=undefined -fno-sanitize-recover=all'
if have clang++; then
  step "build: address and undefined behaviour" build address CXX=clang++ \
    TESTFLAGS='-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS'
  step "build: thread sanitizer" build thread CXX=clang++ TESTFLAGS='-O1 -g1 -fsanitize=thread'
  only=""                                    # the portable path runs all
  for path in $paths; do
    step "address and undefined behaviour, $path" env TINYSCALE_CPU="$path" bash tools/run_tests.sh build/long/address/run_tests '-tce=*[slow]*' $only
    step "thread sanitizer, $path" env TINYSCALE_CPU="$path" TINYSCALE_THREADS=4 $fixed bash tools/run_tests.sh build/long/thread/run_tests '-tce=*[slow]*' $only
    only=$no_kernels
  done
  step "thread sanitizer, a thousand faults" env TINYSCALE_THREADS=4 $fixed bash tools/run_tests.sh build/long/thread/run_tests '-tc=a?thousand?random?programs*'
  step "fuzzers, two minutes each" env BUILD=build/long/fuzz bash tools/fuzz.sh 120
  step "each part alone, clang++" bash tools/check_parts.sh clang++
  step "each part alone, g++" bash tools/check_parts.sh g++
fi
step "MPI ranks" env LONG=1 bash tools/check_mpi.sh build/long
for threads in 1 3 7; do
  step "$threads threads" env TINYSCALE_THREADS="$threads" bash tools/run_tests.sh build/long/joined/run_tests
done
step "without threads" make --no-print-directory test BUILD=build/long/serial CXXFLAGS=-DTINYSCALE_NO_THREADS
for cxx in g++ clang++; do                 # without infinities and NaN, and where the order of products matters
  have "$cxx" && step "-ffast-math, $cxx" make --no-print-directory test BUILD="build/long/fast_$cxx" CXX="$cxx" \
    TESTS=tests/compute_test.cpp TESTFLAGS='-O2 -ffast-math' ARGS='-tce=*exp?at?the?ends*,*square?is?no?float*'
done
for cxx in g++ clang++; do                 # what is rounded where, although products and sums are fused
  have "$cxx" && step "-O3 -march=native, $cxx" make --no-print-directory test BUILD="build/long/native_$cxx" CXX="$cxx" \
    CXXFLAGS=-march=native TESTFLAGS='-O3 -ffp-contract=fast' \
    TESTS="$(printf 'tests/%s_test.cpp ' base gemm low_precision row_kernels row_moves stored_matrix inference_golden ggml_decoder)"
done
step "g++ of other years" bash tools/other_compilers.sh build/long '-tce=*[slow]*'
step "AVX-512 and its units, emulated" bash tools/emulate_avx512.sh build/long '-tce=*[slow]*'
step "OpenMP" make --no-print-directory test BUILD=build/long/openmp CXX=g++ CXXFLAGS='-DTINYSCALE_USE_OPENMP -fopenmp'
if have aarch64-linux-gnu-g++ && have qemu-aarch64; then
  step "build: ARM" build arm CXX=aarch64-linux-gnu-g++ CXXFLAGS=-static TESTFLAGS=-O2
  # A static program loads no library that another compiler builds.
  step "ARM, emulated" qemu-aarch64 build/long/arm/run_tests '-tce=*[slow]*,load_kernel*' "$no_kernels"
else
  echo "skipped ARM, emulated: needs aarch64-linux-gnu-g++ and qemu-aarch64 (qemu-user)"; skipped=$((skipped + 1))
fi
step "the first examples, whole header in each" make --no-print-directory examples BUILD=build/long/examples \
  EXAMPLES="$(echo examples/0*.cpp)"
have python3 && step "header in an interpreter" python3 tools/torture.py -O0 -O2
have python3 && step "notebooks as programs, optimised and under the thread sanitizer" python3 tools/nbcheck.py --limit 300 --modes native,repl2,tsan notebooks/*.ipynb
echo "$passed passed, $failed failed, $skipped skipped"
exit $((failed > 0))

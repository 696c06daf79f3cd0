#!/usr/bin/env bash
# `make check-mpi`: the same mesh programs on threads, with the baton and on 2, 4 and 8 MPI ranks of this computer. All
# that they tell, on every rank, must be equal: numbers, logs, counters, simulated times, errors.
#   tools/check_mpi.sh [build folder]      RANKS='2 4 8'; LONG=1: the mesh's own tests, on 9 ranks, too
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}/mpi
if ! command -v mpicxx > /dev/null || ! command -v mpirun > /dev/null; then
  echo "check_mpi: skipped, no mpicxx and mpirun here (libopenmpi-dev, openmpi-bin)"
  exit 77
fi
mkdir -p "$build"
rm -f "$build"/*.text.*
flags="-std=c++17 -pthread ${INCLUDE:--I.}"
# shellcheck disable=SC2086
"${CXX:-g++}" $flags tests/mpi/same_program.cpp -o "$build/threads" &&
  mpicxx $flags -DTINYSCALE_USE_MPI tests/mpi/same_program.cpp -o "$build/ranks" &&
  mpicxx $flags -DTINYSCALE_USE_MPI tests/mpi/wrong_ranks.cpp -o "$build/wrong_ranks" || exit 1

run="mpirun"
mpirun --version 2> /dev/null | grep -q 'Open MPI' && run="mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
[ "$(id -u)" -eq 0 ] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failed=0
for n in ${RANKS:-2 4 8}; do
  "$build/threads" "$n" "$build/threads$n.text" || exit 1
  "$build/threads" "$n" "$build/baton$n.text" 1 || exit 1   # one device runs at a time
  diff "$build/threads$n.text.0" "$build/baton$n.text.0" | head -n 4 | grep . >&2 &&
    { echo "check_mpi: $n devices with the baton tell something else than all at once" >&2; failed=1; }
  timeout 300 $run -n "$n" "$build/ranks" "$n" "$build/ranks$n.text" ||
    { echo "check_mpi: the programs on $n ranks ended with an error" >&2; failed=1; }
  for rank in $(seq 0 $((n - 1))); do
    diff "$build/threads$n.text.0" "$build/ranks$n.text.$rank" > "$build/diff" && continue
    echo "check_mpi: rank $rank of $n tells something else than threads:" >&2
    head -n 4 "$build/diff" >&2
    failed=1
  done
  echo "$n ranks: $(grep -c '^==' "$build/threads$n.text.0") programs, $(wc -l < "$build/threads$n.text.0") lines alike"
done
timeout 60 $run -n 2 "$build/wrong_ranks" early 2>&1 | grep -q 'rank 1 has ended its program' ||
  { echo "check_mpi: a rank that ends early is not noticed" >&2; failed=1; }
[ "$(timeout 60 $run -n 2 "$build/wrong_ranks" progress 2>&1 | grep -c '^step 1/1  loss')" = 1 ] ||
  { echo "check_mpi: ranks that train together do not tell the progress once" >&2; failed=1; }
[ "$(timeout 60 $run -n 2 "$build/wrong_ranks" elsewhere 2>&1 | grep -c '^train: MPI rank 0 begins at step 0 with 0 updates, .*; rank 1 at step 0 with ')" = 2 ] ||
  { echo "check_mpi: a training that a rank begins elsewhere is not refused" >&2; failed=1; }
timeout 60 $run -n 3 "$build/wrong_ranks" meshes ||
  { echo "check_mpi: ranks that come with different meshes are not told" >&2; failed=1; }
# Its meshes have up to 9 devices, but for the cases marked many; in one devices hand each other pointers.
# Ranks must agree, so all of them run all.
if [ -n "${LONG:-}" ]; then
  # shellcheck disable=SC2086
  mpicxx $flags -isystem tests -DTINYSCALE_USE_MPI tests/mesh_test.cpp tests/main.cpp -o "$build/mesh_test" &&
    timeout 600 $run -n 9 "$build/mesh_test" '-tce=*[many]*,what?outlives*' > "$build/log" 2>&1 ||
    { echo "check_mpi: mesh_test fails on 9 ranks:" >&2; tail -n 40 "$build/log" >&2; failed=1; }
  grep '^.*test cases:' "$build/log" | sort | uniq -c
fi
exit "$failed"

#!/usr/bin/env bash
# Simulated times of three all_reduce algorithms beside SimGrid's SMPI on one declared platform: 8
# hosts, links of 10 GB/s each way, 2 us from host to host. They must agree within one hop, and with the closed
# form exactly.
# For developers: `apt-get install libsimgrid-dev`. Nothing else needs it.
set -eu
cd "$(dirname "$0")/.."
if ! command -v smpicc > /dev/null || ! command -v smpirun > /dev/null; then
  echo "check_simgrid: skipped, no SimGrid here (libsimgrid-dev)"
  exit 0
fi
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
sizes="1024 32768 1048576 67108864"
hop=2e-6

smpicc -O2 tools/simgrid/all_reduce.c -o "$build/all_reduce"
"${CXX:-g++}" -std=c++17 -O1 "${INCLUDE:--I.}" tools/simgrid/ours.cpp -pthread -o "$build/ours"
seq -f 'host%g' 0 7 > "$build/hosts"

# Their time, without factors that model TCP and without time for arithmetic.
theirs() {  # as SMPI names it
  # shellcheck disable=SC2086
  smpirun -np 8 -platform tools/simgrid/eight_hosts.xml -hostfile "$build/hosts" \
    --log=root.thres:critical --cfg=smpi/allreduce:"$1" --cfg=smpi/allgather:rdb \
    --cfg=smpi/simulate-computation:no --cfg=network/model:CM02 --cfg=network/latency-factor:1 \
    --cfg=network/bandwidth-factor:1 --cfg=network/TCP-gamma:0 --cfg=network/weight-S:0 \
    --cfg=network/crosstraffic:0 "$build/all_reduce" $sizes 2> "$build/errors" | grep '^[0-9]' ||
    { cat "$build/errors" >&2; exit 1; }
}

for pair in ring:lr halving_doubling:rab1 doubling:rdb; do
  theirs "${pair#*:}" > "$build/theirs"
  # shellcheck disable=SC2086
  "$build/ours" "${pair%:*}" $sizes > "$build/ours.txt"
  paste -d' ' "$build/ours.txt" "$build/theirs" > "$build/both"
  awk -v name="${pair%:*}" -v smpi="${pair#*:}" -v hop="$hop" -v sizes="$sizes" '
    function abs(x) { return x < 0 ? -x : x }
    {
      apart = ($2 - $5) / hop
      bad += $1 != $4 || abs(apart) > 1 || abs($2 - $3) > 1e-8 * $2
      printf "%-18s %-5s %9d bytes: ours %11.3f us, SMPI %11.3f us, %+.3f hops apart\n",
             name, smpi, $1, $2 * 1e6, $5 * 1e6, apart
    }
    END { exit bad > 0 || NR != split(sizes, each, " ") }' "$build/both" ||
    { echo "check_simgrid: ${pair%:*} differs by more than a hop or from its formula, or a size is missing" >&2; exit 1; }
done

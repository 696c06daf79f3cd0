#!/usr/bin/env bash
# The tests by g++ of other years: Debian 11 has 9 (Ubuntu 20.04's) and 10, Debian 13 has 13 (Ubuntu
# 24.04's) and 14, unstable Debian 16. Each release is installed into a folder of the build and entered by
# chroot, for root.
#   tools/other_compilers.sh [build folder] [options of doctest]
#   ONLY="g..-10$" chooses the compilers whose names match
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath -m "${1:-build}")/releases
shift $(($# > 0 ? 1 : 0))
[ "$(id -u)" = 0 ] || { echo "root is needed, to enter other releases"; exit 77; }
command -v debootstrap > /dev/null 2>&1 || { echo "debootstrap is needed"; exit 77; }
[ -d /usr/include/doctest ] || { echo "doctest is needed in /usr/include"; exit 77; }
shared=${TINYSCALE_SHARED:-../shared}
mkdir -p "$build" || exit 1

# enter ROOT COMMAND: mounts end with the command.
enter() {
  unshare --mount bash -c '
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" || exit 1
    [ ! -d "$2" ] || mount --bind "$2" "$1/shared" || exit 1
    exec chroot "$1" env -C /tinyscale TINYSCALE_SHARED=/shared bash -c "$3"' enter "$1" "$shared" "$2"
}

code=77                                    # until a compiler has run
while read -r release compilers; do
  wanted=$(printf '%s\n' $compilers | grep -E "${ONLY:-.}")
  [ -n "$wanted" ] || continue
  root=$build/$release
  if [ ! -e "$root/complete" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include="make,${compilers// /,}" "$release" "$root" > "$build/$release.log" 2>&1 ||
      { echo "skipped $release, which cannot be installed: $(tail -n 1 "$build/$release.log")"; continue; }
    touch "$root/complete"
  fi
  mkdir -p "$root/shared" "$root/tinyscale" "$root/usr/include"
  cp -r /usr/include/doctest "$root/usr/include/"
  git ls-files | tar cf - -T - | tar xf - -C "$root/tinyscale"
  for cxx in $wanted; do
    echo "$release, $cxx"
    [ $code -ne 77 ] || code=0
    enter "$root" "make --no-print-directory tests-built CXX=$cxx BUILD=build/$cxx &&
      bash tools/run_tests.sh build/$cxx/run_tests $*" < /dev/null || code=1
  done
done << 'RELEASES'
bullseye g++-9 g++-10
trixie g++-13 g++-14
sid g++-16
RELEASES
exit $code

#!/usr/bin/env bash
# Sees to it that <doctest/doctest.h> can be included: installs it through the system's package manager
# where that needs no questions, and otherwise says in one line what to install.
set -u
cxx=${CXX:-g++}
found() { echo '#include <doctest/doctest.h>' | $cxx ${DOCTEST_FLAGS:-} -std=c++17 -x c++ -E - > /dev/null 2>&1; }
have() { command -v "$1" > /dev/null 2>&1; }
found && exit 0

root=no
if [ "$(id -u)" -eq 0 ]; then
  root=""
elif have sudo && sudo -n true 2> /dev/null; then
  root="sudo -n"
fi
install() {
  if have brew; then
    brew install doctest
  elif [ "$root" = no ]; then
    return 1
  elif have apt-get; then
    local get="$root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300"
    $get install -y doctest-dev || { $get update && $get install -y doctest-dev; }
  elif have dnf; then
    $root dnf install -y doctest-devel
  elif have pacman; then
    $root pacman -S --noconfirm doctest
  fi
}
[ "$root" = no ] && ! have brew || echo "doctest is missing: installing it"
install > /dev/null 2>&1
found && exit 0
echo "<doctest/doctest.h> not found: install doctest-dev (apt), doctest-devel (dnf) or doctest (pacman, brew)," \
     "or put doctest.h into tests/doctest/" >&2
exit 1

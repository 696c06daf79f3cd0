#!/usr/bin/env bash
# Installs what `make bench` compares with, through the system's package manager, and says what it
# cannot get. Nothing else needs these: the bench skips a peer that is missing.
#   tools/install_peers.sh          PRINT=1 only prints the line
set -u
have() { command -v "$1" > /dev/null 2>&1; }
root=""
[ "$(id -u)" -eq 0 ] || root="sudo"

if have apt-get; then
  install="$root apt-get install -y"
  packages="libopenblas0-pthread libdnnl-dev libblis4 libeigen3-dev python3-torch gcc openmpi-bin libopenmpi-dev nodejs npm"
elif have dnf; then
  install="$root dnf install -y"
  packages="openblas-threads onednn-devel blis eigen3-devel python3-torch gcc openmpi-devel"
elif have pacman; then
  install="$root pacman -S --needed --noconfirm"
  packages="openblas onednn blis eigen python-pytorch gcc openmpi"
elif have brew; then
  install="brew install"
  packages="openblas onednn eigen pytorch open-mpi"
else
  echo "install_peers: no apt-get, dnf, pacman or brew here; install OpenBLAS, oneDNN, BLIS, Eigen," \
       "PyTorch and Open MPI by hand" >&2
  exit 1
fi
echo "$install $packages"
[ -z "${PRINT:-}" ] || exit 0
# shellcheck disable=SC2086
$install $packages || for package in $packages; do  # an unknown one must not keep the others away
  $install "$package" > /dev/null 2>&1 || echo "install_peers: cannot get $package"
done

# llama.cpp, its program for this machine alone (the other packages are for other machines).
peers="$(cd "$(dirname "$0")/.." && pwd)/build/peers"
if have npm; then
  case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) program=linux-x64 ;; Linux-aarch64) program=linux-arm64 ;;
    Darwin-arm64) program=mac-arm64-metal ;; *) program= ;;
  esac
  [ -z "$program" ] || npm install --silent --prefix "$peers" --omit=optional --ignore-scripts \
    node-llama-cpp@3.22.1 "@node-llama-cpp/$program@3.22.1" > /dev/null 2>&1 ||
    echo "install_peers: cannot get node-llama-cpp"
fi

missing=0
report() {  # name, and whether it is there
  [ "$2" -eq 0 ] && echo "install_peers: $1 is here" && return
  echo "install_peers: $1 is missing"
  missing=$((missing + 1))
}
library() { ldconfig -p 2> /dev/null | grep -q "$1" || ls /opt/homebrew/lib/"$1"* > /dev/null 2>&1; }
for pair in OpenBLAS:libopenblas oneDNN:libdnnl BLIS:libblis; do
  library "${pair#*:}"
  report "${pair%%:*}" $?
done
ls /usr/include/eigen3/Eigen/Core /opt/homebrew/include/eigen3/Eigen/Core 2> /dev/null | grep -q Core
report Eigen $?
python3 -c 'import torch' 2> /dev/null || /usr/bin/python3 -c 'import torch' 2> /dev/null
report PyTorch $?
[ -d "$peers/node_modules/node-llama-cpp" ]
report 'llama.cpp (node-llama-cpp)' $?
command -v mpicc > /dev/null && command -v mpirun > /dev/null
report 'Open MPI' $?
exit $((missing > 0))

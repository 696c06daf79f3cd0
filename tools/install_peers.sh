#!/usr/bin/env bash
# Installs what `make bench` compares with, through the system's package manager, and says what it
# cannot get. Nothing else needs these: the bench skips a peer that is missing.
#   tools/install_peers.sh          PRINT=1 only prints the line
set -u
have() { command -v "$1" > /dev/null 2>&1; }
root=""
[ "$(id -u)" -eq 0 ] || root="sudo"

if have apt-get; then
  line="$root apt-get install -y libopenblas0-pthread libdnnl-dev libblis4 libeigen3-dev python3-torch gcc"
elif have dnf; then
  line="$root dnf install -y openblas-threads onednn-devel blis eigen3-devel python3-torch gcc"
elif have pacman; then
  line="$root pacman -S --needed --noconfirm openblas onednn blis eigen python-pytorch gcc"
elif have brew; then
  line="brew install openblas onednn eigen pytorch"
else
  echo "install_peers: no apt-get, dnf, pacman or brew here; install OpenBLAS, oneDNN, BLIS, Eigen, PyTorch" >&2
  exit 1
fi
echo "$line"
[ -z "${PRINT:-}" ] || exit 0
$line || {  # one that this system does not know must not keep the others away
  for package in $(echo "$line" | sed 's/.*install -y\|.*noconfirm\|.*install//'); do
    ${line%% "${line##*install -y }"} "$package" > /dev/null 2>&1 || echo "install_peers: cannot get $package"
  done
}

missing=0
says() { echo "install_peers: $1 is ${2}here"; [ -z "$2" ] || missing=$((missing + 1)); }
library() { ldconfig -p 2> /dev/null | grep -q "$1" || ls /opt/homebrew/lib/$1* > /dev/null 2>&1; }
library libopenblas && says OpenBLAS "" || says OpenBLAS "not "
library libdnnl && says oneDNN "" || says oneDNN "not "
library libblis && says BLIS "" || says BLIS "not "
for folder in /usr/include /opt/homebrew/include; do [ -e "$folder/eigen3/Eigen/Core" ] && eigen=yes; done
[ "${eigen:-}" = yes ] && says Eigen "" || says Eigen "not "
python3 -c 'import torch' 2> /dev/null || /usr/bin/python3 -c 'import torch' 2> /dev/null
[ $? -eq 0 ] && says PyTorch "" || says PyTorch "not "
exit $((missing > 0))

#!/usr/bin/env bash
# Prints the version that the header states.
cd "$(dirname "$0")/.." || exit 1
sed -n 's/^# *define *TINYSCALE_VERSION *"\([0-9.]*\)".*/\1/p' src/tinyscale/base/config.hpp | head -n 1

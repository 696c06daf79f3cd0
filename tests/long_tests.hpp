#pragma once
// Whether the tests run whole, as in `make check-long`: TINYSCALE_LONG_TESTS is set.
#include <cstdlib>

inline bool long_tests() { return std::getenv("TINYSCALE_LONG_TESTS") != nullptr; }

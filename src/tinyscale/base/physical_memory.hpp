#pragma once
// How much memory this machine has, to refuse at once what can never fit.

// clang-format off
#if defined(__unix__) || defined(__APPLE__)
#  include <unistd.h>  // sysconf
#endif
// clang-format on

namespace tinyscale {
namespace detail {

// Bytes; 0: not known.
inline double physical_memory() {
#if (defined(__unix__) || defined(__APPLE__)) && defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
  const double pages = static_cast<double>(::sysconf(_SC_PHYS_PAGES));
  const double bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  return pages > 0 && bytes > 0 ? pages * bytes : 0;
#else
  return 0;
#endif
}

}  // namespace detail
}  // namespace tinyscale

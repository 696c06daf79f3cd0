#pragma once
// What a call throws, for tests that compare messages.
#include <functional>
#include <string>

#include "tinyscale.hpp"

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const tinyscale::Error& error) {
    return error.what();
  }
  return "no error";
}

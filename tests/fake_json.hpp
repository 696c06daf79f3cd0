// Stands in for a notebook kernel's json.
#pragma once

#include <map>
#include <string>

struct FakeJson {
  std::map<std::string, std::string> parts;
  static FakeJson object() { return {}; }
  std::string& operator[](const std::string& key) { return parts[key]; }
};

namespace xcpp {
template <class T>
FakeJson mime_bundle_repr(const T&) {
  return {};
}
}  // namespace xcpp

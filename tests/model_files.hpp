// The folder of real checkpoints, files for a moment, and bytes put together for readers.
#pragma once
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

// A file of data/models; empty where the folder is not there.
inline std::string model_path(const std::string& path) {
  const char* root = std::getenv("TINYSCALE_SHARED");
  return std::string(root != nullptr ? root : "../shared") + "/data/models/" + path;
}

inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

inline std::vector<float> floats_of(const std::string& bytes) {
  std::vector<float> out(bytes.size() / 4);
  if (!out.empty()) {
    std::memcpy(out.data(), bytes.data(), 4 * out.size());
  }
  return out;
}

inline const std::uint8_t* bytes_of(const std::string& text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

inline std::string temporary_file(const std::string& name) {
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder != nullptr ? folder : ".") + "/tinyscale_" + std::to_string(getpid()) +
         "_" + name;
}

// Little-endian numbers, as files have them.
template <class T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

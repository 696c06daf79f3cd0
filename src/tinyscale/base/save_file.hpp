#pragma once
// A file that appears whole or not at all: written beside its place under another name, then
// renamed. A link stays one, and what is no regular file (a folder, a device) is left alone.

#include <cerrno>   // errno
#include <cstddef>  // size_t
#include <cstdio>   // fopen, rename
#include <cstdlib>  // realpath
#include <cstring>  // strerror
#include <string>

#include "tinyscale/base/error.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#endif

namespace tinyscale {
namespace detail {

// Where saving to `path` ends: there, or at the file that a link there leads to.
inline std::string save_target(const char* function, const std::string& path) {
#if defined(__unix__) || defined(__APPLE__)
  struct stat seen;
  if (::lstat(path.c_str(), &seen) != 0 || S_ISREG(seen.st_mode)) {
    return path;
  }
  char* const found = ::realpath(path.c_str(), nullptr);
  std::string real = found != nullptr ? found : "";
  std::free(found);
  if (real.empty() || ::stat(real.c_str(), &seen) != 0 || !S_ISREG(seen.st_mode)) {
    fail({function, ": \"", path,
          "\" is there and is no regular file (a folder, a "
          "device, a link to nothing); a new name or an old file is right"});
  }
  return real;
#else
  static_cast<void>(function);
  return path;
#endif
}

class SaveFile {
 public:
  SaveFile(const char* function, const std::string& path)
      : function_(function),
        path_(path),
        target_(save_target(function, path)),
        beside_(target_ + ".saving"),
        file_(std::fopen(beside_.c_str(), "wb")) {
    if (file_ == nullptr) {
      fail("; give a path in a folder that exists and can be written");
    }
  }
  SaveFile(const SaveFile&) = delete;
  SaveFile& operator=(const SaveFile&) = delete;
  ~SaveFile() {
    if (file_ != nullptr) {  // finish() was not reached
      std::fclose(file_);
      std::remove(beside_.c_str());
    }
  }

  void write(const void* data, std::size_t bytes) {
    if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) {
      fail("; the old file is as it was");
    }
  }

  // The new file takes its place.
  void finish() {
    std::FILE* const file = file_;
    const bool flushed = std::fflush(file) == 0;
    file_ = nullptr;
    if (std::fclose(file) != 0 || !flushed) {
      fail("; the old file is as it was");
    }
#if defined(_WIN32)
    std::remove(target_.c_str());  // rename does not replace a file there
#endif
    if (std::rename(beside_.c_str(), target_.c_str()) != 0) {
      fail("; give a path to a file");
    }
  }

 private:
  [[noreturn]] void fail(const char* advice) {
    const std::string reason = std::strerror(errno);
    if (file_ != nullptr) {
      std::fclose(file_);
      file_ = nullptr;
    }
    std::remove(beside_.c_str());
    detail::fail({function_, ": cannot write \"", path_, "\": ", reason, advice});
  }

  const char* function_;
  std::string path_, target_, beside_;
  std::FILE* file_;
};

}  // namespace detail
}  // namespace tinyscale

#pragma once
// A file that appears whole or not at all: written beside its place under a name that nothing has,
// then renamed. A link stays one, an old file's permissions stay, and what is no regular file (a
// folder, a device) or may not be written is left alone. Two that save to one place at once each
// write a whole file; the last to end stays. What a killed program was writing stays beside, as
// <path>.saving-<process>-<number>, until remove_abandoned().

#include <algorithm>
#include <cerrno>   // errno
#include <cstddef>  // size_t
#include <cstdio>   // fopen, rename
#include <cstdlib>  // realpath
#include <cstring>  // strerror
#include <initializer_list>
#include <string>

#include "tinyscale/base/error.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <dirent.h>    // opendir
#include <fcntl.h>     // open
#include <sys/file.h>  // flock
#include <sys/stat.h>  // fchmod
#include <unistd.h>    // access, fsync, getpid
#endif

namespace tinyscale {
namespace detail {

// Whether the path has one of these endings, as {".png"} or ".PNG".
inline bool ends_in(const std::string& path, std::initializer_list<const char*> endings) {
  const auto same = [](char small, char c) { return small == c || small == (c | 0x20); };
  return std::any_of(endings.begin(), endings.end(), [&](const std::string& ending) {
    return path.size() >= ending.size() &&
           std::equal(ending.rbegin(), ending.rend(), path.rbegin(), same);
  });
}

inline void check_ending(const char* function, const std::string& path,
                         std::initializer_list<const char*> others, const char* format,
                         const char* right) {
  if (ends_in(path, others)) {
    fail({function, ": \"", path, "\" would hold ", format, ", which its name denies; ", right});
  }
}

// Where saving to `path` ends: there, or at the file that a link there leads to. An old file that
// may not be written is an Error: to replace one, a program only has to write the folder.
inline std::string save_target(const char* function, const std::string& path) {
#if defined(__unix__) || defined(__APPLE__)
  struct stat seen;
  if (::lstat(path.c_str(), &seen) != 0) {
    return path;
  }
  std::string real = path;
  if (!S_ISREG(seen.st_mode)) {
    char* const found = ::realpath(path.c_str(), nullptr);
    real = found != nullptr ? found : "";
    std::free(found);
  }
  if (real.empty() || ::stat(real.c_str(), &seen) != 0 || !S_ISREG(seen.st_mode)) {
    fail({function, ": \"", path,
          "\" is there and is no regular file (a folder, a "
          "device, a link to nothing); a new name or an old file is right"});
  }
  if (::access(real.c_str(), W_OK) != 0) {
    fail({function, ": \"", path, "\" is there and may not be written: ", std::strerror(errno),
          "; another name, or a file with permission to write is right"});
  }
  return real;
#else
  static_cast<void>(function);
  return path;
#endif
}

// A new file beside the target, which no other program and no other save has; its name goes to
// `name`. Null, and errno says why, if there can be none.
inline std::FILE* open_beside(const std::string& target, std::string& name) {
  for (int number = 0; number < 10000; ++number) {
#if defined(__unix__) || defined(__APPLE__)
    struct stat old;
    const bool there = ::stat(target.c_str(), &old) == 0;
    name = cat({target, ".saving-", static_cast<long>(::getpid()), "-", number});
    // Nobody may read it who may not read the old file, from the first byte on.
    const int file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                            there ? S_IRUSR | S_IWUSR : 0666);
    if (file >= 0) {
      static_cast<void>(there ? ::fchmod(file, old.st_mode & 0777) : 0);
      struct stat own;  // locked while it is written; gone: remove_abandoned() came between
      const bool lost = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
      if (!lost && ::fstat(file, &own) == 0 && own.st_nlink > 0) {
        return ::fdopen(file, "wb");
      }
      ::close(file);
      continue;
    }
#else
    name = cat({target, ".saving-", number});
    if (std::FILE* const file = std::fopen(name.c_str(), "wbx")) {
      return file;
    }
#endif
    if (errno != EEXIST) {
      break;
    }
  }
  return nullptr;
}

#if defined(__unix__) || defined(__APPLE__)
// Whether the name is `start` and then <process>-<number>.
inline bool is_abandoned_name(const std::string& name, const std::string& start) {
  int dashes = 0;
  for (std::size_t i = start.size(); i < name.size(); ++i) {
    dashes += name[i] == '-' ? 1 : 0;
    if (name[i] != '-' && (name[i] < '0' || name[i] > '9')) {
      return false;
    }
  }
  return dashes == 1 && name.compare(0, start.size(), start) == 0;
}
#endif

// Removes what killed programs were saving to `path`; what is being saved is locked, and stays.
inline void remove_abandoned(const char* function, const std::string& path) {
#if defined(__unix__) || defined(__APPLE__)
  const std::string start = save_target(function, path) + ".saving-";
  const std::size_t slash = start.rfind('/');
  const std::size_t first = slash == std::string::npos ? 0 : slash + 1;
  const std::string folder = start.substr(0, first);
  DIR* const open_folder = ::opendir(folder.empty() ? "." : folder.c_str());
  while (const dirent* entry = open_folder != nullptr ? ::readdir(open_folder) : nullptr) {
    const std::string name = folder + entry->d_name;
    const int file =
        is_abandoned_name(name, start) ? ::open(name.c_str(), O_WRONLY | O_CLOEXEC) : -1;
    if (file >= 0 && ::flock(file, LOCK_EX | LOCK_NB) == 0) {
      ::unlink(name.c_str());
    }
    if (file >= 0) {
      ::close(file);
    }
  }
  if (open_folder != nullptr) {
    ::closedir(open_folder);
  }
#else
  static_cast<void>(function), static_cast<void>(path);
#endif
}

class SaveFile {
 public:
  SaveFile(const char* function, const std::string& path)
      : function_(function),
        path_(path),
        target_(save_target(function, path)),
        file_(open_beside(target_, beside_)) {
    if (file_ == nullptr) {  // nothing beside is ours to remove
      detail::fail({function_, ": cannot write \"", path_, "\": ", std::strerror(errno),
                    "; give a path in a folder that exists and can be written"});
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
    if (std::fflush(file) != 0 || !on_disk(file)) {
      fail("; the old file is as it was");
    }
#if defined(__unix__) || defined(__APPLE__)
    if (std::rename(beside_.c_str(), target_.c_str()) != 0) {  // before it is closed and unlocked
      fail("; give a path to a file");
    }
    file_ = nullptr;
    std::fclose(file);
#else
    file_ = nullptr;
    if (std::fclose(file) != 0) {
      fail("; the old file is as it was");
    }
    std::remove(target_.c_str());  // rename does not replace a file on Windows
    if (std::rename(beside_.c_str(), target_.c_str()) != 0) {
      fail("; give a path to a file");
    }
#endif
  }

 private:
  // Else a machine that stops could keep the new name without the bytes.
  static bool on_disk(std::FILE* file) {
#if defined(__unix__) || defined(__APPLE__)
    return ::fsync(::fileno(file)) == 0 || (errno != EIO && errno != ENOSPC && errno != EDQUOT);
#else
    static_cast<void>(file);
    return true;
#endif
  }

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

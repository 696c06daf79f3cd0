#pragma once
// The bytes of a file: mapped into memory where the system can, so that they are read when they
// are used and a file larger than memory will do; read into memory elsewhere. Also memory of one's
// own, so that what holds bytes need not know which.

#include <cerrno>   // errno
#include <cstddef>  // size_t
#include <cstdint>  // uint8_t
#include <cstdio>   // fopen
#include <cstring>  // strerror
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/weight_memory.hpp"

// clang-format off
#if defined(__unix__) || defined(__APPLE__)
#  include <fcntl.h>
#  include <sys/mman.h>
#  include <sys/stat.h>
#  include <unistd.h>
#endif
// clang-format on

namespace tinyscale {

class MappedFile {
 public:
  MappedFile() = default;
  // `who` begins the message of an Error: "load".
  MappedFile(const std::string& path, const char* who) : path_(path) { open(who); }
  explicit MappedFile(std::size_t bytes) { own(bytes); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
#if defined(__unix__) || defined(__APPLE__)
    if (mapped_) {
      ::munmap(data_, size_);
      return;
    }
#endif
    delete own_;
  }

  const std::uint8_t* data() const { return data_; }
  std::uint8_t* own_data() { return mapped_ ? nullptr : data_; }  // null: the file's, read-only
  std::size_t size() const { return size_; }
  const std::string& path() const { return path_; }
  bool mapped() const { return mapped_; }

 private:
  void open(const char* who);
  void own(std::size_t bytes) {
    own_ = new detail::WeightMemory(bytes + 64);
    data_ = static_cast<std::uint8_t*>(own_->data());
    size_ = bytes;
  }

  std::string path_;
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  bool mapped_ = false;
  detail::WeightMemory* own_ = nullptr;  // where it is no file's
};

#if defined(__unix__) || defined(__APPLE__)
inline void MappedFile::open(const char* who) {
  const int file = ::open(path_.c_str(),
                          O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
  if (file < 0) {
    detail::fail({who, ": cannot open \"", path_, "\": ", std::strerror(errno)});
  }
  struct stat seen;
  if (::fstat(file, &seen) != 0 || !S_ISREG(seen.st_mode)) {
    ::close(file);
    detail::fail({who, ": \"", path_, "\" is no regular file; a path to a file is right"});
  }
  size_ = static_cast<std::size_t>(seen.st_size);
  if (size_ > 0) {
    void* const memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    ::close(file);
    if (memory == MAP_FAILED) {
      size_ = 0;
      detail::fail({who, ": cannot map \"", path_, "\": ", std::strerror(error)});
    }
    data_ = static_cast<std::uint8_t*>(memory);
    mapped_ = true;
  } else {
    ::close(file);
  }
}
#else
inline void MappedFile::open(const char* who) {
  std::FILE* const file = std::fopen(path_.c_str(), "rb");
  if (file == nullptr) {
    detail::fail({who, ": cannot open \"", path_, "\": ", std::strerror(errno)});
  }
  std::string bytes, piece(1 << 16, '\0');
  for (std::size_t got = piece.size(); got == piece.size();) {
    got = std::fread(&piece[0], 1, piece.size(), file);
    bytes.append(piece, 0, got);
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) {
    detail::fail({who, ": cannot read \"", path_, "\": ", std::strerror(errno)});
  }
  own(bytes.size());
  std::memcpy(data_, bytes.data(), size_);
}
#endif

inline Shared<MappedFile> map_file(const std::string& path, const char* who) {
  return Shared<MappedFile>(new MappedFile(path, who));
}

}  // namespace tinyscale

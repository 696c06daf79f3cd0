#pragma once
// A text to learn: its tokens, of which the first 90 % train and the rest validate.

#include <cerrno>    // errno
#include <cstdint>   // int32_t
#include <cstdio>    // FILE
#include <cstring>   // strerror
#include <iostream>  // ostream
#include <string>    // string
#include <vector>    // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/tokenizer.hpp"

namespace tinyscale {

struct Text {
  std::string name;
  Tokenizer tokenizer;
  std::vector<std::int32_t> tokens;
  std::int64_t split = 0;  // tokens [0, split) train, the rest validate

  std::vector<std::int32_t> train() const { return {tokens.begin(), tokens.begin() + split}; }
  std::vector<std::int32_t> validation() const { return {tokens.begin() + split, tokens.end()}; }
  // "input.txt: 1,115,394 tokens, characters (65 distinct)"
  std::string text() const {
    return detail::cat({name, ": ", format_count(static_cast<double>(tokens.size())), " tokens, ",
                        tokenizer.text()});
  }
};

inline std::ostream& operator<<(std::ostream& out, const Text& text) { return out << text.text(); }

namespace detail {

// A file, closed at the end of its scope.
class File {
 public:
  explicit File(std::FILE* file) : file_(file) {}
  File(File&& other) noexcept : file_(other.release()) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (file_ != nullptr) {
      std::fclose(file_);
    }
  }
  std::FILE* get() const { return file_; }
  std::FILE* release() {
    std::FILE* file = file_;
    file_ = nullptr;
    return file;
  }

 private:
  std::FILE* file_;
};

inline File open_file(const std::string& path, const char* mode, const char* who) {
  File file(std::fopen(path.c_str(), mode));
  if (file.get() == nullptr) {
    fail({who, ": cannot open \"", path, "\": ", std::strerror(errno)});
  }
  return file;
}

inline std::string read_file(const std::string& path, const char* who) {
  const File file = open_file(path, "rb", who);
  std::string data;
  std::string piece(1 << 16, '\0');
  for (;;) {
    const std::size_t got = std::fread(&piece[0], 1, piece.size(), file.get());
    data.append(piece, 0, got);
    if (got < piece.size()) {
      break;
    }
  }
  if (std::ferror(file.get())) {
    fail({who, ": cannot read \"", path, "\": ", std::strerror(errno)});
  }
  return data;
}

}  // namespace detail

// A text that is already in memory.
inline Text make_text(const std::string& name, const std::string& data) {
  if (data.empty()) {
    detail::fail({"read_text: \"", name, "\" is empty; a text to learn is right"});
  }
  Text text;
  text.name = name;
  text.tokenizer = detail::tokenizer_for(data);
  text.tokens = text.tokenizer.encode(data);
  text.split = static_cast<std::int64_t>(text.tokens.size()) * 9 / 10;
  return text;
}

// Characters when at most 256 are distinct, else bytes; the text prints which. A byte order mark
// (EF BB BF, which some editors put before UTF-8) is left out.
inline Text read_text(const std::string& path) {
  std::string data = detail::read_file(path, "read_text");
  if (data.compare(0, 3, "\xEF\xBB\xBF") == 0) {
    data.erase(0, 3);
  }
  return make_text(path.substr(path.find_last_of("/\\") + 1), data);
}

}  // namespace tinyscale

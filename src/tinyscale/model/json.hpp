#pragma once
// A strict reader for the little JSON that files carry (RFC 8259): objects keep their order,
// numbers are doubles; a repeated key, bytes that are no UTF-8 or anything after the value is an
// Error with its position.

#include <cstdint>  // int64_t
#include <string>   // string
#include <utility>  // pair
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/sorted_names.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

struct JsonField;

struct Json {
  enum class Kind { null, boolean, number, text, list, object };
  Kind kind = Kind::null;
  double number = 0;  // also a boolean's 0 or 1
  std::string text;
  List<Json> list;
  List<JsonField> fields;
  std::size_t at = 0;  // byte of the text where the value begins

  // The field of that name, or null when there is none.
  const Json* find(const std::string& key) const;
};

struct JsonField {
  std::string name;
  Json value;
};

inline const Json* Json::find(const std::string& key) const {
  for (const JsonField& field : fields) {
    if (field.name == key) {
      return &field.value;
    }
  }
  return nullptr;
}

namespace detail {

// All digits of a double, as JSON has it.
inline std::string exact_number(double value) { return printed('g', 17, value); }

class JsonReader {
 public:
  // The text must outlive it; `who` stands before each error.
  explicit JsonReader(const std::string& text, const std::string& who = std::string())
      : text_(text), who_(who) {}

  // Of at most so many values, each of which may take 250 bytes of memory where it has two of text.
  Json whole(std::size_t most = static_cast<std::size_t>(-1)) {
    left_ = most_ = most;
    Json value = read(0);
    end();
    return value;
  }

  // Or field by field: `visit` gets each name of the object that comes next, and takes its value by
  // few_values() or each_field().
  template <class Visit>
  void each_field(const Visit& visit) {
    std::vector<std::string> names;
    if (!take('{')) {
      fail("an object is missing");
    }
    if (!take('}')) {
      do {
        names.push_back(read_key());
        visit(static_cast<const std::string&>(names.back()));
      } while (take(','));
      if (!take('}')) {
        fail("a comma or } is missing");
      }
    }
    const SortedNames sorted(static_cast<std::vector<std::string>&&>(names));
    if (sorted.twice() != SortedNames::none) {
      fail_twice(sorted.name(sorted.twice()));
    }
  }
  bool at_object() { return peek() == '{'; }
  Json few_values(std::size_t most) {
    left_ = most_ = most;
    Json value = read(1);
    left_ = static_cast<std::size_t>(-1);
    return value;
  }
  void end() {
    skip_space();
    if (at_ != text_.size()) {
      fail("text after the value");
    }
  }

  // After an Error: the byte that is wrong; of a key that stands twice, where its second value is.
  std::size_t position() const { return wrong_ > 0 ? wrong_ : at_; }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    detail::fail({who_, "json: ", what, " at byte ", static_cast<std::int64_t>(at_)});
  }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  char peek() {
    skip_space();
    if (at_ >= text_.size()) {
      fail("the text ends early");
    }
    return text_[at_];
  }
  bool take(char c) {
    if (peek() != c) {
      return false;
    }
    ++at_;
    return true;
  }

  Json read(int depth) {
    if (depth > 64) {
      fail("more than 64 levels");
    }
    if (left_-- == 0) {
      fail(cat({"more than ", most_, " values"}));
    }
    Json value;
    const char c = peek();
    value.at = at_;
    if (c == '{') {
      read_object(value, depth);
    } else if (c == '[') {
      read_list(value, depth);
    } else if (c == '"') {
      value.kind = Json::Kind::text;
      value.text = read_text();
    } else if (c == 't' || c == 'f' || c == 'n') {
      read_word(value);
    } else {
      value.kind = Json::Kind::number;
      value.number = read_number();
    }
    return value;
  }

  void read_object(Json& value, int depth) {
    value.kind = Json::Kind::object;
    ++at_;
    if (take('}')) {
      return;
    }
    do {
      std::string key = read_key();
      value.fields.push_back({std::move(key), read(depth + 1)});
    } while (take(','));
    if (!take('}')) {
      fail("a comma or } is missing");
    }
    check_unique(value);
  }

  std::string read_key() {
    if (peek() != '"') {
      fail("a key must be a string");
    }
    std::string key = read_text();
    if (!take(':')) {
      fail("a colon is missing");
    }
    return key;
  }

  [[noreturn]] void fail_twice(const std::string& name) const {
    fail(cat({"the key \"", name, "\" stands twice, before"}));
  }
  void check_unique(const Json& object) {
    const std::size_t again = repeated(object.fields);
    if (again < object.fields.size()) {
      wrong_ = object.fields[again].value.at;
      fail_twice(object.fields[again].name);
    }
  }
  // The first field whose name stood before; SortedNames::none when there is none.
  static std::size_t repeated(const List<JsonField>& fields) {
    std::vector<std::string> names;
    for (const JsonField& field : fields) {
      names.push_back(field.name);
    }
    return SortedNames(static_cast<std::vector<std::string>&&>(names)).twice();
  }

  void read_list(Json& value, int depth) {
    value.kind = Json::Kind::list;
    ++at_;
    if (take(']')) {
      return;
    }
    do {
      value.list.push_back(read(depth + 1));
    } while (take(','));
    if (!take(']')) {
      fail("a comma or ] is missing");
    }
  }

  void read_word(Json& value) {
    if (text_.compare(at_, 4, "true") == 0 || text_.compare(at_, 5, "false") == 0) {
      value.kind = Json::Kind::boolean;
      value.number = text_[at_] == 't' ? 1 : 0;
      at_ += value.number != 0 ? 4u : 5u;
    } else if (text_.compare(at_, 4, "null") == 0) {
      at_ += 4;
    } else {
      fail("an unknown word");
    }
  }

  bool digits() {
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      ++at_;
    }
    return at_ > start;
  }
  bool next_is(char a, char b) const {
    return at_ < text_.size() && (text_[at_] == a || text_[at_] == b);
  }
  double read_number() {
    const std::size_t start = at_;
    if (next_is('-', '-')) {
      ++at_;
    }
    const bool zero = next_is('0', '0');
    const std::size_t first = at_;
    bool good = digits() && !(zero && at_ > first + 1);
    if (good && next_is('.', '.')) {
      ++at_;
      good = digits();
    }
    if (good && next_is('e', 'E')) {
      ++at_;
      if (next_is('+', '-')) {
        ++at_;
      }
      good = digits();
    }
    if (!good) {
      fail("not a JSON value");
    }
    return read_decimal(text_.substr(start, at_ - start));
  }

  std::string read_text() {
    std::string out;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        if (!is_utf8(out)) {
          fail("a string that is no UTF-8");
        }
        ++at_;
        return out;
      }
      if (static_cast<unsigned char>(c) < 0x20) {
        fail("a control character in a string");
      }
      if (c == '\\') {
        read_escape(out);
      } else {
        out += c;
      }
    }
    fail("a string has no end");
  }

  void read_escape(std::string& out) {
    static const char names[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    const char c = ++at_ < text_.size() ? text_[at_] : '\0';
    for (int i = 0; names[i] != '\0'; ++i) {
      if (c == names[i]) {
        out += values[i];
        return;
      }
    }
    if (c != 'u') {
      fail("an unknown escape");
    }
    std::uint32_t code = read_hex();
    if (code >= 0xD800 && code < 0xDC00 && text_.compare(at_ + 1, 2, "\\u") == 0) {
      at_ += 2;
      const std::uint32_t low = read_hex();
      if (low < 0xDC00 || low > 0xDFFF) {
        fail("half of a surrogate pair");
      }
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xD800 && code <= 0xDFFF) {
      fail("half of a surrogate pair");
    }
    append_utf8(out, code);
  }

  // Four hexadecimal digits after the 'u'; ends on the last of them.
  std::uint32_t read_hex() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = ++at_ < text_.size() ? text_[at_] : '\0';
      const bool digit = c >= '0' && c <= '9';
      const char lower = static_cast<char>(c | 0x20);
      if (!digit && (lower < 'a' || lower > 'f')) {
        fail("four hexadecimal digits must follow \\u");
      }
      code = code * 16 + static_cast<std::uint32_t>(digit ? c - '0' : lower - 'a' + 10);
    }
    return code;
  }

  const std::string& text_;
  const std::string who_;
  std::size_t at_ = 0;
  std::size_t left_ = static_cast<std::size_t>(-1), most_ = 0;  // values that may follow
  std::size_t wrong_ = 0;                                       // 0: at_
};

}  // namespace detail

// The value that the text spells; an Error says what is wrong and at which byte.
inline Json parse_json(const std::string& text) { return detail::JsonReader(text).whole(); }

}  // namespace tinyscale

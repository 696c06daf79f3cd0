#pragma once
// The keys of a config.json, one by one. The file is not trusted: what is missing, of another kind
// or out of bounds is an Error with the file, the line and the key.

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/json.hpp"

namespace tinyscale {
namespace detail {

class ConfigFile {
 public:
  // Both must outlive it; `file` stands before each error.
  ConfigFile(const std::string& text, const std::string& file) : text_(text), file_(file) {
    JsonReader reader(text);
    try {
      root_ = reader.whole(100000);
    } catch (const Error& error) {
      wrong(reader.position(), error.what());
    }
    if (root_.kind != Json::Kind::object) {
      wrong(root_.at, cat({"the file is ", shown(root_), "; an object of keys is right"}));
    }
    keys_ = &root_;
  }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  // From here on the keys of the object under that key, if there is one.
  void enter(const char* key) {
    const Json* inner = find(key);
    if (inner != nullptr) {
      keys_ = &kind(*inner, key, Json::Kind::object, "an object of keys");
    }
  }

  // A key that is null is one that is not there.
  const Json* find(const char* key) const {
    const Json* value = keys_->find(key);
    return value != nullptr && value->kind == Json::Kind::null ? nullptr : value;
  }
  bool has(const char* key) const { return keys_->find(key) != nullptr; }  // null or not
  const char* either(const char* key, const char* other) const {
    return find(key) == nullptr && find(other) != nullptr ? other : key;
  }

  std::int64_t whole(const char* key, std::int64_t least, std::int64_t most) const {
    const Json* value = find(key);
    if (value == nullptr) {
      wrong(keys_->at, cat({key, " is missing; a whole number from ", least, " is right"}));
    }
    const double n = value->number;
    const bool number = value->kind == Json::Kind::number;
    if (!number || !(n >= static_cast<double>(least)) || !is_finite(n) || n != whole_part(n)) {
      refuse(*value, key, cat({"a whole number from ", least, " is right"}));
    }
    if (n > static_cast<double>(most)) {
      refuse(*value, key, cat({"a whole number up to ", most, " is right"}));
    }
    return static_cast<std::int64_t>(n);
  }
  // `otherwise` stands for a key that is not there.
  std::int64_t whole_or(const char* key, std::int64_t least, std::int64_t most,
                        std::int64_t otherwise) const {
    return find(key) == nullptr ? otherwise : whole(key, least, most);
  }
  double number_or(const char* key, double least, double below, double otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise : number(*value, key, least, below);
  }
  bool flag_or(const char* key, bool otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise
                            : kind(*value, key, Json::Kind::boolean, "true or false").number != 0;
  }
  std::string word_or(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    return value == nullptr ? otherwise : kind(*value, key, Json::Kind::text, "a text").text;
  }
  // The object under that key, or null.
  const Json* object(const char* key) const {
    const Json* value = find(key);
    return value == nullptr ? nullptr : &kind(*value, key, Json::Kind::object, "an object of keys");
  }
  // Of an object under `parent`, as number_or and word_or.
  double number_in(const Json& object, const char* parent, const char* key, double least,
                   double below, double otherwise) const {
    const Json* value = object.find(key);
    return value == nullptr || value->kind == Json::Kind::null
               ? otherwise
               : number(*value, cat({parent, ".", key}), least, below);
  }
  std::string word_in(const Json& object, const char* parent, const char* key,
                      const std::string& otherwise) const {
    const Json* value = object.find(key);
    return value == nullptr || value->kind == Json::Kind::null
               ? otherwise
               : kind(*value, cat({parent, ".", key}), Json::Kind::text, "a text").text;
  }
  const List<Json>* list(const char* key) const {
    const Json* value = find(key);
    return value == nullptr ? nullptr : &kind(*value, key, Json::Kind::list, "a list").list;
  }

  // Throws: the key is what it is, and what would be right.
  [[noreturn]] void refuse(const char* key, const std::string& right) const {
    const Json* value = keys_->find(key);
    if (value == nullptr) {
      wrong(keys_->at, cat({key, " is missing; ", right}));
    }
    refuse(*value, key, right);
  }
  // Throws: the sentence, with the line of the key, or of the object when it is not there.
  [[noreturn]] void fail_at(const char* key, const std::string& sentence) const {
    const Json* value = keys_->find(key);
    wrong(value == nullptr ? keys_->at : value->at, sentence);
  }

 private:
  double number(const Json& value, const std::string& key, double least, double below) const {
    const double n = value.number;
    if (value.kind != Json::Kind::number || !(n >= least && n < below)) {
      refuse(value, key, cat({"a number from ", least, " and below ", below, " is right"}));
    }
    return n;
  }
  [[noreturn]] void refuse(const Json& value, const std::string& key,
                           const std::string& right) const {
    wrong(value.at, cat({key, " is ", shown(value), "; ", right}));
  }
  [[noreturn]] void wrong(std::size_t at, const std::string& sentence) const {
    std::int64_t line = 1;
    for (std::size_t i = 0; i < at && i < text_.size(); ++i) {
      line += text_[i] == '\n' ? 1 : 0;
    }
    fail({file_, ":", line, ": ", sentence});
  }
  const Json& kind(const Json& value, const std::string& key, Json::Kind right,
                   const char* words) const {
    if (value.kind != right) {
      refuse(value, key, cat({words, " is right"}));
    }
    return value;
  }

  // Whole numbers beyond 2^53 are all there is.
  static double whole_part(double n) {
    return n < 9007199254740992.0 ? static_cast<double>(static_cast<std::int64_t>(n)) : n;
  }
  static std::string shown(const Json& value) {
    switch (value.kind) {
      case Json::Kind::boolean: return value.number != 0 ? "true" : "false";
      case Json::Kind::number: return cat({value.number});
      case Json::Kind::text: return cat({"\"", json_escape(value.text.substr(0, 40)), "\""});
      case Json::Kind::list: return "a list";
      case Json::Kind::object: return "an object";
      default: return "null";
    }
  }

  const std::string& text_;
  const std::string& file_;
  Json root_;
  const Json* keys_ = nullptr;
};

}  // namespace detail
}  // namespace tinyscale

#pragma once
// What processes tell each other: values one after the other, read back in the same order. All
// processes run the same program, so a value is its bytes.

#if defined(TINYSCALE_USE_MPI)

#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy
#include <string>
#include <vector>

#include "tinyscale/base/shape.hpp"
#include "tinyscale/mesh/call_plan.hpp"
#include "tinyscale/mesh/run_log.hpp"

namespace tinyscale {
namespace detail {

class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::string text) : text_(std::move(text)) {}

  const std::string& text() const { return text_; }
  bool at_end() const { return next_ == text_.size(); }

  void put(const void* from, std::size_t size) {
    text_.append(static_cast<const char*>(from), size);
  }
  void get(void* to, std::size_t size) {
    std::memcpy(to, text_.data() + next_, size);
    next_ += size;
  }
  void put(std::int64_t value) { put(&value, sizeof value); }
  void put(double value) { put(&value, sizeof value); }
  void put(const std::string& text) {
    put(static_cast<std::int64_t>(text.size()));
    text_ += text;
  }
  template <class T>
  void put_enum(T value) {
    put(static_cast<std::int64_t>(value));
  }
  template <class T>
  void put_numbers(const std::vector<T>& values) {
    put(static_cast<std::int64_t>(values.size()));
    for (const T value : values) {
      put(static_cast<std::int64_t>(value));
    }
  }

  std::int64_t number() {
    std::int64_t value = 0;
    get(&value, sizeof value);
    return value;
  }
  int whole() { return static_cast<int>(number()); }
  double real() {
    double value = 0;
    get(&value, sizeof value);
    return value;
  }
  std::string string() {
    std::string text(static_cast<std::size_t>(number()), '\0');
    get(&text[0], text.size());
    return text;
  }
  template <class T>
  void get_enum(T& value) {
    value = static_cast<T>(number());
  }
  template <class T>
  void get_numbers(std::vector<T>& values) {
    values.resize(static_cast<std::size_t>(number()));
    for (T& value : values) {
      value = static_cast<T>(number());
    }
  }

 private:
  std::string text_;
  std::size_t next_ = 0;
};

inline void put_shape(Bytes& to, const Shape& shape) { to.put_numbers(shape.values()); }

inline Shape get_shape(Bytes& from) {
  std::vector<std::int64_t> dims;
  from.get_numbers(dims);
  return Shape(dims);
}

// Texts and schedules of other processes, kept for as long as the program runs: a log refers to
// them. Equal ones are kept once.
inline const char* kept_text(const std::string& text) {
  static List<Shared<const std::string>> kept;
  for (const Shared<const std::string>& known : kept) {
    if (*known == text) {
      return known->c_str();
    }
  }
  kept.push_back(Shared<const std::string>(new std::string(text)));
  return kept.back()->c_str();
}

inline void put_where(Bytes& to, const SourceLine& where) {
  to.put(std::string(where.file));
  to.put(std::int64_t{where.line});
}

inline SourceLine get_where(Bytes& from) {
  SourceLine where;
  where.file = kept_text(from.string());
  where.line = from.whole();
  return where;
}

inline void put_schedule(Bytes& to, const CollectiveSchedule& schedule) {
  to.put(schedule.name);
  to.put_enum(schedule.what);
  for (const int value : {schedule.devices, schedule.chunks, schedule.root}) {
    to.put(std::int64_t{value});
  }
  to.put(static_cast<std::int64_t>(schedule.transfers.size()));
  for (const Transfer& t : schedule.transfers) {
    to.put(&t, sizeof t);
  }
}

// The schedule of those bytes.
inline const CollectiveSchedule* kept_schedule(const std::string& bytes) {
  struct Known {
    std::string bytes;
    CollectiveSchedule schedule;
  };
  static List<Shared<Known>> kept;
  for (const Shared<Known>& known : kept) {
    if (known->bytes == bytes) {
      return &known->schedule;
    }
  }
  kept.push_back(Shared<Known>(new Known{bytes, CollectiveSchedule()}));
  Known& made = *kept.back();
  Bytes from(bytes);
  made.schedule.name = from.string();
  from.get_enum(made.schedule.what);
  made.schedule.devices = from.whole();
  made.schedule.chunks = from.whole();
  made.schedule.root = from.whole();
  made.schedule.transfers = List<Transfer>(static_cast<std::size_t>(from.number()));
  for (Transfer& t : made.schedule.transfers) {
    from.get(&t, sizeof t);
  }
  return &made.schedule;
}

inline void put_key(Bytes& to, const CallKey& key) {
  to.put_enum(key.what);
  to.put_enum(key.algorithm);
  to.put_enum(key.preferred);
  to.put_enum(key.how);
  to.put_enum(key.format);
  for (const int value : {key.root, key.dim, key.to_dim}) {
    to.put(std::int64_t{value});
  }
  put_shape(to, key.shape);
  to.put_numbers(key.axes);
  to.put_numbers(key.rows);
  Bytes schedule;
  if (key.schedule != nullptr) {
    put_schedule(schedule, *key.schedule);
  }
  to.put(schedule.text());
}

inline CallKey get_key(Bytes& from) {
  CallKey key;
  from.get_enum(key.what);
  from.get_enum(key.algorithm);
  from.get_enum(key.preferred);
  from.get_enum(key.how);
  from.get_enum(key.format);
  key.root = from.whole();
  key.dim = from.whole();
  key.to_dim = from.whole();
  key.shape = get_shape(from);
  from.get_numbers(key.axes);
  from.get_numbers(key.rows);
  const std::string schedule = from.string();
  key.schedule = schedule.empty() ? nullptr : kept_schedule(schedule);
  return key;
}

}  // namespace detail
}  // namespace tinyscale

#endif  // TINYSCALE_USE_MPI

#pragma once
// Memory in use, by what it is for, with the highest that each and all of it has been.
// Safe to use from several threads; the peak of the sum is exact, not the sum of the peaks.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tinyscale/base/text.hpp"

namespace tinyscale {

enum class MemoryKind : unsigned char {
  parameter,
  gradient,
  optimizer,
  activation,
  logits,
  kv_cache,
  buffer
};

inline const char* name_of(MemoryKind kind) {
  static const char* const names[] = {"parameter", "gradient", "optimizer", "activation",
                                      "logits",    "kv_cache", "buffer"};
  return detail::name_in("MemoryKind", names, kind);
}

namespace detail {

// A level that goes up and down, its highest value, and its highest since a mark, which is no more.
struct PeakCounter {
  std::atomic<std::int64_t> level{0};
  std::atomic<std::int64_t> peak{0};
  std::atomic<std::int64_t> since_mark{0};

  void change(std::int64_t amount) {
    const std::int64_t now = level.fetch_add(amount) + amount;
    if (amount <= 0) {
      return;
    }
    raise(peak, now);
    raise(since_mark, now);
  }
  static void raise(std::atomic<std::int64_t>& to, std::int64_t now) {
    std::int64_t highest = to.load();
    while (now > highest && !to.compare_exchange_weak(highest, now)) {
    }
  }
  // Begins a highest value anew. Looked at twice: the level may have risen meanwhile, and who
  // raised it have been here before the store.
  void restart(std::atomic<std::int64_t>& highest) const {
    highest.store(level.load());
    raise(highest, level.load());
  }
};

}  // namespace detail

struct MemoryMeter {
  static constexpr int kinds = 7;

  void add(MemoryKind kind, double bytes) { change(kind, static_cast<std::int64_t>(bytes)); }
  void remove(MemoryKind kind, double bytes) { change(kind, -static_cast<std::int64_t>(bytes)); }

  double current(MemoryKind kind) const { return static_cast<double>(of(kind).level.load()); }
  double current_total() const { return static_cast<double>(total_.level.load()); }
  double peak(MemoryKind kind) const { return static_cast<double>(of(kind).peak.load()); }
  double peak_total() const { return static_cast<double>(total_.peak.load()); }

  // From now on the peaks are those of what follows.
  void reset_peak() {
    for (detail::PeakCounter& counter : by_kind_) {
      counter.restart(counter.peak);
    }
    total_.restart(total_.peak);
  }

  // The highest since the last mark(), or since the beginning.
  double peak_since_mark(MemoryKind kind) const {
    return static_cast<double>(of(kind).since_mark.load());
  }
  double peak_total_since_mark() const { return static_cast<double>(total_.since_mark.load()); }
  void mark() {
    for (detail::PeakCounter& counter : by_kind_) {
      counter.restart(counter.since_mark);
    }
    total_.restart(total_.since_mark);
  }

  // All levels and peaks, the total last: what another process may tell of its meter.
  static constexpr int values = 2 * (kinds + 1);
  void read(std::int64_t* to) const {
    for (int i = 0; i <= kinds; ++i) {
      const detail::PeakCounter& counter = i < kinds ? by_kind_[std::size_t(i)] : total_;
      to[2 * i] = counter.level.load();
      to[2 * i + 1] = counter.peak.load();
    }
  }
  void write(const std::int64_t* from) {
    for (int i = 0; i <= kinds; ++i) {
      detail::PeakCounter& counter = i < kinds ? by_kind_[std::size_t(i)] : total_;
      counter.level.store(from[2 * i]);
      counter.peak.store(from[2 * i + 1]);
    }
  }

  // A row for each kind that was used, and their sum.
  Table table() const {
    Table out;
    out.title = "memory";
    out.columns = {"kind", "now", "peak"};
    for (int i = 0; i < kinds; ++i) {
      const MemoryKind kind = static_cast<MemoryKind>(i);
      if (peak(kind) > 0 || current(kind) > 0) {
        out.add({name_of(kind), format_bytes(current(kind)), format_bytes(peak(kind))});
      }
    }
    out.add({"total", format_bytes(current_total()), format_bytes(peak_total())});
    return out;
  }

 private:
  void change(MemoryKind kind, std::int64_t bytes) {
    by_kind_[place(kind)].change(bytes);
    total_.change(bytes);
  }
  const detail::PeakCounter& of(MemoryKind kind) const { return by_kind_[place(kind)]; }
  static std::size_t place(MemoryKind kind) {
    if (static_cast<int>(kind) >= kinds) {
      name_of(kind);  // refuses what is none
    }
    return static_cast<std::size_t>(kind);
  }

  std::array<detail::PeakCounter, kinds> by_kind_;
  detail::PeakCounter total_;
};

}  // namespace tinyscale

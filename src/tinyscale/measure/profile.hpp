#pragma once
// A profile: every op that ran in its context while it was alive, devices' ops included.
// Without one, an op's counting costs a branch.

#include <chrono>
#include <mutex>
#include <utility>  // move

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/counters.hpp"
#include "tinyscale/measure/hardware_counters.hpp"

namespace tinyscale {

struct Chip;
struct RooflineReport;

// Installs itself in the context of the thread that makes it, until it ends. A profile made
// while another is alive counts for both.
class Profile {
 public:
  Profile() : context_(&context()), outer_(context_->profile) { context_->profile = this; }
  ~Profile() {  // which may be before that of one made later
    Profile** in = &context_->profile;
    while (*in != nullptr && *in != this) {
      in = &(*in)->outer_;
    }
    *in = *in == this ? outer_ : nullptr;
  }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // May be called from several threads.
  void record(OpRecord record) {
    if (record.device < 0) {
      record.device = context().device;
    }
    if (outer_ != nullptr) {
      outer_->record(record);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    totals_.add(record);
    records_.push_back(std::move(record));
  }

  List<OpRecord> records() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return records_;
  }

  List<OpRecord> records_from(std::size_t first) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    List<OpRecord> out;
    for (; first < records_.size(); ++first) {
      out.push_back(records_[first]);
    }
    return out;
  }

  Counters totals() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return totals_;
  }

  void clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_.clear();
    totals_ = Counters();
  }

  // From now on the processor's own counters are read too, where the system allows it; a roofline
  // on this machine shows them beside the model's counts, or says once why there are none.
  void count_hardware(detail::PerfOpener open = detail::open_perf_event) {
    hardware_ = Shared<HardwareCounters>(new HardwareCounters(open));
  }
  const Shared<HardwareCounters>& hardware() const { return hardware_; }  // null: not asked for

  // Every op priced on a chip as if its f32 operands were of `format`; see hardware/roofline.hpp,
  // which defines it.
  RooflineReport roofline(const Chip& chip, DType format = DType::f32) const;

 private:
  Context* context_;
  Profile* outer_;
  mutable std::mutex mutex_;  // guards the two below
  List<OpRecord> records_;
  Counters totals_;
  Shared<HardwareCounters> hardware_;
};

inline std::ostream& operator<<(std::ostream& out, const Profile& profile) {
  return out << profile.totals();
}

// Whether ops of this thread are recorded.
inline bool profiling() { return context().profile != nullptr; }

namespace detail {

// Of a clock that only goes forward.
inline double seconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace detail
}  // namespace tinyscale

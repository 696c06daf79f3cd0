#pragma once
// Runs the schedule of a collective over the buffers of all its devices, transfer by transfer.
// What happens to one element does not depend on its neighbours, so a stretch of a chunk goes
// through all steps while it is in the cache, and threads take different stretches: no thread waits
// for another between steps. Numbers are rounded to the wire's format whenever they are sent.

#include <algorithm>  // max, min, upper_bound
#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy
#include <vector>

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/threads.hpp"
#include "tinyscale/compute/elementwise.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/compute/streams.hpp"
#include "tinyscale/mesh/chunk_paths.hpp"
#include "tinyscale/mesh/collective_spec.hpp"

namespace tinyscale {
namespace detail {

// Where a device's blocks lie in its tensor: runs of `run` elements, `pitch` from one to the next,
// block b beginning b runs in. A block of one run is contiguous.
struct BlockMap {
  std::int64_t run = 0, pitch = 0;
};

// One device's tensors; null where it has none.
struct DeviceBuffers {
  const float* in = nullptr;
  float* out = nullptr;
};

// What one collective does to numbers.
struct Exchange {
  Collective what = Collective::all_gather;
  Reduce how = Reduce::sum;
  DType format = DType::f32;
  int devices = 1;
  int root = 0;
  ChunkCut cut;
  BlockMap in, out;
  std::vector<std::int64_t> landing;  // ragged: where each block begins at its receiver
  ChunkPaths paths;
};

// A NaN on any device is the result: max and min do not hide it.
inline void combine(Reduce how, std::int64_t n, const float* own, const float* part, float* into) {
  if (how == Reduce::sum || how == Reduce::mean) {
    kernels::add(n, own, part, into);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const bool takes = how == Reduce::max ? own[i] < part[i] : part[i] < own[i];
    into[i] = takes || is_nan(part[i]) ? part[i] : own[i];
  }
}

// Whether results are rounded on all devices, also on one that was not sent them: all have the same
// where all have everything, and a maximum is one of the numbers as they were sent.
inline bool rounds_result(const Exchange& e) {
  return e.format != DType::f32 && e.devices > 1 &&
         (e.what == Collective::all_reduce || e.what == Collective::all_gather ||
          e.what == Collective::broadcast || e.how == Reduce::max || e.how == Reduce::min);
}
inline bool settles(const Exchange& e) { return e.how == Reduce::mean || rounds_result(e); }

// What n numbers of a device come to in the end.
inline void settle(const Exchange& e, std::int64_t n, const float* from, float* into) {
  const bool rounds = rounds_result(e);
  const float parts = e.how == Reduce::mean ? static_cast<float>(e.devices) : 1.0f;
  for (std::int64_t i = 0; i < n; ++i) {
    into[i] = (rounds ? round_to(from[i], e.format) : from[i]) / parts;
  }
}

// The block of a device's input, or of its result, that block b of the vector is; -1: not there.
inline int input_block(const Exchange& e, int device, int b) {
  switch (e.what) {
    case Collective::all_gather:
    case Collective::gather:
    case Collective::permute: return b == device ? 0 : -1;
    case Collective::all_to_all: return b / e.devices == device ? b % e.devices : -1;
    case Collective::broadcast:
    case Collective::scatter: return device == e.root ? b : -1;
    default: return b;
  }
}

inline int output_block(const Exchange& e, int device, int b) {
  switch (e.what) {
    case Collective::reduce_scatter:
    case Collective::scatter: return b == device ? 0 : -1;
    case Collective::permute: return modulo(b + e.root, e.devices) == device ? 0 : -1;
    case Collective::all_to_all: return b % e.devices == device ? b / e.devices : -1;
    case Collective::reduce:
    case Collective::gather: return device == e.root ? b : -1;
    default: return b;
  }
}

// Elements `first` to `first + count` of a block, in a tensor.
struct Stretch {
  std::int64_t begin = 0;  // of the block, in the tensor
  std::int64_t first = 0, count = 0;
  BlockMap map;

  bool whole() const { return first % map.run + count <= map.run; }
  std::int64_t place(std::int64_t element) const {
    return begin + element / map.run * map.pitch + element % map.run;
  }
  void load(const float* from, float* to) const {
    for (std::int64_t i = first; i < first + count;) {
      const std::int64_t n = std::min(map.run - i % map.run, first + count - i);
      std::memcpy(to + (i - first), from + place(i), static_cast<std::size_t>(n) * sizeof(float));
      i += n;
    }
  }
  void store(const float* from, float* to) const {
    for (std::int64_t i = first; i < first + count;) {
      const std::int64_t n = std::min(map.run - i % map.run, first + count - i);
      std::memcpy(to + place(i), from + (i - first), static_cast<std::size_t>(n) * sizeof(float));
      i += n;
    }
  }
};

// Where a block begins when those before it are of different sizes: rows sent to each device.
inline std::int64_t ragged_begin(const Exchange& e, int device, int b, bool input) {
  const std::size_t block = static_cast<std::size_t>(b);
  const std::size_t first = static_cast<std::size_t>(device * e.devices);
  return input ? e.cut.ragged[block] - e.cut.ragged[first] : e.landing[block];
}

// Takes stretches of chunks through all hops.
class StretchRun {
 public:
  static constexpr std::int64_t most = 8192;  // elements

  StretchRun(const Exchange& exchange, const DeviceBuffers* devices, std::int64_t length)
      : e_(exchange),
        devices_(devices),
        length_(length),
        exact_(exchange.format == DType::f32),
        adds_(exact_ && (exchange.how == Reduce::sum || exchange.how == Reduce::mean)),
        size_(static_cast<std::size_t>(exchange.devices)),
        now_(size_),
        home_(size_),
        own_(exchange.devices * length),
        payload_(exchange.paths.widest * length) {
    for (int d = 0; d < e_.devices; ++d) {
      home_[static_cast<std::size_t>(d)] = own_.data() + d * length_;
    }
  }

  // `count` elements of a chunk, from element `first` of the chunk on.
  void run(int chunk, std::int64_t first, std::int64_t count) {
    const int b = chunk / e_.cut.parts;
    place_.first = e_.cut.begin(chunk) - e_.cut.begin(b * e_.cut.parts) + first;
    place_.count = count;
    // All devices have to do with a chunk, except in all_to_all: then there are too many chunks.
    const bool pairs = e_.what == Collective::all_to_all;
    const int sender = b / e_.devices, receiver = b % e_.devices;
    for (int d = pairs ? sender : 0; d < (pairs ? sender + 1 : e_.devices); ++d) {
      begin(d, b);
    }
    if (pairs && receiver != sender) {
      begin(receiver, b);
    }
    const std::size_t c = static_cast<std::size_t>(chunk);
    for (std::size_t h = e_.paths.first[c]; h < e_.paths.first[c + 1];) {
      const ChunkPaths::Hop& one = e_.paths.hops[h];
      const bool merged = one.merged > 1 && (one.reduce != 0 ? adds_ : exact_);
      const std::size_t hops = static_cast<std::size_t>(merged ? one.merged : one.together);
      if (!merged) {
        hop(h, hops, count);
      } else if (one.reduce != 0) {
        sum(h, hops, count);
      } else {
        copy(h, hops, count);
      }
      h += hops;
    }
    for (int d = pairs ? receiver : 0; d < (pairs ? receiver + 1 : e_.devices); ++d) {
      end(d, b, count);
    }
  }

 private:
  Stretch stretch(int device, int b, int local, bool input) const {
    Stretch s = place_;
    s.map = input ? e_.in : e_.out;
    s.begin = e_.cut.ragged.empty() ? local * s.map.run : ragged_begin(e_, device, b, input);
    return s;
  }

  // Where a device has its numbers, and where it will work on them.
  void begin(int d, int b) {
    const std::size_t i = static_cast<std::size_t>(d);
    now_[i] = nullptr;
    const int to = devices_[i].out == nullptr ? -1 : output_block(e_, d, b);
    if (to >= 0) {
      const Stretch s = stretch(d, b, to, false);
      home_[i] = s.whole() ? devices_[i].out + s.place(s.first) : home_[i];
    }
    const int from = devices_[i].in == nullptr ? -1 : input_block(e_, d, b);
    if (from >= 0) {
      const Stretch s = stretch(d, b, from, true);
      if (s.whole()) {
        now_[i] = devices_[i].in + s.place(s.first);
      } else {
        s.load(devices_[i].in, own_.data() + d * length_);
        now_[i] = own_.data() + d * length_;
      }
    }
  }

  // What is added on the way, in one pass; the order of additions is that of the hops.
  void sum(std::size_t h, std::size_t hops, std::int64_t count) {
    std::size_t holder = static_cast<std::size_t>(e_.paths.hops[h].from);
    parts_.clear();
    parts_.push_back(now_[holder]);
    for (std::size_t i = 0; i < hops; ++i) {
      const ChunkPaths::Hop& one = e_.paths.hops[h + i];
      const std::size_t from = static_cast<std::size_t>(one.from);
      const std::size_t to = static_cast<std::size_t>(one.to);
      parts_.push_back(now_[from == holder ? to : from]);
      holder = to;
    }
    kernels::add_all(count, parts_.data(), parts_.size(), home_[holder]);
    now_[holder] = home_[holder];
  }

  // To all that get the same, and to where the sender itself wants it.
  void copy(std::size_t h, std::size_t hops, std::int64_t count) {
    const std::size_t sender = static_cast<std::size_t>(e_.paths.hops[h].from);
    const float* const from = now_[sender];
    copies_.clear();
    const auto add = [&](std::size_t to) {
      copies_.push_back(home_[to]);
      now_[to] = home_[to];
    };
    const bool wants = home_[sender] != own_.data() + static_cast<std::int64_t>(sender) * length_;
    if (wants && from != home_[sender]) {
      add(sender);
    }
    for (std::size_t i = 0; i < hops; ++i) {
      add(static_cast<std::size_t>(e_.paths.hops[h + i].to));
    }
    kernels::copy_to_all(count, from, copies_.data(), copies_.size());
  }

  void hop(std::size_t h, std::size_t together, std::int64_t count) {
    const bool stage = together > 1 || e_.format != DType::f32;
    for (std::size_t i = 0; i < together && stage; ++i) {
      float* const to = payload_.data() + static_cast<std::int64_t>(i) * length_;
      const float* const from = now_[static_cast<std::size_t>(e_.paths.hops[h + i].from)];
      std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      if (e_.format != DType::f32) {
        for (std::int64_t k = 0; k < count; ++k) {
          to[k] = round_to(to[k], e_.format);
        }
      }
    }
    for (std::size_t i = 0; i < together; ++i) {
      const ChunkPaths::Hop& one = e_.paths.hops[h + i];
      const std::size_t to = static_cast<std::size_t>(one.to);
      const float* const part = stage ? payload_.data() + static_cast<std::int64_t>(i) * length_
                                      : now_[static_cast<std::size_t>(one.from)];
      if (one.reduce != 0) {
        combine(e_.how, count, now_[to], part, home_[to]);
      } else {
        std::memcpy(home_[to], part, static_cast<std::size_t>(count) * sizeof(float));
      }
      now_[to] = home_[to];
    }
  }

  void end(int d, int b, std::int64_t count) {
    const std::size_t i = static_cast<std::size_t>(d);
    const int to = devices_[i].out == nullptr ? -1 : output_block(e_, d, b);
    if (to >= 0) {
      const Stretch s = stretch(d, b, to, false);
      if (settles(e_)) {
        settle(e_, count, now_[i], home_[i]);
        now_[i] = home_[i];
      }
      if (!s.whole() || now_[i] != devices_[i].out + s.place(s.first)) {
        s.store(now_[i], devices_[i].out);
      }
    }
    home_[i] = own_.data() + d * length_;
  }

  const Exchange& e_;
  const DeviceBuffers* devices_;
  std::int64_t length_;
  bool exact_, adds_;  // numbers are not rounded, and their sums are wanted
  std::size_t size_;
  List<const float*> now_;  // by device: its numbers of the stretch
  List<float*> home_;       // where it changes them: in its result where that is contiguous
  List<const float*> parts_;
  List<float*> copies_;
  Scratch own_;
  Scratch payload_;
  Stretch place_;
};

// Elements of a stretch: all devices' fit the cache of a core, and where the runs of the tensors
// are long enough a stretch is an equal part of one, so that it is worked on where it lies.
inline std::int64_t stretch_length(const Exchange& e) {
  const std::int64_t fits =
      std::max<std::int64_t>(16, StretchRun::most / (e.devices > 8 ? e.devices / 8 : 1));
  const std::int64_t run = std::min(e.in.run, e.out.run);
  if (run < 512) {
    return fits;
  }
  const std::int64_t parts = (run + fits - 1) / fits;
  return run % parts == 0 && run / parts >= 16 ? run / parts : fits;
}

// An exchange that runs again and again: how its chunks are cut is found once.
class ExchangeRun {
 public:
  explicit ExchangeRun(const Exchange& exchange)
      : e_(exchange),
        length_(stretch_length(exchange)),
        buffers_(static_cast<std::size_t>(exchange.devices)),
        stretches_(static_cast<std::size_t>(e_.cut.chunks()) + 1, 0) {
    std::int64_t largest = 1;
    for (std::size_t c = 0; c + 1 < stretches_.size(); ++c) {
      const std::int64_t size = e_.cut.elements(static_cast<int>(c));
      largest = std::max(largest, size);
      stretches_[c + 1] = stretches_[c] + (size + length_ - 1) / length_;
    }
    length_ = std::min(length_, largest);
  }

  List<DeviceBuffers>& buffers() { return buffers_; }

  // Not worth a second thread.
  bool small() const { return e_.cut.begin(e_.cut.chunks()) * e_.devices < 65536; }

  // On this thread, or on as many as loops may use here, or with others who wait at `with`.
  void run(OpenLoop* with = nullptr) {
    const auto body = [&](std::int64_t first, std::int64_t last) {
      StretchRun part(e_, buffers_.begin(), length_);
      run(part, first, last);
    };
    if (small()) {
      if (!small_) {
        small_ = Shared<StretchRun>(new StretchRun(e_, buffers_.begin(), length_));
      }
      run(*small_, 0, stretches_.back());
    } else if (with != nullptr) {
      with->run(body, stretches_.back(), thread_count() - 1);
    } else {
      parallel_for(stretches_.back(), 1, body);
    }
  }

 private:
  void run(StretchRun& part, std::int64_t first, std::int64_t last) const {
    std::size_t c = static_cast<std::size_t>(
        std::upper_bound(stretches_.begin(), stretches_.end(), first) - stretches_.begin() - 1);
    for (std::int64_t i = first; i < last; ++i) {
      while (stretches_[c + 1] <= i) {
        ++c;
      }
      const std::int64_t at = (i - stretches_[c]) * length_;
      const std::int64_t left = e_.cut.elements(static_cast<int>(c)) - at;
      part.run(static_cast<int>(c), at, std::min(length_, left));
    }
  }

  const Exchange& e_;
  std::int64_t length_;
  List<DeviceBuffers> buffers_;          // by index in the group
  std::vector<std::int64_t> stretches_;  // before each chunk
  Shared<StretchRun> small_;             // of an exchange that one thread runs
};

inline void execute(const Exchange& e, const DeviceBuffers* devices) {
  ExchangeRun once(e);
  for (int d = 0; d < e.devices; ++d) {
    once.buffers()[static_cast<std::size_t>(d)] = devices[d];
  }
  once.run();
}

}  // namespace detail
}  // namespace tinyscale

#pragma once
// The part of one MPI rank in a collective: its own transfers of the schedule, step by step in each
// stream. It never waits: advance() goes as far as what has come allows.

#if defined(TINYSCALE_USE_MPI)

#define OMPI_SKIP_MPICXX 1  // not the C++ bindings of MPI 2
#define MPICH_SKIP_MPICXX 1
// clang-format off
#  include <mpi.h>
// clang-format on

#include <cstddef>
#include <cstdint>
#include <cstring>  // memcpy
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/scratch.hpp"
#include "tinyscale/mesh/exchange.hpp"
#include "tinyscale/mesh/schedule.hpp"

namespace tinyscale {
namespace detail {

inline std::int64_t numbers_in(const ScheduledMessage& message, const PreparedSchedule& schedule,
                               const ChunkCut& cut) {
  std::int64_t count = 0;
  for (std::size_t i = message.first; i < message.last; ++i) {
    const Transfer& t = schedule.data.transfers[i];
    count += cut.elements(t.chunk, t.chunks);
  }
  return count;
}

// Throws on all devices alike, before the first message.
inline void check_messages(const PreparedSchedule& schedule, const ChunkCut& cut) {
  constexpr std::int64_t most = 0x7fffffff;
  for (std::size_t m = 0; m < schedule.messages.size() && cut.begin(cut.chunks()) > most; ++m) {
    const std::int64_t count = numbers_in(schedule.messages[m], schedule, cut);
    if (count > most) {
      fail({"mpi: a message of ", count, " numbers; at most 2^31 - 1"});
    }
  }
}

// One device's own part of an exchange: its chunks, and its steps in each stream.
class RankExchange {
 public:
  // `index`: of this device in the group; `ranks` by index. Null tensors: it has none.
  RankExchange(const Exchange& e, const PreparedSchedule& schedule, int index,
               const std::vector<int>& ranks, int tag, MPI_Comm comm, const float* in, float* out)
      : e_(e),
        schedule_(schedule),
        index_(index),
        ranks_(ranks),
        tag_(tag),
        comm_(comm),
        out_(out),
        own_(is_the_vector() ? 0 : e.cut.begin(e.cut.chunks())),
        chunks_(is_the_vector() ? out : own_.data()),
        streams_(schedule.streams.size()) {
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      streams_[s].step = schedule.streams[s].first;
    }
    for (int b = 0; b < e.cut.blocks && in != nullptr; ++b) {
      const int place = input_block(e, index, b);
      if (place >= 0) {
        block(b, place, true).load(in, at(b * e.cut.parts));
      }
    }
  }
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  // As far as what has come allows; gives whether that was a step.
  bool advance() {
    bool moved = false;
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      while (streams_[s].step < schedule_.streams[s].last && step(streams_[s], s)) {
        ++streams_[s].step;
        streams_[s].posted = false;
        moved = true;
      }
    }
    for (std::size_t i = going_.size(); i-- > 0;) {
      int gone = 0;
      MPI_Test(&going_[i]->request, &gone, MPI_STATUS_IGNORE);
      if (gone != 0) {
        going_[i] = going_.back();
        going_.pop_back();
      }
    }
    return moved;
  }
  bool done() const {
    bool all = going_.empty();
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      all = all && streams_[s].step == schedule_.streams[s].last;
    }
    return all;
  }

  // What the device gets, to its tensor.
  void store() {
    for (int b = 0; b < e_.cut.blocks && out_ != nullptr; ++b) {
      const int place = output_block(e_, index_, b);
      const std::int64_t count = e_.cut.elements(b * e_.cut.parts, e_.cut.parts);
      if (place < 0) {
        continue;
      }
      float* const numbers = at(b * e_.cut.parts);
      if (settles(e_)) {
        settle(e_, count, numbers, numbers);
      }
      if (chunks_ != out_) {
        block(b, place, false).store(numbers, out_);
      }
    }
  }

 private:
  struct Part {  // a message
    explicit Part(std::int64_t count) : numbers(count) {}
    const ScheduledMessage* message = nullptr;  // null: it is where it belongs already
    Scratch numbers;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Stream {
    std::size_t step = 0;
    bool posted = false;
    List<Shared<Part>> coming;
  };

  // Whether the result is the whole vector as it is cut: then it is worked on in place.
  bool is_the_vector() const {
    bool all = out_ != nullptr && e_.cut.ragged.empty() && e_.out.run == e_.cut.block;
    for (int b = 0; b < e_.cut.blocks; ++b) {
      all = all && output_block(e_, index_, b) == b;
    }
    return all;
  }

  float* at(int chunk) { return chunks_ + e_.cut.begin(chunk); }

  Stretch block(int b, int place, bool input) const {
    Stretch s;
    s.count = e_.cut.elements(b * e_.cut.parts, e_.cut.parts);
    s.map = input ? e_.in : e_.out;
    s.begin = e_.cut.ragged.empty() ? place * s.map.run : ragged_begin(e_, index_, b, input);
    return s;
  }

  // What was there before the step is sent; what comes is taken when all has come, in the order of
  // the senders, as in one process.
  bool step(Stream& stream, std::size_t number) {
    const PreparedSchedule::Step& step = schedule_.steps[stream.step];
    if (!stream.posted) {
      for (std::size_t m = step.first; m < step.last; ++m) {
        const ScheduledMessage& message = schedule_.messages[m];
        if (message.from == index_ || message.to == index_) {
          start(message, step, stream, static_cast<int>(number));
        }
      }
      stream.posted = true;
    }
    for (const Shared<Part>& part : stream.coming) {
      int here = 0;
      MPI_Test(&part->request, &here, MPI_STATUS_IGNORE);
      if (here == 0) {
        return false;
      }
    }
    for (const Shared<Part>& part : stream.coming) {
      if (part->message != nullptr) {
        take(*part);
      }
    }
    stream.coming.clear();
    return true;
  }

  void start(const ScheduledMessage& message, const PreparedSchedule::Step& step, Stream& stream,
             int number) {
    const std::int64_t count = numbers_in(message, schedule_, e_.cut);
    if (count == 0) {
      return;
    }
    const int tag = tag_ + number;
    if (message.to == index_) {
      const Transfer& first = schedule_.data.transfers[message.first];
      const bool stays =
          message.last - message.first == 1 && first.action == Action::copy && !step.overlaps;
      const Shared<Part> part(new Part(stays ? 0 : count));
      part->message = stays ? nullptr : &message;
      MPI_Irecv(stays ? at(first.chunk) : part->numbers.data(), static_cast<int>(count), MPI_FLOAT,
                ranks_[static_cast<std::size_t>(message.from)], tag, comm_, &part->request);
      stream.coming.push_back(part);
      return;
    }
    const Shared<Part> part(new Part(count));
    float* to = part->numbers.data();
    for (std::size_t i = message.first; i < message.last; ++i) {
      const Transfer& t = schedule_.data.transfers[i];
      const std::int64_t n = e_.cut.elements(t.chunk, t.chunks);
      std::memcpy(to, at(t.chunk), static_cast<std::size_t>(n) * sizeof(float));
      to += n;
    }
    if (e_.format != DType::f32) {
      for (std::int64_t i = 0; i < count; ++i) {
        part->numbers.data()[i] = round_to(part->numbers.data()[i], e_.format);
      }
    }
    const int to_rank = ranks_[static_cast<std::size_t>(message.to)];
    MPI_Isend(part->numbers.data(), static_cast<int>(count), MPI_FLOAT, to_rank, tag, comm_,
              &part->request);
    going_.push_back(part);
  }

  void take(const Part& part) {
    const float* from = part.numbers.data();
    for (std::size_t i = part.message->first; i < part.message->last; ++i) {
      const Transfer& t = schedule_.data.transfers[i];
      const std::int64_t n = e_.cut.elements(t.chunk, t.chunks);
      if (t.action == Action::reduce) {
        combine(e_.how, n, at(t.chunk), from, at(t.chunk));
      } else {
        std::memcpy(at(t.chunk), from, static_cast<std::size_t>(n) * sizeof(float));
      }
      from += n;
    }
  }

  const Exchange& e_;
  const PreparedSchedule& schedule_;
  int index_;
  const std::vector<int>& ranks_;
  int tag_;
  MPI_Comm comm_;
  float* out_;
  Scratch own_;
  float* chunks_;  // the whole vector; what this device never has stays untouched
  List<Stream> streams_;
  List<Shared<Part>> going_;
};

}  // namespace detail
}  // namespace tinyscale

#endif  // TINYSCALE_USE_MPI

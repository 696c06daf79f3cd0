#pragma once
// Every word that an array reads from and writes to on-chip memory, tick by tick.
// As SCALE-Sim writes it: a line per tick, a column per port, an address or nothing; x begins at 0,
// w at 10,000,000, the product at 20,000,000. Ticks count from 0 in all three files, so that they
// can be laid side by side (SCALE-Sim counts reads from 1 and writes from 0).

#include <algorithm>  // min, max
#include <cstdint>    // int64_t
#include <string>     // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/systolic/systolic_array.hpp"

namespace tinyscale {

// Accesses in the order of their ticks. Rows of PEs are ports for what streams, columns for the
// rest; with instant drain each PE has a port of its own: row * cols + column.
struct SramTrace {
  List<SramAccess> input, weight, output;

  std::string csv_input() const { return csv(input, 0); }
  std::string csv_weight() const { return csv(weight, 10000000); }
  std::string csv_output() const { return csv(output, 20000000); }

 private:
  static std::string csv(const List<SramAccess>& accesses, std::int64_t offset) {
    std::int64_t ports = 0;
    for (const SramAccess& access : accesses) {
      ports = std::max(ports, access.port + 1);
    }
    std::string out = "tick";
    for (std::int64_t p = 0; p < ports; ++p) {
      out += ",port " + std::to_string(p);
    }
    std::int64_t tick = -1, port = 0;
    for (const SramAccess& access : accesses) {
      if (access.tick != tick) {
        out += (tick < 0 ? "" : std::string(static_cast<std::size_t>(ports - port), ',')) + "\n" +
               std::to_string(access.tick);
        tick = access.tick;
        port = 0;
      }
      out += std::string(static_cast<std::size_t>(access.port + 1 - port), ',') +
             std::to_string(access.word + offset);
      port = access.port + 1;
    }
    return out + std::string(static_cast<std::size_t>(ports - port), ',') + "\n";
  }
};

namespace detail {

constexpr std::int64_t most_traced = std::int64_t{1} << 24;

// In the order of ticks, then ports: by counting, since both are small numbers.
inline List<SramAccess> by_tick(const List<SramAccess>& accesses, std::int64_t ticks) {
  List<std::size_t> first(static_cast<std::size_t>(ticks + 1));
  for (const SramAccess& access : accesses) {
    ++first[static_cast<std::size_t>(access.tick + 1)];
  }
  for (std::size_t i = 1; i < first.size(); ++i) {
    first[i] += first[i - 1];
  }
  List<SramAccess> sorted(accesses.size());
  for (const SramAccess& access : accesses) {
    std::size_t at = first[static_cast<std::size_t>(access.tick)]++;
    for (; at > 0 && sorted[at - 1].tick == access.tick && sorted[at - 1].port > access.port;
         --at) {
      sorted[at] = sorted[at - 1];
    }
    sorted[at] = access;
  }
  return sorted;
}

// Places in a matrix [rows, cols] from those in its transpose.
inline void turn_words(List<SramAccess>& accesses, std::int64_t rows, std::int64_t cols) {
  for (SramAccess& access : accesses) {
    access.word = access.word % rows * cols + access.word / rows;
  }
}

}  // namespace detail

// The accesses of array.matmul(x, w), from stepping it. Throws when there are more than 2^24 words.
inline SramTrace sram_trace(const SystolicArray& array, const Tensor& x, const Tensor& w) {
  const detail::ArrayProblem p("sram_trace", array, x, w);
  const SystolicTiming& t = p.timing;
  SystolicTiming counted = t;
  detail::time_array(counted);
  const std::int64_t words =
      counted.sram_reads_input + counted.sram_reads_weight + counted.sram_writes_output;
  if (words > detail::most_traced) {
    detail::fail({"sram_trace: ", words, " words are read and written; at most ",
                  detail::most_traced, " are traced, timing() counts more"});
  }
  const detail::ArrayOperands operands(t, "sram_trace", p.x, p.w);
  Tensor product = zeros(p.output);
  SramTrace trace;
  const bool inputs = t.dataflow == Dataflow::input_stationary;
  detail::ArrayWork work = operands.work(product.data());
  work.trace[0] = inputs ? &trace.weight : &trace.input;
  work.trace[1] = inputs ? &trace.input : &trace.weight;
  work.trace[2] = &trace.output;
  detail::step_array(t, work);
  if (inputs) {
    detail::turn_words(trace.weight, t.k, t.n);
    detail::turn_words(trace.input, t.m, t.k);
  }
  trace.input = detail::by_tick(trace.input, counted.cycles);
  trace.weight = detail::by_tick(trace.weight, counted.cycles);
  trace.output = detail::by_tick(trace.output, counted.cycles);
  return trace;
}

}  // namespace tinyscale

#pragma once
// Chapter 1 (rooflines) and chapter 2 (TPUs).
#include "cases.hpp"

namespace book {

inline void chapter1(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  ts::Chip h100 = ts::chip("h100"), v6e = book_chip("tpu-v6e"), v5p = book_chip("tpu-v5p");
  h100.flops_bf16 = 9.89e14;
  v6e.flops_bf16 = 9.1e14;
  const auto flops_time = [](const ts::Chip& c) { return ts::math_time(1e12, c, ts::DType::bf16); };
  out.add("R01", h100, flops_time);
  out.add("R02", v6e, flops_time);
  out.add("R03", v5e, [](const ts::Chip& c) { return ts::critical_intensity(c, ts::DType::bf16); });
  out.add("R04", ts::dot_intensity(1024));
  v5p.vector_flops = 2 * 7e12;
  out.add("R05", v5p, [](const ts::Chip& c) { return ts::critical_vector_intensity(c); });
  out.add("R08", ts::tokens_per_chip(2097152, 2048));
  out.add("R09", v5e, [](const ts::Chip& c) {
    return ts::critical_intensity(c, ts::DType::bf16, ts::Channel::link_one_way);
  });
  out.add("R10", v5e, [](const ts::Chip& c) { return ts::split_matmul_threshold(c); });
  out.add("R12", v5e,
          [](const ts::Chip& c) { return ts::critical_batch(c, ts::all_in(ts::DType::int8)); });
  const ts::MatmulFormats int8_weights = {ts::DType::bf16, ts::DType::int8};
  out.add("R14", v5e, [=](const ts::Chip& c) { return ts::critical_batch(c, int8_weights); });
  out.add("R15", v5e,
          [=](const ts::Chip& c) { return ts::critical_batch(c, 4096, 4096, int8_weights); });
  out.add("R16", v5e,
          [=](const ts::Chip& c) { return ts::critical_batch(c, 1024, 1024, int8_weights); });
  out.add("R17", ts::matmul_intensity({128, 4096, 4096, true}, ts::all_in(ts::DType::int8)));
  h100.flops_bf16 = ts::dense_rate(1.979e15);
  out.add("R18", h100, [](const ts::Chip& c) { return ts::critical_batch(c); });
  out.add("R19", ts::tile_intensity(128, 128));
}

// A slice of the row's chip; f gets it whole.
inline void of_slice(Answers& out, const char* id, const ts::Chip& chip, const ts::Shape& dims,
                     const std::function<Quantity(const ts::Machine&)>& f) {
  out.add(id, chip, [=](const ts::Chip& c) { return f(ts::machine(c, dims)); });
}

inline void slices(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e"), v5p = book_chip("tpu-v5p");
  const ts::Shape pod5e = {16, 16}, pod5p = {16, 20, 28};
  of_slice(out, "T04", book_chip("tpu-v4"), {16, 16, 16}, ts::chips_of);
  of_slice(out, "T10", v5e, pod5e, ts::hosts_of);
  of_slice(out, "T11", v5e, pod5e, ts::cores_of);
  const auto peak = [](const ts::Machine& m) { return ts::peak_rate(m, ts::DType::bf16); };
  of_slice(out, "T12", v5e, pod5e, peak);
  of_slice(out, "T13", v5e, pod5e, ts::memory_of);
  of_slice(out, "T14", v5p, pod5p, ts::hosts_of);
  of_slice(out, "T15", v5p, pod5p, ts::cores_of);
  of_slice(out, "T16", v5p, pod5p, peak);
  of_slice(out, "T17", v5p, pod5p, ts::memory_of);
}

inline void distances(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  const double bytes = ts::elementwise_bytes(8.0 * 128 * 8192, 1, ts::DType::bf16).value();
  out.add("T23", ts::elementwise_bytes(8.0 * 128 * 8192, 1, ts::DType::bf16));
  const ts::Shape first = {0, 0}, last = {3, 3};
  of_slice(out, "T24", v5e, {4, 4},
           [=](const ts::Machine& m) { return number(ts::hops_between(m, first, last)); });
  of_slice(out, "T26", v5e, {4, 4},
           [=](const ts::Machine& m) { return ts::port_time(m, bytes, first); });
  of_slice(out, "T27", v5e, {4, 4},
           [=](const ts::Machine& m) { return ts::point_to_point_time(m, bytes, first, last); });
}

// Question 6: an int8[128K, 128K] on the hosts of a 4x4 slice, multiplied on one chip.
inline void streamed_matmul(Answers& out) {
  const ts::Chip v5e = book_chip("tpu-v5e");
  const double side = 131072;
  const Quantity bytes = ts::elementwise_bytes(side * side, 1, ts::DType::int8);
  out.add("T28", bytes);
  const ts::Shape corner = {0, 0};
  const double others = 15.0 / 16 * bytes.value();
  of_slice(out, "T30", v5e, {4, 4},
           [=](const ts::Machine& m) { return ts::port_time(m, others, corner); });
  const auto math = [=](const ts::Chip& c) {
    return ts::math_time(ts::matmul_flops({8, side, side}).value(), c, ts::DType::bf16);
  };
  out.add("T33", v5e, math);
  out.add("T29", v5e, [=](const ts::Chip& c) {
    return ts::transfer_time(bytes.value(), c, ts::Channel::pcie, 16);
  });
  out.add("T31", v5e, [=](const ts::Chip& c) { return ts::transfer_time(bytes.value(), c); });
  const Quantity slowest = ts::slowest_stage(
      {ts::named("PCIe", ts::transfer_time(bytes.value(), v5e, ts::Channel::pcie, 16)),
       ts::named("ICI", ts::port_time(ts::machine(v5e, {4, 4}), others, corner)),
       ts::named("HBM", ts::transfer_time(bytes.value(), v5e)), ts::named("MXU", math(v5e))});
  out.category("T34", slowest.name());
}

inline void chapter2(Answers& out) {
  ts::Chip v5e = book_chip("tpu-v5e");
  out.add("T02", v5e, [](const ts::Chip& c) { return Quantity(c.unit_peak(), "FLOP/s"); });
  slices(out);
  out.add("T07", v5e, [](const ts::Chip& c) { return ts::bandwidth_of(c, ts::Channel::sram); });
  out.add("T08", v5e, [](const ts::Chip& c) {
    return ts::critical_intensity(c, ts::DType::bf16, ts::Channel::sram);
  });
  out.add("T18", book_chip("tpu-v6e"),
          [](const ts::Chip& c) { return ts::critical_batch(c, {}, ts::Channel::pcie); });
  out.add("T19", book_chip("tpu-v6e"),
          [](const ts::Chip& c) { return ts::critical_width(c, 4, {}, ts::Channel::pcie); });
  out.add("T20", v5e, [](const ts::Chip& c) {
    return ts::critical_batch(c, 4096, 16384, ts::all_in(ts::DType::int8));
  });
  distances(out);
  streamed_matmul(out);
  const ts::Chip v5p = book_chip("tpu-v5p");
  out.add("T35", v5p,
          [](const ts::Chip& c) { return ts::register_bytes(ts::tpu_vector_units(c)); });
  ts::Chip core = v5p;
  core.flops_bf16 = 2.295e14;
  core.vector_flops = 7.168e12;  // one of two cores
  out.add("T37", core,
          [](const ts::Chip& c) { return ts::matrix_over_vector(c, ts::DType::bf16); });
}

}  // namespace book

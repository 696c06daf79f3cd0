#pragma once
// The roofline in closed form, each answer with its derivation: when is an op bound by math?
//   intensity I = FLOPs / bytes, critical I* = C / W, attainable = min(C, I W)
//   matmul [B, D] x [D, F], x, w, o bytes a number: I = 2 B D F / (x B D + w D F + o B F) -> 2 B /
//   w knee: B* = I* w D F / (2 D F - I* (x D + o F)) -> I* w / 2 for B << D, F
// Source: "How To Scale Your Model", chapter 1; what else bytes come through: chapters 2 and 12.

#include <limits>  // infinity
#include <string>  // specs

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/hardware/chip.hpp"
#include "tinyscale/measure/quantity.hpp"

namespace tinyscale {

// What bytes come through: a chip's memory, its on-chip memory (VMEM, shared memory), one link, the
// two links of a torus axis, all links of a GPU's port, the network between slices, the host's bus.
enum class Channel { memory, sram, link_one_way, link_both_ways, port, network, pcie };

inline const char* name_of(Channel channel) {
  static const char* const names[] = {"memory",
                                      "on-chip memory",
                                      "a link, one way",
                                      "a link, both ways",
                                      "all links of a port, one way",
                                      "network",
                                      "PCIe"};
  return detail::name_in("Channel", names, channel);
}

namespace detail {

// A number that a formula is given: finite and above 0, under the name that the formula has for it.
inline Quantity given(const char* who, const std::string& symbol, double value,
                      const std::string& unit = "", const std::string& meaning = "") {
  if (!(value > 0) || !is_finite(value)) {
    fail({who, ": ", symbol, meaning.empty() ? "" : " (" + meaning + ")", " is ", value,
          "; a finite number above 0 is right"});
  }
  return Quantity(value, unit, symbol, meaning);
}

// What is counted from 1 on: devices, stages, numbers of a vector.
inline Quantity given_count(const char* who, const std::string& symbol, double value) {
  if (!(value >= 1) || !is_finite(value)) {
    fail({who, ": ", symbol, " is ", value, "; a finite number from 1 is right"});
  }
  return Quantity(value, "", symbol);
}

inline const char* bytes_symbol(int operand) {
  static const char* const names[] = {"x", "w", "o"};
  return names[operand];
}

inline Quantity number_bytes(int operand, DType format) {
  return Quantity(bytes_of(format), "B", bytes_symbol(operand), name_of(format));
}

}  // namespace detail

// C: matmul FLOP/s of a chip in a format.
inline Quantity peak_rate(const Chip& chip, DType format) {
  return Quantity(chip.peak(format), "FLOP/s", "C",
                  detail::cat({name_of(format), " peak of ", chip.name}));
}

// W: bytes/s through a channel; both ways counts a link's two directions, as the book does on a
// torus.
inline Quantity bandwidth_of(const Chip& chip, Channel channel = Channel::memory) {
  const double link = chip.link_bandwidth;
  const double rate = channel == Channel::memory           ? chip.memory_bandwidth
                      : channel == Channel::sram           ? chip.sram_bandwidth
                      : channel == Channel::link_one_way   ? link
                      : channel == Channel::link_both_ways ? 2 * link
                      : channel == Channel::port           ? chip.links * link
                      : channel == Channel::network        ? chip.dcn_bandwidth
                                                           : chip.pcie_bandwidth;
  if (!(rate > 0) || !detail::is_finite(rate)) {
    detail::fail({"bandwidth_of: ", chip.name.empty() ? "this chip" : chip.name, ": ",
                  name_of(channel), " is ", rate, " bytes/s; set it to a finite number above 0"});
  }
  return Quantity(rate, "B/s", "W", detail::cat({name_of(channel), " of ", chip.name}));
}

// I* = C / W: an op below it waits for bytes.
inline Quantity critical_intensity(const Chip& chip, DType format,
                                   Channel channel = Channel::memory) {
  return named("I*", peak_rate(chip, format) / bandwidth_of(chip, channel), "scaling book, 1");
}

// Of elementwise work.
inline Quantity critical_vector_intensity(const Chip& chip, Channel channel = Channel::memory) {
  const Quantity rate =
      detail::given("critical_vector_intensity", "C_vector", chip.vector_flops, "FLOP/s");
  return named("I*", rate / bandwidth_of(chip, channel), "scaling book, 1");
}

// FLOP/s that an op of this intensity can reach at most: min(C, I W).
inline Quantity attainable(const Chip& chip, double intensity, DType format,
                           Channel channel = Channel::memory) {
  const Quantity i = detail::given("attainable", "I", intensity, "FLOP/B");
  return named("attainable", min(peak_rate(chip, format), i * bandwidth_of(chip, channel)),
               "scaling book, 1");
}

inline Quantity math_time(double flops, const Chip& chip, DType format, double chips = 1) {
  const Quantity f = detail::given("math_time", "F", flops, "FLOP");
  const Quantity rate = peak_rate(chip, format);
  return named("T_math",
               chips == 1 ? f / rate : f / (detail::given("math_time", "N", chips) * rate),
               "scaling book, 1");
}

inline Quantity transfer_time(double bytes, const Chip& chip, Channel channel = Channel::memory,
                              double chips = 1) {
  const Quantity b = detail::given("transfer_time", "bytes", bytes, "B");
  const Quantity rate = bandwidth_of(chip, channel);
  return named("T_bytes",
               chips == 1 ? b / rate : b / (detail::given("transfer_time", "N", chips) * rate),
               "scaling book, 1");
}

// Of the dense peak a data sheet may print twice, "with sparsity".
inline double dense_rate(double with_sparsity) { return with_sparsity / 2; }

// ---- One matmul, [B, D] x [D, F] -> [B, F] ----

struct BatchMatmul {
  double b = 0, d = 0, f = 0;
  bool weights_per_row = false;  // [B, D] x [B, D, F]: every row has weights of its own
};

struct MatmulFormats {
  DType x = DType::bf16, w = DType::bf16, out = DType::bf16, math = DType::bf16;
};

inline MatmulFormats all_in(DType format) { return {format, format, format, format}; }

inline Quantity matmul_flops(const BatchMatmul& s) {
  const Quantity b = detail::given("matmul_flops", "B", s.b);
  const Quantity d = detail::given("matmul_flops", "D", s.d);
  const Quantity f = detail::given("matmul_flops", "F", s.f);
  return named("FLOPs", Quantity(2, "FLOP") * b * d * f, "a multiply-add is 2");
}

inline Quantity matmul_bytes(const BatchMatmul& s, const MatmulFormats& in = {}) {
  const Quantity b = detail::given("matmul_bytes", "B", s.b);
  const Quantity d = detail::given("matmul_bytes", "D", s.d);
  const Quantity f = detail::given("matmul_bytes", "F", s.f);
  const Quantity x = detail::number_bytes(0, in.x), w = detail::number_bytes(1, in.w);
  const Quantity o = detail::number_bytes(2, in.out);
  const Quantity weights = s.weights_per_row ? w * b * d * f : w * d * f;
  return named("bytes", x * b * d + weights + o * b * f, "each operand once");
}

// Exact: every operand and the result counted.
inline Quantity matmul_intensity(const BatchMatmul& s, const MatmulFormats& in = {}) {
  return named("I", matmul_flops(s) / matmul_bytes(s, in), "scaling book, 1");
}

// FLOP/s that it reaches at most: the plot of throughput against the batch.
inline Quantity attainable(const Chip& chip, const BatchMatmul& s, const MatmulFormats& in = {},
                           Channel channel = Channel::memory) {
  const Quantity i = matmul_intensity(s, in);
  return named("attainable", min(peak_rate(chip, in.math), i * bandwidth_of(chip, channel)),
               "scaling book, 1");
}

// For B << D, F, when the weights are all that counts: 2 B / w.
inline Quantity matmul_intensity_limit(double b, const MatmulFormats& in = {}) {
  const Quantity rows = detail::given("matmul_intensity_limit", "B", b);
  return named("I", Quantity(2, "FLOP") * rows / detail::number_bytes(1, in.w),
               "scaling book, 1: B << D, F");
}

// B* = I* w / 2, for B << D, F: rows (tokens for each copy of the weights) from which a matmul is
// bound by math.
inline Quantity critical_batch(const Chip& chip, const MatmulFormats& in = {},
                               Channel channel = Channel::memory) {
  return named("B*",
               critical_intensity(chip, in.math, channel) * detail::number_bytes(1, in.w) /
                   Quantity(2, "FLOP/token"),
               "scaling book, 1: B << D, F");
}

// The same with every byte counted. Infinite when no batch will do: activations alone bound the
// intensity by 2 D F / (x D + o F).
inline Quantity critical_batch(const Chip& chip, double d, double f, const MatmulFormats& in = {},
                               Channel channel = Channel::memory) {
  const Quantity wide = detail::given("critical_batch", "D", d);
  const Quantity high = detail::given("critical_batch", "F", f);
  const Quantity i = critical_intensity(chip, in.math, channel), two(2, "FLOP/token");
  const Quantity x(bytes_of(in.x), "B/token", "x"), o(bytes_of(in.out), "B/token", "o");
  const Quantity left = two * wide * high - i * (x * wide + o * high);
  if (left.value() <= 0) {
    return Quantity(
        std::numeric_limits<double>::infinity(), "token", "B*",
        detail::cat({"no batch will do: I < 2 D F / (x D + o F) = ",
                     2 * d * f / (x.value() * d + o.value() * f), " < I* = ", i.value()}));
  }
  return named("B*", i * detail::number_bytes(1, in.w) * wide * high / left, "scaling book, 1");
}

// The least D with which any batch will do, for F = r D: I* (x + o r) / (2 r).
inline Quantity critical_width(const Chip& chip, double hidden_over_width,
                               const MatmulFormats& in = {}, Channel channel = Channel::memory) {
  const Quantity r = detail::given("critical_width", "F / D", hidden_over_width);
  const Quantity x = detail::number_bytes(0, in.x), o = detail::number_bytes(2, in.out);
  return named("D*",
               critical_intensity(chip, in.math, channel) * (x + o * r) / (Quantity(2, "FLOP") * r),
               "scaling book, 1: activations counted");
}

// Rows of activations read and results written through tiles of bm x bk x bn: each row of tiles of
// x goes by once for every column of tiles of w.
inline Quantity tiled_matmul_bytes(const BatchMatmul& s, double bm, double bk, double bn,
                                   const MatmulFormats& in = {}) {
  const char* const who = "tiled_matmul_bytes";
  const Quantity tm = ceil(detail::given(who, "B", s.b) / detail::given(who, "bm", bm));
  const Quantity tk = ceil(detail::given(who, "D", s.d) / detail::given(who, "bk", bk));
  const Quantity tn = ceil(detail::given(who, "F", s.f) / detail::given(who, "bn", bn));
  const Quantity m(bm, "", "bm"), k(bk, "", "bk"), n(bn, "", "bn");
  const Quantity x = detail::number_bytes(0, in.x), w = detail::number_bytes(1, in.w);
  return named("bytes",
               tm * tn * (tk * (x * m * k + w * k * n) + detail::number_bytes(2, in.out) * m * n),
               "scaling book, 1: matmul in tiles");
}

// bm bn / (bm + bn) in 2-byte numbers: results are written once, after many steps of bk.
inline Quantity tile_intensity(double bm, double bn, const MatmulFormats& in = {}) {
  const Quantity m = detail::given("tile_intensity", "bm", bm);
  const Quantity n = detail::given("tile_intensity", "bn", bn);
  const Quantity x = detail::number_bytes(0, in.x), w = detail::number_bytes(1, in.w);
  return named("I", Quantity(2, "FLOP") * m * n / (x * m + w * n), "scaling book, 1: tiles");
}

// The inner dim cut over n chips, each sending its whole partial [B, F] over one link: FLOPs a byte
// 2 D / (n o), so what counts is D and no longer B.
inline Quantity split_matmul_intensity(double d, double chips = 2, DType out = DType::bf16) {
  const Quantity wide = detail::given("split_matmul_intensity", "D", d);
  const Quantity n = detail::given("split_matmul_intensity", "n", chips);
  return named("I", Quantity(2, "FLOP") * wide / (n * detail::number_bytes(2, out)),
               "scaling book, 1: network roofline");
}

// The least D with which such a matmul is bound by math: n o / 2 C / W.
inline Quantity split_matmul_threshold(const Chip& chip, double chips = 2,
                                       const MatmulFormats& in = {},
                                       Channel channel = Channel::link_one_way) {
  const Quantity n = detail::given("split_matmul_threshold", "n", chips);
  return named("D*",
               n * detail::number_bytes(2, in.out) / Quantity(2, "FLOP") *
                   critical_intensity(chip, in.math, channel),
               "scaling book, 1: network roofline");
}

// ---- Other ops ----

// One letter of an einsum: "bd,df->bf" has b, d and f.
struct EinsumDim {
  char letter = 'a';
  double size = 0;
};

namespace detail {

inline Quantity dims_product(const std::string& spec, const std::string& letters,
                             const List<EinsumDim>& dims, Quantity product) {
  std::string seen;
  for (const char c : letters) {
    if (seen.find(c) != std::string::npos || c == ',' || c == ' ' || c == '-' || c == '>') {
      continue;
    }
    seen += c;
    const EinsumDim* dim = nullptr;
    for (const EinsumDim& each : dims) {
      if (dim != nullptr && each.letter == c && (each.size < dim->size || each.size > dim->size)) {
        fail({"einsum \"", spec, "\": sizes ", dim->size, " and ", each.size, " for '", c,
              "'; one is right"});
      }
      dim = each.letter == c ? &each : dim;
    }
    if (dim == nullptr) {
      fail({"einsum \"", spec, "\": no size for '", c, "'; give one to every letter"});
    }
    product = product * given("einsum", std::string(1, c), dim->size);
  }
  return product;
}

inline std::size_t einsum_arrow(const std::string& spec) {
  const std::size_t arrow = spec.find("->");
  if (arrow == std::string::npos) {
    fail({"einsum \"", spec, "\": no arrow; \"bd,df->bf\" is right"});
  }
  for (std::size_t i = arrow + 2; i < spec.size(); ++i) {
    if (spec[i] != ' ' && spec.find(spec[i]) >= arrow) {
      fail({"einsum \"", spec, "\": no operand has '", std::string(1, spec[i]), "' of the result"});
    }
  }
  return arrow;
}

}  // namespace detail

// 2 * product of all distinct dims: batch and inner dims count once.
inline Quantity einsum_flops(const std::string& spec, const List<EinsumDim>& dims) {
  detail::einsum_arrow(spec);
  return named("FLOPs", detail::dims_product(spec, spec, dims, Quantity(2, "FLOP")),
               "scaling book, 4");
}

// Every operand read and the result written once, all in one format.
inline Quantity einsum_bytes(const std::string& spec, const List<EinsumDim>& dims,
                             DType format = DType::bf16) {
  const std::string arrays = spec.substr(0, detail::einsum_arrow(spec)) + "," +
                             spec.substr(detail::einsum_arrow(spec) + 2) + ",";
  const Quantity number(bytes_of(format), "B", "number", name_of(format));  // no letter of a dim
  Quantity sum;
  std::string letters;
  for (const char c : arrays) {
    if (c != ',') {
      letters += c;
      continue;
    }
    const Quantity bytes = detail::dims_product(spec, letters, dims, number);
    sum = sum.unit().empty() ? bytes : sum + bytes;
    letters.clear();
  }
  return named("bytes", sum, "each operand once");
}

inline Quantity einsum_intensity(const std::string& spec, const List<EinsumDim>& dims,
                                 DType format = DType::bf16) {
  return named("I", einsum_flops(spec, dims) / einsum_bytes(spec, dims, format), "scaling book, 1");
}

// A dot product exactly: N multiplications, N - 1 additions, 2 N numbers in and one out.
inline Quantity dot_intensity(double n, DType format = DType::bf16) {
  const Quantity count = detail::given_count("dot_intensity", "N", n);
  const Quantity one(1), two(2), flop(1, "FLOP"), b(bytes_of(format), "B", "b", name_of(format));
  return named("I", flop * (two * count - one) / (b * (two * count + one)), "scaling book, 1");
}

// FLOPs an element over (inputs + outputs) numbers: vector addition in f32 1 / 12.
inline Quantity elementwise_intensity(double flops, double arrays, DType format) {
  const Quantity f = detail::given("elementwise_intensity", "F", flops, "FLOP");
  const Quantity n = detail::given("elementwise_intensity", "arrays", arrays, "", "in and out");
  return named("I", f / (n * Quantity(bytes_of(format), "B", "b", name_of(format))),
               "scaling book, 1 and 12");
}

inline Quantity elementwise_bytes(double elements, double arrays, DType format) {
  const Quantity e = detail::given("elementwise_bytes", "N", elements);
  const Quantity n = detail::given("elementwise_bytes", "arrays", arrays, "", "in and out");
  return named("bytes", n * e * Quantity(bytes_of(format), "B", "b", name_of(format)),
               "each array once");
}

}  // namespace tinyscale

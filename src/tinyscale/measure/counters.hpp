#pragma once
// What an op costs: floating point operations and bytes, counted from its operands' shapes.
// Bytes are those of the op alone: each operand read once, each result written once, at its
// number format. A matmul of (M, K) by (K, N) is 2 M K N matmul FLOPs; the rest is vector FLOPs.

#include <cstddef>
#include <iostream>
#include <string>

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

// One operand of an op: how many elements of which format it moves.
struct Operand {
  double elements = 0;
  DType format = DType::f32;
  double element_bytes = 0;  // of weights stored in blocks; 0: those of the format

  double bytes() const { return elements * (element_bytes > 0 ? element_bytes : bytes_of(format)); }
};

struct OpRecord {
  std::string name;
  List<Operand> reads, writes;
  double matmul_flops = 0, vector_flops = 0;  // counts
  double bytes_read = 0, bytes_written = 0;   // bytes
  double seconds = 0;                         // measured, on this machine
  int device = -1;                            // -1: the program itself
  std::string shape;                          // "[8, 4096] x [4096, 4096]"

  double flops() const { return matmul_flops + vector_flops; }
  double bytes() const { return bytes_read + bytes_written; }

  // Sets bytes_read and bytes_written from the operands.
  void count_bytes() {
    bytes_read = 0;
    bytes_written = 0;
    for (const Operand& operand : reads) {
      bytes_read += operand.bytes();
    }
    for (const Operand& operand : writes) {
      bytes_written += operand.bytes();
    }
  }
};

// What pricing an op on a chip needs; one of many in the log of a run.
struct OpCost {
  double matmul_flops = 0, vector_flops = 0;  // counts
  double bytes = 0;                           // read and written
  DType math = DType::f32;                    // in which the matmul computes
};

// Sums over ops.
struct Counters {
  double matmul_flops = 0, vector_flops = 0;
  double bytes_read = 0, bytes_written = 0;
  double seconds = 0;
  std::size_t ops = 0;

  double flops() const { return matmul_flops + vector_flops; }
  double bytes() const { return bytes_read + bytes_written; }
  double intensity() const { return bytes() > 0 ? flops() / bytes() : 0; }  // FLOPs per byte

  void add(const OpRecord& record) {
    matmul_flops += record.matmul_flops;
    vector_flops += record.vector_flops;
    bytes_read += record.bytes_read;
    bytes_written += record.bytes_written;
    seconds += record.seconds;
    ++ops;
  }
};

// "2 ops: 268 M matmul and 262 k vector FLOPs, 67.4 MB read, 131 kB written, 3.98 FLOPs/byte"
inline std::ostream& operator<<(std::ostream& out, const Counters& c) {
  return out << detail::cat({c.ops, c.ops == 1 ? " op: " : " ops: ", format_si(c.matmul_flops, ""),
                             " matmul and ", format_si(c.vector_flops, ""), " vector FLOPs, ",
                             format_bytes(c.bytes_read), " read, ", format_bytes(c.bytes_written),
                             " written, ", format_fixed(c.intensity(), 2), " FLOPs/byte"});
}

}  // namespace tinyscale

#pragma once
// An array cut over the devices of a mesh, held by one program: shard r is what device r has.
//   Sharded a = mesh.shard(x, "I_x, J");  a.explain();  a.picture();  Tensor whole = a.gather();
// Made of a shape alone it has no numbers: every op on it says what it would do and cost.

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/mesh/sharding.hpp"
#include "tinyscale/tensor/arithmetic.hpp"
#include "tinyscale/tensor/choose.hpp"
#include "tinyscale/tensor/create.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// A collective that an op called, or a slice, which costs nothing.
struct ShardedStep {
  std::string name, axes;     // "all_gather", "x,y"
  std::string before, after;  // shardings
  std::string algorithm;
  double bytes = 0;    // of a device on average, by formula
  double counted = 0;  // and in what went; 0: without numbers
  double seconds = 0;  // closed form
};

// A way to do an op.
struct ShardedCandidate {
  std::string calls;  // "all_gather b over x, matmul"
  double math_seconds = 0, comms_seconds = 0;
  double bytes = 0;    // that a device sends
  double seconds = 0;  // of both, as far as they overlap
};

// What an op on sharded arrays did, and why.
struct ShardedReport {
  std::string title, reason;
  List<ShardedStep> steps;
  double comms_seconds = 0, bytes = 0;  // of all steps; bytes that a device sends
  double math_seconds = 0;              // of one device
  List<ShardedCandidate> candidates;    // the cheapest first

  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

// Which device holds which block of an array; svg(picture) draws it.
struct ShardPicture {
  std::string title;
  std::vector<std::string> names;  // of the dims
  Shape shape, blocks;             // elements and blocks along each
  int summands = 1;                // devices whose numbers are summed to one copy of a block
  List<std::vector<int>> holders;  // ranks by block, row-major; each `summands` make a copy

  std::string text() const;
  std::string cell(std::size_t block) const;         // "0-3", "0+1"
  std::string range(int dim, std::int64_t i) const;  // "4:8"
  std::string panel_name(std::int64_t panel) const;  // "I 0:4": of the dims before the last two
};

struct Sharded {
  Shared<const detail::PlacedMesh> mesh;
  Shape shape;  // of the whole array
  Sharding sharding;
  DType format = DType::f32;         // in which bytes and FLOPs are priced
  List<Tensor> shards;               // by rank; none: only the shape is known
  Shared<const ShardedReport> made;  // null: by mesh.shard

  std::string text() const {
    check_mesh();
    return "[" + sharding.text() + "]";
  }
  Shape local_shape() const {
    Shape local = shape;
    const detail::AxisPlaces at = places();
    detail::local_shape_of(*mesh, at, local);
    return local;
  }
  int devices() const {
    check_mesh();
    return mesh->devices();
  }
  // How many devices hold the same numbers.
  int replicas() const {
    const std::string used = detail::all_letters(places());
    return devices() / static_cast<int>(detail::shard_count(*mesh, used));
  }
  double bytes() const {  // on each device
    return static_cast<double>(local_shape().count()) * bytes_of(format);
  }
  double bytes_in_all() const { return bytes() * devices(); }
  // The first index along a dim of what a device holds.
  std::int64_t begin(int rank, int dim) const {
    if (rank < 0 || rank >= devices()) {
      detail::fail({"Sharded::begin: device ", rank, " of ", text(), "; 0 to ", devices() - 1,
                    devices() == 1 ? " is right" : " are right"});
    }
    const std::int64_t size = local_shape()[dim];
    const int at = (dim < 0 ? dim + shape.size() : dim) + 1;
    return detail::shard_index(*mesh, places()[static_cast<std::size_t>(at)], rank) * size;
  }
  detail::AxisPlaces places() const {
    check_mesh();
    return detail::places_of(*mesh, sharding, shape);
  }
  // Throws what is wrong with one that the caller changed: what ops on it begin with.
  void check() const {
    const Shape local = local_shape();
    if (!shards.empty() && shards.size() != static_cast<std::size_t>(devices())) {
      detail::fail({"Sharded: ", text(), " has ", shards.size(), " shards on ", devices(),
                    " devices; one each is right, or none"});
    }
    for (std::size_t rank = 0; rank < shards.size(); ++rank) {
      if (!shards[rank].defined() || shards[rank].shape() != local) {
        detail::fail({"Sharded: ", text(), " of shape ", shape, " has on device ", rank, " ",
                      shards[rank].defined() ? "a shard of " + shards[rank].shape().text()
                                             : "an empty tensor",
                      "; ", local, " is right"});
      }
    }
  }

  Tensor gather() const;          // the whole array, by the program itself
  ShardedReport explain() const;  // how it was made
  ShardPicture picture() const;

 private:
  void check_mesh() const {
    if (!mesh) {
      detail::fail({"Sharded: empty (default-constructed); make one with mesh.shard"});
    }
  }
};

inline Table ShardedReport::table() const {
  Table out;
  out.title = title;
  out.columns = {"call", "axes", "from", "to", "algorithm", "bytes sent", "counted", "time"};
  for (const ShardedStep& step : steps) {
    out.add({step.name, step.axes, "[" + step.before + "]", "[" + step.after + "]", step.algorithm,
             format_bytes(step.bytes), step.counted > 0 ? format_bytes(step.counted) : "-",
             format_seconds(step.seconds)});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const ShardedReport& report) {
  if (report.steps.empty()) {
    out << report.title << "\n";
  } else {
    out << report.table();
  }
  if (!report.candidates.empty()) {
    Table ways;
    ways.columns = {"way", "T_math", "T_comms", "T", "bytes sent"};
    for (std::size_t i = 0; i < report.candidates.size() && i < 4; ++i) {
      const ShardedCandidate& way = report.candidates[i];
      ways.add({way.calls, format_seconds(way.math_seconds), format_seconds(way.comms_seconds),
                format_seconds(way.seconds), format_bytes(way.bytes)});
    }
    out << ways;
  }
  return out << report.reason << (report.reason.empty() ? "" : "\n");
}

namespace detail {

// For an op of one device in the program that holds all; of rank -1 for moves, which are no ops.
inline Context device_context(int rank) {
  Context own = context();
  own.device = rank;
  own.profile = rank < 0 ? nullptr : own.profile;
  ++own.no_grad;
  return own;
}

struct DeviceScope {
  explicit DeviceScope(int rank) : own(device_context(rank)), scope(own) {}
  Context own;
  const ContextScope scope;
};

inline Sharded shard(const Shared<const PlacedMesh>& mesh, const Shape& shape,
                     const std::string& text, DType format = DType::f32) {
  const Sharded out = {mesh, shape, parse_sharding(text), format, {}, {}};
  out.places();  // checks
  return out;
}

// The array's numbers under another sharding on the same mesh.
inline Sharded like(const Sharded& a, const Shape& shape, const Sharding& sharding) {
  return {a.mesh, shape, sharding, a.format, {}, {}};
}

inline void finish(Sharded& a, const ShardedReport& report) {
  a.made = Shared<const ShardedReport>(new ShardedReport(report));
}

// Every device's op on what it has of a and b.
inline void on_each_device(Sharded& out, const Sharded& a, const Sharded& b,
                           Tensor (*op)(const Tensor& a, const Tensor& b)) {
  for (std::size_t r = 0; r < a.shards.size(); ++r) {
    const DeviceScope scope(static_cast<int>(r));
    out.shards.push_back(op(a.shards[r], b.shards[r]));
  }
}

// The block that a device holds, as a view of the whole.
inline Tensor block_of(const Sharded& a, const Tensor& whole, int rank) {
  const Shape local = a.local_shape();
  Tensor block = whole;
  for (int d = 0; d < local.size(); ++d) {
    const std::int64_t begin = a.begin(rank, d);
    block = slice(block, d, begin, begin + local[d]);
  }
  return block;
}

inline Sharded shard(const Shared<const PlacedMesh>& mesh, const Tensor& x, const std::string& text,
                     DType format = DType::f32) {
  x.origin();  // an empty one throws
  Sharded out = shard(mesh, x.shape(), text, format);
  if (!out.sharding.partial.empty()) {
    fail({"shard: \"", text, "\" asks for summands, the tensor is their sum; a partial sum comes ",
          "from a matmul or a sum over a dim that is cut"});
  }
  const DeviceScope quiet(-1);
  for (int rank = 0; rank < out.devices(); ++rank) {
    out.shards.push_back(block_of(out, x, rank).copied());
  }
  return out;
}

inline void check_numbers(const char* function, const Sharded& a) {
  a.check();
  if (a.shards.empty()) {
    fail({function, ": ", a.text(), " of shape ", a.shape,
          " was made of a shape and has no numbers; give mesh.shard a tensor"});
  }
}

}  // namespace detail

// "[I_x, J] of (8, 16) in f32, (4, 16) on each of 2 devices"
inline std::ostream& operator<<(std::ostream& out, const Sharded& array) {
  return out << detail::cat({array.text(), " of ", array.shape, " in ", name_of(array.format), ", ",
                             array.local_shape(), " on each of ", array.devices(), " devices"});
}

inline Tensor Sharded::gather() const {
  detail::check_numbers("gather", *this);
  const detail::DeviceScope quiet(-1);
  Tensor whole = full(shape, 0.0f);
  const ShardPicture held = picture();
  for (const std::vector<int>& ranks : held.holders) {
    for (int i = 0; i < held.summands; ++i) {
      const int rank = ranks[static_cast<std::size_t>(i)];
      const Tensor place = detail::block_of(*this, whole, rank);
      add_(place, shards[static_cast<std::size_t>(rank)]);
    }
  }
  return whole;
}

inline ShardedReport Sharded::explain() const {
  if (made) {
    return *made;
  }
  ShardedReport out;
  out.title = detail::cat(
      {text(), " of shape ", shape, ": each of ", devices(), " devices holds ", local_shape(), ", ",
       format_bytes(bytes()), "; all together ", format_bytes(bytes_in_all()), ", each number ",
       replicas() == 1 ? std::string("once") : detail::cat({replicas(), " times"})});
  return out;
}

inline ShardPicture Sharded::picture() const {
  ShardPicture out;
  const detail::AxisPlaces at = places();
  out.title = detail::cat({text(), " of shape ", shape, " on ", devices(), " devices"});
  out.shape = shape;
  for (std::size_t d = 0; d < sharding.dims.size(); ++d) {
    out.names.push_back(sharding.dims[d].name);
    out.blocks.push_back(detail::shard_count(*mesh, at[d + 1]));
  }
  out.summands = static_cast<int>(detail::shard_count(*mesh, at[0]));
  out.holders.resize(static_cast<std::size_t>(out.blocks.count()));
  const std::string used = detail::all_letters(at);
  const std::string cut = used.substr(at[0].size());
  const std::string copies = detail::without(mesh->letters(), used);  // one for each device there
  for (std::vector<int>& ranks : out.holders) {
    ranks.resize(static_cast<std::size_t>(out.summands * replicas()));
  }
  for (int rank = 0; rank < devices(); ++rank) {
    const std::int64_t block = detail::shard_index(*mesh, cut, rank);
    const std::int64_t place = detail::shard_index(*mesh, copies + at[0], rank);
    out.holders[static_cast<std::size_t>(block)][static_cast<std::size_t>(place)] = rank;
  }
  return out;
}

inline std::string ShardPicture::range(int dim, std::int64_t i) const {
  const std::int64_t size = shape[dim] / blocks[dim];
  return detail::cat({i * size, ":", (i + 1) * size});
}

inline std::string ShardPicture::cell(std::size_t block) const {
  if (block >= holders.size()) {
    detail::fail({"ShardPicture: block ", block, " of ", holders.size(),
                  "; make a picture with Sharded::picture"});
  }
  const std::vector<int>& ranks = holders[block];
  bool row = ranks.size() > 2 && summands == 1;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    row = row && ranks[i] == ranks[i - 1] + 1;
  }
  if (row) {
    return detail::cat({ranks.front(), "-", ranks.back()});
  }
  std::string out;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool sum = i % static_cast<std::size_t>(summands) != 0;
    out += detail::cat({i == 0 ? "" : sum ? "+" : ", ", ranks[i]});
  }
  return out;
}

inline std::string ShardPicture::panel_name(std::int64_t panel) const {
  std::string out;
  for (int d = blocks.size() - 3; d >= 0; --d) {
    const std::string name = names[static_cast<std::size_t>(d)];
    out = name + " " + range(d, panel % blocks[d]) + (out.empty() ? "" : ", ") + out;
    panel /= blocks[d];
  }
  return out;
}

// A table of the last two dims for each block of the others; of long ones the first 16 blocks, and
// a last line says of how many.
inline std::string ShardPicture::text() const {
  const int dims = blocks.size();
  const std::int64_t columns = dims > 0 ? blocks[-1] : 1;
  const std::int64_t rows = dims > 1 ? blocks[-2] : 1;
  const std::int64_t most = 16;
  const std::int64_t panels = static_cast<std::int64_t>(holders.size()) / (rows * columns);
  std::string out = title + (summands > 1 ? ", + joins summands\n" : "\n");
  for (std::int64_t panel = 0; panel < std::min(panels, most); ++panel) {
    Table table;
    table.title = panel_name(panel);
    table.columns.push_back(dims > 1 ? names[static_cast<std::size_t>(dims) - 2] : "");
    for (std::int64_t j = 0; j < std::min(columns, most); ++j) {
      table.columns.push_back(dims > 0 ? names.back() + " " + range(dims - 1, j) : "");
    }
    for (std::int64_t i = 0; i < std::min(rows, most); ++i) {
      std::vector<Cell> line(1, dims > 1 ? range(dims - 2, i) : "device");
      for (std::int64_t j = 0; j < std::min(columns, most); ++j) {
        line.push_back(cell(static_cast<std::size_t>((panel * rows + i) * columns + j)));
      }
      table.add(line);
    }
    out += table.text();
  }
  const std::int64_t counts[] = {panels, rows, columns};
  const char* const kinds[] = {"tables", "rows", "columns"};
  for (int i = 0; i < 3; ++i) {
    out += counts[i] > most ? detail::cat({"first ", most, " of ", counts[i], " ", kinds[i], "\n"})
                            : "";
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const ShardPicture& picture) {
  return out << picture.text();
}

}  // namespace tinyscale

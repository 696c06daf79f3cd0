#pragma once
// The log of a mesh run: what every device did, in order, and every collective that ran, with the
// schedule of its messages. Nothing here depends on how threads were scheduled or on the machine:
// the same log can be timed on several.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>  // strcmp
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/measure/counters.hpp"
#include "tinyscale/measure/memory.hpp"
#include "tinyscale/mesh/collective_spec.hpp"
#include "tinyscale/mesh/schedule.hpp"

namespace tinyscale {

// A line of the user's program.
struct SourceLine {
  const char* file = "";
  int line = 0;
};

inline bool operator==(const SourceLine& a, const SourceLine& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

namespace detail {

// "program.cpp:12", without the folders.
inline std::string line_text(const SourceLine& where) {
  const std::string file = where.file;
  const std::size_t slash = file.find_last_of("/\\");
  return file.empty()
             ? ""
             : cat({slash == std::string::npos ? file : file.substr(slash + 1), ":", where.line});
}
inline std::string at(const SourceLine& where) {
  const std::string line = line_text(where);
  return line.empty() ? "" : " at " + line;
}

}  // namespace detail

// What is equal for all groups of devices that make one call.
struct CallShape {
  std::string name, axes, arguments;  // "all_gather", "x,y", "[1024], dim 0"
  SourceLine where;
  CollectiveSpec spec;
  std::vector<int> axis_numbers;  // of the mesh, in the order of the call
  std::string reason;             // why this algorithm
  ChunkCut cut;
  Shared<const detail::PreparedSchedule> schedule;
  bool eager = false;  // a user's send: its one message leaves when the sender is ready
};

// A collective of one group of devices, or one user's send.
struct LoggedCall {
  Shared<const CallShape> shape;
  Shared<const std::vector<int>> members;  // ranks by index in the group
  int line = 0;                            // of RunLog::lines
  SourceLine where = SourceLine();         // of the call at the group's first device
};

// A device's memory where a task ended, in bytes by kind: what was in use, and the most in the
// task.
struct MemorySample {
  int task = -1;       // Device::task; -1: between tasks
  double seconds = 0;  // simulated, when it ended
  std::array<double, MemoryMeter::kinds> levels{}, peaks{};
  double peak_total = 0;
};

// What a device did. Between a start and a wait of one call it may compute. A call is started and
// waited for once by each member; of a send the sender starts it, the receiver waits for it.
// A mark is where a task ends.
struct DeviceEvent {
  enum class Kind { compute, start, wait, mark };
  Kind kind = Kind::compute;
  std::size_t first = 0, last = 0;  // compute: of the device's ops; mark: sample; else the call
  int task = -1;                    // that it is part of
};

struct RunLog {
  int devices = 0;
  std::vector<std::string> lines;    // the program's lines, in order: "all_gather([4], x) #1"
  List<LoggedCall> calls;            // by line, then by group
  List<List<DeviceEvent>> programs;  // by rank
  List<List<OpCost>> ops;            // by rank: what `compute` refers to
  List<List<MemorySample>> samples;  // by rank: what `mark` refers to; seconds come with a timeline
};

}  // namespace tinyscale

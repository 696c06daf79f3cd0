#pragma once
// A collective algorithm as a table: what each device receives in each step.

#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/mesh/schedule.hpp"

namespace tinyscale {

// Chunk 2 from device 1 is "2 < 1"; "+2 < 1" is added to what is there. The first 16 devices, by
// their index in the group.
inline Table schedule_table(const CollectiveSchedule& schedule) {
  Table table;
  table.title = detail::cat({schedule.name.empty() ? name_of(schedule.what) : schedule.name,
                             ": chunk < sender, + is added"});
  table.columns = {"stream", "step"};
  const int shown = schedule.devices < 16 ? schedule.devices : 16;
  for (int d = 0; d < shown; ++d) {
    table.columns.push_back(detail::cat({"to ", d}));
  }
  List<std::vector<Cell>> rows;
  for (const Transfer& t : schedule.transfers) {
    const std::string stream = std::to_string(t.stream), step = std::to_string(t.step);
    std::size_t row = rows.size();
    while (row > 0 && (rows[row - 1][0] != stream || rows[row - 1][1] != step)) {
      --row;
    }
    if (row == 0) {
      rows.push_back(std::vector<Cell>(table.columns.size()));
      row = rows.size();
      rows.back()[0] = stream;
      rows.back()[1] = step;
    }
    if (t.to < shown) {
      std::string& cell = rows[row - 1][static_cast<std::size_t>(t.to) + 2];
      cell +=
          detail::cat({cell.empty() ? "" : ", ", t.action == Action::reduce ? "+" : "", t.chunk});
      cell += t.chunks > 1 ? detail::cat({"..", t.chunk + t.chunks - 1}) : "";
      cell += detail::cat({" < ", t.from});
    }
  }
  for (const std::vector<Cell>& row : rows) {
    table.add(row);
  }
  return table;
}

}  // namespace tinyscale

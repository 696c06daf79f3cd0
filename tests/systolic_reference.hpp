#pragma once
// The array as one would first write it: a loop over PEs in a loop over ticks, every register moved
// by hand. Slow and obvious; the library's array is held against it.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tinyscale.hpp"

namespace reference {

namespace ts = tinyscale;

struct Pe {
  float moving = 0, held = 0, next = 0, sum = 0;
  std::int64_t slot_fold = -1, slot = -1;  // the control that came with `moving`; -1: none
  bool streamed = false;                   // since its column was last loaded, or the wave began
};

// x [M, K] times w [K, N] in f32 for the modes of section "schedules"; whole sums as the array
// would give them, ticks and the ledger.
struct PlainArray {
  std::int64_t rows = 0, cols = 0, m = 0, k = 0, n = 0;
  ts::Schedule schedule = ts::Schedule::doubled;
  bool outputs = false, instant = false, tight = false;
  const float *x = nullptr, *w = nullptr;
  std::vector<ts::Tensor> own;  // what x and w look at
  std::vector<float> out;
  std::int64_t ticks = 0;
  ts::LossLedger ledger;

  std::int64_t row_folds = 0, col_folds = 0, stream = 0, due = 0;
  std::vector<std::int64_t> load, start, leave;  // first tick of shift-in, stream, shift-out
  std::vector<Pe> pes;

  Pe& pe(std::int64_t r, std::int64_t c) { return pes[static_cast<std::size_t>(r * cols + c)]; }
  std::int64_t at(const std::vector<std::int64_t>& list, std::int64_t f) const {
    return list[static_cast<std::size_t>(f)];
  }

  void run() {
    start_run();
    while (due > 0) {
      tick();
      ++ticks;
    }
  }

  void start_run() {
    stream = outputs ? k : m;
    row_folds = ((outputs ? m : k) + rows - 1) / rows;
    col_folds = (n + cols - 1) / cols;
    pes.resize(static_cast<std::size_t>(rows * cols));
    out.assign(static_cast<std::size_t>(m * n), 0.0f);
    plan();
    for (std::int64_t f = 0; f < row_folds * col_folds; ++f) {
      const std::int64_t used_cols = tight ? std::min(cols, n - f / row_folds * cols) : cols;
      const std::int64_t used_rows = tight ? std::min(rows, m - f % row_folds * rows) : rows;
      due += used_cols * (outputs ? used_rows : stream);
    }
  }

  // The recurrences of each schedule.
  void plan() {
    const std::int64_t wave = stream + rows + cols - 2;
    const std::int64_t folds = row_folds * col_folds;
    for (std::int64_t f = 0; f < folds; ++f) {
      const std::int64_t before = f == 0 ? 0 : start.back();
      if (!outputs) {
        load.push_back(f == 0                             ? 0
                       : schedule == ts::Schedule::serial ? before + wave
                       : schedule == ts::Schedule::skewed ? before + stream + rows - 1
                                                          : before);
        start.push_back(f == 0 ? rows : std::max(load.back() + rows, before + stream));
      } else if (schedule == ts::Schedule::serial) {
        start.push_back(f == 0 ? 0 : before + wave + (instant ? 0 : rows));
        leave.push_back(start.back() + stream);
      } else {
        start.push_back(f == 0 ? 0 : leave.back());
        leave.push_back(f == 0 ? stream : std::max(start.back() + stream, leave.back() + rows));
      }
    }
  }

  // What a PE's control slot is: the fold that streams and its place, or (-1, -1).
  void slot_sent(std::int64_t t, std::int64_t& fold, std::int64_t& slot) const {
    fold = slot = -1;
    for (std::size_t f = 0; f < start.size(); ++f) {
      if (t >= start[f] && t < start[f] + stream) {
        fold = static_cast<std::int64_t>(f);
        slot = t - start[f];
      }
    }
  }

  bool column_loads(std::int64_t f, std::int64_t c) const {
    const std::int64_t first = at(load, f) + (schedule == ts::Schedule::serial ? 0 : c);
    return ticks >= first && ticks < first + rows;
  }

  void tick() {
    for (std::int64_t r = rows - 1; r >= 0; --r) {
      for (std::int64_t c = cols - 1; c >= 0; --c) {
        move(r, c);
      }
    }
    if (!outputs) {
      collect_south();  // sums of this tick; the weights of the next shift in afterwards
      shift_weights();
    } else {
      instant ? void() : collect_shifted();
    }
  }

  // One PE: takes what its neighbours hold, multiplies, books.
  void move(std::int64_t r, std::int64_t c) {
    Pe& p = pe(r, c);
    if (c == 0) {
      slot_sent(ticks - r, p.slot_fold, p.slot);
      const std::int64_t down = p.slot_fold % row_folds * rows + r;
      p.moving = 0;
      if (p.slot >= 0 && down < (outputs ? m : k)) {
        p.moving = outputs ? x[down * k + p.slot] : x[p.slot * k + down];
      }
    } else {
      p.slot_fold = pe(r, c - 1).slot_fold;
      p.slot = pe(r, c - 1).slot;
      p.moving = pe(r, c - 1).moving;
    }
    const std::int64_t across = p.slot_fold / row_folds * cols + c;
    if (outputs) {
      output_pe(r, c, p, across);
    } else {
      if (p.slot == 0) {
        p.held = p.next;
      }
      p.sum = std::fma(p.moving, p.held, r == 0 ? 0.0f : pe(r - 1, c).sum);
    }
    book(r, c, p, across);
  }

  void output_pe(std::int64_t r, std::int64_t c, Pe& p, std::int64_t across) {
    p.held = 0;
    if (r > 0) {
      p.held = pe(r - 1, c).held;
    } else {
      std::int64_t fold = 0, slot = 0;
      slot_sent(ticks - c, fold, slot);
      if (slot >= 0 && fold / row_folds * cols + c < n) {
        p.held = w[slot * n + fold / row_folds * cols + c];
      }
    }
    for (std::size_t f = 0; f < leave.size() && !instant; ++f) {
      if (ticks == leave[f] + r + c) {
        p.next = p.sum;  // moved aside, waits for its column's shift
      }
    }
    if (p.slot == 0) {
      p.sum = 0;
    }
    if (p.slot >= 0) {
      p.sum = std::fma(p.moving, p.held, p.sum);
    }
    if (instant && p.slot == stream - 1) {
      result(p.slot_fold % row_folds * rows + r, across, p.sum);
    }
  }

  void book(std::int64_t r, std::int64_t c, Pe& p, std::int64_t across) {
    const std::int64_t down = p.slot_fold % row_folds * rows + r;
    const bool doubled = schedule == ts::Schedule::doubled;
    bool loads = false, waits = false;
    for (std::size_t f = 0; f < load.size(); ++f) {
      const auto i = static_cast<std::int64_t>(f);
      loads = loads || ((!doubled || f == 0) && column_loads(i, c));
      waits = waits || (doubled && f > 0 && ticks - r - c >= start[f - 1] + stream &&
                        ticks - r - c < start[f]);
    }
    if (outputs && schedule == ts::Schedule::serial) {
      for (const std::int64_t s : start) {
        p.streamed = p.streamed && ticks != s;  // a new wave
      }
    }
    p.streamed = (p.streamed && !loads) || p.slot >= 0;
    if (p.slot >= 0) {
      (down < (outputs ? m : k) && across < n ? ledger.useful : ledger.padded) += 1;
    } else {
      (loads || waits ? ledger.weight_shift : p.streamed ? ledger.drain : ledger.fill) += 1;
    }
  }

  void collect_south() {
    for (std::int64_t c = 0; c < cols; ++c) {
      const Pe& p = pe(rows - 1, c);
      const std::int64_t column = p.slot_fold / row_folds * cols + c;
      if (p.slot >= 0 && (column < n || !tight)) {
        --due;
        if (column < n) {
          float& sum = out[static_cast<std::size_t>(p.slot * n + column)];
          sum = p.slot_fold % row_folds == 0 ? p.sum : sum + p.sum;
        }
      }
    }
  }

  void shift_weights() {
    for (std::size_t f = 0; f < load.size(); ++f) {
      const auto fold = static_cast<std::int64_t>(f);
      for (std::int64_t c = 0; c < cols; ++c) {
        if (!column_loads(fold, c)) {
          continue;
        }
        const std::int64_t shift = ticks - load[f] - (schedule == ts::Schedule::serial ? 0 : c);
        for (std::int64_t r = std::min(shift, rows - 1); r > 0; --r) {
          pe(r, c).next = pe(r - 1, c).next;
        }
        const std::int64_t down = fold % row_folds * rows + rows - 1 - shift;
        const std::int64_t across = fold / row_folds * cols + c;
        pe(0, c).next = down < k && across < n ? w[down * n + across] : 0.0f;
      }
    }
  }

  void collect_shifted() {
    for (std::size_t f = 0; f < leave.size(); ++f) {
      const auto fold = static_cast<std::int64_t>(f);
      for (std::int64_t c = 0; c < cols; ++c) {
        const std::int64_t shift = ticks - leave[f] - (rows - 1) - c;
        if (shift >= 0 && shift < rows) {
          result(fold % row_folds * rows + rows - 1 - shift, fold / row_folds * cols + c,
                 pe(rows - 1, c).next);
          for (std::int64_t r = rows - 1; r > shift; --r) {  // above are the next fold's sums
            pe(r, c).next = pe(r - 1, c).next;
          }
        }
      }
    }
  }

  void result(std::int64_t row, std::int64_t column, float sum) {
    const bool real = row < m && column < n;
    due -= real || !tight ? 1 : 0;
    if (real) {
      out[static_cast<std::size_t>(row * n + column)] = sum;
    }
  }
};

}  // namespace reference

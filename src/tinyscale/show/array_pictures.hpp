#pragma once
// Pictures of a systolic array: frames of its registers, busy PEs by tick, where the PE-ticks went,
// and what shape of matmul keeps it busy.

#include <algorithm>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/show/plot.hpp"
#include "tinyscale/show/svg.hpp"
#include "tinyscale/systolic/wavefront.hpp"

namespace tinyscale {

namespace detail {

// A state's letter, what it means, and its fill.
struct PeLook {
  char letter;
  const char* name;
  std::string fill;
};

inline const List<PeLook>& pe_looks() {
  static const List<PeLook> looks = {
      {'#', "useful", Canvas::fill(0)},
      {'o', "padded", Canvas::fill(4)},
      {'>', "fill", " class=\"ts-empty\" fill=\"#eef0f2\""},
      {'<', "drain", Canvas::fill(6) + " fill-opacity=\"0.45\""},
      {'v', "weight shift", Canvas::fill(2)},
      {'.', "stall", Canvas::fill(1)},
  };
  return looks;
}

inline const PeLook& look_of(char letter) {
  for (const PeLook& look : pe_looks()) {
    if (look.letter == letter) {
      return look;
    }
  }
  return pe_looks()[2];
}

inline void draw_looks(Canvas& canvas, double x, double y) {
  for (const PeLook& look : pe_looks()) {
    canvas.rect(x, y - 10, 12, 12, look.fill);
    canvas.label(x + 17, y, look.name, 12, Anchor::start, Canvas::soft());
    x += 32 + drawn_width(look.name, 12);
  }
}

// One frame; small arrays name what a PE multiplies: x indices over w indices.
inline void draw_frame(Canvas& canvas, const Wavefront& frame, double left, double top,
                       double cell) {
  canvas.label(left, top - 7,
               cat({"tick ", frame.tick, ": ", frame.busy(), " of ", frame.rows * frame.cols}), 12,
               Anchor::start);
  for (std::int64_t r = 0; r < frame.rows; ++r) {
    for (std::int64_t c = 0; c < frame.cols; ++c) {
      const WavefrontCell& pe = frame.at(r, c);
      const double x = left + cell * static_cast<double>(c);
      const double y = top + cell * static_cast<double>(r);
      const double gap = cell > 8 ? 1 : 0;
      canvas.rect(x, y, cell - gap, cell - gap, look_of(pe.state).fill);
      if (cell >= 34 && pe.state == '#') {
        const std::string white = "fill=\"#ffffff\"";
        canvas.label(x + cell / 2, y + cell / 2 - 2, cat({"x", pe.m, ",", pe.k}), 9.5,
                     Anchor::middle, white);
        canvas.label(x + cell / 2, y + cell / 2 + 10, cat({"w", pe.k, ",", pe.n}), 9.5,
                     Anchor::middle, white);
      }
    }
  }
}

// One bar of the ledger, its parts from left to right in the order of the table.
inline void draw_ledger(Canvas& canvas, const SystolicTiming& t, double left, double y,
                        double width) {
  const LossLedger& l = t.ledger;
  const std::int64_t parts[] = {l.useful, l.padded,       l.fill,
                                l.drain,  l.weight_shift, l.weight_stall + l.dma_stall};
  double x = left;
  for (std::size_t i = 0; i < 6; ++i) {
    const double all = std::max(1.0, static_cast<double>(l.total()));
    const double share = static_cast<double>(parts[i]) / all;
    canvas.rect(x, y, share * width, 22, pe_looks()[i].fill);
    if (share > 0.07) {
      canvas.label(x + share * width / 2, y + 15, printed('f', 1, 100 * share) + " %", 11,
                   Anchor::middle, i == 0 || i > 3 ? "fill=\"#ffffff\"" : Canvas::ink());
    }
    x += share * width;
  }
}

}  // namespace detail

// A strip of frames. Throws when there are none or their arrays differ.
inline Svg svg(const List<Wavefront>& frames) {
  if (frames.empty()) {
    detail::fail({"svg: no frames; give wavefronts(array, x, w, first, count)"});
  }
  const Wavefront& one = frames[0];
  for (const Wavefront& frame : frames) {
    if (frame.rows != one.rows || frame.cols != one.cols) {
      detail::fail({"svg: frames of ", one.rows, " x ", one.cols, " and ", frame.rows, " x ",
                    frame.cols, " PEs; give frames of one array"});
    }
  }
  const double most = static_cast<double>(std::max(one.rows, one.cols));
  const double cell = std::max(2.0, std::min(38.0, 256.0 / most));
  const double wide = std::max(cell * static_cast<double>(one.cols), 120.0) + 24;
  const double high = cell * static_cast<double>(one.rows) + 34;
  const auto across =
      std::max<std::size_t>(1, std::min(frames.size(), static_cast<std::size_t>(900 / wide)));
  const std::size_t down = (frames.size() + across - 1) / across;
  detail::Canvas canvas(std::max(560.0, 20 + wide * static_cast<double>(across)),
                        70 + high * static_cast<double>(down));
  canvas.heading(detail::cat({one.rows, " x ", one.cols, " array, ", name_of(one.dataflow)}));
  for (std::size_t i = 0; i < frames.size(); ++i) {
    detail::draw_frame(canvas, frames[i], 20 + wide * static_cast<double>(i % across),
                       62 + high * static_cast<double>(i / across), cell);
  }
  detail::draw_looks(canvas, 20, 60 + high * static_cast<double>(down) - 4);
  return canvas.finish(detail::cat(
      {one.rows, " x ", one.cols, " array in ", frames.size(), " ticks from ", one.tick}));
}

inline Svg svg(const Wavefront& frame) { return svg(List<Wavefront>{frame}); }

// Busy PEs by tick: counted, and the closed form.
inline Svg svg(const ActivePes& active) {
  Plot plot;
  plot.title = "PEs that multiply, by tick";
  plot.x.label = "tick";
  plot.y.label = "PEs";
  Series simulated{"simulated", {}, {}, Mark::line},
      formula{"formula", {}, {}, Mark::hollow_points};
  const std::size_t every = active.formula.size() / 60 + 1;
  for (std::size_t i = 0; i < active.simulated.size(); ++i) {
    simulated.x.push_back(static_cast<double>(i));
    simulated.y.push_back(static_cast<double>(active.simulated[i]));
    if (i % every == 0) {
      formula.x.push_back(static_cast<double>(i));
      formula.y.push_back(static_cast<double>(active.formula[i]));
    }
  }
  plot.series = {simulated, formula};
  return svg(plot);
}

// Where the PE-ticks of each case went: a bar a case, as wide as all its PE-ticks.
inline Svg ledger_bars(const List<SystolicTiming>& cases, const std::vector<std::string>& names) {
  if (cases.empty() || cases.size() != names.size()) {
    detail::fail({"ledger_bars: ", cases.size(), " cases and ", names.size(),
                  " names; give a name for each of at least one case"});
  }
  const double left = 190, width = 620;
  detail::Canvas canvas(left + width + 30, 84 + 32 * static_cast<double>(cases.size()));
  canvas.heading("Where the PE-ticks went");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const double y = 48 + 32 * static_cast<double>(i);
    canvas.label(left - 8, y + 15, detail::shorten(names[i], 26), 12, detail::Anchor::end);
    detail::draw_ledger(canvas, cases[i], left, y, width);
  }
  detail::draw_looks(canvas, left, 66 + 32 * static_cast<double>(cases.size()));
  return canvas.finish(detail::cat({"Ledger of ", cases.size(), " runs; the first is ",
                                    detail::percent(cases[0].utilization), " % useful"}));
}

inline Svg svg(const SystolicTiming& t) {
  return ledger_bars({t}, {detail::cat({"[", t.m, ", ", t.k, "] x [", t.k, ", ", t.n, "]"})});
}

// Utilization where one of M, K, N varies from 1 to four times its value and the others stay.
inline Svg utilization_plot(const SystolicArray& array, Dim m, Dim k, Dim n) {
  Plot plot;
  plot.title = detail::cat({"Utilization of ", array.rows(), " x ", array.cols(), " PEs around M ",
                            m.value, ", K ", k.value, ", N ", n.value});
  plot.x = {"size of the dimension that varies", Scale::logarithmic, 0, 0};
  plot.y = {"% of PE-ticks that are useful", Scale::linear, 0, 100};
  const std::int64_t sizes[3] = {m.value, k.value, n.value};
  const char* const names[3] = {"M varies", "K varies", "N varies"};
  for (int d = 0; d < 3; ++d) {
    Series line{names[d], {}, {}, Mark::line};
    std::int64_t size = 1;
    while ((size - 1) / 4 < sizes[d]) {
      std::int64_t mkn[3] = {m.value, k.value, n.value};
      mkn[d] = size;
      line.x.push_back(static_cast<double>(size));
      line.y.push_back(100 * array.timing(mkn[0], mkn[1], mkn[2]).utilization);
      size += std::max<std::int64_t>(1, size / 32);  // fine enough to see the steps at full tiles
    }
    plot.series.push_back(line);
  }
  return svg(plot);
}

}  // namespace tinyscale

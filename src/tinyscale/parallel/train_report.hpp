#pragma once
// What a training run says afterwards: losses, speed, memory, and on a mesh losses beside one
// device's and what every device sent, computed and held, each beside its prediction. A value is a
// formula, simulated (on the declared machine) or measured (on this laptop).

#include <cmath>     // isnan
#include <cstdint>   // int64_t
#include <iostream>  // ostream
#include <string>    // string
#include <vector>    // vector

#include "tinyscale/base/format.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/compare.hpp"
#include "tinyscale/mesh/mesh_run.hpp"
#include "tinyscale/parallel/step_tables.hpp"

namespace tinyscale {

struct Validation {
  std::int64_t step = 0;
  double loss = 0;  // mean over the whole validation split, nats a token
};

struct TrainReport {
  std::string model, text, machine, layout;
  std::int64_t devices = 1;
  std::int64_t batch = 0;          // sequences a step; of the default what the layout divides
  DType format = DType::f32;       // of matmul operands
  std::vector<double> losses;      // of the global batch, before each step
  std::vector<double> grad_norms;  // before clipping
  double loss_scale = 1;           // after the last step
  std::int64_t skipped_steps = 0;  // gradients overflowed at a dynamic loss scale
  RoundingCount rounding;          // of the gradients that matmuls read in f16 or fp8
  List<Validation> validation;
  std::int64_t resumed = 0;      // of the losses those that a checkpoint had
  double seconds = 0;            // in training steps, measured; evaluation left out
  double tokens_per_second = 0;  // measured
  double flops_per_token = 0;    // 6 N + attention, as model_flops_per_token counts them
  double mfu = 0;                // flops_per_token * tokens_per_second / laptop().peak(format)
  Comparison memory;             // one device: peak bytes by the meter beside the closed form
  // On a mesh; empty, and last_step null, where one device trained by itself with whole batches:
  std::vector<double> one_device;   // losses of the first steps here on one device
  StepReport step;                  // the last one, counted beside its formulas
  Shared<const MeshRun> last_step;  // its run
  const detail::StepPrinter* step_printer = nullptr;  // train() sets it with them

  double final_loss() const { return losses.empty() ? std::nan("") : losses.back(); }
  double final_validation() const {
    return validation.empty() ? std::nan("") : validation.back().loss;
  }

  Table table() const {
    Table t;
    t.title = detail::cat({"training ", model, " on ", text, ", ", devices, " device",
                           devices == 1 ? "" : "s", machine.empty() ? "" : " of ", machine,
                           layout.empty() ? "" : ": ", layout});
    t.columns = {"what", "value", "kind"};
    if (resumed > 0) {
      const auto more = static_cast<std::int64_t>(losses.size()) - resumed;
      t.add({"steps of the checkpoint, and since", detail::cat({resumed, " + ", more}), "counted"});
    }
    if (!losses.empty()) {
      t.add({"first loss", format_fixed(losses.front(), 4), "measured"});
      t.add({"last loss", format_fixed(losses.back(), 4), "measured"});
    }
    for (const Validation& v : validation) {
      t.add({detail::cat({"validation loss, step ", v.step}), format_fixed(v.loss, 4), "measured"});
    }
    if (format == DType::f16 || format == DType::fp8_e4m3) {
      t.add({"loss scale at the end", format_count(loss_scale), "measured"});
      t.add({"steps skipped", detail::cat({skipped_steps}), "counted"});
      t.add({detail::cat({"gradients rounded to 0 in ", name_of(format)}),
             format_percent(rounding.lost_share()), "counted"});
    }
    t.add({"time in steps", format_seconds(seconds), "measured"});
    t.add({"tokens/s", format_count(std::round(tokens_per_second)), "measured"});
    t.add({detail::cat({"MFU of this laptop (6 N + attention over ", name_of(format),
                        " peak, wall clock)"}),
           format_percent(mfu), "measured"});
    if (last_step && step_printer != nullptr) {
      step_printer->add_rows(step, *last_step, t);
    }
    return t;
  }
  // Of the first steps, beside those of one device.
  Table loss_table() const {
    Table t;
    t.title = "losses of the same training (measured)";
    t.columns = {"step", "this layout", "one device", "difference"};
    for (std::size_t i = 0; i < one_device.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(resumed) + i;
      t.add({std::to_string(at), format_fixed(losses[at], 6), format_fixed(one_device[i], 6),
             detail::number_cell('e', 1, std::fabs(losses[at] - one_device[i]))});
    }
    return t;
  }
  // Beside others, ts::compare({a, b}): what and value alone.
  operator Table() const {
    Table t = table();
    t.columns.pop_back();
    for (std::vector<Cell>& row : t.rows) {
      row.pop_back();
    }
    return t;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const TrainReport& report) {
  out << report.table();
  if (!report.memory.rows.empty()) {
    out << report.memory;
  }
  if (!report.one_device.empty()) {
    out << report.loss_table();
  }
  if (report.last_step && report.step_printer != nullptr) {
    report.step_printer->print(out, report.step);
  }
  return out;
}

}  // namespace tinyscale

// How often should a job save when its devices fail? Llama 3 had 419 interruptions in 54 days on
// 16,384 GPUs. You see what that means for other sizes: the time between failures, the best time
// between checkpoints (Young, Daly) and how much of the time goes into steps that last; then a job
// that is played with random failures, beside the formula.
//   g++ -std=c++17 -O2 -pthread -I. examples/26_goodput.cpp -o 26_goodput && ./26_goodput
#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  ts::FaultyJob job;
  job.device_hours_per_failure = 54 * 24.0 * 16384 / 419;
  job.step_seconds = 10;
  job.save_seconds = 30;      // that the steps wait
  job.restart_seconds = 600;  // to find the fault, replace the device and load

  ts::Table sizes;
  sizes.title = "a save takes 30 s, a restart 10 min";
  sizes.columns = {"devices", "between failures", "Young", "Daly", "goodput", "saving every 3 h"};
  for (const double devices : {8.0, 1024.0, 16384.0, 100000.0, 1000000.0}) {
    job.devices = devices;
    const double best = ts::daly_interval(job);
    sizes.add({ts::format_count(devices), ts::format_seconds(ts::mean_time_between_failures(job)),
               ts::format_seconds(ts::young_interval(job)), ts::format_seconds(best),
               ts::format_percent(ts::expected_goodput(job, best)),
               ts::format_percent(ts::expected_goodput(job, 3 * 3600))});
  }
  std::cout << sizes << "\n";

  job.devices = 100000;
  ts::Table played;
  played.title = "100,000 devices, played until 2,000 checkpoints are saved";
  played.columns = {"every",  "failures",   "useful",        "lost",
                    "saving", "restarting", "by the formula"};
  for (const double interval : {60.0, ts::daly_interval(job), 3600.0}) {
    const double steps = std::floor(interval / job.step_seconds) * job.step_seconds;
    const ts::GoodputRun run = ts::simulate_goodput(job, steps, 2000);
    const auto share = [&run](double seconds) { return ts::format_percent(seconds / run.total()); };
    played.add({ts::format_seconds(steps), ts::format_count(static_cast<double>(run.failures)),
                share(run.useful), share(run.lost), share(run.saving), share(run.restarting),
                ts::format_percent(ts::expected_goodput(job, steps))});
  }
  std::cout << played;
}

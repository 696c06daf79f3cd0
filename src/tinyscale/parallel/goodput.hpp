#pragma once
// Goodput of a job whose devices fail: how much of the time goes into steps that last.
// A checkpoint every tau seconds costs `save`; a failure costs what was done since the last one and
// `restart`. With failures at random, M seconds apart on average, a stretch of tau and its save
// take
//   M e^(restart/M) (e^((tau + save)/M) - 1)   seconds,
// least where tau is about sqrt(2 save M) (Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006).

#include <cmath>    // exp, log, sqrt
#include <cstdint>  // int64_t
#include <ostream>  // operator<<
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/random.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

struct FaultyJob {
  double devices = 1;
  double device_hours_per_failure = 50000;  // Llama 3: 419 in 54 days on 16,384 (2407.21783)
  double step_seconds = 1;
  double save_seconds = 10;  // that the steps wait for a checkpoint
  double restart_seconds = 300;
};

namespace detail {

// Between bounds with which no quotient or product of two of them over- or underflows.
inline void check_job(const char* who, const FaultyJob& job) {
  const double least = 1e-100, most = 1e100;
  bool good = job.devices >= 1 && job.devices <= most;
  for (const double time : {job.device_hours_per_failure, job.step_seconds}) {
    good = good && time >= least && time <= most;
  }
  for (const double time : {job.save_seconds, job.restart_seconds}) {
    good = good && (time == 0 || (time >= least && time <= most));
  }
  if (!good) {
    fail({who, ": ", job.devices, " devices, ", job.device_hours_per_failure,
          " device-hours a failure, steps of ", job.step_seconds, " s, saves of ", job.save_seconds,
          " s, restarts of ", job.restart_seconds, " s; 1 to ", most, " devices and times from ",
          least, " to ", most, " (save and restart may be 0) are right"});
  }
}

inline void check_interval(const char* who, double seconds) {
  if (!(seconds > 0) || !is_finite(seconds)) {
    fail({who, ": a checkpoint every ", seconds, " s; a time above 0 is right"});
  }
}

}  // namespace detail

// Seconds between failures of the whole job, on average.
inline double mean_time_between_failures(const FaultyJob& job) {
  detail::check_job("mean_time_between_failures", job);
  return 3600 * job.device_hours_per_failure / job.devices;
}

// Young: sqrt(2 save M), seconds of steps between checkpoints.
inline double young_interval(const FaultyJob& job) {
  return std::sqrt(2 * job.save_seconds * mean_time_between_failures(job));
}

// Daly, higher order: sqrt(2 save M) (1 + x/3 + x^2/9) - save with x = sqrt(save / (2 M)); M where
// a save takes 2 M or more.
inline double daly_interval(const FaultyJob& job) {
  const double mean = mean_time_between_failures(job);
  const double x = std::sqrt(job.save_seconds / (2 * mean));
  return x >= 1 ? mean : young_interval(job) * (1 + x / 3 + x * x / 9) - job.save_seconds;
}

// The share of the time that lasting steps take, with a checkpoint every `interval` seconds of
// them. Exact for failures at random, also during saves and restarts.
inline double expected_goodput(const FaultyJob& job, double interval) {
  detail::check_interval("expected_goodput", interval);
  const double mean = mean_time_between_failures(job);
  const double stretch = (interval + job.save_seconds) / mean;
  const double lasts = !(stretch > 0)               ? 1  // where it underflows
                       : detail::is_finite(stretch) ? stretch / std::expm1(stretch)
                                                    : 0;
  return interval / (interval + job.save_seconds) * std::exp(-job.restart_seconds / mean) * lasts;
}

// Seconds of a job by what they went into.
struct GoodputRun {
  double useful = 0, lost = 0, saving = 0, restarting = 0;
  std::int64_t failures = 0, checkpoints = 0;

  double total() const { return useful + lost + saving + restarting; }
  double goodput() const { return total() > 0 ? useful / total() : 0; }
  Table table() const {
    Table out;
    out.title = detail::cat({"job with ", failures, " failures, ", checkpoints, " checkpoints"});
    out.columns = {"time", "seconds", "share"};
    const struct {
      const char* name;
      double seconds;
    } parts[] = {{"useful", useful},
                 {"lost", lost},
                 {"saving", saving},
                 {"restarting", restarting},
                 {"total", total()}};
    for (const auto& part : parts) {
      out.add({part.name, format_count(part.seconds),
               format_percent(total() > 0 ? part.seconds / total() : 0)});
    }
    return out;
  }
  operator Table() const { return table(); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const GoodputRun& run) {
  return out << run.table();
}

// Runs the job until it has saved `checkpoints` times, each after as many whole steps as fit
// `interval` (at least one). Failures are exponential, by the seed; work since the last checkpoint,
// unfinished saves and unfinished restarts are lost to them.
inline GoodputRun simulate_goodput(const FaultyJob& job, double interval, std::int64_t checkpoints,
                                   std::uint64_t seed = 1) {
  detail::check_interval("simulate_goodput", interval);
  if (checkpoints < 1) {
    detail::fail({"simulate_goodput: ", checkpoints, " checkpoints; at least 1 is right"});
  }
  const double mean = mean_time_between_failures(job);
  const double steps = std::fmax(1.0, std::floor(interval / job.step_seconds));
  const double work = steps * job.step_seconds;
  const double stretch = work + job.save_seconds;
  if (stretch + job.restart_seconds > 12 * mean) {  // e^12 failures for each that is done
    detail::fail({"simulate_goodput: ", work, " s of steps, saves of ", job.save_seconds,
                  " s, restarts of ", job.restart_seconds, " s, a failure every ", mean,
                  " s; hardly any would be done: at most 12 times the latter in all is right"});
  }
  GoodputRun run;
  std::uint64_t draws = 0;
  const auto next_failure = [&] {
    return -mean * std::log(1 - static_cast<double>(uniform01(seed, draws++)));
  };
  double left = next_failure();
  while (run.checkpoints < checkpoints) {
    if (left >= stretch) {
      left -= stretch;
      run.useful += work;
      run.saving += job.save_seconds;
      ++run.checkpoints;
      continue;
    }
    run.lost += left;
    ++run.failures;
    for (left = next_failure(); left < job.restart_seconds; left = next_failure()) {
      run.restarting += left;
      ++run.failures;
    }
    run.restarting += job.restart_seconds;
    left -= job.restart_seconds;
  }
  return run;
}

}  // namespace tinyscale

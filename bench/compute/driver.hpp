#pragma once
// One comparison is a Case: several ways of doing one thing, ours first. Ways take turns, once each
// a round, so that whatever disturbs the machine disturbs all of them; the first round is not
// counted. A ratio is the peer's time over ours in the same round; the figure is the median over
// the rounds.

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

using Work = std::function<void()>;

struct Way {
  std::string name;                // "OpenBLAS"
  std::function<double()> sample;  // seconds of one call; empty: not here, negative: failed
  int every = 1;                   // takes part in every so-manieth round: for slow peers
  bool warm = true;                // its first sample is not counted
  float* result = nullptr;         // where it writes so many numbers, which must be those of ours
  std::int64_t results = 0;
};

inline Way writing(Way way, float* result, std::int64_t results) {
  way.result = result;
  way.results = results;
  return way;
}

// What must hold: the time of `peer` over ours is at least `ratio`.
struct Target {
  std::string peer;  // "limit": of what the physics allows
  double ratio = 1;
};

struct Case {
  std::string group;        // key for ONLY=: "f32-1t"
  std::string what;         // "512 x 512 x 512"
  std::string unit = "ms";  // of the figures: "ms", "us", "ns", "GFLOP/s", "GB/s", ...
  double work = 0;          // of one call, in flops or bytes; 0 when the unit is a time
  std::vector<Way> ways;    // the first one is ours; one named "limit" is the physics
  std::vector<Target> targets;
  int threads = 1;
  int rounds = 9;
  bool always = false;       // so many rounds whatever the options say
  double most_seconds = 30;  // then three rounds are enough, unless --long
  double same = 1e-5;        // results differ by so much of the largest of ours at most
  std::string note;          // printed under the row
};

struct Spread {
  double median = 0, least = 0, most = 0;
  int count = 0;
};

// One line of the table: ours against one peer.
struct Row {
  std::string group, what, unit, peer, note;
  int threads = 1;
  Spread ours, theirs;  // in the unit
  Spread ratio;         // theirs in seconds over ours: above 1, ours is faster
  double of_limit = 0;  // what we reach of the limit, 0: no limit was timed
  double at_limit = 0;  // the ratio that the limit itself would have; 0 likewise
  double target = 0;    // 0: none
  bool met() const { return target <= 0 || (ratio.count > 0 && ratio.median >= target); }
  bool reachable() const { return at_limit <= 0 || at_limit >= target; }
};

struct Options {
  std::string only;       // groups whose key contains one of these, by commas
  std::string directory;  // where torch_worker.py stands
  std::string programs;   // where this program and train_plain stand
  std::string results;    // results.json; empty: not written
  int rounds = 0;         // 0: what each case says
  bool slow = false;      // --long
  bool ops = false;       // --ops: what each op of a training step costs
};

class Bench {
 public:
  explicit Bench(const Options& options);

  // Runs the case, prints and keeps its rows.
  void run(const Case& c);
  // A peer that is not here: said once.
  void skip(const std::string& peer, const std::string& why);
  // The geometric mean of a group's ratios to that peer, as a row of its own.
  void mean(const std::string& group, const std::string& peer, double target);
  // Does ONLY ask for this group? Prints its title when it does.
  bool wants(const std::string& group, const std::string& title);
  // The same of a group that needs several threads: on one it is skipped.
  bool wants_several(const std::string& group, const std::string& title);
  // Ends the program when a part of `only` is in no group that was asked about.
  void must_have(const std::string& only) const;

  const Options& options() const { return options_; }
  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<std::string>& peers() const { return peers_; }
  double load() const { return load_; }       // the system's average when the run began
  void peer(const std::string& description);  // for the head of the table

 private:
  void keep(const Row& row);

  Options options_;
  double load_ = 0;
  std::vector<Row> rows_;
  std::vector<std::string> peers_, skipped_, groups_;
};

// On one thread a sample is the processor time that the thread got, so that other programs count
// less; on several it is the time on the wall.
enum class Clock { thread, wall };
inline Clock clock_for(int threads) { return threads == 1 ? Clock::thread : Clock::wall; }
double now(Clock clock);  // seconds

// Seconds of a call of `work`; short work is repeated until a sample takes 4 ms.
Way timed(const std::string& name, Clock clock, const Work& work, const Work& prepare = Work());

// The physics, on so many threads: what the multiply-adds of the processor's path need for so many
// flops and then what so many exps need, or what reading so many bytes needs, whichever is longer.
enum class Arithmetic { f32, f32_avx2, bf16, int8 };
Way limit(double flops, double bytes, int threads, Arithmetic kind = Arithmetic::f32,
          double exps = 0);
// The same for what streams memory: so many streams that are read, changed in place, or written.
struct Streams {
  double bytes = 0;  // of one stream
  int read = 0, change = 0, write = 0;
};
Way stream_limit(const Streams& streams, int threads);
bool has_arithmetic(Arithmetic kind);
bool processor_flag(const char* flag);  // as /proc/cpuinfo writes it

Work one_thread(const Work& work);  // the same, its loops kept on the caller
int all_threads();
std::vector<int> thread_counts();  // one, and all where they are more

// Every group of rows, by file.
void gemm_rows(Bench& bench);
void skinny_rows(Bench& bench);
void low_precision_rows(Bench& bench);
void kernel_rows(Bench& bench);
void eager_rows(Bench& bench);
void training_rows(Bench& bench);
void compiled_rows(Bench& bench);
void host_rows(Bench& bench);

// What is written when all have run.
void print_summary(const Bench& bench);
void check_results(const std::string& path);  // throws, before minutes of work, if it cannot be
std::string picture_of(const std::string& results);
void save_results(const Bench& bench, const std::string& path);
void save_picture(const Bench& bench, const std::string& path);
void save_markdown(const std::string& results, const std::string& readme);

}  // namespace bench

#pragma once
// One server that decodes continuously. Each step gives every decoding sequence a token, then
// spends what is left of its token budget on prompts, first come first served. The cache is in
// blocks; a full one drops unused prefixes, oldest first, then the sequence admitted last, which is
// computed again. While nobody comes or goes, steps last a + s i: their sum is a closed form.
// After Orca (Yu 2022), vLLM (Kwon 2023) and Sarathi (Agrawal 2023).

#include <algorithm>  // max, min
#include <cmath>      // ceil, log
#include <cstddef>    // std::size_t
#include <cstdint>    // std::int64_t
#include <vector>     // queues

#include "tinyscale/base/order.hpp"
#include "tinyscale/plan/serving_job.hpp"

namespace tinyscale {
namespace detail {

struct EngineLimits {
  std::int64_t blocks = 0, block = 16;  // of the cache; tokens in one
  std::int64_t batch = 8, budget = 0;   // sequences; tokens a step, 0: any
  bool prefix_cache = true, overlap = true;
};

enum class EngineState { waiting, prefill, decode, done };

struct EngineRequest {
  double arrival = 0, comes = 0;  // seconds; at this server
  double queued = 0;              // when it last began to wait
  double first = -1, last = 0;    // its first and its last token
  std::int64_t prompt = 1, output = 1, generated = 0;
  std::int64_t context = 0, left = 0;  // cached (decoding: when it joined); to compute before
  std::int64_t joined = 0;             // the step
  std::int64_t shared = 0;             // cached tokens that are its prefix's
  int prefix = -1, epoch = 0;          // place in the prefixes; one more each time it leaves
  EngineState state = EngineState::waiting;
  bool owner = false, prefilled = false;  // computes the prefix; comes with its cache
};

// The cache of a shared beginning, in whole blocks.
struct EnginePrefix {
  std::int64_t tokens = 0, users = 0, stamp = 0;
  bool resident = false, ready = false;
};

// How often which time, in steps of 2 %: exact to 1 %.
class TimeCounts {
 public:
  void add(double seconds, double count) { at(bin(seconds)) += count; }
  // Times a, a + s, a + 2 s, ..., n of them, each `count` times.
  void add_row(double a, double s, std::int64_t n, double count) {
    while (n > 0) {
      const int place = bin(a);
      const double edge = least() * std::exp((place + 1) * width());
      const double room = s > 0 ? std::ceil((edge - a) / s) : static_cast<double>(n);
      const std::int64_t here = std::max<std::int64_t>(
          1, room < static_cast<double>(n) ? static_cast<std::int64_t>(room) : n);
      at(place) += count * static_cast<double>(here);
      a += s * static_cast<double>(here);
      n -= here;
    }
  }
  double percentile(double share) const {
    double all = 0, below = 0;
    for (const double count : counts_) {
      all += count;
    }
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      below += counts_[i];
      if (all > 0 && below >= share * all) {
        return least() * std::exp((static_cast<double>(i) + 0.5) * width());
      }
    }
    return 0;
  }

 private:
  static double least() { return 1e-9; }
  static double width() { return 0.02; }
  static int bin(double seconds) {
    return seconds > least() ? static_cast<int>(std::log(seconds / least()) / width()) : 0;
  }
  double& at(int place) {
    const std::size_t i = static_cast<std::size_t>(place);
    if (i >= counts_.size()) {
      counts_.resize(i + 1);
    }
    return counts_[i];
  }
  std::vector<double> counts_;
};

}  // namespace detail

// What servers count, all of them together.
struct ServingCounters {
  double busy = 0, queue_seconds = 0, block_seconds = 0;
  std::int64_t steps = 0, jumps = 0;  // jumps: steps that were taken together count once
  std::int64_t prompt_tokens = 0, decode_tokens = 0;  // computed
  std::int64_t preemptions = 0, recomputed = 0;       // cached tokens given up
  std::int64_t prefix_lookups = 0, prefix_hits = 0, prefix_tokens = 0, evictions = 0;
  std::int64_t queue_most = 0, blocks_most = 0, batch_most = 0;
  detail::TimeCounts gaps;  // between two tokens of a sequence
};

namespace detail {

class ServingEngine {
 public:
  // `mine`: places of this server's requests, by arrival.
  ServingEngine(const ServingLaw& law, const EngineLimits& limits, List<EngineRequest>& requests,
                const std::vector<std::size_t>& mine, const List<EnginePrefix>& prefixes,
                ServingCounters& totals)
      : law_(law),
        limits_(limits),
        requests_(requests),
        mine_(mine),
        prefixes_(prefixes),
        totals_(totals),
        phases_(static_cast<std::size_t>(limits.block), 0),
        free_(limits.blocks) {}

  void run() {
    while (done_ < mine_.size()) {
      if (running_ == 0 && resumed_.empty() && next_ == arrived_) {
        now_ = std::max(now_, requests_[mine_[next_]].comes);
      }
      step();
    }
  }

 private:
  using Place = std::size_t;

  void step() {
    while (arrived_ < mine_.size() && requests_[mine_[arrived_]].comes <= now_) {
      ++arrived_;
    }
    totals_.queue_most = std::max(totals_.queue_most, waiting());
    while (has_head() && requests_[head()].prefilled && admit()) {
    }
    const bool preempted = make_room();
    StepWork work;
    work.decode = static_cast<double>(decodes_);
    work.context = static_cast<double>(context_ + decodes_);
    std::int64_t budget = limits_.budget > 0 ? limits_.budget - decodes_ : INT64_MAX;
    for (Place i = first_prefill_; i < prefilling_.size() && budget > 0; ++i) {
      take_chunk(requests_[prefilling_[i]], work, budget);
    }
    while (!preempted && budget > 0 && has_head() && !requests_[head()].prefilled && admit()) {
      take_chunk(requests_[prefilling_.back()], work, budget);
    }
    totals_.batch_most = std::max(totals_.batch_most, running_);
    const bool one = work.chunk > 0 || preempted || !late_.empty();
    advance(work, one ? 1 : steps_ahead(work));
    while (first_prefill_ < prefilling_.size() &&
           requests_[prefilling_[first_prefill_]].left == 0) {
      end_prefill(prefilling_[first_prefill_++]);
    }
    if (first_prefill_ == prefilling_.size()) {
      prefilling_.clear();
      first_prefill_ = 0;
    }
    while (!ends_.empty() && ends_.first().key <= static_cast<double>(step_)) {
      const Event event = ends_.pop();
      if (requests_[event.item].epoch == event.tag) {
        leave_decode(event.item);
        finish(event.item);
      }
    }
  }

  // ---- the queue ----
  std::int64_t waiting() const {
    return static_cast<std::int64_t>(resumed_.size() + arrived_ - next_);
  }
  bool has_head() const { return waiting() > 0; }
  Place head() const { return resumed_.empty() ? mine_[next_] : resumed_.back(); }

  // Admits the head of the queue if there is room for all its tokens.
  bool admit() {
    const Place place = head();
    EngineRequest& r = requests_[place];
    const std::int64_t tokens = r.prompt + (r.prefilled ? 0 : r.generated);
    EnginePrefix* const prefix = prefix_of(r);
    const bool hit = prefix != nullptr && prefix->ready;
    if (running_ >= limits_.batch) {
      return false;
    }
    if (hit) {
      use(*prefix);  // so that it is not dropped to make room for its own user
    }
    const std::int64_t need = blocks_of(tokens - (hit ? prefix->tokens : 0));
    if (need > free_ + droppable_) {
      if (hit) {
        unuse(r.prefix);
      }
      return false;
    }
    while (need > free_) {
      drop_oldest();
    }
    free_ -= need;
    if (prefix != nullptr) {
      ++totals_.prefix_lookups;
      totals_.prefix_hits += hit ? 1 : 0;
      totals_.prefix_tokens += hit ? prefix->tokens : 0;
      r.owner = !hit && !prefix->resident;
      prefix->resident = true;
      prefix->users += r.owner ? 1 : 0;
      r.shared = hit || r.owner ? prefix->tokens : 0;
    }
    totals_.queue_seconds += now_ - r.queued;
    totals_.blocks_most = std::max(totals_.blocks_most, limits_.blocks - free_ - droppable_);
    (resumed_.empty() ? static_cast<void>(++next_) : resumed_.pop_back());
    forget_left();
    admitted_.push_back({0, place, r.epoch});
    ++running_;
    r.context = r.prefilled ? tokens : hit ? r.shared : 0;
    r.left = tokens - r.context;
    if (r.prefilled) {
      late_.push_back(place);
      join(place);
    } else {
      r.state = EngineState::prefill;
      prefilling_.push_back(place);
    }
    return true;
  }

  // ---- work of one step ----
  static void take_chunk(EngineRequest& r, StepWork& work, std::int64_t& budget) {
    const std::int64_t chunk = std::min(r.left, budget);
    const double c = static_cast<double>(chunk), cached = static_cast<double>(r.context);
    work.chunk += c;
    work.chunk_context += cached;
    work.chunk_pairs += c * cached + c * (c + 1) / 2;
    r.context += chunk;
    r.left -= chunk;
    budget -= chunk;
  }

  // Steps until a sequence ends, the free blocks do, or somebody comes who may be admitted.
  std::int64_t steps_ahead(const StepWork& work) {
    while (requests_[ends_.first().item].epoch != ends_.first().tag) {
      ends_.pop();
    }
    std::int64_t n = static_cast<std::int64_t>(ends_.first().key) - step_;
    const std::int64_t cycles = free_ / decodes_;  // after so many, each has opened a block
    if ((n - 1) / limits_.block >= cycles) {
      std::int64_t left = free_ - cycles * decodes_, extra = cycles * limits_.block;
      while (extra < n - 1 && opening(extra + 1) <= left) {
        left -= opening(++extra);
      }
      n = std::min(n, extra + 1);
    }
    if (waiting() == 0 && running_ < limits_.batch && next_ < mine_.size()) {
      const double arrival = requests_[mine_[next_]].comes;
      std::int64_t low = 1;
      while (low < n) {
        const std::int64_t middle = low + (n - low) / 2;
        const bool after = now_ + seconds_of(work, middle) >= arrival;
        n = after ? middle : n;
        low = after ? low : middle + 1;
      }
    }
    return n;
  }

  // Of n steps like this one, each with a token more for every sequence: sum of max(L, a + s i).
  double seconds_of(const StepWork& work, std::int64_t n) const {
    const Row row = row_of(work, n);
    const double k = static_cast<double>(row.flat), all = static_cast<double>(n);
    return k * row.links + (all - k) * row.a + row.s * (all * (all - 1) - k * (k - 1)) / 2;
  }
  struct Row {
    double links = 0, a = 0, s = 0;
    std::int64_t flat = 0;  // the first so many take as long as their links
  };
  Row row_of(const StepWork& work, std::int64_t n) const {
    Row row;
    row.links = law_.links(work);
    row.a = law_.without_links(work, limits_.overlap) + (limits_.overlap ? 0 : row.links);
    row.s = work.decode * law_.growth(limits_.overlap);
    if (limits_.overlap && row.links > row.a) {
      const double flat = row.s > 0 ? std::ceil((row.links - row.a) / row.s) : 1e18;
      row.flat = flat < static_cast<double>(n) ? static_cast<std::int64_t>(flat) : n;
    }
    return row;
  }

  void advance(const StepWork& work, std::int64_t n) {
    const double seconds = seconds_of(work, n);
    const Row row = row_of(work, n);
    const double used = static_cast<double>(limits_.blocks - free_ - droppable_);
    if (decodes_ > 0) {
      const double waited = work.decode - static_cast<double>(late_.size());
      totals_.gaps.add(row.links, waited * static_cast<double>(row.flat));
      totals_.gaps.add_row(row.a + row.s * static_cast<double>(row.flat), row.s, n - row.flat,
                           waited);
      for (const Place place : late_) {  // since the token of the server that prefilled it
        totals_.gaps.add(now_ + seconds - requests_[place].last, 1);
      }
      late_.clear();
      free_ -= (n - 1) / limits_.block * decodes_;
      for (std::int64_t j = 1; j <= (n - 1) % limits_.block; ++j) {
        free_ -= opening(j);
      }
    }
    const std::int64_t after = limits_.blocks - free_ - droppable_;
    now_ += seconds;
    step_ += n;
    context_ += n * decodes_;
    totals_.busy += seconds;
    totals_.block_seconds += seconds * (used + static_cast<double>(after)) / 2;
    totals_.blocks_most = std::max(totals_.blocks_most, after);
    totals_.steps += n;
    ++totals_.jumps;
    totals_.decode_tokens += n * decodes_;
    totals_.prompt_tokens += static_cast<std::int64_t>(work.chunk);
  }

  // ---- sequences come and go ----
  void end_prefill(Place place) {
    EngineRequest& r = requests_[place];
    if (r.owner) {
      prefixes_[static_cast<Place>(r.prefix)].ready = true;
    }
    if (r.generated == 0) {
      r.first = now_;
    } else {
      totals_.gaps.add(now_ - r.last, 1);
    }
    ++r.generated;
    r.last = now_;
    if (r.generated == r.output) {
      finish(place);
    } else {
      join(place);
    }
  }

  void join(Place place) {
    EngineRequest& r = requests_[place];
    r.state = EngineState::decode;
    r.joined = step_;
    ++decodes_;
    context_ += r.context;
    ++phases_[phase(r.context - step_)];
    ends_.push({static_cast<double>(step_ + r.output - r.generated), place, r.epoch});
  }

  void leave_decode(Place place) {
    EngineRequest& r = requests_[place];
    --phases_[phase(r.context - r.joined)];
    r.generated += step_ - r.joined;
    r.context += step_ - r.joined;
    r.last = step_ > r.joined ? now_ : r.last;
    --decodes_;
    context_ -= r.context;
  }

  // Gives back all that a running request holds; the cache of a prefix stays until it is dropped.
  void leave(Place place) {
    EngineRequest& r = requests_[place];
    const std::int64_t held = r.state == EngineState::prefill ? r.context + r.left : r.context;
    free_ += blocks_of(held - r.shared);
    if (r.shared > 0) {
      EnginePrefix& prefix = prefixes_[static_cast<Place>(r.prefix)];
      if (r.owner && !prefix.ready) {
        prefix.resident = false;
        prefix.users = 0;
        free_ += prefix.tokens / limits_.block;
      } else {
        unuse(r.prefix);
      }
    }
    r.shared = 0;
    r.owner = r.prefilled = false;
    ++r.epoch;
    --running_;
  }

  void finish(Place place) {
    leave(place);
    requests_[place].state = EngineState::done;
    ++done_;
  }

  // So that the last one admitted is one that is here.
  void forget_left() {
    while (!admitted_.empty() && requests_[admitted_.back().item].epoch != admitted_.back().tag) {
      admitted_.pop_back();
    }
  }

  void preempt_last() {
    forget_left();
    const Place place = admitted_.back().item;
    EngineRequest& r = requests_[place];
    admitted_.pop_back();
    if (r.state == EngineState::decode) {
      leave_decode(place);
      if (!late_.empty()) {
        late_.pop_back();  // came for this step, in which it gets no token
      }
    } else {
      prefilling_.pop_back();  // the last admitted is the last there
    }
    ++totals_.preemptions;
    totals_.recomputed += r.context;
    leave(place);
    r.state = EngineState::waiting;
    r.queued = now_;
    resumed_.push_back(place);
  }

  // ---- the cache ----
  std::int64_t blocks_of(std::int64_t tokens) const {
    return (tokens + limits_.block - 1) / limits_.block;
  }
  Place phase(std::int64_t tokens) const {
    return static_cast<Place>((tokens % limits_.block + limits_.block) % limits_.block);
  }
  // Sequences that open a block `ahead` steps from now: their blocks are full then.
  std::int64_t opening(std::int64_t ahead) const { return phases_[phase(-(step_ + ahead))]; }

  // Takes the blocks that this step's tokens open; true if a sequence had to leave.
  bool make_room() {
    bool preempted = false;
    while (opening(0) > free_) {
      if (droppable_ > 0) {
        drop_oldest();
      } else {
        preempt_last();
        preempted = true;
      }
    }
    free_ -= opening(0);
    return preempted;
  }

  EnginePrefix* prefix_of(const EngineRequest& r) {
    return limits_.prefix_cache && r.prefix >= 0 && !r.prefilled &&
                   prefixes_[static_cast<Place>(r.prefix)].tokens > 0
               ? &prefixes_[static_cast<Place>(r.prefix)]
               : nullptr;
  }
  void use(EnginePrefix& prefix) {
    droppable_ -= prefix.users++ == 0 ? prefix.tokens / limits_.block : 0;
  }
  void unuse(int place) {
    EnginePrefix& prefix = prefixes_[static_cast<Place>(place)];
    if (--prefix.users == 0) {
      droppable_ += prefix.tokens / limits_.block;
      prefix.stamp = ++clock_;
      unused_.push({static_cast<double>(clock_), static_cast<Place>(place), 0});
    }
  }
  void drop_oldest() {
    for (;;) {
      const Event event = unused_.pop();
      EnginePrefix& prefix = prefixes_[event.item];
      if (prefix.resident && prefix.users == 0 && static_cast<double>(prefix.stamp) == event.key) {
        prefix.resident = prefix.ready = false;
        droppable_ -= prefix.tokens / limits_.block;
        free_ += prefix.tokens / limits_.block;
        ++totals_.evictions;
        return;
      }
    }
  }

  const ServingLaw law_;
  const EngineLimits limits_;
  List<EngineRequest>& requests_;
  const std::vector<std::size_t>& mine_;
  List<EnginePrefix> prefixes_;
  ServingCounters& totals_;
  double now_ = 0;
  std::int64_t step_ = 0, clock_ = 0;
  Place arrived_ = 0, next_ = 0, done_ = 0;  // of mine_: not yet come; not yet admitted; number
  std::vector<Place> resumed_, prefilling_;  // preempted, the next one last; by admission
  std::vector<Place> late_;                  // came prefilled, for this step
  Place first_prefill_ = 0;
  List<Event> admitted_;      // the last one last; those that left remain until they are looked at
  EventQueue ends_, unused_;  // steps at which decoding ends; prefixes by last use
  std::vector<std::int64_t> phases_;       // decoding sequences by (context - step) mod block
  std::int64_t free_ = 0, droppable_ = 0;  // blocks
  std::int64_t running_ = 0, decodes_ = 0, context_ = 0;
};

}  // namespace detail
}  // namespace tinyscale

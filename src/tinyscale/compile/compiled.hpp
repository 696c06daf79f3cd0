#pragma once
// compile(f): the function f runs once on recorded tensors and its graph runs from then on, as long
// as what the capture relied on holds (guards). Where f read a number on the host its graph is in
// pieces: f runs at every call then, and the pieces are looked up. What f is given and what it
// captures may be trained, inside of f and through it.

#include <cstddef>  // size_t
#include <mutex>    // entries are made by one thread at a time
#include <string>   // reasons
#include <utility>  // move
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/compile/compilation.hpp"
#include "tinyscale/compile/compile_options.hpp"

namespace tinyscale {

// What happened to a compiled function so far.
struct CompileCounters {
  int calls = 0;
  int captures = 0;    // the function ran on recorded tensors
  int graphs = 0;      // different graphs that were made ready to run
  int hits = 0;        // calls that ran a graph and not the function
  int recompiles = 0;  // captures because no guard held
  int breaks = 0;      // numbers read on the host
  int sizes = 0;       // batch sizes that a symbolic graph was made ready for
  double capture_seconds = 0, pass_seconds = 0;

  Table table() const {
    Table out;
    out.title = "compiled function";
    out.columns = {"calls", "captures", "graphs", "sizes", "hits", "recompiles", "breaks"};
    out.add({std::to_string(calls), std::to_string(captures), std::to_string(graphs),
             std::to_string(sizes), std::to_string(hits), std::to_string(recompiles),
             std::to_string(breaks)});
    return out;
  }
};

class Compiled {
 public:
  using Body = Function<std::vector<Tensor>(const std::vector<Tensor>&)>;

  Compiled() = default;
  Compiled(Body body, const CompileOptions& options) : state_(new State) {
    if (!(options.activation_bytes >= 0)) {
      detail::fail({"compile: activation_bytes is ", options.activation_bytes,
                    "; it must be at least 0, which keeps all"});
    }
    state_->body = std::move(body);
    state_->options = options;
  }

  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs) const {
    std::vector<Tensor> results;
    (*this)(inputs, results);
    return results;
  }
  // The same with the results in a vector that is used again: a call that was captured before asks
  // the system for no memory.
  void operator()(const std::vector<Tensor>& inputs, std::vector<Tensor>& results) const;

  // The graph that the last call ran, after all passes; as it was captured.
  const Graph& graph() const { return last("graph").plan->graph(); }
  const Graph& captured() const { return last("captured").graph; }
  const GraphPlan& plan() const { return *last("plan").plan; }
  // The backward pass of a result, where gradients of it are asked for outside.
  const GraphPlan& backward_plan(std::size_t result = 0) const {
    return *backward("backward_plan", result).plan;
  }
  // What CompileOptions::activation_bytes led to there; inside one graph:
  // plan().rematerialization().
  const Rematerialization& rematerialization(std::size_t result = 0) const {
    return backward("rematerialization", result).rematerialization;
  }
  // Where it reads numbers on the host, in its last capture.
  const List<GraphBreak>& breaks() const { return last("breaks").breaks; }
  // Why the last capture was not the first: the guard that did not hold.
  const std::string& reason() const { return state().reason; }
  // Why the last capture is of one batch size although more were asked for; why the function runs
  // at every call. Empty where that is not so.
  const std::string& not_symbolic() const { return last("not_symbolic").not_symbolic; }
  const std::string& reruns() const { return last("reruns").why; }
  CompileCounters counters() const {
    const std::lock_guard<std::mutex> lock(state().mutex);
    return state().counters;
  }

 private:
  using Compilation = detail::Compilation;

  struct State {
    Body body;
    CompileOptions options;
    std::mutex mutex;  // guards what follows
    List<Shared<Compilation>> known;
    Shared<Compilation> last;
    detail::PlanCache plans;
    CompileCounters counters;
    std::string reason;
  };

  State& state() const {
    if (!state_) {
      detail::fail({"Compiled: there is no function; make one with compile(f)"});
    }
    return *state_;
  }
  const Compilation& last(const char* what) const {
    if (!state().last) {
      detail::fail({"Compiled: ", what, " of a function that was not called yet; call it first"});
    }
    return *state().last;
  }

  const detail::BackwardPart& backward(const char* what, std::size_t result) const {
    const detail::BackwardPart* const part = last(what).part_of(result);
    if (part == nullptr) {
      detail::fail({"Compiled: ", what, " of result ", result, " of ", last(what).results,
                    ", which has no backward pass outside: ask for gradients of its inputs"});
    }
    return *part;
  }
  Shared<GraphPlan> plan_of(const Graph& graph, const List<GraphPlan::Write>& writes,
                            bool counts = true) const;
  Shared<Compilation> capture(const std::vector<Tensor>& inputs, bool sample = false) const;
  void make_symbolic(Compilation& made, const std::vector<Tensor>& inputs) const;
  bool does_alike(Compilation& made, const detail::SymbolicBatch& symbolic,
                  const std::vector<Tensor>& inputs) const;
  void at_batch(const Shared<Compilation>& sized, const std::vector<Tensor>& inputs) const;
  void make_results(detail::Capture& capture, Compilation& made, bool sample) const;
  void guard_owners(Compilation& made) const;
  void count_handles() const;
  void run(const Shared<Compilation>& made, const std::vector<Tensor>& inputs,
           const std::vector<Tensor>& asked, std::vector<Tensor>& results) const;
  void attach_backward(const Shared<Compilation>& made, const List<Tensor>& given,
                       const std::vector<Tensor>& inputs, const List<Tensor>& outputs,
                       std::vector<Tensor>& results) const;

  Shared<State> state_;
};

// A function of tensors as a graph that is fused, planned and run in its place. Tensors that it
// captures are constants: their numbers may change, which tensors they are may not.
inline Compiled compile(const Compiled::Body& body,
                        const CompileOptions& options = CompileOptions()) {
  return Compiled(body, options);
}

inline Shared<GraphPlan> Compiled::plan_of(const Graph& graph, const List<GraphPlan::Write>& writes,
                                           bool counts) const {
  const double start = detail::seconds_now();
  const std::lock_guard<std::mutex> lock(state().mutex);
  const detail::PlanCache::Found found = state().plans.find(graph, state().options, writes);
  state().counters.graphs += found.made && counts ? 1 : 0;
  state().counters.pass_seconds += detail::seconds_now() - start;
  return found.plan;
}

// A sample has shapes and no numbers, and is not run.
inline Shared<detail::Compilation> Compiled::capture(const std::vector<Tensor>& inputs,
                                                     bool sample) const {
  const double start = detail::seconds_now();
  double elsewhere = 0;
  int breaks = 0;
  Shared<Compilation> made(new Compilation);
  detail::Guards& guards = made->guards;
  for (const Tensor& x : inputs) {
    guards.inputs.push_back(
        {x.shape(), x.requires_grad(), detail::has_gradient(x), detail::Guards::strides_of(x)});
  }
  guards.no_grad = context().no_grad > 0;
  guards.format = context().matmul_format;
  {
    detail::Capture capture(
        [this, &elsewhere, sample](detail::Capture& now, const List<int>& wanted) {
          if (sample) {
            detail::fail({"compile: a number is read at a batch size of which there is none"});
          }
          const double begin = detail::seconds_now();
          const detail::GraphCut cut = detail::cut_graph(now.graph, wanted, now.values);
          std::vector<Tensor> numbers =
              plan_of(cut.graph, {})->run(now.all_given(), cut.graph.constants);
          elsewhere += detail::seconds_now() - begin;
          return numbers;
        },
        state().options.recognize);
    capture.run(state().body, inputs);
    make_results(capture, *made, sample);
    breaks = static_cast<int>(capture.breaks.size());
  }
  if (sample) {
    return made;
  }
  guard_owners(*made);
  const double spent = detail::seconds_now() - start - elsewhere;
  const std::lock_guard<std::mutex> lock(state().mutex);
  ++state().counters.captures;
  state().counters.breaks += breaks;
  state().counters.capture_seconds += spent;
  return made;
}

// What is to be computed, in this order: results, written values, gradients; and what the backward
// parts need of it.
inline void Compiled::make_results(detail::Capture& capture, Compilation& made, bool sample) const {
  made.results = capture.graph.outputs.size();
  made.writes = capture.writes;
  made.gradients = capture.gradients;
  made.old_gradients = capture.old_gradients;
  made.breaks = capture.breaks;
  made.hosts = capture.hosts;
  made.host_values = capture.host_values;
  made.leaf_slots = capture.leaf_slots;
  made.leaf_inputs = capture.leaf_inputs;
  made.rerun = !capture.breaks.empty();
  made.why = made.rerun ? made.breaks[0].text() : "";
  for (std::size_t i = 0; i < capture.leaf_slots.size(); ++i) {
    if (capture.leaf_slots[i]) {
      const detail::Slot& slot = capture.leaf_slots[i];
      made.guards.slots.push_back(slot);
      made.guards.had.push_back(slot->grad && !slot->fresh);
    }
  }
  made.guards.layouts = capture.layouts;
  made.guards.gradients = !made.gradients.empty() || !made.old_gradients.empty();
  made.returned_as = capture.returned_as;
  List<int> wanted = capture.graph.outputs;
  List<GraphPlan::Write> writes;
  for (const detail::CapturedWrite& write : made.writes) {
    const GraphNode& target = capture.graph[write.target];
    const auto number = static_cast<int>(target.number(0));
    writes.push_back({wanted.size(), target.op == Op::input ? number : -1,
                      target.op == Op::input ? -1 : number});
    wanted.push_back(write.value);
  }
  for (const detail::CapturedGradient& gradient : made.gradients) {
    wanted.push_back(gradient.node);
  }
  const int forward = capture.graph.size();
  for (std::size_t r = 0; r < made.results; ++r) {
    made.backward.push_back(detail::BackwardPart());
    if (capture.tracked[r] && made.is_input(r)) {
      made.backward.back().used = capture.is_used(capture.graph.outputs[r]);
    } else if (capture.tracked[r]) {
      made.backward.back() =
          detail::backward_part(capture, r, forward, state().options.activation_bytes);
      for (const int node : made.backward.back().cut.known) {
        wanted.push_back(node);
      }
    }
  }
  made.graph = capture.graph;
  made.graph.outputs = wanted;
  made.cut = detail::cut_graph(capture.graph, wanted, capture.values);
  made.plan_writes = writes;
  if (sample) {
    return;
  }
  made.plan = plan_of(made.cut.graph, writes);
  for (detail::BackwardPart& part : made.backward) {
    if (!part.leaves.empty()) {
      part.plan = plan_of(part.cut.graph, {}, false);
    }
  }
}

// Which captured tensors somebody else holds.
inline void Compiled::guard_owners(Compilation& made) const {
  made.guards.owned.clear();
  for (const Tensor& constant : made.graph.constants) {
    int own = 0;
    const auto count = [&own, &constant](const Graph& graph) {
      for (const Tensor& other : graph.constants) {
        own += other.storage().get() == constant.storage().get() ? 1 : 0;
      }
    };
    count(made.graph);
    count(made.cut.graph);
    for (const detail::BackwardPart& part : made.backward) {
      count(part.cut.graph);
    }
    if (made.symbolic) {
      count(made.symbolic->graph.graph());
      count(made.symbolic->cut.graph());
      for (const detail::SymbolicGraph& part : made.symbolic->backward) {
        count(part.graph());
      }
    }
    bool other_each_call = false;  // or another view of what is guarded already
    for (const detail::OldGradient& old : made.old_gradients) {
      const auto number = static_cast<std::size_t>(old.constant);
      other_each_call = other_each_call ||
                        made.graph.constants[number].storage().get() == constant.storage().get();
    }
    const auto number = static_cast<int>(&constant - made.graph.constants.begin());
    for (const detail::CapturedWrite& write : made.writes) {
      const GraphNode& target = made.graph[write.target];
      const bool this_one =
          target.op == Op::constant && static_cast<int>(target.number(0)) == number;
      if (this_one && constant.storage().use_count() <= own && !made.rerun) {
        made.rerun = true;
        made.why = detail::cat({"it writes to a ", constant.shape(), " tensor of its own"});
      }
    }
    for (const detail::Guards::Owned& one : made.guards.owned) {
      other_each_call = other_each_call || one.tensor.storage().get() == constant.storage().get();
    }
    if (constant.storage().use_count() > own && !other_each_call) {
      made.guards.owned.push_back({constant.detach(), own + 1});
    }
  }
}

inline void Compiled::operator()(const std::vector<Tensor>& inputs,
                                 std::vector<Tensor>& results) const {
  State& all = state();
  if (&inputs == &results) {
    results = (*this)(inputs);
    return;
  }
  if (detail::recording()) {
    results = all.body(inputs);  // a part of what is captured now
    return;
  }
  detail::pass_gradient();  // what it captures may have one
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) {
      detail::fail({"Compiled: input ", i, " of ", inputs.size(), " is empty"});
    }
  }
  Shared<Compilation> found, follows, sized;
  std::vector<Tensor> asked;  // host values, by the capture of this call
  bool again = false;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    ++all.counters.calls;
    std::string reason;
    for (const Shared<Compilation>& known : all.known) {
      reason = known->guards.broken(inputs);
      if (reason.empty()) {
        found = known;
        again = known->rerun || known->confirmations > 0;
        break;
      }
      if (known->symbolic && known->guards.broken(inputs, known->symbolic->batched).empty() &&
          inputs[0].dim(0) > 1) {
        follows = known;
      }
    }
    if (!found && !follows && !all.known.empty()) {
      ++all.counters.recompiles;
      all.reason = reason;
      List<Shared<Compilation>> alive;
      for (const Shared<Compilation>& known : all.known) {
        if (!known->guards.replaced()) {
          alive.push_back(known);
        }
      }
      all.known = alive;
      count_handles();
    }
    if (!found && follows) {  // a copy: another thread may give its symbolic graph up
      sized.reset(new Compilation(*follows));
    }
    all.counters.hits += (found && !again) || sized ? 1 : 0;
  }
  if (sized && does_alike(*follows, *sized->symbolic, inputs)) {
    at_batch(sized, inputs);
    found = sized;
  } else if (!found || again) {
    const Shared<Compilation> now = capture(inputs);
    asked.swap(now->host_values);
    if (!found && all.options.symbolic_batch && !now->rerun) {
      make_symbolic(*now, inputs);
      guard_owners(*now);  // which holds more handles now
    }
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (!found) {
      now->confirmations = all.options.confirmations;
      all.known.push_back(now);
    } else if (!found->rerun) {
      --found->confirmations;
      if (now->rerun || !detail::same_capture(found->graph, now->graph)) {
        found->rerun = true;
        found->why = detail::difference(*found, *now);
      }
    }
    now->why = found ? found->why : now->why;
    now->not_symbolic =
        found && now->not_symbolic.empty() ? found->not_symbolic : now->not_symbolic;
    found = now;
  }
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const bool other = all.last.get() != found.get();
    all.last = found;
    if (other) {
      count_handles();
    }
  }
  run(found, inputs, asked, results);
}

// How many handles the compilations have to each captured tensor; under the lock.
inline void Compiled::count_handles() const {
  List<Compilation*> all;
  for (const Shared<Compilation>& known : state().known) {
    all.push_back(known.get());
  }
  bool there = !state().last;
  for (const Compilation* const known : all) {
    there = there || known == state().last.get();
  }
  if (!there) {
    all.push_back(state().last.get());
  }
  for (Compilation* const one : all) {
    for (detail::Guards::Owned& owned : one->guards.owned) {
      owned.total = 0;
      for (const Compilation* const other : all) {
        for (const detail::Guards::Owned& same : other->guards.owned) {
          const bool is = same.tensor.storage().get() == owned.tensor.storage().get();
          owned.total += is ? same.own : 0;
        }
      }
    }
  }
}

inline void Compiled::run(const Shared<Compilation>& made, const std::vector<Tensor>& inputs,
                          const std::vector<Tensor>& asked, std::vector<Tensor>& results) const {
  List<Tensor> given;
  given.reserve(inputs.size() + made->hosts.size());
  for (const Tensor& x : inputs) {
    given.push_back(x.is_contiguous() ? x.detach() : x.copied());
  }
  for (std::size_t i = 0; i < made->hosts.size(); ++i) {
    given.push_back(i < asked.size() ? asked[i] : made->hosts[i]());
  }
  detail::check_aliases(inputs, made->writes, made->graph);
  detail::check_kept(inputs, made->writes, made->graph);
  detail::check_gradient_aliases(inputs, made->gradients);
  List<Tensor> constants = made->cut.graph.constants;
  for (const detail::OldGradient& old : made->old_gradients) {
    const detail::Slot& slot =
        old.slot ? old.slot : inputs[static_cast<std::size_t>(old.input)].slot();
    constants[static_cast<std::size_t>(old.constant)] = Tensor(slot->shape, slot->grad);
  }
  const List<Tensor> outputs = made->plan->run(given, constants);
  std::size_t at = made->results;
  for (const detail::CapturedWrite& write : made->writes) {
    ++at;
    const GraphNode& target = made->graph[write.target];
    if (target.op == Op::input) {
      const auto number = static_cast<std::size_t>(target.number(0));
      if (!inputs[number].is_contiguous()) {
        const NoGrad no_graph;
        copy_(inputs[number].detach(), given[number]);
      }
    }
  }
  List<detail::InnerGradient> inner;
  for (const detail::CapturedGradient& gradient : made->gradients) {
    const detail::Slot& slot =
        gradient.slot ? gradient.slot : inputs[static_cast<std::size_t>(gradient.input)].slot();
    if (slot->leaf) {
      detail::set_gradient(slot, outputs[at], gradient.replaces);
    } else if (outputs[at].defined()) {
      inner.push_back({slot, outputs[at]});
    }
    ++at;
  }
  detail::hand_on(inner);
  results.clear();
  results.reserve(made->results);
  for (std::size_t r = 0; r < made->results; ++r) {
    const Tensor y = made->result(r, inputs, outputs[r], results);
    results.push_back(made->returned_as[r].detached ? y.detach() : y);
  }
  attach_backward(made, given, inputs, outputs, results);
}

}  // namespace tinyscale

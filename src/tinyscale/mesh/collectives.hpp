#pragma once
// The collectives of a device, on tensors: what each takes, gives and carries back.
// Gradients: what all_reduce gives is used alike on all devices, what the others give by each for
// itself. So all_reduce carries back what came, of max and min to who had it; all_gather a
// reduce_scatter, reduce_scatter an all_gather; broadcast a reduce, reduce a broadcast; gather a
// scatter, scatter a gather; all_to_all and permute their inverses (the transposes of chapter 3 of
// the scaling book).

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/mesh/endpoint.hpp"
#include "tinyscale/tensor/choose.hpp"
#include "tinyscale/tensor/reduce.hpp"

namespace tinyscale {
namespace detail {

// A collective that was started, and what carries a gradient back through it.
struct Underway {
  Underway() = default;
  Underway(const Underway&) = default;
  Underway& operator=(const Underway&) = default;
  ~Underway() {
    if (call.meeting != nullptr && device && *device != nullptr) {
      (*device)->drop(call);
    }
  }

  Shared<Endpoint*> device;  // null: nothing is pending; what it holds is null after the run
  StartedCall call;
  CollectiveOptions options;
  SourceLine where;
  std::vector<std::int64_t> got;  // ragged: rows from each
  Tensor in;                      // where it carries a gradient
  Tensor result;                  // of a device that is given nothing; else of the call
  Tensor out;                     // for the gradient of a maximum
};

Tensor carry_back(const Underway& forward, const Tensor& dy);

// What went in, as the others got it: a maximum is one of these numbers.
inline Tensor as_sent(const Underway& now) {
  const DType format = now.options.format;
  if (format == DType::f32 || (*now.device)->size_of(now.call.key().axes) == 1) {
    return now.in.detach();
  }
  Tensor sent = now.in.copied();
  for (std::int64_t i = 0; i < sent.count(); ++i) {
    sent.data()[i] = round_to(sent.data()[i], format);
  }
  return sent;
}

// The device that called, as long as its run lasts.
inline Endpoint& still_running(const char* function, const Shared<Endpoint*>& device) {
  if (*device == nullptr) {
    fail({function, ": the run of its device is over; call it inside the program"});
  }
  return **device;
}

// The same collective once more.
struct RunAgain {
  Underway forward;
  Tensor in;

  void operator()(const Tensor& into) const {
    Endpoint& device = still_running("backward", forward.device);
    const Shared<DeviceCall> again = Shared<DeviceCall>::make();
    again->key = forward.call.key();
    again->where = forward.where;
    again->in = contiguous(in);
    again->out = into;
    StartedCall call = device.start(again, forward.options);
    device.wait(call);
  }
};

inline Tensor finish(Underway& now) {
  if (!now.device || !now.call.of) {
    fail({"Pending::wait: nothing is pending; it was never started, or waited for already"});
  }
  Tensor out = still_running("Pending::wait", now.device).wait(now.call);
  if (!out.defined()) {
    out = std::move(now.result);
  }
  if (now.in.defined() && tracked({&now.in})) {
    Underway forward = now;
    const CallKey& called = now.call.key();
    const bool winners = called.how == Reduce::max || called.how == Reduce::min;
    forward.in = winners ? as_sent(now) : Tensor();
    forward.out = winners ? out.detach() : Tensor();
    attach(out, name_of(called.what), {&now.in}, [forward, slot = now.in.slot()](const Tensor& dy) {
      const CallKey& key = forward.call.key();
      const bool same = key.what == Collective::all_reduce && key.how == Reduce::sum;
      if (same) {
        still_running("backward", forward.device);
        add_grad(slot, dy);  // may take it over
      } else {
        add_grad(slot, carry_back(forward, dy));
      }
    });
    if (now.options.gather_again && context().recomputing == 0) {
      forward.out = Tensor();
      forward.options.schedule = called.schedule;  // as long as `forward` has the call
      out.slot()->again = RunAgain{forward, now.in.detach()};
    }
  }
  now.device.reset();
  now.call.of.reset();
  now.in = Tensor();
  return out;
}

}  // namespace detail

// A collective under way; `wait` gives its result, once. Until then the tensor that went in must
// not change.
class Pending {
 public:
  Pending() = default;
  explicit Pending(Shared<detail::Underway> started) : now_(std::move(started)) {}
  Tensor wait() {
    if (!now_) {
      *this = Pending(Shared<detail::Underway>::make());
    }
    return detail::finish(*now_);
  }

 private:
  Shared<detail::Underway> now_;  // copies wait for the same
};

namespace detail {

// What a collective moves.
inline void check_given(const char* function, const Tensor& t) {
  if (!t.defined()) {
    fail({function, ": the tensor is empty (default-constructed); give one with a shape"});
  }
}

// A call of a device, before it is made.
struct Calling {
  Endpoint& device;
  CollectiveOptions options;
  SourceLine where;
};

inline CallKey call_key(const Calling& by, Collective what, const Tensor& t, const Axes& axes,
                        int dim) {
  check_given(name_of(what), t);
  CallKey key;
  key.what = what;
  key.axes = by.device.find_axes(name_of(what), axes);
  key.shape = t.shape();
  key.dim = dim < 0 || dim >= t.dims() || t.dims() == 0 ? check_dim(name_of(what), t, dim) : dim;
  return key;
}

inline void check_root(const Calling& by, const CallKey& key) {
  const int n = by.device.size_of(key.axes);
  if (key.root < 0 || key.root >= n) {
    fail({name_of(key.what), ": root ", key.root, " of ", n, " devices; the root is 0 to ", n - 1});
  }
}

inline void check_divides(const Calling& by, const CallKey& key, int dim) {
  const int n = by.device.size_of(key.axes);
  if (key.shape[dim] % n != 0) {
    fail({name_of(key.what), ": dimension ", dim, " of ", key.shape, " over ", n, " devices of ",
          by.device.names_of(key.axes), "; its size must be a multiple of ", n});
  }
}

// Takes the key. `gives`: this device has a result of `out`; else it is an empty one, of shape [0].
// Ragged: `rows` to each and `got` from each. The result lands in `into`, if given: it may be t, or
// hold it where it belongs.
inline Pending start(const Calling& by, CallKey& key, const Tensor& t, const Shape& out,
                     bool gives = true, const std::vector<std::int64_t>& rows = {},
                     const std::vector<std::int64_t>& got = {}, const Tensor& into = Tensor()) {
  Shared<Underway> now = Shared<Underway>::make();
  now->device = by.device.self();
  now->options = by.options;
  now->where = by.where;
  if (t.requires_grad()) {
    now->in = t;
  }
  now->got = got;
  const Shared<DeviceCall> call = Shared<DeviceCall>::make();
  call->key = std::move(key);
  call->where = by.where;
  call->rows = rows;
  call->in = t.detach();
  if (recording()) {
    call->in = numbers_now(call->in, by.where.file, by.where.line);
  }
  const RecorderScope eager(nullptr);
  if (!call->in.is_contiguous()) {
    call->in = contiguous(call->in);
  }
  (gives ? call->out : now->result) = into.defined() ? into : Tensor(gives ? out : Shape({0}));
  now->call = by.device.start(call, by.options);
  return Pending(std::move(now));
}

inline bool is_root(const Calling& by, const CallKey& key) {
  return by.device.index_on(key.axes) == key.root;
}

inline Shape scaled(Shape shape, int dim, int times) {
  shape.set(dim, shape[dim] * times);
  return shape;
}
inline Shape divided(Shape shape, int dim, int parts) {
  shape.set(dim, shape[dim] / parts);
  return shape;
}

inline Pending start_all_gather(const Calling& by, const Tensor& t, const Axes& axes, int dim,
                                const Tensor& into = Tensor()) {
  CallKey key = call_key(by, Collective::all_gather, t, axes, dim);
  const Shape out = scaled(key.shape, key.dim, by.device.size_of(key.axes));
  return start(by, key, t, out, true, {}, {}, into);
}

inline Pending start_reduce_scatter(const Calling& by, const Tensor& t, const Axes& axes, int dim,
                                    Reduce how, const Tensor& into = Tensor()) {
  CallKey key = call_key(by, Collective::reduce_scatter, t, axes, dim);
  key.how = how;
  check_divides(by, key, key.dim);
  const Shape out = divided(key.shape, key.dim, by.device.size_of(key.axes));
  return start(by, key, t, out, true, {}, {}, into);
}

// What has no dimension is moved as it lies.
inline CallKey flat_key(const Calling& by, Collective what, const Tensor& t, const Axes& axes) {
  check_given(name_of(what), t);
  CallKey key;
  key.what = what;
  key.axes = by.device.find_axes(name_of(what), axes);
  key.shape = t.shape();
  return key;
}

inline Pending start_all_reduce(const Calling& by, const Tensor& t, const Axes& axes, Reduce how,
                                const Tensor& into = Tensor()) {
  CallKey key = flat_key(by, Collective::all_reduce, t, axes);
  key.how = how;
  return start(by, key, t, key.shape, true, {}, {}, into);
}

inline Pending start_all_to_all(const Calling& by, const Tensor& t, const Axes& axes, int split_dim,
                                int concat_dim) {
  CallKey key = call_key(by, Collective::all_to_all, t, axes, split_dim);
  key.to_dim = check_dim("all_to_all", t, concat_dim);
  check_divides(by, key, key.dim);
  const int n = by.device.size_of(key.axes);
  return start(by, key, t, scaled(divided(key.shape, key.dim, n), key.to_dim, n));
}

inline Pending start_broadcast(const Calling& by, const Tensor& t, const Axes& axes, int root) {
  CallKey key = flat_key(by, Collective::broadcast, t, axes);
  key.root = root;
  check_root(by, key);
  return start(by, key, t, key.shape);
}

inline Pending start_reduce(const Calling& by, const Tensor& t, const Axes& axes, int root,
                            Reduce how) {
  CallKey key = flat_key(by, Collective::reduce, t, axes);
  key.root = root;
  key.how = how;
  check_root(by, key);
  return start(by, key, t, key.shape, is_root(by, key));
}

inline Pending start_gather(const Calling& by, const Tensor& t, const Axes& axes, int root,
                            int dim) {
  CallKey key = call_key(by, Collective::gather, t, axes, dim);
  key.root = root;
  check_root(by, key);
  return start(by, key, t, scaled(key.shape, key.dim, by.device.size_of(key.axes)),
               is_root(by, key));
}

inline Pending start_scatter(const Calling& by, const Tensor& t, const Axes& axes, int root,
                             int dim) {
  CallKey key = call_key(by, Collective::scatter, t, axes, dim);
  key.root = root;
  check_root(by, key);
  check_divides(by, key, key.dim);
  return start(by, key, t, divided(key.shape, key.dim, by.device.size_of(key.axes)));
}

inline Pending start_permute(const Calling& by, const Tensor& t, const Axes& axes, int shift) {
  CallKey key = flat_key(by, Collective::permute, t, axes);
  key.root = modulo(shift, by.device.size_of(key.axes));
  return start(by, key, t, key.shape);
}

// Device i of the group gets rows[i] rows of dimension 0, in order; how many rows come from each is
// learned at once, in an all_to_all of the counts. `got` becomes them.
inline Pending start_ragged(const Calling& by, const Tensor& t, const Axes& axes,
                            const std::vector<std::int64_t>& rows, std::vector<std::int64_t>& got) {
  CallKey key = call_key(by, Collective::all_to_all, t, axes, 0);
  const std::size_t n = static_cast<std::size_t>(by.device.size_of(key.axes));
  double sum = 0;  // exact of counts that are right; any fit
  bool right = rows.size() == n;
  for (const std::int64_t count : rows) {
    right = right && count >= 0 && count <= (std::int64_t{1} << 24);  // exact in a float
    sum += static_cast<double>(count);
  }
  if (!right || static_cast<std::int64_t>(sum) != t.dim(0)) {
    fail({"all_to_all: ", rows.size(), " counts that add up to ", sum, " for a tensor ", t.shape(),
          " over ", n,
          " devices; one count of 0 to 2^24 for each, together dimension 0, is right"});
  }
  Tensor counts({static_cast<std::int64_t>(n)});
  for (std::size_t i = 0; i < n; ++i) {
    counts.data()[i] = static_cast<float>(rows[i]);
  }
  Calling exactly = by;
  exactly.options.format = DType::f32;
  const Tensor came = start_all_to_all(exactly, counts, axes, 0, 0).wait();
  got.clear();
  Shape out = t.shape();
  out.set(0, 0);
  for (std::size_t i = 0; i < n; ++i) {
    got.push_back(static_cast<std::int64_t>(came.data()[i]));
    out.set(0, out[0] + got.back());
  }
  key.shape.set(0, 1);  // what all devices have alike
  key.to_dim = -1;
  return start(by, key, t, out, true, rows, got);
}

// Every device of the axes calls it; their order says nothing.
inline void barrier(const Calling& by, std::vector<int> axes) {
  const Shared<DeviceCall> call = Shared<DeviceCall>::make();
  insertion_sort(axes.data(), axes.data() + axes.size());
  call->key.axes = std::move(axes);
  call->where = by.where;
  StartedCall started = by.device.start(call, by.options);
  by.device.wait(started);
}

// ---- Gradients ----

// What came to the root goes back there; the others had nothing.
inline Tensor zeros_but_root(const Calling& by, const CallKey& key, const Tensor& at_root) {
  return is_root(by, key) ? at_root : zeros(key.shape);
}

// Of devices that tie the first one has it all, as in ts::max: they agree on its number.
inline Tensor carry_back_winners(const Calling& by, const Underway& forward, const Tensor& dy) {
  const CallKey& key = forward.call.key();
  const Axes axes = by.device.axes_of(key.axes);
  Tensor out = forward.out, back = dy;
  if (key.what == Collective::reduce_scatter) {
    out = start_all_gather(by, out, axes, key.dim).wait();
    back = start_all_gather(by, dy, axes, key.dim).wait();
  } else if (key.what == Collective::reduce) {
    out = start_broadcast(by, is_root(by, key) ? out : zeros(key.shape), axes, key.root).wait();
    back = start_broadcast(by, is_root(by, key) ? dy : zeros(key.shape), axes, key.root).wait();
  }
  const float me = static_cast<float>(by.device.index_on(key.axes));
  const float nobody = static_cast<float>(by.device.size_of(key.axes));
  Calling exactly = by;
  exactly.options.format = DType::f32;
  const Tensor number = add(scale(equal(forward.in, out), me - nobody), nobody);
  const Tensor first = start_all_reduce(exactly, number, axes, Reduce::min).wait();
  return mul(back, equal(first, full(Shape{}, me)));
}

inline Tensor carry_back(const Underway& forward, const Tensor& dy) {
  const CallKey& key = forward.call.key();
  CollectiveOptions options = forward.options;
  options.schedule = nullptr;
  options.gather_again = false;
  options.algorithm =
      options.algorithm == Algorithm::custom ? Algorithm::automatic : options.algorithm;
  const Calling by = {still_running("backward", forward.device), options, forward.where};
  const Axes axes = by.device.axes_of(key.axes);
  const float n = static_cast<float>(by.device.size_of(key.axes));
  if (key.how == Reduce::max || key.how == Reduce::min) {
    return carry_back_winners(by, forward, dy);
  }
  const Tensor given = key.how == Reduce::mean ? scale(dy, 1 / n) : dy;
  switch (key.what) {
    case Collective::all_gather: {
      const std::int64_t part = key.shape[key.dim];
      const std::int64_t begin = part * by.device.index_on(key.axes);
      return options.used_alike
                 ? copy(slice(given, key.dim, begin, begin + part))
                 : start_reduce_scatter(by, given, axes, key.dim, Reduce::sum).wait();
    }
    case Collective::reduce_scatter: return start_all_gather(by, given, axes, key.dim).wait();
    case Collective::all_to_all: {
      if (key.to_dim < 0) {
        std::vector<std::int64_t> back;
        return start_ragged(by, given, axes, forward.got, back).wait();
      }
      return start_all_to_all(by, given, axes, key.to_dim, key.dim).wait();
    }
    case Collective::broadcast: {
      const Tensor sum = start_reduce(by, given, axes, key.root, Reduce::sum).wait();
      return zeros_but_root(by, key, sum);
    }
    case Collective::reduce:
      return start_broadcast(by, zeros_but_root(by, key, given), axes, key.root).wait();
    case Collective::gather: {
      const Shape whole = scaled(key.shape, key.dim, by.device.size_of(key.axes));
      const Tensor at_root = is_root(by, key) ? given : Tensor(whole);
      return start_scatter(by, at_root, axes, key.root, key.dim).wait();
    }
    case Collective::scatter: {
      const Tensor all = start_gather(by, given, axes, key.root, key.dim).wait();
      return zeros_but_root(by, key, all);
    }
    case Collective::permute: return start_permute(by, given, axes, -key.root).wait();
    default: return given;  // all_reduce
  }
}

inline bool nobody_else_has(const Tensor& t) {
  return t.is_contiguous() && t.storage().use_count() == 1 && !t.storage()->sliced;
}

// t itself; its gradient is summed over the devices, each of which used it for itself.
inline Tensor replicate(const Calling& by, const Tensor& t, const Axes& axes) {
  check_given("replicate", t);
  by.device.find_axes("replicate", axes);
  if (!tracked({&t})) {
    return t;
  }
  Tensor out = t.detach();
  attach(out, "replicate", {&t},
         [device = by.device.self(), options = by.options, own = copied_schedule(by.options),
          where = by.where, axes, slot = t.slot()](const Tensor& dy) {
           Calling back = {still_running("backward", device), options, where};
           back.options.schedule = own.get();
           if (nobody_else_has(dy)) {
             start_all_reduce(back, dy, axes, Reduce::sum, dy).wait();
             add_grad(slot, dy);
           } else {
             add_grad(slot, start_all_reduce(back, dy, axes, Reduce::sum).wait());
           }
         });
  return out;
}

}  // namespace detail
}  // namespace tinyscale

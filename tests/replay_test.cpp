// Simulated time: logs made by hand against closed forms, and against a slow replay that looks at
// every message at every instant.
#include "tinyscale.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "error_of.hpp"

namespace ts = tinyscale;

namespace {

using Prepared = ts::Shared<const ts::detail::PreparedSchedule>;
using Kind = ts::DeviceEvent::Kind;

// Transfers must come by stream and step.
Prepared prepared(int devices, int chunks, const ts::List<ts::Transfer>& transfers) {
  auto* out = new ts::detail::PreparedSchedule;
  out->data.devices = devices;
  out->data.chunks = chunks;
  out->data.transfers = transfers;
  for (std::size_t t = 0; t < transfers.size(); ++t) {
    const bool stream = t == 0 || transfers[t].stream != transfers[t - 1].stream;
    if (stream) {
      out->streams.push_back({out->steps.size(), out->steps.size()});
    }
    if (stream || transfers[t].step != transfers[t - 1].step) {
      out->steps.push_back({out->messages.size(), out->messages.size(), false});
      out->streams.back().last = out->steps.size();
    }
    out->messages.push_back({transfers[t].from, transfers[t].to, t, t + 1});
    out->steps.back().last = out->messages.size();
  }
  return Prepared(out);
}

// Who sends what: a ring one way, both ends of a line at once, everyone to everyone, a shift.
ts::List<ts::Transfer> ring(int n) {
  ts::List<ts::Transfer> out;
  for (int s = 0; s < n - 1; ++s) {
    for (int i = 0; i < n; ++i) {
      out.push_back({s, i, (i + 1) % n, ts::detail::modulo(i - s, n), 1, ts::Action::copy, 0});
    }
  }
  return out;
}
ts::List<ts::Transfer> line(int n) {
  ts::List<ts::Transfer> out;
  for (int way = 0; way < 2; ++way) {
    for (int s = 0; s < n - 1; ++s) {
      for (int i = 0; i < n; ++i) {
        const int to = way == 0 ? i + 1 : i - 1, chunk = way == 0 ? i - s : i + s;
        if (to >= 0 && to < n && chunk >= 0 && chunk < n) {
          out.push_back({s, i, to, chunk, 1, ts::Action::copy, way});
        }
      }
    }
  }
  return out;
}
ts::List<ts::Transfer> direct(int n) {
  ts::List<ts::Transfer> out;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (i != j) {
        out.push_back({0, i, j, i, 1, ts::Action::copy, 0});
      }
    }
  }
  return out;
}
ts::List<ts::Transfer> shift(int n, int by) {
  ts::List<ts::Transfer> out;
  for (int i = 0; by % n != 0 && i < n; ++i) {
    out.push_back({0, i, (i + by) % n, i, 1, ts::Action::copy, 0});
  }
  return out;
}

// A log written call by call.
struct LogWriter {
  explicit LogWriter(int devices) {
    log.devices = devices;
    log.programs.resize(static_cast<std::size_t>(devices));
    log.ops.resize(static_cast<std::size_t>(devices));
  }
  // A vector of n blocks in one call of all groups; the number of its first group.
  int call(const std::string& name, const ts::List<std::vector<int>>& groups,
           const ts::List<ts::Transfer>& transfers, std::int64_t elements, bool eager = false) {
    const int n = static_cast<int>(groups[0].size());
    auto* shape = new ts::CallShape;
    shape->name = name;
    shape->schedule = prepared(n, n, transfers);
    shape->cut.parts = n;
    shape->cut.block = elements;
    shape->spec.elements = elements;
    shape->eager = eager;
    const ts::Shared<const ts::CallShape> shared(shape);
    const int first = static_cast<int>(log.calls.size());
    log.lines.push_back(name + " #" + std::to_string(log.lines.size()));
    for (const std::vector<int>& group : groups) {
      log.calls.push_back({shared, ts::Shared<const std::vector<int>>(new std::vector<int>(group)),
                           static_cast<int>(log.lines.size()) - 1});
    }
    return first;
  }
  void event(int rank, Kind kind, int call) {
    log.programs[static_cast<std::size_t>(rank)].push_back(
        {kind, static_cast<std::size_t>(call), 0});
  }
  void compute(int rank, double bytes) {
    ts::List<ts::OpCost>& ops = log.ops[static_cast<std::size_t>(rank)];
    ops.push_back({0, 0, bytes, ts::DType::f32});
    log.programs[static_cast<std::size_t>(rank)].push_back(
        {Kind::compute, ops.size() - 1, ops.size()});
  }
  // All members start a call, or wait for it.
  void all(Kind kind, int first, std::size_t groups = 1) {
    for (std::size_t g = 0; g < groups; ++g) {
      const int c = first + static_cast<int>(g);
      for (const int rank : *log.calls[static_cast<std::size_t>(c)].members) {
        event(rank, kind, c);
      }
    }
  }
  void run(int first, std::size_t groups = 1) {
    all(Kind::start, first, groups);
    all(Kind::wait, first, groups);
  }

  ts::RunLog log;
};

std::vector<int> ranks(int n, int first = 0, int stride = 1) {
  std::vector<int> out;
  for (int i = 0; i < n; ++i) {
    out.push_back(first + i * stride);
  }
  return out;
}

// Chips that move a byte of memory in a nanosecond, links of 1 GB/s and 1 us.
ts::Machine machine_of(const ts::Shape& dims, ts::AxisKind kind) {
  ts::Machine machine;
  machine.name = "mine";
  machine.chip.name = "chip";
  machine.chip.memory_bandwidth = 1e9;
  machine.dims = dims;
  machine.links.resize(static_cast<std::size_t>(dims.size()));
  for (ts::Links& links : machine.links) {
    links.kind = kind;
    links.latency = 1e-6;
    links.bandwidth = ts::Bandwidth::one_way(1e9);
  }
  return machine;
}

// The slow replay. Every message is looked at whenever anything ends.
class SlowReplay {
 public:
  SlowReplay(const ts::RunLog& log, const ts::Machine& machine) : log_(log), links_(machine) {
    for (std::size_t c = 0; c < log.calls.size(); ++c) {
      const ts::LoggedCall& call = log.calls[c];
      for (const ts::detail::ScheduledMessage& m : call.shape->schedule->messages) {
        const ts::Transfer& t = call.shape->schedule->data.transfers[m.first];
        Message message;
        message.call = c;
        message.from = (*call.members)[static_cast<std::size_t>(m.from)];
        message.to = (*call.members)[static_cast<std::size_t>(m.to)];
        message.step = t.step;
        message.stream = t.stream;
        message.bytes = ts::detail::message_bytes(*call.shape, m);
        links_.route(message.from, message.to, message.route);
        links_.hops(message.from, message.to, message.latency);
        messages.push_back(message);
      }
    }
    started_.resize(log.calls.size());
    devices_.resize(static_cast<std::size_t>(log.devices));
    machine_ = machine;
  }

  double run() {
    for (;;) {
      while (go_on()) {
      }
      share();
      double step = std::numeric_limits<double>::infinity();
      for (const Message& m : messages) {
        if (m.state == 1) {
          step = std::min(step, m.latency);
        } else if (m.state == 2) {
          step = std::min(step, m.bytes / m.rate);
        }
      }
      for (const Device& d : devices_) {
        step = d.busy > 0 ? std::min(step, d.busy) : step;
      }
      if (std::isinf(step)) {
        return now_;
      }
      advance(step);
    }
  }

  struct Message {
    std::size_t call = 0;
    int from = 0, to = 0, step = 0, stream = 0;
    double bytes = 0, latency = 0, rate = 0, start = -1, finish = -1;
    int state = 0;  // waits, latency, transfer, done
    std::vector<std::size_t> route;
  };
  std::vector<Message> messages;

 private:
  struct Device {
    std::size_t next = 0;
    double busy = 0;
  };

  bool has_started(std::size_t call, int rank) const {
    const std::vector<int>& by = started_[call];
    return std::find(by.begin(), by.end(), rank) != by.end();
  }

  bool go_on() {
    bool moved = false;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      Device& device = devices_[d];
      const ts::List<ts::DeviceEvent>& program = log_.programs[d];
      if (device.busy > 0 || device.next == program.size()) {
        continue;
      }
      const ts::DeviceEvent& event = program[device.next];
      if (event.kind == Kind::compute) {
        for (std::size_t i = event.first; i < event.last; ++i) {
          device.busy += ts::op_seconds(log_.ops[d][i], machine_.chip);
        }
      } else if (event.kind == Kind::start) {
        started_[event.first].push_back(static_cast<int>(d));
        sends_.push_back(event.first);
      } else if (!all_done(event.first, static_cast<int>(d))) {
        continue;
      }
      ++device.next;
      moved = true;
    }
    for (Message& m : messages) {
      if (m.state == 0 && may_leave(m)) {
        m.state = 1;
        m.start = now_;
        moved = true;
      }
      if (m.state == 1 && !(m.latency > 0)) {
        m.state = 2;
        moved = true;
      }
      if (m.state == 2 && !(m.bytes > 0)) {
        m.state = 3;
        m.finish = now_;
        moved = true;
      }
    }
    return moved;
  }

  bool all_done(std::size_t call, int rank) const {
    bool done = has_started(call, rank) || log_.calls[call].shape->eager;
    for (const Message& m : messages) {
      done = done && (m.call != call || m.state == 3 || (m.from != rank && m.to != rank));
    }
    return done;
  }

  bool may_leave(const Message& m) const {
    const bool eager = log_.calls[m.call].shape->eager;
    if (!has_started(m.call, m.from) || (!eager && !has_started(m.call, m.to))) {
      return false;
    }
    for (const Message& other : messages) {
      const bool meets =
          other.from == m.from || other.from == m.to || other.to == m.from || other.to == m.to;
      if (other.state < 3 && other.call == m.call && other.stream == m.stream &&
          other.step < m.step && meets) {
        return false;
      }
      if (eager && other.state < 3 && log_.calls[other.call].shape->eager && other.from == m.from &&
          other.to == m.to &&
          std::find(sends_.begin(), sends_.end(), other.call) <
              std::find(sends_.begin(), sends_.end(), m.call)) {
        return false;
      }
    }
    return true;
  }

  // All rates rise together by what the fullest link leaves, again and again.
  void share() {
    std::vector<double> room(links_.count());
    for (std::size_t link = 0; link < room.size(); ++link) {
      room[link] = links_.bandwidth(link);
    }
    std::vector<Message*> open;
    for (Message& m : messages) {
      if (m.state == 2) {
        m.rate = 0;
        open.push_back(&m);
      }
    }
    while (!open.empty()) {
      std::vector<int> users(room.size(), 0);
      double rise = std::numeric_limits<double>::infinity();
      for (const Message* m : open) {
        for (const std::size_t link : m->route) {
          ++users[link];
        }
      }
      for (std::size_t link = 0; link < room.size(); ++link) {
        rise = users[link] > 0 ? std::min(rise, room[link] / users[link]) : rise;
      }
      for (Message* m : open) {
        m->rate += rise;
      }
      for (std::size_t link = 0; link < room.size(); ++link) {
        room[link] -= users[link] * rise;
      }
      std::vector<Message*> rest;
      for (Message* m : open) {
        bool full = false;
        for (const std::size_t link : m->route) {
          full = full || room[link] <= 1e-9 * links_.bandwidth(link);
        }
        if (!full) {
          rest.push_back(m);
        }
      }
      open.swap(rest);
    }
  }

  void advance(double step) {
    const double end = step * (1 + 1e-9);
    now_ += step;
    for (Message& m : messages) {
      if (m.state == 1) {
        m.latency = m.latency <= end ? 0 : m.latency - step;
      } else if (m.state == 2) {
        m.bytes = m.bytes / m.rate <= end ? 0 : m.bytes - m.rate * step;
      }
    }
    for (Device& d : devices_) {
      d.busy = d.busy <= end ? 0 : d.busy - step;
    }
  }

  const ts::RunLog& log_;
  ts::detail::MachineLinks links_;
  ts::Machine machine_;
  double now_ = 0;
  std::vector<std::vector<int>> started_;
  std::vector<std::size_t> sends_;  // in the order in which they were started
  std::vector<Device> devices_;
};

bool close(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(a, b) + 1e-18; }

void check_against_slow(const ts::RunLog& log, const ts::Machine& machine) {
  const ts::Timeline fast = ts::time(log, machine);
  SlowReplay slow(log, machine);
  CHECK(close(fast.seconds, slow.run()));
  REQUIRE(fast.messages.size() == slow.messages.size());
  for (const ts::TimedMessage& m : fast.messages) {
    bool same = false;
    for (const SlowReplay::Message& s : slow.messages) {
      same = same || (static_cast<std::size_t>(m.call) == s.call && m.from == s.from &&
                      m.to == s.to && m.step == s.step && m.stream == s.stream &&
                      close(m.start, s.start) && close(m.finish, s.finish));
    }
    CHECK(same);
  }
}

}  // namespace

TEST_CASE("replay: rings, lines and shifts take what the closed forms say") {
  const double alpha = 1e-6, rate = 1e9;
  for (int n = 1; n <= 12; ++n) {
    for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{5}, std::int64_t{12345}}) {
      CAPTURE(n);
      CAPTURE(elements);
      const double chunk = 4.0 * static_cast<double>(ts::detail::chunk_size(elements, n, 0));
      LogWriter around(n);
      around.run(around.call("all_gather", {ranks(n)}, ring(n), elements));
      const ts::Machine ring_machine = machine_of({n}, ts::AxisKind::ring);
      CHECK(close(ts::time(around.log, ring_machine).seconds, (n - 1) * (alpha + chunk / rate)));
      // Through a switch a ring is no slower.
      const ts::Machine switched = machine_of({n}, ts::AxisKind::switched);
      CHECK(close(ts::time(around.log, switched).seconds, (n - 1) * (alpha + chunk / rate)));
      LogWriter ends(n);
      ends.run(ends.call("all_gather", {ranks(n)}, line(n), elements));
      const ts::Machine line_machine = machine_of({n}, ts::AxisKind::line);
      const double both = ts::time(ends.log, line_machine).seconds;
      CHECK(both <= (n - 1) * (alpha + chunk / rate) * (1 + 1e-9));
      CHECK(both >= (n - 1) * alpha * (1 - 1e-9));
      if (elements % n == 0) {
        CHECK(close(both, (n - 1) * (alpha + chunk / rate)));
      }
      for (int by = 0; by < n && elements % n == 0; ++by) {
        LogWriter moved(n);
        moved.run(moved.call("permute", {ranks(n)}, shift(n, by), elements));
        const int hops = std::min(by, n - by);  // messages that share each link
        CHECK(close(ts::time(moved.log, ring_machine).seconds, hops * (alpha + chunk / rate)));
        CHECK(close(ts::time(moved.log, switched).seconds, by == 0 ? 0.0 : alpha + chunk / rate));
      }
      LogWriter all(n);
      all.run(all.call("all_to_all", {ranks(n)}, direct(n), elements));
      const ts::Machine full = machine_of({n}, ts::AxisKind::full);
      if (n > 1) {
        CHECK(close(ts::time(all.log, full).seconds, alpha + chunk / rate));
        if (elements % n == 0) {
          CHECK(close(ts::time(all.log, switched).seconds, alpha + (n - 1) * chunk / rate));
        }
      }
    }
  }
}

TEST_CASE("replay: calls that share links contend, calls that do not do not") {
  const int n = 8;
  const double alone = 7 * (1e-6 + 1000 / 1e9);
  LogWriter two(n);
  const int a = two.call("all_gather", {ranks(n)}, ring(n), 2000);
  const int b = two.call("all_gather", {ranks(n)}, ring(n), 2000);
  two.all(Kind::start, a);
  two.all(Kind::start, b);
  two.all(Kind::wait, a);
  two.all(Kind::wait, b);
  const ts::Timeline both = ts::time(two.log, machine_of({n}, ts::AxisKind::ring));
  CHECK(close(both.seconds, 7 * (1e-6 + 2 * 1000 / 1e9)));
  CHECK(close(both.calls[0].finish, both.calls[1].finish));
  // Axes of a torus have links of their own.
  LogWriter torus(n * n);
  ts::List<std::vector<int>> rows, columns;
  for (int i = 0; i < n; ++i) {
    rows.push_back(ranks(n, i * n));
    columns.push_back(ranks(n, i, n));
  }
  const int x = torus.call("all_gather", columns, ring(n), 2000);
  const int y = torus.call("all_gather", rows, ring(n), 2000);
  torus.all(Kind::start, x, rows.size());
  torus.all(Kind::start, y, rows.size());
  torus.all(Kind::wait, x, rows.size());
  torus.all(Kind::wait, y, rows.size());
  CHECK(close(ts::time(torus.log, machine_of({n, n}, ts::AxisKind::ring)).seconds, alone));
  // Two axes on one dimension: the outer one goes over the links of the inner.
  LogWriter nested(n);
  const int outer = nested.call(
      "all_gather", {ranks(2, 0, 4), ranks(2, 1, 4), ranks(2, 2, 4), ranks(2, 3, 4)}, ring(2), 500);
  nested.run(outer, 4);
  CHECK(close(ts::time(nested.log, machine_of({n}, ts::AxisKind::line)).seconds,
              4 * 1e-6 + 4 * 1000 / 1e9));
  // GPUs of a node share the node's uplink.
  ts::Machine nodes = machine_of({2, 4}, ts::AxisKind::switched);
  nodes.links[0].uplink = ts::Bandwidth::one_way(1e9);
  LogWriter pairs(n);
  pairs.run(pairs.call("permute", {ranks(2, 0, 4), ranks(2, 1, 4), ranks(2, 2, 4), ranks(2, 3, 4)},
                       shift(2, 1), 500),
            4);
  CHECK(close(ts::time(pairs.log, nodes).seconds, 1e-6 + 4 * 1000 / 1e9));
}

TEST_CASE("replay: max-min shares, by hand") {
  // On a line 0 - 1 - 2 with one slow link: 0 -> 2 gets what 1 -> 2 leaves.
  ts::Machine machine = machine_of({4}, ts::AxisKind::line);
  machine.links[0].latency = 0;
  LogWriter writer(4);
  const int longer = writer.call("send", {{0, 3}}, {{0, 0, 1, 0, 2, ts::Action::copy, 0}}, 250);
  const int first = writer.call("send", {{0, 1}}, {{0, 0, 1, 0, 2, ts::Action::copy, 0}}, 250);
  const int second = writer.call("send", {{1, 3}}, {{0, 0, 1, 0, 2, ts::Action::copy, 0}}, 500);
  for (const int c : {longer, first, second}) {
    writer.all(Kind::start, c);
  }
  for (const int c : {longer, first, second}) {
    writer.all(Kind::wait, c);
  }
  // Until 2 us all have 500 MB/s; then `second` alone has the rest of its 1000 bytes at 1 GB/s.
  const ts::Timeline time = ts::time(writer.log, machine);
  CHECK(close(time.calls[0].finish, 2e-6));
  CHECK(close(time.calls[1].finish, 2e-6));
  CHECK(close(time.calls[2].finish, 3e-6));
  CHECK(time.link_bytes[0] == 2000);
  CHECK(time.link_bytes[2] == 3000);
}

TEST_CASE("replay: communication hides behind compute") {
  const double gather = 3 * (1e-6 + 1000 / 1e9);  // 6 us
  for (const double compute : {0.0, 4e-6, 20e-6}) {
    LogWriter writer(4);
    const int c = writer.call("all_gather", {ranks(4)}, ring(4), 1000);
    writer.all(Kind::start, c);
    for (int d = 0; d < 4; ++d) {
      writer.compute(d, compute * 1e9);
    }
    writer.all(Kind::wait, c);
    const ts::Timeline time = ts::time(writer.log, machine_of({4}, ts::AxisKind::ring));
    CHECK(close(time.seconds, std::max(gather, compute)));
    CHECK(close(time.devices[1].compute, compute));
    CHECK(close(time.devices[1].waiting, std::max(gather - compute, 0.0)));
    CHECK(close(time.devices[1].end, time.seconds));
    CHECK(close(time.calls[0].finish - time.calls[0].start, gather));
  }
  // A straggler holds up all.
  LogWriter writer(4);
  writer.compute(2, 5000);
  writer.run(writer.call("all_gather", {ranks(4)}, ring(4), 1000));
  const ts::Machine machine = machine_of({4}, ts::AxisKind::ring);
  CHECK(ts::time(writer.log, machine).seconds > 5e-6 + gather - 1e-9);
  CHECK(close(ts::time(writer.log, machine, ts::Faults().slow_device(2, 3)).seconds,
              ts::time(writer.log, machine).seconds + 10e-6));
}

TEST_CASE("replay: sends leave when the sender is ready, those of a pair one after another") {
  ts::Machine machine = machine_of({2}, ts::AxisKind::line);
  LogWriter writer(2);
  const ts::List<ts::Transfer> one = {{0, 0, 1, 0, 2, ts::Action::copy, 0}};
  const int a = writer.call("send", {{0, 1}}, one, 250, true);
  const int b = writer.call("send", {{0, 1}}, one, 250, true);
  writer.event(0, Kind::start, a);
  writer.event(0, Kind::start, b);
  writer.compute(1, 50000);  // the receiver comes later
  writer.event(1, Kind::wait, b);
  writer.event(1, Kind::wait, a);
  const ts::Timeline time = ts::time(writer.log, machine);
  CHECK(close(time.calls[0].finish, 2e-6));
  CHECK(close(time.calls[1].start, 2e-6));
  CHECK(close(time.calls[1].finish, 4e-6));
  CHECK(close(time.seconds, 50e-6));
  CHECK(time.devices[1].waiting == 0);
  CHECK(time.messages[1].after == 0);
  check_against_slow(writer.log, machine);
}

TEST_CASE("replay: random programs as the slow replay has them") {
  unsigned state = 1;
  const auto random = [&](int below) {
    state = state * 1664525U + 1013904223U;
    return static_cast<int>((state >> 10) % static_cast<unsigned>(below));
  };
  ts::Machine tree = machine_of({2, 2, 2}, ts::AxisKind::switched);
  tree.links[0].bandwidth = ts::Bandwidth();
  tree.links[0].uplink = ts::Bandwidth::one_way(1.5e9);
  tree.links[1].uplink = ts::Bandwidth::one_way(0.7e9);
  ts::Machine mixed = machine_of({4, 2}, ts::AxisKind::ring);
  mixed.links[1].kind = ts::AxisKind::full;
  mixed.links[1].latency = 2.5e-6;
  const ts::List<ts::Machine> machines = {machine_of({8}, ts::AxisKind::ring),
                                          machine_of({4, 2}, ts::AxisKind::line), tree, mixed};
  for (int trial = 0; trial < 60; ++trial) {
    CAPTURE(trial);
    LogWriter writer(8);
    std::vector<int> pending, groups_of;
    const auto wait = [&](std::size_t i) {
      if (groups_of[i] == 0) {
        const int c = pending[i];
        writer.event((*writer.log.calls[static_cast<std::size_t>(c)].members)[1], Kind::wait, c);
      } else {
        writer.all(Kind::wait, pending[i], static_cast<std::size_t>(groups_of[i]));
      }
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
      groups_of.erase(groups_of.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (int item = 0; item < 8; ++item) {
      const int what = random(8);
      if (what == 0 && !pending.empty()) {
        wait(static_cast<std::size_t>(random(static_cast<int>(pending.size()))));
      } else if (what <= 2) {
        writer.compute(random(8), 100 * (1 + random(300)));
      } else if (what == 3) {
        const int from = random(8), to = (from + 1 + random(7)) % 8;
        const int c = writer.call("send", {{from, to}}, {{0, 0, 1, 0, 2, ts::Action::copy, 0}},
                                  1 + random(4000), true);
        writer.event(from, Kind::start, c);
        pending.push_back(c);
        groups_of.push_back(0);
      } else {
        const int size = random(2) == 0 ? 8 : random(2) == 0 ? 4 : 2;
        const bool spread = random(2) == 0;
        ts::List<std::vector<int>> groups;
        for (int g = 0; g < 8 / size; ++g) {
          groups.push_back(spread ? ranks(size, g, 8 / size) : ranks(size, g * size));
        }
        const int algorithm = random(4);
        const ts::List<ts::Transfer> transfers = algorithm == 0   ? ring(size)
                                                 : algorithm == 1 ? line(size)
                                                 : algorithm == 2 ? direct(size)
                                                                  : shift(size, 1 + random(7));
        const int c = writer.call("call", groups, transfers, random(20000));
        writer.all(Kind::start, c, groups.size());
        pending.push_back(c);
        groups_of.push_back(static_cast<int>(groups.size()));
      }
    }
    while (!pending.empty()) {
      wait(0);
    }
    check_against_slow(writer.log, machines[static_cast<std::size_t>(trial) % machines.size()]);
  }
}

TEST_CASE("replay: slow and dead links and devices") {
  const ts::Machine machine = machine_of({4}, ts::AxisKind::ring);
  LogWriter writer(4);
  writer.run(writer.call("all_gather([4], x)", {ranks(4)}, ring(4), 1000));
  CHECK(close(ts::time(writer.log, machine).seconds, 6e-6));
  // Each chunk but that of device 3 crosses 2 -> 3.
  CHECK(close(ts::time(writer.log, machine, ts::Faults().slow_link(2, 3, 4)).seconds,
              3 * (1e-6 + 4e-6)));
  CHECK(close(ts::time(writer.log, machine, ts::Faults().slow_link(3, 2, 4)).seconds, 6e-6));
  CHECK(error_of([&] { ts::time(writer.log, machine, ts::Faults().dead_device(3)); }) ==
        "time: device 3 is dead; device 0 waits in all_gather([4], x) #0, device 1 waits in "
        "all_gather([4], x) #0, device 2 waits in all_gather([4], x) #0");
  CHECK(
      error_of(
          [&] { ts::time(writer.log, machine, ts::Faults().dead_device(3).dead_device(1)); }) ==
      "time: device 1, device 3 are dead; device 0 waits in all_gather([4], x) #0, device 2 waits "
      "in all_gather([4], x) #0");
  CHECK(error_of([&] { ts::time(writer.log, machine, ts::Faults().dead_link(0, 1)); }) ==
        "time: link 0 -> 1 is dead; device 0 waits in all_gather([4], x) #0, device 1 waits in "
        "all_gather([4], x) #0, device 2 waits in all_gather([4], x) #0, device 3 waits in "
        "all_gather([4], x) #0");
  CHECK(close(ts::time(writer.log, machine, ts::Faults().dead_link(1, 0)).seconds, 6e-6));
  CHECK(error_of([&] { ts::time(writer.log, machine, ts::Faults().dead_link(0, 2)); }) ==
        "time: no link 0 -> 2 on mine to be at fault; links join neighbours, or a chip and its "
        "switch (-1)");
  CHECK(error_of([&] { ts::time(writer.log, machine, ts::Faults().dead_device(4)); }) ==
        "time: device 4 to be at fault; devices are 0 to 3");
  CHECK(error_of([] { ts::Faults().slow_device(0, 0); }) ==
        "Faults: a factor of 0; a finite number above 0 is right, 4 for a quarter of the speed");
  const ts::Machine switched = machine_of({4}, ts::AxisKind::switched);
  CHECK(close(ts::time(writer.log, switched, ts::Faults().slow_link(2, -1, 4)).seconds,
              3 * (1e-6 + 4e-6)));
}

TEST_CASE("replay: a fault of one dimension, of an uplink, of a link that is not there") {
  // Chips 0 to 7 in two nodes of two leaves of two, by NIC, leaf and spine; and in the node of 2.
  ts::Machine machine = machine_of({2, 2, 2}, ts::AxisKind::switched);
  machine.links[0].bandwidth = ts::Bandwidth();
  machine.links[0].uplink = ts::Bandwidth::one_way(4e9);
  machine.links[1].uplink = ts::Bandwidth::one_way(2e9);
  LogWriter inside(8), outside(8);  // 0 to 1, 0 to 4: 2000 elements of 4 bytes
  inside.run(inside.call("a", {{0, 1}}, {{0, 0, 1, 0, 2, ts::Action::copy, 0}}, 2000));
  outside.run(outside.call("a", {{0, 4}}, {{0, 0, 1, 0, 2, ts::Action::copy, 0}}, 2000));
  const auto seconds = [&](const LogWriter& writer, const ts::Faults& faults) {
    return ts::time(writer.log, machine, faults).seconds - 1e-6;
  };
  CHECK(close(seconds(inside, ts::Faults()), 8e-6));
  CHECK(close(seconds(outside, ts::Faults()), 8e-6));
  CHECK(close(seconds(inside, ts::Faults().slow_link(0, -1, 10)), 80e-6));
  CHECK(close(seconds(outside, ts::Faults().slow_link(0, -1, 10)), 80e-6));
  CHECK(close(seconds(inside, ts::Faults().slow_link(0, -1, 10, 1)), 8e-6));
  CHECK(close(seconds(outside, ts::Faults().slow_link(0, -1, 10, 1)), 80e-6));
  CHECK(close(seconds(inside, ts::Faults().slow_link(0, -1, 10, 2)), 80e-6));
  CHECK(close(seconds(outside, ts::Faults().slow_link(0, -1, 10, 2)), 8e-6));
  // The leaf has room for two, the spine for four; the other way nothing goes.
  CHECK(close(seconds(outside, ts::Faults().slow_uplink(0, -1, 10)), 40e-6));
  CHECK(close(seconds(outside, ts::Faults().slow_uplink(0, -1, 10, 0)), 20e-6));
  CHECK(close(seconds(outside, ts::Faults().slow_uplink(-1, 4, 10, 1)), 40e-6));
  CHECK(close(seconds(outside, ts::Faults().slow_uplink(-1, 0, 10)), 8e-6));
  CHECK(close(seconds(inside, ts::Faults().slow_uplink(0, -1, 10)), 8e-6));
  CHECK(error_of([&] {
          seconds(outside, ts::Faults().dead_uplink(0, -1, 0));
        }).find("time: link 0..3 -> switch is dead; ") == 0);
  const auto no = [&](const ts::Faults& faults) {
    return error_of([&] { seconds(outside, faults); });
  };
  CHECK(no(ts::Faults().slow_link(0, -1, 2, 0)) ==
        "time: no link 0 -> -1 of dimension 0 on mine to be at fault; links join neighbours, or a "
        "chip and "
        "its switch (-1)");
  CHECK(no(ts::Faults().slow_uplink(2, -1, 2, 0)) ==
        "time: no uplink 2 -> -1 of dimension 0 on mine to be at fault; the first chip behind one "
        "names it, "
        "the switch is -1");
  CHECK(no(ts::Faults().slow_uplink(1, -1, 2)) ==
        "time: no uplink 1 -> -1 on mine to be at fault; the first chip behind one names it, the "
        "switch is "
        "-1");
  CHECK(no(ts::Faults().slow_link(0, -1, 2, -3)) ==
        "time: dimension -3 at fault; one of mine, from 0, or -1 for any, is right");
  machine = machine_of({8}, ts::AxisKind::line);
  CHECK(no(ts::Faults().dead_link(0, 7)).find("time: no link 0 -> 7 on mine to be") == 0);
  CHECK(no(ts::Faults().dead_link(7, 0)).find("time: no link 7 -> 0 on mine to be") == 0);
  machine = machine_of({8}, ts::AxisKind::full);
  CHECK(no(ts::Faults().dead_link(3, 3)).find("time: no link 3 -> 3 on mine to be") == 0);
  CHECK(close(seconds(outside, ts::Faults().dead_link(4, 0)), 8e-6));
}

TEST_CASE("replay: logs that cannot go on are errors") {
  const ts::Machine machine = machine_of({2}, ts::AxisKind::line);
  LogWriter crossed(2);
  const int a = crossed.call("a", {ranks(2)}, shift(2, 1), 2);
  const int b = crossed.call("b", {ranks(2)}, shift(2, 1), 2);
  for (const int c : {a, b}) {
    crossed.event(0, Kind::start, c);
    crossed.event(0, Kind::wait, c);
  }
  for (const int c : {b, a}) {
    crossed.event(1, Kind::start, c);
    crossed.event(1, Kind::wait, c);
  }
  CHECK(error_of([&] { ts::time(crossed.log, machine); }) ==
        "time: device 0 waits in a #0, device 1 waits in b #1; each waits for another, none can go "
        "on");
  LogWriter twice(2);
  const int c = twice.call("a", {ranks(2)}, shift(2, 1), 2);
  twice.all(Kind::start, c);
  twice.all(Kind::start, c);
  CHECK(error_of([&] { ts::time(twice.log, machine); }) ==
        "time: device 0 starts a #0 twice; once is right");
  LogWriter stranger(2);
  stranger.call("a", {{0}}, {}, 2);
  stranger.event(1, Kind::start, 0);
  CHECK(error_of([&] { ts::time(stranger.log, machine); }) ==
        "time: device 1 is no member of a #0, which its program names");
  stranger.log.programs[1][0].first = 7;
  CHECK(error_of([&] { ts::time(stranger.log, machine); }) ==
        "time: device 1 is no member of call 7, which its program names");
  CHECK(error_of([&] { ts::time(stranger.log, machine_of({3}, ts::AxisKind::line)); }) ==
        "time: the log is of 2 devices with 2 programs and 2 lists of ops, machine mine has 3 "
        "chips; they must be equal");
  LogWriter wrong(2);
  wrong.run(wrong.call("a", {{0}, {1}}, shift(1, 1), 2), 2);
  wrong.log.calls[1].members.reset(new std::vector<int>{0, 1});
  CHECK(error_of([&] { ts::time(wrong.log, machine); }) ==
        "time: a #0 has 2 members and a schedule for 1; they must be equal");
  LogWriter busy(2);
  busy.compute(1, 8);
  busy.log.programs[1][0].last = 5;
  CHECK(error_of([&] { ts::time(busy.log, machine); }) ==
        "time: device 1 computes ops 0 to 5 of its program, which has 1");
  LogWriter away(2);
  away.call("send", {{0, 7}}, {{0, 0, 1, 0, 1, ts::Action::copy, 0}}, 2, true);
  away.event(0, Kind::start, 0);
  CHECK(error_of([&] { ts::time(away.log, machine); }) ==
        "time: send #0 goes to device 7; devices are 0 to 1");
  ts::Machine nan = machine;
  nan.links[0].latency = std::nan("");
  CHECK(error_of([&] { ts::time(twice.log, nan); }) ==
        "time: mine: the latency of links[0] is nan s; a finite number from 0 is right");
}

TEST_CASE("replay: a small run is timed in well under a millisecond") {
  LogWriter writer(8);
  writer.run(writer.call("all_gather", {ranks(8)}, ring(8), 8000));
  const ts::Machine machine = machine_of({8}, ts::AxisKind::ring);
  double best = 1;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    ts::time(writer.log, machine);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  MESSAGE("8 devices, 56 messages: ", best * 1e6, " us");
  CHECK(best < 5e-3);  // unoptimised, and the machine is busy
}

TEST_CASE("replay: 4096 devices, 1.0 M messages [slow]") {
  const int n = 64;
  LogWriter writer(n * n);
  ts::List<std::vector<int>> rows, columns;
  for (int i = 0; i < n; ++i) {
    rows.push_back(ranks(n, i * n));
    columns.push_back(ranks(n, i, n));
  }
  const double step = 1e-6 + 1000 / 1e9;
  for (int i = 0; i < 2; ++i) {
    writer.run(writer.call("all_gather", columns, ring(n), 250 * n), rows.size());
    writer.run(writer.call("all_gather", rows, ring(n), 250 * n), rows.size());
  }
  const auto begin = std::chrono::steady_clock::now();
  const ts::Timeline time = ts::time(writer.log, machine_of({n, n}, ts::AxisKind::ring));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CHECK(close(time.seconds, 4 * (n - 1) * step));
  MESSAGE(time.messages.size(), " messages: ", took.count(), " s");
}

TEST_CASE("mesh run: rows, links, devices and the critical path of a log") {
  LogWriter writer(8);
  const ts::List<std::vector<int>> rows = {ranks(4), ranks(4, 4)};
  for (int d = 0; d < 8; ++d) {
    writer.compute(d, d == 5 ? 8000 : 5000);
  }
  writer.run(writer.call("all_gather", rows, line(4), 1000), 2);
  const ts::List<ts::Transfer> one = {{0, 0, 1, 0, 2, ts::Action::copy, 0}};
  const int send = writer.call("send", {{5, 1}}, one, 100, true);
  writer.event(5, Kind::start, send);
  writer.event(1, Kind::wait, send);
  writer.compute(1, 2000);

  ts::Shared<ts::detail::MeshRecord> record(new ts::detail::MeshRecord);
  record->log = writer.log;
  record->machine = "mine";
  record->axes = {{"x", 2}, {"y", 4}};
  auto* shape = new ts::CallShape(*record->log.calls[0].shape);
  shape->axes = "y";
  shape->arguments = "[250], dim 0";
  shape->axis_numbers = {1};
  shape->spec.algorithm = ts::Algorithm::line;
  shape->reason = "all others are slower";
  const ts::Shared<const ts::CallShape> shared(shape);
  record->log.calls[0].shape = shared;
  record->log.calls[0].where = {"/there/demo.cpp", 12};
  record->log.calls[1].shape = shared;
  const ts::MeshRun run(record, machine_of({2, 4}, ts::AxisKind::line));

  const ts::List<ts::CollectiveRow> table = run.collectives();
  REQUIRE(table.size() == 2);
  const ts::CollectiveRow& gather = table[0];
  CHECK(gather.name == "all_gather");
  CHECK(gather.axes == "y");
  CHECK(gather.algorithm == "line");
  CHECK(gather.groups == 2);
  CHECK(gather.devices == 4);
  CHECK(gather.bytes_out ==
        5000);  // device 1: its own both ways, one to the right, two to the left
  CHECK(gather.bytes_in == 3000);
  CHECK(gather.steps == 3);
  CHECK(gather.hops == 3);
  CHECK(close(gather.algbw, 4000 / gather.seconds));
  CHECK(table[1].name == "send");
  CHECK(table[1].hops == 1);
  CHECK(table[1].bytes_out == 400);
  CHECK(run.steps() == 4);
  CHECK(run.bytes_sent(5) == 5400);
  CHECK(run.bytes_sent(0) == 1000);

  // 8 us of compute on device 5, its row's gather, its send, 2 us of compute on device 1.
  const double last = 8e-6 + 3 * (1e-6 + 1000 / 1e9) + 1e-6 + 400 / 1e9 + 2e-6;
  CHECK(close(run.seconds, last));
  const ts::CriticalPath path = run.critical_path();
  CHECK(path.messages == 4);
  CHECK(close(path.compute, 10e-6));
  CHECK(close(path.latency, 4e-6));
  CHECK(close(path.transfer, 3.4e-6));
  CHECK(path.chain.size() == 4);
  CHECK(run.timeline.messages[static_cast<std::size_t>(path.chain.front())].from >= 4);
  CHECK(run.timeline.messages[static_cast<std::size_t>(path.chain.back())].to == 1);
  CHECK(path.heaviest.find("axis y, link ") == 0);
  CHECK(path.heaviest.find(" of the step") != std::string::npos);

  const ts::List<ts::LinkRow> links = run.links();
  CHECK(links[0].bytes == 3000);
  CHECK(close(links[0].busy, 3e-6 / last));
  CHECK(links.back().name == "5 -> 1");
  CHECK(close(run.timeline.devices[1].compute, 7e-6));
  CHECK(run.timeline.devices[1].waiting > 0);
  CHECK(run.device_table().rows.size() == 8);
  CHECK(run.table().rows[0].back() == "demo.cpp:12");

  // Other machines and faults.
  const ts::MeshRun slower = run.with(ts::Faults().slow_link(5, 1, 10));
  CHECK(close(slower.seconds, last + 9 * 400 / 1e9));
  const ts::Machine again = run.machine();
  CHECK(close(slower.on(again).seconds, slower.seconds));  // the fault stays
  CHECK(close(slower.on(again, ts::Faults()).seconds, run.seconds));
  ts::Machine fast = machine_of({8}, ts::AxisKind::switched);
  CHECK(error_of([&] { slower.on(fast); }) ==
        "time: no link 5 -> 1 on mine to be at fault; links join neighbours, or a chip and its "
        "switch (-1)");
  fast.chip.memory_bandwidth = 1e12;
  CHECK(run.on(fast).seconds < run.seconds);
  fast.name = "fast";
  CHECK(run.on(fast).machine().name == "fast");
  CHECK(run.on(fast).collectives()[0].reason == "on mine: all others are slower");
  CHECK(error_of([&] { run.with(ts::Faults().dead_device(1)); }).find("time: device 1 is dead") ==
        0);
  CHECK(error_of([&] { run.bytes_sent(8); }) ==
        "bytes_sent: rank 8 of 8 devices; ranks are 0 to 7");
  ts::Guess guess;
  guess.steps = 4;
  guess.bytes_per_device = 5400;
  guess.seconds = path.latency + path.transfer;
  CHECK(run.check(guess).right);
  std::ostringstream text;
  text << run;
  CHECK(text.str().find("all_gather over y: all others are slower\n") != std::string::npos);
  CHECK(text.str().find("critical path of 4 messages: 10 us compute, 4 us latency, 3.4 us "
                        "transfer; axis y, link ") != std::string::npos);
  CHECK(text.str().find(" 5 -> 1\n") != std::string::npos);
  CHECK(text.str().find(" on mine; critical") != std::string::npos);
  std::ostringstream faulty;
  faulty << run.with(ts::Faults().slow_device(0, 2).slow_device(1, 2));
  CHECK(faulty.str().find(" on mine with 2 faults; critical") != std::string::npos);
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("mesh run: a program on a mesh is timed as its schedule says") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4, 2}), {{"x", 4}, {"y", 2}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    d.all_gather(ts::full({1024}, static_cast<float>(d.rank())), "y");
    if (d.rank() == 0) {
      d.send(ts::zeros({10}), 3);
    } else if (d.rank() == 3) {
      d.recv(0);
    }
  });
  CHECK(run.collectives().size() == 2);
  CHECK(close(run.timeline.calls[0].finish - run.timeline.calls[0].start, 1e-6 + 4096 / 4.5e10));
  CHECK(run.seconds > 1e-6);
  CHECK(run.on(ts::machine("h100", {1, 8})).seconds > 1e-6);
  CHECK(close(run.collectives()[0].formula, run.collectives()[0].seconds));
  // An axis that is not along dimensions has no formula.
  const ts::Mesh across(ts::machine("tpu-v5e", {3, 4}), {{"x", 2}, {"y", 6}});
  const ts::MeshRun odd = across.run([](ts::Device& d) { d.all_gather(ts::zeros({64}), "y"); });
  CHECK(odd.collectives()[0].formula < 0);
  CHECK(odd.seconds > 1e-6);
}
#endif

// Every group of an axis, or of several, runs the collective at once.
double replayed(const ts::Machine& machine, const ts::List<ts::AxisPlacement>& placed,
                const std::vector<int>& axes, const ts::CollectiveSpec& spec) {
  const int n = spec.devices(), all = static_cast<int>(machine.chips());
  const Prepared schedule = ts::detail::prepare(ts::make_schedule(spec));
  auto* shape = new ts::CallShape;
  shape->schedule = schedule;
  shape->spec = spec;
  shape->cut.blocks = ts::detail::block_count(spec.what, n);
  shape->cut.parts = schedule->data.chunks / shape->cut.blocks;
  shape->cut.block = spec.what == ts::Collective::all_to_all ? spec.elements / n
                     : spec.what == ts::Collective::permute  ? spec.elements
                                                             : spec.elements / shape->cut.blocks;
  const ts::Shared<const ts::CallShape> shared(shape);
  LogWriter writer(all);
  writer.log.lines.push_back("collective");
  std::vector<int> seen(static_cast<std::size_t>(all), 0);
  for (int first = 0; first < all; ++first) {
    if (seen[static_cast<std::size_t>(first)] == 0) {
      std::vector<int> members(1, first);
      for (const int axis : axes) {
        const ts::AxisPlacement& place = placed[static_cast<std::size_t>(axis)];
        std::vector<int> more;
        for (const int member : members) {
          for (int i = 0; i < place.size; ++i) {
            more.push_back(member + i * place.stride);
          }
        }
        members = more;
      }
      for (const int member : members) {
        seen[static_cast<std::size_t>(member)] = 1;
      }
      writer.log.calls.push_back(
          {shared, ts::Shared<const std::vector<int>>(new std::vector<int>(members)), 0});
    }
  }
  writer.run(0, writer.log.calls.size());
  return ts::time(writer.log, machine).seconds;
}

// A fat tree of two leaves of two nodes of 4, whose spine has that part of the leaves' ports.
ts::Machine oversubscribed(double times) {
  ts::Machine machine = ts::machine("h100", {2, 2, 4});
  ts::Bandwidth& spine = machine.links[0].uplink;
  spine = ts::Bandwidth::one_way(spine.one_way() / times);
  return machine;
}

#if !defined(TINYSCALE_NO_THREADS)
TEST_CASE("replay: the critical path follows the data when several messages end at once") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {16}), {{"x", 16}});
  ts::CollectiveOptions options;
  options.algorithm = ts::Algorithm::ring;
  const ts::MeshRun run =
      mesh.run([&](ts::Device& d) { d.all_gather(ts::ones({4}), "x", 0, options); });
  const ts::CriticalPath path = run.critical_path();
  CHECK(path.chain.size() == 15);
  for (std::size_t i = 1; i < path.chain.size(); ++i) {
    CHECK(run.timeline.messages[static_cast<std::size_t>(path.chain[i])].from ==
          run.timeline.messages[static_cast<std::size_t>(path.chain[i - 1])].to);
  }
}
#endif

TEST_CASE("replay: every algorithm on placed axes takes its closed form") {
  struct Case {
    ts::Machine machine;
    ts::List<ts::MeshAxis> axes;
  };
  const ts::List<Case> cases = {
      {ts::machine("tpu-v5e", {16}), {{"x", 16}}},
      {ts::machine("tpu-v5e", {16}), {{"x", 4}, {"y", 4}}},  // parts of a ring
      {ts::machine("tpu-v5e", {6, 3}), {{"x", 6}, {"y", 3}}},
      {ts::machine("tpu-v5p", {4, 4, 8}), {{"x", 16}, {"y", 8}}},
      {ts::machine("h100", {2, 8}), {{"x", 2}, {"y", 8}}},
      {ts::machine("h100", {2, 2, 4}), {{"x", 4}, {"y", 4}}},
      {oversubscribed(4), {{"x", 4}, {"y", 4}}},  // its spine
      {ts::machine("mi300x", {7}), {{"x", 7}}},
      {ts::machine("tpu-v5p", {2, 4, 4, 4}), {{"x", 2}, {"y", 64}}}};
  int known = 0, compared = 0;
  for (const Case& c : cases) {
    const ts::List<ts::AxisPlacement> placed = ts::detail::place_axes(c.machine, c.axes);
    for (std::size_t mask = 1; mask < (std::size_t{1} << placed.size()); ++mask) {
      std::vector<int> axes;
      for (std::size_t a = 0; a < placed.size(); ++a) {
        if ((mask >> a & 1) != 0) {
          axes.push_back(static_cast<int>(a));
        }
      }
      ts::CollectiveSpec spec;
      spec.parts = ts::detail::parts_of_group(c.machine, placed, axes);
      for (int what = 0; what <= static_cast<int>(ts::Collective::barrier); ++what) {
        for (int how = 1; how < static_cast<int>(ts::Algorithm::custom); ++how) {
          spec.what = static_cast<ts::Collective>(what);
          spec.algorithm = static_cast<ts::Algorithm>(how);
          spec.root = spec.what == ts::Collective::permute ? 1 : 0;
          spec.elements =
              spec.what == ts::Collective::barrier ? 0 : std::int64_t{spec.devices()} * 1000;
          if (!ts::detail::has_algorithm(spec.what, spec.algorithm)) {
            continue;
          }
          const double formula = ts::collective_seconds(spec);
          ++compared;
          if (formula >= 0) {
            ++known;
            const double ours = replayed(c.machine, placed, axes, spec);
            const std::string text = ts::detail::cat(
                {c.machine.name, " mask ", mask, " ", ts::name_of(spec.what), " by ",
                 ts::name_of(spec.algorithm), ": ", ours, " formula ", formula});
            CHECK_MESSAGE(close(ours, formula), text);
          }
        }
      }
    }
  }
  MESSAGE(known, " of ", compared, " have a closed form");
}

TEST_CASE("replay: automatic is the shortest of all algorithms, or near it by an estimate") {
  const ts::List<ts::Machine> machines = {
      ts::machine("h100", {3, 4}),      ts::machine("h100", {2, 2, 4}),
      ts::machine("mi300x", {2, 5}),    ts::machine("tpu-v5e", {5}),
      ts::machine("tpu-v5e", {3, 4}),   ts::machine("tpu-v5p", {2, 3, 2}),
      ts::machine("tpu-v5e", {2, 2, 2})};
  for (const ts::Machine& machine : machines) {
    const int n = static_cast<int>(machine.chips());
    const ts::List<ts::AxisPlacement> placed = ts::detail::place_axes(machine, {{"x", n}});
    ts::CollectiveSpec spec;
    spec.parts = placed[0].parts;
    spec.root = 1;
    for (int i = 0; i < 3 * static_cast<int>(ts::Collective::barrier); ++i) {
      spec.what = static_cast<ts::Collective>(i / 3);
      spec.elements = std::int64_t{n} * (i % 3 == 0 ? 10 : i % 3 == 1 ? 10000 : 1000000);
      const ts::AlgorithmChoice choice = ts::choose_algorithm(spec);
      double best = 1e9, taken = 0;
      for (int how = 1; how < static_cast<int>(ts::Algorithm::custom); ++how) {
        spec.algorithm = static_cast<ts::Algorithm>(how);
        if (ts::detail::has_algorithm(spec.what, spec.algorithm)) {
          const double seconds = replayed(machine, placed, {0}, spec);
          best = std::min(best, seconds);
          taken = spec.algorithm == choice.algorithm ? seconds : taken;
        }
      }
      CHECK_MESSAGE(taken <= 2 * best, ts::detail::cat({machine.name, " ", ts::name_of(spec.what),
                                                        " of ", spec.elements, " takes ", taken,
                                                        ", the best ", best, ": ", choice.reason}));
    }
  }
}

TEST_CASE("replay: all to all at once is the better way along a line, by estimate and by replay") {
  const ts::Machine machine = ts::machine("tpu-v5e", {8});
  const ts::List<ts::AxisPlacement> placed = ts::detail::place_axes(machine, {{"x", 8}});
  ts::CollectiveSpec spec;
  spec.what = ts::Collective::all_to_all;
  spec.parts = placed[0].parts;
  spec.elements = 8 * 4 * 8192;
  const ts::AlgorithmChoice choice = ts::choose_algorithm(spec);
  CHECK(choice.reason == "direct: 1 step, about 53.6 us; line 88.6 us");
  spec.algorithm = ts::Algorithm::line;
  const double line = replayed(machine, placed, {0}, spec);
  CHECK(close(line, ts::collective_seconds(spec)));
  spec.algorithm = ts::Algorithm::direct;
  const double direct = replayed(machine, placed, {0}, spec);
  CHECK(direct < choice.seconds);
  CHECK(direct > 0.7 * choice.seconds);
  CHECK(ts::collective_seconds(spec) == -1);  // no closed form
}

TEST_CASE("the rule of thumb behind switches: the slowest level") {
  // all_gather over nodes of 8 H100s: 450 GB/s inside, 400 GB/s out of a node; with (D - 1) / D of
  // each level the book has 514 and 413 (U57, U48).
  const auto rate = [](const ts::Shape& dims, ts::Collective what) {
    const ts::Machine machine = ts::machine("h100", dims);
    ts::CollectiveSpec spec;
    spec.what = what;
    spec.elements = std::int64_t{1} << 30;
    const int n = static_cast<int>(machine.chips());
    spec.parts = ts::detail::place_axes(machine, {{"x", n}})[0].parts;
    return 4.0 * static_cast<double>(spec.elements) / ts::rule_of_thumb_seconds(spec) / 1e9;
  };
  CHECK(rate({8}, ts::Collective::all_gather) == doctest::Approx(450));
  CHECK(rate({2, 8}, ts::Collective::all_gather) == doctest::Approx(400));
  CHECK(rate({32, 8}, ts::Collective::all_gather) == doctest::Approx(400));
  CHECK(rate({4, 32, 8}, ts::Collective::reduce_scatter) == doctest::Approx(400));
  CHECK(rate({32, 8}, ts::Collective::all_reduce) == doctest::Approx(200));
  CHECK(rate({32, 4}, ts::Collective::all_gather) == doctest::Approx(200));
  // Of a vector that a GPU sends, V / (8 nodes) of the V of all: each through its own NIC.
  CHECK(rate({32, 8}, ts::Collective::all_to_all) == doctest::Approx(50));
  CHECK(rate({32, 1}, ts::Collective::all_gather) == doctest::Approx(50));
}

namespace {

// Seconds of a collective over all of one axis, without latencies.
double bandwidth_seconds(ts::Machine machine, const ts::List<ts::MeshAxis>& axes, int axis,
                         ts::Collective what, ts::Algorithm how, double bytes) {
  for (ts::Links& links : machine.links) {
    links.latency = 0;
  }
  const ts::List<ts::AxisPlacement> placed = ts::detail::place_axes(machine, axes);
  ts::CollectiveSpec spec;
  spec.what = what;
  spec.algorithm = how;
  spec.parts = ts::detail::parts_of_group(machine, placed, {axis});
  spec.element_bytes = 2;
  spec.elements = static_cast<std::int64_t>(bytes / 2);
  return replayed(machine, placed, {axis}, spec);
}

// By the scaling book's rule of thumb.
double rule_seconds(const ts::Machine& machine, const ts::List<ts::MeshAxis>& axes, int axis,
                    ts::Collective what, double bytes) {
  ts::CollectiveSpec spec;
  spec.what = what;
  spec.parts = ts::detail::parts_of_group(machine, ts::detail::place_axes(machine, axes), {axis});
  for (ts::AxisPart& part : spec.parts) {
    part.latency = 0;
  }
  spec.element_bytes = 1;
  spec.elements = static_cast<std::int64_t>(bytes);
  return ts::rule_of_thumb_seconds(spec);
}

struct BookValue {
  std::string id;
  double value;
  double tolerance = 1e-3;  // 2e-3: the book has 990 TFLOP/s of an H100, the preset 989
};

// Prints ours beside the book's.
void check_book(const std::vector<BookValue>& values) {
  const char* root = std::getenv("TINYSCALE_SHARED");
  std::ifstream file(std::string(root != nullptr ? root : "../shared") + "/cases/book-cases.tsv");
  if (!file) {
    std::cout << "skipped: no cases/book-cases.tsv\n";
    return;
  }
  std::size_t found = 0;
  std::string line;
  while (std::getline(file, line)) {
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, '\t');) {
      cells.push_back(cell);
    }
    for (const BookValue& ours : values) {
      if (cells[0] == ours.id) {
        ++found;
        const double expected = std::strtod(cells[8].c_str(), nullptr);
        MESSAGE(ours.id, ": book ", cells[6], " ", cells[7], ", exactly ", expected, ", ours ",
                ours.value);
        CHECK(ours.value == doctest::Approx(expected).epsilon(ours.tolerance));
      }
    }
  }
  CHECK(found == values.size());
}

std::vector<BookValue> book_values() {
  using ts::Algorithm;
  using ts::Collective;
  const ts::Machine node = ts::machine("h100", {8}), nodes = ts::machine("h100", {2, 8});
  const ts::Machine tree = ts::machine("h100", {4, 32, 8});
  const ts::Machine cube = ts::machine("tpu-v4", {4, 4, 4});
  const double leaf = tree.links[1].uplink.one_way() / 1e9;    // GB/s of a node
  const double spine = tree.links[0].uplink.one_way() / 1e12;  // TB/s of a scalable unit
  const double gpus = node.egress(0) / 1e9 * 8 / 7;
  const double v31 = 4096.0 * 65536 * 2, v41 = 1024.0 * 16384 * 2;
  const double v14 = 1024.0 * 4096 * 2 / 4;  // of a shard over the other axis
  const ts::List<ts::MeshAxis> xyz = {{"x", 4}, {"y", 4}, {"z", 4}};
  // Sent by each GPU: B / 8 in a node, B / 16 in two.
  const double b = 1 << 24;
  const double inside =
      bandwidth_seconds(node, {{"x", 8}}, 0, Collective::all_to_all, Algorithm::direct, b / 8);
  const double across =
      bandwidth_seconds(nodes, {{"x", 16}}, 0, Collective::all_to_all, Algorithm::direct, b / 16);
  const ts::Machine v5e = ts::machine("tpu-v5e", {16});
  const double flops = node.chip.peak(ts::DType::bf16);
  const ts::Machine b200 = ts::machine("b200", {2, 8});
  // bf16[8192, 32768] over 16 of each of 32 nodes' GPUs, gathered over the others.
  const double v51 = 2.0 * 8192 * 32768 / 16;
  return {
      {"S07", v5e.links[0].bandwidth.one_way() * v5e.links[0].latency / 1e3},
      {"U28", 4 * 64 * node.chip.link_bandwidth / 1e12},
      {"U51", 1e3 * rule_seconds(ts::machine("h100", {32, 8}), {{"x", 16}, {"y", 16}}, 0,
                                 Collective::all_gather, v51)},
      {"U66",
       flops / 8 *
           bandwidth_seconds(nodes, {{"x", 2}, {"y", 8}}, 0, Collective::all_gather,
                             Algorithm::ring, b) /
           b,
       2e-3},
      {"U67", 28000 * node.egress(0) / flops, 2e-3},
      {"U76", b200.chip.peak(ts::DType::bf16) / b200.links[0].uplink.one_way()},
      {"U82", flops / (8e9 * leaf), 2e-3},
      {"U84", flops / (2e9 * leaf), 2e-3},
      {"U85", flops / (8e9 * leaf), 2e-3},
      {"U92",
       ts::machine("gb200", {2, 72}).links[0].uplink.one_way() / (1e9 * leaf) /
           (b200.chip.peak(ts::DType::bf16) / flops),
       2e-3},
      {"U93",
       ts::Mesh(node, {{"x", 8}}).shard({8192, 28672}, "B, F_x", ts::DType::bf16).bytes() / 1e6},
      {"U30", 8 * node.egress(0) / 1e12},
      {"U31",
       1e3 * bandwidth_seconds(node, {{"x", 8}}, 0, Collective::all_gather, Algorithm::ring, v31)},
      {"U32", 1e3 * v31 / node.egress(0)},
      {"U35", spine},
      {"U41", 1e6 * v41 / node.egress(0)},
      {"U47", spine * 4 / 3},
      {"U48", std::min(std::min(gpus, leaf * 32 / 31), 1e3 * spine * 4 / 3)},
      {"U57", gpus},
      {"U96", across / inside},
      {"S14", 1e6 * bandwidth_seconds(cube, xyz, 0, Collective::all_gather,
                                      Algorithm::ring_both_ways, v14)},
      {"S16", 1e6 * bandwidth_seconds(cube, xyz, 2, Collective::all_reduce,
                                      Algorithm::ring_both_ways, v14 / 4)}};
}

}  // namespace

TEST_CASE("replay: the book's answers about networks, ours beside them") {
  check_book(book_values());
}

TEST_CASE("replay: where the book rounds: its form, and what is moved") {
  using ts::Algorithm;
  using ts::Collective;
  // U44: all_to_all on a ring against a node, both W: B / 4 W to B / 8 W. A GPU keeps an eighth,
  // and of an even ring's two directions one has (1 + 2 / 8) of half.
  const double b = 1 << 24;  // of all devices
  const ts::Machine ring8 = machine_of({8}, ts::AxisKind::ring);
  ts::Machine node = machine_of({8}, ts::AxisKind::switched);
  node.links[0].bandwidth = ts::Bandwidth::one_way(ring8.links[0].bandwidth.both_ways());
  const auto ratio = [&](double ring_seconds, double node_seconds, const std::string& id) {
    MESSAGE(id, ": a ring takes ", ring_seconds / node_seconds, " times as long as a node");
    return ring_seconds / node_seconds;
  };
  const double rule =
      ratio(rule_seconds(ring8, {{"x", 8}}, 0, Collective::all_to_all, b / 8),
            rule_seconds(node, {{"x", 8}}, 0, Collective::all_to_all, b / 8), "U44");
  check_book({{"U44", rule}});
  const double moved = ratio(
      bandwidth_seconds(ring8, {{"x", 8}}, 0, Collective::all_to_all, Algorithm::ring_both_ways,
                        b / 8),
      bandwidth_seconds(node, {{"x", 8}}, 0, Collective::all_to_all, Algorithm::direct, b / 8),
      "U44 moved");
  CHECK(close(moved, (1.25 / 4) / (7.0 / 64)));
  // U51 moved: a device has a sixteenth already.
  const double v51 = 2.0 * 8192 * 32768 / 16;
  const double gathered = bandwidth_seconds(ts::machine("h100", {32, 8}), {{"x", 16}, {"y", 16}}, 0,
                                            Collective::all_gather, Algorithm::ring, v51);
  MESSAGE("U51 moved: ", 1e3 * gathered, " ms");
  CHECK(gathered == doctest::Approx(15.0 / 16 * v51 / 50e9));
  // U92 with the 2.5 PFLOP/s that a GB200 has, where the book takes a B200's 2.25.
  CHECK(3600.0 / 400 / (ts::chip("gb200").peak(ts::DType::bf16) / 989e12) ==
        doctest::Approx(3.56).epsilon(1e-3));
  // U40: 2048 GPUs are 8 scalable units; each has 8 leaves with a cable of 50 GB/s to each of 32
  // spines of 64 ports. 4096: 128 spines, as many ports up as down, and 64 cores.
  for (const std::int64_t units : {8, 16}) {
    const ts::Machine pod = ts::machine("h100", {units, 32, 8});
    const double cables = pod.links[0].uplink.one_way() / 50e9;  // out of a unit's leaves
    const double ports = cables * static_cast<double>(units);
    MESSAGE("U40: ", pod.chips(), " GPUs, ", cables / 8, " cables from a leaf, ", ports / 64,
            units == 8 ? " spines" : " cores");
    CHECK(close(cables, 8 * 32));
    CHECK(close(ports / 64, units == 8 ? 32 : 64));
    CHECK((units == 8 || close(2 * ports / 64, 128)));
  }
}

#if !defined(TINYSCALE_NO_THREADS)
namespace {

ts::Mesh without_latency(ts::Machine machine, const ts::List<ts::MeshAxis>& axes) {
  for (ts::Links& links : machine.links) {
    links.latency = 0;
  }
  return ts::Mesh(machine, axes);
}

}  // namespace

TEST_CASE("replay: the book's answers that a program gives") {
  using Rows = std::vector<std::int64_t>;
  const ts::Mesh node = without_latency(ts::machine("h100", {8}), {{"x", 8}});
  // U43: to 4 of 8: 3 or 4 of 7, as one's own is among them or not; half on the average.
  const auto to_some = [&](int first, int count) {
    const ts::MeshRun run = node.run([&](ts::Device& d) {
      Rows rows(8, 0);
      for (int i = first; i < first + count; ++i) {
        rows[static_cast<std::size_t>((d.rank() + i) % 8)] = 1000;
      }
      d.all_to_all(ts::zeros({1000 * count}), "x", rows);
    });
    return run.collectives().back().seconds;  // before it: how many rows to whom
  };
  const double dense = to_some(0, 8), with_own = to_some(0, 4), without = to_some(1, 4);
  MESSAGE("U43 moved: ", with_own / dense, " with one's own, ", without / dense, " without");
  CHECK(close(with_own, dense * 3 / 7));
  CHECK(close(without, dense * 4 / 7));
  // U88: tokens to 8 of 64 experts by chance, some twice to one, some to one's own.
  constexpr int devices = 64, tokens = 1024;
  const ts::Mesh experts = without_latency(ts::machine("h100", {8, 8}), {{"x", devices}});
  const ts::MeshRun routed = experts.run([&](ts::Device& d) {
    Rows rows(devices, 0);
    const std::uint64_t seed = static_cast<std::uint64_t>(d.rank());
    std::int64_t all = 0;
    for (std::uint64_t token = 0; token < tokens; ++token) {
      std::uint64_t chosen = 0;
      for (std::uint64_t k = 0; k < 8; ++k) {
        chosen |= std::uint64_t{1} << ts::random_below(seed, 8 * token + k, devices);
      }
      for (std::size_t expert = 0; expert < devices; ++expert) {
        const std::int64_t goes = (chosen >> expert & 1U) != 0 ? 1 : 0;
        rows[expert] += goes;
        all += goes;
      }
    }
    d.all_to_all(ts::zeros({all}), "x", rows);
  });
  double sent = 0;
  for (int rank = 0; rank < devices; ++rank) {
    const double counts = 4.0 * (devices - 1);  // how many rows to whom
    sent += (routed.bytes_sent(rank) - counts) / (4.0 * tokens * devices * devices);
  }
  MESSAGE("U88 moved: ", sent, " of what goes from each to all");
  // U90: 8 microbatches through 4 stages, in units of all of them over one link.
  const double bytes = 8 * 4000;
  const ts::Mesh line = without_latency(ts::machine("tpu-v5e", {4}), {{"x", 4}});
  const double pipeline = line.run([](ts::Device& d) {
                                for (int i = 0; i < 8; ++i) {
                                  const ts::Tensor t =
                                      d.rank() > 0 ? d.recv(d.rank() - 1) : ts::zeros({1000});
                                  if (d.rank() < 3) {
                                    d.send(t, d.rank() + 1);
                                  }
                                }
                              })
                              .seconds;
  check_book({{"U43", (with_own + without) / 2 / dense},
              {"U88", sent},
              {"U90", pipeline / (bytes / line.machine().links[0].bandwidth.one_way())}});
  CHECK((1 - std::pow(63.0 / 64, 8)) * 63 / 64 == doctest::Approx(0.116524).epsilon(1e-4));

  // U53: all_gather of B over M nodes of N. By the book switches copy: a node's takes in B and
  // gives out N B (less what its GPUs had, B / M), the spine B and B (M - 1). Here messages have
  // one receiver each, so that the spine takes in what it gives out; the time is the book's.
  constexpr double m = 4, n = 8;
  const ts::Mesh unit = without_latency(ts::machine("h100", {4, 8}), {{"m", 4}, {"n", 8}});
  constexpr double b = 4000 * m * n;
  const ts::MeshRun run = unit.run([](ts::Device& d) {
    ts::CollectiveOptions options;
    options.algorithm = ts::Algorithm::hierarchical;
    d.all_gather(ts::zeros({1000}), {"m", "n"}, 0, options);
  });
  double into_spine = 0, out_of_spine = 0, to_gpus = 0;  // bytes
  for (const ts::LinkRow& link : run.links()) {
    into_spine += link.uplink && link.to < 0 ? link.bytes : 0;
    out_of_spine += link.uplink && link.from < 0 ? link.bytes : 0;
    to_gpus += !link.uplink && link.from < 0 ? link.bytes : 0;
  }
  MESSAGE("U53: book spine in B, out ", m - 1, " B, a node's GPUs get ", n, " B; ours in ",
          into_spine / b, " B, out ", out_of_spine / b, " B, GPUs ", to_gpus / m / b, " B");
  CHECK(close(into_spine, b * (m - 1)));
  CHECK(close(out_of_spine, b * (m - 1)));
  CHECK(close(to_gpus / m, n * b - b / m));
  CHECK(close(unit.run([](ts::Device& d) { d.all_gather(ts::zeros({1000}), "m"); }).seconds,
              b * (m - 1) / (m * 400e9)));
}
#endif

#if !defined(TINYSCALE_NO_THREADS)  // several devices
TEST_CASE("replay: the critical path of messages that take no time ends") {
  ts::Machine m = ts::machine("tpu-v5e", {4});
  m.links[0].latency = 0;
  const ts::Mesh mesh(m, {{"x", 4}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    d.all_gather(ts::ones({4}), "x");
    d.barrier();
  });
  CHECK(run.critical_path().messages > 0);
  CHECK(run.critical_path().messages <= static_cast<int>(run.timeline.messages.size()));
}

TEST_CASE("predict: after an error that the program caught, and of what nobody waited for") {
  const ts::Mesh mesh(ts::machine("h100", {1, 4}), {{"x", 4}});
  ts::CollectiveSchedule wrong;
  wrong.name = "mine";
  wrong.what = ts::Collective::all_gather;
  wrong.devices = wrong.chunks = 3;
  const auto caught = [&](ts::Device& d) {
    ts::CollectiveOptions own, tree;
    own.schedule = &wrong;
    tree.algorithm = ts::Algorithm::tree;
    CHECK_THROWS_AS(d.all_gather(ts::ones({4}), "x", 0, own), ts::Error);
    CHECK_THROWS_AS(d.all_gather(ts::ones({4}), "x", 0, tree), ts::Error);
    d.all_reduce(ts::ones({4}), "x");
  };
  CHECK(mesh.predict(caught).seconds == doctest::Approx(mesh.run(caught).seconds));
  const auto left = [](ts::Device& d) { d.start_all_reduce(ts::ones({1000000}), "x"); };
  CHECK(mesh.run(left).seconds > 0);
  CHECK(mesh.predict(left).seconds == doctest::Approx(mesh.run(left).seconds));
}

TEST_CASE("replay: leaf and spine switches of different latency have no formula, of one they do") {
  for (const double leaf : {1e-6, 2e-6, 0.5e-6}) {
    ts::Machine m = ts::machine("h100", {4, 8, 8});
    m.links[0].latency = 1e-6;
    m.links[1].latency = leaf;
    const ts::Mesh mesh(m, {{"n", 32}, {"g", 8}});
    const auto ring = [](ts::Device& d) {
      ts::CollectiveOptions o;
      o.algorithm = ts::Algorithm::ring;
      d.all_reduce(ts::ones({64}), "n", ts::Reduce::sum, o);
    };
    const ts::MeshRun run = mesh.run(ring);
    const auto rows = run.collectives();
    if (leaf < 1e-6 || leaf > 1e-6) {
      CHECK(rows[0].formula < 0);
      CHECK(!mesh.predict(ring).calls[0].known);
    } else {
      CHECK(rows[0].formula == doctest::Approx(rows[0].seconds));
    }
  }
}

TEST_CASE("replay: all dead links that messages were to take are named") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {4}), {{"x", 4}});
  const ts::MeshRun run = mesh.run([](ts::Device& d) {
    if (d.rank() % 2 == 0) {
      d.send(ts::ones({4}), d.rank() + 1);
    } else {
      d.recv(d.rank() - 1);
    }
  });
  CHECK(error_of([&] { run.with(ts::Faults().dead_link(2, 3).dead_link(0, 1).dead_link(1, 2)); }) ==
        "time: link 0 -> 1, link 2 -> 3 are dead; device 1 waits in send #1 (0 -> 1), device 3 "
        "waits in send #1 (2 -> 3)");
  CHECK(error_of([&] { run.with(ts::Faults().dead_link(2, 3)); }) ==
        "time: link 2 -> 3 is dead; device 3 waits in send #1 (2 -> 3)");
  CHECK(error_of([&] { run.with(ts::Faults().dead_link(0, 1).dead_device(2)); }) ==
        "time: device 2, link 0 -> 1 are dead; device 1 waits in send #1 (0 -> 1), device 3 waits "
        "in send #1 (2 -> 3)");
}
#endif

TEST_CASE("placement: an axis across dimensions has what its messages share and cross") {
  ts::Machine machine;
  machine.name = "own";
  machine.chip = ts::chip("tpu-v5e");
  machine.dims = {2, 6, 2};
  for (int d = 0; d < 3; ++d) {
    ts::Links links;
    links.kind = ts::AxisKind::line;
    links.bandwidth = ts::Bandwidth::one_way(d == 0 ? 1e9 : d == 1 ? 4e9 : 2e9);
    links.latency = d == 0 ? 9e-6 : d == 1 ? 1e-6 : 2e-6;
    machine.links.push_back(links);
  }
  const ts::Mesh inner(machine, {{"a", 2}, {"b", 4}, {"c", 3}});
  const ts::List<ts::AxisPlacement> there = inner.placement().axes;
  for (const std::size_t axis :
       {std::size_t{1}, std::size_t{2}}) {  // within the last two dimensions, 6 x 2
    REQUIRE(there[axis].parts.size() == 1);
    CHECK(there[axis].parts[0].dim == -1);
    CHECK(there[axis].parts[0].bandwidth == doctest::Approx(1e9));  // two on a link of 2e9
  }
  CHECK(there[1].parts[0].latency == doctest::Approx(4e-6));      // 3 -> 6: (1, 1) -> (3, 0)
  CHECK(there[1].parts[0].far_latency == doctest::Approx(6e-6));  // 0 -> 9: (0, 0) -> (4, 1)
  CHECK(there[2].parts[0].latency == doctest::Approx(3e-6));      // 1 -> 2: (0, 1) -> (1, 0)
  const ts::Mesh over(machine, {{"x", 8}, {"y", 3}});
  const ts::AxisPlacement all = over.placement().axes[0];  // 3 apart
  REQUIRE(all.parts.size() == 1);
  CHECK(all.parts[0].dim == -1);
  CHECK(all.parts[0].bandwidth == doctest::Approx(1e9));
  CHECK(all.parts[0].latency == doctest::Approx(16e-6));  // 10 -> 13: (0, 5, 0) -> (1, 0, 1)
}

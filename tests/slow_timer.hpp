#pragma once
// What a schedule takes, the slow and obvious way: every message an object, every rate computed
// anew at every event. For tests of closed forms.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tinyscale.hpp"

namespace slow {

struct Message {
  int stream, step, from, to;
  double bytes;
  std::vector<int> links;
  double latency;
  enum { waits, travels, flows, done } state = waits;
  double until = 0, rate = 0;
};

// Directed links numbered as they are met, with their bandwidths.
struct Links {
  std::map<std::string, int> number;
  std::vector<double> bandwidth;
  int at(const std::string& name, double rate) {
    if (number.count(name) == 0) {
      number[name] = static_cast<int>(bandwidth.size());
      bandwidth.push_back(rate);
    }
    return number[name];
  }
};

inline void find_route(const tinyscale::CollectiveSpec& spec, Links& links, Message& m) {
  using tinyscale::AxisKind;
  int stride = spec.devices();
  int here = m.from;
  m.latency = 0;
  for (std::size_t p = 0; p < spec.parts.size(); ++p) {
    const tinyscale::AxisPart& part = spec.parts[p];
    stride /= part.size;
    const auto name = [&](const char* kind, int a, int b) {
      return std::to_string(p) + kind + std::to_string(a) + "," + std::to_string(b);
    };
    const int target = m.to / stride % part.size;
    int x = here / stride % part.size;
    if (x == target) {
      continue;
    }
    if (part.kind == AxisKind::full || part.kind == AxisKind::switched) {
      const int next = here + (target - x) * stride;
      if (part.kind == AxisKind::full) {
        m.links.push_back(links.at(name("full", here, next), part.bandwidth));
      } else {
        m.links.push_back(links.at(name("out", here, 0), part.bandwidth));
        m.links.push_back(links.at(name("in", next, 0), part.bandwidth));
      }
      m.latency += part.latency;
      here = next;
      continue;
    }
    const int up = ((target - x) % part.size + part.size) % part.size;
    const bool rises = part.kind == AxisKind::line ? target > x : up <= part.size - up;
    while (x != target) {
      const int y = (x + (rises ? 1 : part.size - 1)) % part.size;
      const int next = here + (y - x) * stride;
      m.links.push_back(links.at(name(rises ? "up" : "down", here, next), part.bandwidth));
      m.latency += part.latency;
      here = next;
      x = y;
    }
  }
}

class Timer {
 public:
  Timer(const tinyscale::CollectiveSpec& spec, const tinyscale::CollectiveSchedule& schedule)
      : devices_(spec.devices()) {
    const auto prepared = tinyscale::detail::prepare(schedule);
    left_.resize(prepared->streams.size() * static_cast<std::size_t>(devices_));
    first_.resize(left_.size(), 0);
    const tinyscale::ChunkCut cut = tinyscale::detail::chunk_cut(spec, schedule.chunks);
    int stream = 0;
    for (const auto& s : prepared->streams) {
      int number = 0;
      for (std::size_t step = s.first; step < s.last; ++step, ++number) {
        for (std::size_t i = prepared->steps[step].first; i < prepared->steps[step].last; ++i) {
          const auto& of = prepared->messages[i];
          Message m{stream, number, of.from, of.to, 0, {}, 0};
          for (std::size_t t = of.first; t < of.last; ++t) {
            const tinyscale::Transfer& transfer = prepared->data.transfers[t];
            for (int c = 0; c < transfer.chunks; ++c) {
              m.bytes += static_cast<double>(cut.elements(transfer.chunk + c)) * spec.element_bytes;
            }
          }
          find_route(spec, links_, m);
          messages_.push_back(m);
          for (const int device : {m.from, m.to}) {
            std::vector<int>& steps = left(stream, device);
            steps.resize(std::max(steps.size(), static_cast<std::size_t>(number) + 1), 0);
            ++steps[static_cast<std::size_t>(number)];
          }
        }
      }
      ++stream;
    }
  }

  double run() {
    double now = 0;
    while (!messages_.empty()) {
      for (Message& m : messages_) {
        if (m.state == Message::waits && ready(m.stream, m.from, m.step) &&
            ready(m.stream, m.to, m.step)) {
          m.state = Message::travels;
          m.until = now + m.latency;
        }
      }
      share();
      double next = std::numeric_limits<double>::infinity();
      for (const Message& m : messages_) {
        if (m.state == Message::travels) {
          next = std::min(next, m.until);
        } else if (m.state == Message::flows) {
          next = std::min(next, now + m.bytes / m.rate);
        }
      }
      if (!(next < std::numeric_limits<double>::infinity())) {
        return -1;  // waits for ever
      }
      const double end = next * (1 + 1e-13);
      for (Message& m : messages_) {
        if (m.state == Message::flows) {
          const bool over = now + m.bytes / m.rate <= end;
          m.bytes -= m.rate * (next - now);
          if (over) {
            finish(m);
          }
        } else if (m.state == Message::travels && m.until <= end) {
          if (m.bytes > 0) {
            m.state = Message::flows;
          } else {
            finish(m);
          }
        }
      }
      now = next;
      messages_.erase(std::remove_if(messages_.begin(), messages_.end(),
                                     [](const Message& m) { return m.state == Message::done; }),
                      messages_.end());
    }
    return now;
  }

 private:
  // Messages of the steps of a device in a stream that are not yet done.
  std::vector<int>& left(int stream, int device) {
    return left_[static_cast<std::size_t>(stream * devices_ + device)];
  }
  bool ready(int stream, int device, int step) {
    int& first = first_[static_cast<std::size_t>(stream * devices_ + device)];
    while (left(stream, device)[static_cast<std::size_t>(first)] == 0) {
      ++first;
    }
    return first == step;
  }
  void finish(Message& m) {
    m.state = Message::done;
    for (const int device : {m.from, m.to}) {
      --left(m.stream, device)[static_cast<std::size_t>(m.step)];
    }
  }
  // All rates rise together; those over the link that is full first stay.
  void share() {
    std::vector<double> room = links_.bandwidth;
    std::vector<int> users(room.size(), 0);
    std::vector<Message*> rising;
    for (Message& m : messages_) {
      if (m.state == Message::flows) {
        rising.push_back(&m);
        for (const int link : m.links) {
          ++users[static_cast<std::size_t>(link)];
        }
      }
    }
    while (!rising.empty()) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t l = 0; l < room.size(); ++l) {
        least = users[l] > 0 ? std::min(least, room[l] / users[l]) : least;
      }
      std::vector<char> full(room.size(), 0);
      for (std::size_t l = 0; l < room.size(); ++l) {
        full[l] = users[l] > 0 && room[l] / users[l] <= least * (1 + 1e-12) ? 1 : 0;
      }
      std::vector<Message*> rest;
      for (Message* const m : rising) {
        bool stays = false;
        for (const int link : m->links) {
          stays = stays || full[static_cast<std::size_t>(link)] != 0;
        }
        if (!stays) {
          rest.push_back(m);
          continue;
        }
        m->rate = least;
        for (const int link : m->links) {
          room[static_cast<std::size_t>(link)] -= least;
          --users[static_cast<std::size_t>(link)];
        }
      }
      rising.swap(rest);
    }
  }

  Links links_;
  std::vector<Message> messages_;
  int devices_;
  std::vector<std::vector<int>> left_;
  std::vector<int> first_;  // step with any left
};

inline double seconds(const tinyscale::CollectiveSpec& spec,
                      const tinyscale::CollectiveSchedule& schedule) {
  return Timer(spec, schedule).run();
}

}  // namespace slow

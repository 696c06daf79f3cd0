#pragma once
// Where the devices of a run meet: mailboxes, the start of collectives, and the judgement when none
// can go on. Sends never block; a device waits for a message or for its peers to call a collective.
// When no device runs and some wait, nothing can ever arrive: all throw one Error that says where
// each stands. However the threads were scheduled, that state is the same (Kahn 1974).

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/shape.hpp"

namespace tinyscale {
namespace detail {

// "0-3, 5"
inline std::string rank_list(const std::vector<int>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    out += cat(out.empty() ? "" : ", ", ranks[i]);
    out += last > i ? cat(last > i + 1 ? "-" : ", ", ranks[last]) : "";
    i = last;
  }
  return out;
}

inline std::string device_list(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "device " : "devices ") + rank_list(ranks);
}

struct Packet {
  Shape shape;
  std::vector<float> numbers;
  std::size_t index = 0;  // in the sender's log
};

// Chunks of collectives and a user's sends are kept apart.
enum class Channel { collective, user };

class Fabric {
 public:
  explicit Fabric(int devices) : devices_(static_cast<std::size_t>(devices)), running_(devices) {}

  void put(int from, int to, Channel channel, Packet packet) {
    const std::lock_guard<std::mutex> lock(mutex_);
    State& receiver = state(to);
    receiver.box(channel, from).packets.push_back(std::move(packet));
    if (receiver.now == Now::receives && receiver.from == from && receiver.channel == channel) {
      wake(receiver);
    }
  }

  // The next packet of that sender; `where` says which line of the program asks for it.
  Packet take(int me, int from, Channel channel, const std::string& where) {
    std::unique_lock<std::mutex> lock(mutex_);
    State& self = state(me);
    if (self.box(channel, from).empty()) {
      self.from = from;
      self.channel = channel;
      self.where = where;
      wait(lock, self, Now::receives);
    }
    Box& box = self.box(channel, from);  // others may have moved the boxes while it waited
    Packet packet = std::move(box.packets[box.next]);
    if (++box.next == box.packets.size()) {
      box.packets.clear();
      box.next = 0;
    }
    return packet;
  }

  // Returns when every member called it with equal text. `key` is the same for all of a group.
  void meet(int me, const std::string& key, const std::vector<int>& members,
            const std::string& text, const std::string& where) {
    if (members.size() < 2) {
      return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    Meeting& meeting = meetings_[find_meeting(key)];
    meeting.members = members;
    meeting.came.push_back(me);
    meeting.texts.push_back(text);
    if (meeting.texts.size() == members.size() && !disagrees(meeting)) {
      meeting = std::move(meetings_.back());
      meetings_.pop_back();
      for (const int rank : members) {
        if (rank != me) {
          wake(state(rank));
        }
      }
      return;
    }
    state(me).meeting = key;
    state(me).where = where;
    wait(lock, state(me), Now::meets);
  }

  void returned(int me, const std::string& where) { end(me, Now::returned, where, ""); }

  // A device that throws because the run ended already is no further cause.
  void threw(int me, const std::string& where, const std::string& message) {
    end(me, Now::threw, where, message);
  }

  // After all devices have ended: empty when all is well.
  std::string failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) {
      for (const State& device : devices_) {
        if (device.now == Now::threw || unread(device) > 0) {
          conclude();
          break;
        }
      }
    }
    return failure_;
  }

 private:
  enum class Now { runs, receives, meets, returned, threw };

  struct Box {
    Channel channel = Channel::collective;
    int from = 0;
    List<Packet> packets;
    std::size_t next = 0;

    bool empty() const { return next == packets.size(); }
  };
  struct State {
    std::condition_variable changed;
    Now now = Now::runs;
    std::string where;    // "call 2, all_gather([4], x, dim 0)"
    std::string message;  // what it threw
    int from = 0;         // receives: from whom
    Channel channel = Channel::collective;
    std::string meeting;  // meets: which
    List<Box> boxes;      // by channel, then by sender

    Box& box(Channel of, int sender) {
      std::size_t at = 0;
      while (at < boxes.size() &&
             (boxes[at].channel < of || (boxes[at].channel == of && boxes[at].from < sender))) {
        ++at;
      }
      if (at == boxes.size() || boxes[at].channel != of || boxes[at].from != sender) {
        boxes.push_back({});
        for (std::size_t i = boxes.size() - 1; i > at; --i) {
          boxes[i] = std::move(boxes[i - 1]);
        }
        boxes[at] = {of, sender, {}, 0};
      }
      return boxes[at];
    }
  };
  struct Meeting {
    std::string key;
    std::vector<int> members;
    std::vector<int> came;
    std::vector<std::string> texts;  // what each that came called
  };

  // One not there yet is added.
  std::size_t find_meeting(const std::string& key) {
    std::size_t at = 0;
    while (at < meetings_.size() && meetings_[at].key != key) {
      ++at;
    }
    if (at == meetings_.size()) {
      meetings_.push_back({key, {}, {}, {}});
    }
    return at;
  }

  State& state(int rank) { return devices_[static_cast<std::size_t>(rank)]; }

  void wake(State& device) {
    device.now = Now::runs;
    ++running_;
    device.changed.notify_one();
  }

  void wait(std::unique_lock<std::mutex>& lock, State& self, Now how) {
    if (failure_.empty()) {
      self.now = how;
      if (--running_ == 0) {
        conclude();
      }
      self.changed.wait(lock, [&] { return self.now == Now::runs || !failure_.empty(); });
    }
    if (!failure_.empty()) {
      detail::fail({failure_});
    }
  }

  void end(int me, Now how, const std::string& where, const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) {
      return;
    }
    State& self = state(me);
    self.now = how;
    self.where = where;
    self.message = message;
    --running_;
    bool some_wait = false;
    for (const State& device : devices_) {
      some_wait = some_wait || device.now == Now::receives || device.now == Now::meets;
    }
    if (running_ == 0 && some_wait) {
      conclude();
    }
  }

  static std::size_t unread(const State& device) {
    std::size_t count = 0;
    for (const Box& box : device.boxes) {
      count += box.packets.size() - box.next;
    }
    return count;
  }

  std::vector<int> in_state(Now now) const {
    std::vector<int> ranks;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].now == now) {
        ranks.push_back(static_cast<int>(i));
      }
    }
    return ranks;
  }

  static bool disagrees(const Meeting& meeting) {
    for (const std::string& text : meeting.texts) {
      if (text != meeting.texts.front()) {
        return true;
      }
    }
    return false;
  }

  std::string waits_for(const State& device) {
    if (device.now == Now::receives) {
      return cat("waits for a message from device ", device.from);
    }
    const Meeting& meeting = meetings_[find_meeting(device.meeting)];
    if (disagrees(meeting)) {
      return "its peers call something else";
    }
    std::vector<int> missing;
    for (const int rank : meeting.members) {
      bool came = false;
      for (const int other : meeting.came) {
        came = came || other == rank;
      }
      if (!came) {
        missing.push_back(rank);
      }
    }
    return cat("waits for ", device_list(missing), " to call it");
  }

  std::string describe(const State& device) {
    std::string text = device.where;
    if (device.now == Now::threw) {
      text = cat("threw ", device.where, ": ", device.message);
    } else if (device.now == Now::returned) {
      text = cat("returned ", device.where);
    } else {
      text += ": " + waits_for(device);
    }
    for (const Box& box : device.boxes) {
      const std::size_t count = box.packets.size() - box.next;
      if (count > 0) {
        text += cat("; ", count, count == 1 ? " message" : " messages", " from device ", box.from,
                    " not received");
      }
    }
    return text;
  }

  std::string cause() const {
    const std::vector<int> threw = in_state(Now::threw);
    if (!threw.empty()) {
      return cat(device_list(threw),
                 " threw: ", devices_[static_cast<std::size_t>(threw[0])].message);
    }
    const Meeting* first = nullptr;  // by key, whatever the threads did
    for (const Meeting& meeting : meetings_) {
      if (disagrees(meeting) && (first == nullptr || meeting.key < first->key)) {
        first = &meeting;
      }
    }
    if (first != nullptr) {
      return cat(device_list(first->members), " must make the same call and do not");
    }
    const std::vector<int> returned = in_state(Now::returned);
    if (returned.size() == devices_.size()) {
      return "messages were sent that nobody received";
    }
    if (!returned.empty()) {
      return cat(device_list(returned), " returned while others wait");
    }
    return "deadlock: every device waits and nothing can arrive";
  }

  void conclude() {
    NameTable lines;  // their texts
    List<std::vector<int>> ranks(devices_.size());
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      int& line = lines[describe(devices_[i])];
      line = line == 0 ? static_cast<int>(lines.size()) : line;
      ranks[static_cast<std::size_t>(line - 1)].push_back(static_cast<int>(i));
    }
    std::string text = "mesh.run: " + cause();
    for (const NameTable::Entry& line : lines) {
      text += cat("\n  ", device_list(ranks[static_cast<std::size_t>(line.number - 1)]), ": ",
                  line.name);
    }
    failure_ = text;
    for (State& device : devices_) {
      device.changed.notify_one();
    }
  }

  std::mutex mutex_;  // guards all below
  List<State> devices_;
  List<Meeting> meetings_;
  int running_;
  std::string failure_;  // not empty: the run is over
};

}  // namespace detail
}  // namespace tinyscale

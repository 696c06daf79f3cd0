#pragma once
// What is said when no device can go on, or all have ended and something is left: where each
// stands, and why. By rank and axes, so that the text does not depend on how threads were
// scheduled.

#include <cstddef>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/call_plan.hpp"
#include "tinyscale/mesh/meeting.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"
#include "tinyscale/mesh/waiting.hpp"

namespace tinyscale {
namespace detail {

class Judgement {
 public:
  Judgement(const Waiting& waiting, const List<Shared<Group>>& groups,
            const List<List<Mailbox>>& boxes, const List<AxisPlacement>& axes)
      : waiting_(waiting), groups_(groups), boxes_(boxes), axes_(axes) {}

  // After all devices have ended.
  bool finds_fault() const {
    bool fault = !waiting_.in_state(Waiting::Now::threw).empty() || untold() != nullptr;
    for (const List<OpenCall>& calls : open_calls()) {
      fault = fault || !calls.empty();
    }
    for (const List<Mailbox>& of : boxes_) {
      for (const Mailbox& box : of) {
        fault = fault || !box.empty();
      }
    }
    return fault;
  }

  std::string text() const {
    const List<List<OpenCall>> open = open_calls();
    NameTable lines;  // their texts
    List<std::vector<int>> ranks(boxes_.size());
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      int& line = lines[describe(i, open[i])];
      line = line == 0 ? static_cast<int>(lines.size()) : line;
      ranks[static_cast<std::size_t>(line - 1)].push_back(static_cast<int>(i));
    }
    std::string text = "mesh.run: " + cause(open);
    for (const NameTable::Entry& line : lines) {
      text += cat(
          {"\n  ", device_list(ranks[static_cast<std::size_t>(line.number - 1)]), ": ", line.name});
    }
    return text;
  }

 private:
  struct OpenCall {
    const Meeting* meeting = nullptr;
    const Post* post = nullptr;
  };

  // By rank, in the order of its calls: what each has started, is not done and it does not wait
  // for.
  List<List<OpenCall>> open_calls() const {
    List<List<OpenCall>> all(boxes_.size());
    for (const Shared<Group>& group : groups_) {
      for (const Shared<Meeting>& meeting : group->meetings) {
        for (std::size_t i = 0; i < meeting->posts.size() && !meeting->done; ++i) {
          const std::size_t rank = static_cast<std::size_t>(group->ranks[i]);
          const Waiting::State& device = waiting_.states()[rank];
          if (meeting->posts[i].here &&
              (device.now != Waiting::Now::waits || device.wait.of != meeting.get())) {
            List<OpenCall>& calls = all[rank];
            calls.push_back({meeting.get(), &meeting->posts[i]});
            for (std::size_t at = calls.size() - 1;
                 at > 0 && calls[at].post->call->number < calls[at - 1].post->call->number; --at) {
              const OpenCall later = calls[at - 1];
              calls[at - 1] = calls[at];
              calls[at] = later;
            }
          }
        }
      }
    }
    return all;
  }

  // An exchange that failed, of which a device has not heard: it dropped its call. The first by
  // rank and axes, whatever the threads did.
  const Meeting* untold() const {
    const Meeting* first = nullptr;
    for (const Shared<Group>& group : groups_) {
      for (const Shared<Meeting>& meeting : group->meetings) {
        bool unheard = false;
        for (const Post& post : meeting->posts) {
          unheard = unheard || post.here;
        }
        if (unheard && !meeting->error.empty() &&
            (first == nullptr || group->ranks < first->group->ranks)) {
          first = meeting.get();
        }
      }
    }
    return first;
  }

  static std::vector<int> missing(const Meeting& meeting) {
    std::vector<int> ranks;
    for (std::size_t i = 0; i < meeting.posts.size(); ++i) {
      if (!meeting.posts[i].here) {
        ranks.push_back(meeting.group->ranks[i]);
      }
    }
    return ranks;
  }

  static std::string waits_for(const Waiting::State& device) {
    if (device.wait.what == Wait::For::message) {
      return cat({"waits for a message from device ", device.wait.peer});
    }
    return waits_for(*static_cast<const Meeting*>(device.wait.of));
  }
  static std::string waits_for(const Meeting& meeting) {
    return meeting.disagrees ? "its peers call something else"
                             : cat({"waits for ", device_list(missing(meeting)), " to call it"});
  }

  std::string describe(std::size_t rank, const List<OpenCall>& open) const {
    const Waiting::State& device = waiting_.states()[rank];
    std::string text = device.where;
    if (device.now == Waiting::Now::threw) {
      text = cat({"threw ", device.where, ": ", device.message});
    } else if (device.now == Waiting::Now::returned) {
      text = cat({"returned ", device.where});
    } else {
      text += ": " + waits_for(device);
    }
    for (const Mailbox& box : boxes_[rank]) {
      const std::size_t count = box.unread();
      if (count > 0) {
        text += cat({"; ", count, count == 1 ? " message" : " messages", " from device ", box.from,
                     " not received, ", count == 1 ? "" : "the first ", "sent",
                     at(box.packets[box.next].call->logged.where)});
      }
    }
    constexpr std::size_t most_calls = 3;
    for (std::size_t i = 0; i < open.size() && i < most_calls; ++i) {
      const DeviceCall& call = *open[i].post->call;
      text += cat({"; started call ", call.number, ", ",
                   call_text(call.key, axes_text(axes_, call.key.axes)), at(call.where), ": ",
                   waits_for(*open[i].meeting)});
    }
    text += open.size() > most_calls ? cat({"; ", open.size() - most_calls, " more started"}) : "";
    return text;
  }

  std::string cause(const List<List<OpenCall>>& open) const {
    const std::vector<int> threw = waiting_.in_state(Waiting::Now::threw);
    if (!threw.empty()) {
      return cat({device_list(threw),
                  " threw: ", waiting_.states()[static_cast<std::size_t>(threw[0])].message});
    }
    const Group* first = nullptr;  // by rank and axes, whatever the threads did
    for (const Shared<Group>& group : groups_) {
      for (const Shared<Meeting>& meeting : group->meetings) {
        if (meeting->disagrees && (first == nullptr || group->ranks < first->ranks)) {
          first = group.get();
        }
      }
    }
    if (first != nullptr) {
      return cat({device_list(first->ranks), " must make the same call and do not"});
    }
    const std::vector<int> returned = waiting_.in_state(Waiting::Now::returned);
    if (returned.size() == boxes_.size()) {
      for (const List<OpenCall>& calls : open) {
        if (!calls.empty()) {
          return cat({"a collective was started that ", device_list(missing(*calls[0].meeting)),
                      " never called"});
        }
      }
      const Meeting* const failed = untold();
      return failed != nullptr
                 ? "a collective that was started and dropped failed: " + failed->error
                 : "messages were sent that nobody received";
    }
    if (!returned.empty()) {
      return cat({device_list(returned), " returned while others wait"});
    }
    return "deadlock: every device waits and nothing can arrive";
  }

  const Waiting& waiting_;
  const List<Shared<Group>>& groups_;
  const List<List<Mailbox>>& boxes_;  // by receiver
  const List<AxisPlacement>& axes_;
};

}  // namespace detail
}  // namespace tinyscale

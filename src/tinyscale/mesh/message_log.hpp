#pragma once
// The log of a mesh run: every message with its size, and what it had to wait for.
// A device's program is a sequence of steps; a message belongs to a step of its sender and one of
// its receiver. Nothing here depends on how the threads were scheduled.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/mesh/collective_cost.hpp"

namespace tinyscale {

// A chunk of a collective leaves when both sides are ready, a user's send when the sender is.
enum class MessageStart { both_ready, sender_ready };

struct Message {
  int from = 0, to = 0;  // ranks
  double bytes = 0;
  int from_step = 0, to_step = 0;  // in the sender's and in the receiver's program
  int call = 0;                    // which of MessageLog::calls
  int group = 0;                   // lowest rank of the devices that ran the call together
  int step = 0;                    // in the call, from 0
  MessageStart start = MessageStart::both_ready;
};

// One line of the program: a collective, over all groups of devices that ran it.
struct CollectiveCall {
  std::string name, axes, arguments;  // "all_gather", "x,y", "[1024], dim 0"
  int devices = 1;                    // of a group
  List<CollectiveStage> stages;       // for the formula, with the axis of each
  std::vector<int> stage_axes;
};

struct MessageLog {
  int devices = 0;
  List<CollectiveCall> calls;  // in program order
  List<Message> messages;      // by sender, then in its order
};

namespace detail {

// What one device notes while it runs; joined in rank order afterwards.
struct DeviceLog {
  struct Receipt {
    int from = 0;
    std::size_t index = 0;  // of the sender's message
    int step = 0;           // of the receiver
  };

  std::vector<std::string> keys;  // one for each call, equal for the same line elsewhere
  List<CollectiveCall> calls;
  List<Message> sent;  // call: index into `calls`
  List<Receipt> received;
};

// The number of a call in the program; one not seen before is added.
inline int find_call(NameTable& numbers, MessageLog& log, const std::string& key,
                     const CollectiveCall& call) {
  int& number = numbers[key];
  if (number == 0) {
    log.calls.push_back(call);
    number = static_cast<int>(log.calls.size());
  }
  return number - 1;
}

// One log of all devices: their calls matched, their messages in rank order.
inline MessageLog join_logs(const List<const DeviceLog*>& devices) {
  MessageLog log;
  log.devices = static_cast<int>(devices.size());
  NameTable numbers;
  std::vector<std::size_t> first;  // message of each device
  for (const DeviceLog* device : devices) {
    std::vector<int> call_of;
    for (std::size_t i = 0; i < device->keys.size(); ++i) {
      call_of.push_back(find_call(numbers, log, device->keys[i], device->calls[i]));
    }
    first.push_back(log.messages.size());
    for (Message message : device->sent) {
      message.call = call_of[static_cast<std::size_t>(message.call)];
      log.messages.push_back(message);
    }
  }
  for (const DeviceLog* device : devices) {
    for (const DeviceLog::Receipt& receipt : device->received) {
      log.messages[first[static_cast<std::size_t>(receipt.from)] + receipt.index].to_step =
          receipt.step;
    }
  }
  return log;
}

}  // namespace detail
}  // namespace tinyscale

// SPDX-License-Identifier: Apache-2.0
// Sockets whose owner has left while the peer's kernel has not acknowledged everything: the link was down for a moment.
//
// A closed socket that receives something, such as the peer's credits, is reset, and what it still had to send is lost
// (tcp.md). These are read from, and closed once all has arrived. The agent's
// thread alone uses this.
#pragma once

#include <list>

#include "core/clock.h"

namespace treering {

class Agent;

class DrainingSockets {
 public:
  explicit DrainingSockets(Agent* agent) : agent_(agent) {}
  // Takes the socket, which is shut down for writing, until nothing has moved for `deadline` (0: there is none),
  // and for 60 s at most.
  void add(int fd, std::chrono::milliseconds deadline);
  bool empty() const { return sockets_.empty(); }

 private:
  struct Socket {
    int fd;
    uint64_t watch, timer;
    Clock::time_point last;              // until when at most
    std::chrono::milliseconds deadline;  // without progress
    Clock::time_point until;             // unless something moves
    int left;                            // bytes that the peer has not acknowledged
  };
  using Entry = std::list<Socket>::iterator;
  void read(Entry socket);
  void look(Entry socket);
  void end(Entry socket);

  Agent* agent_;
  std::list<Socket> sockets_;
};

}  // namespace treering

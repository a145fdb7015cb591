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
  // Takes the socket, which is shut down for writing, for at most `deadline`; 0 stands for the longest.
  void add(int fd, std::chrono::milliseconds deadline);
  bool empty() const { return sockets_.empty(); }

 private:
  struct Socket {
    int fd;
    uint64_t watch, timer;
    Clock::time_point until;
  };
  using Place = std::list<Socket>::iterator;
  void read(Place socket);
  void look(Place socket);
  void end(Place socket);

  Agent* agent_;
  std::list<Socket> sockets_;
};

}  // namespace treering

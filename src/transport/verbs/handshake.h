// SPDX-License-Identifier: Apache-2.0
// Handshake: when the two ends of a queue pair may send. No I/O, no clock: events in, actions out.
//
//   this rank                                peer
//   introduces its end        ----------->   connects its own end to it
//                             <-----------   introduces its end, "knows yours"
//   connects; may send        ----------->   "knows yours": may send
//
// Each end sends only when it knows that the other is connected, because what reaches a queue pair that is not is lost,
// and repeated until the retries are over. Introductions may be lost: who has not heard introduces itself again.
#pragma once

namespace treering::verbs {

class Handshake {
 public:
  struct Actions {
    bool connect = false;    // the own end to the peer's
    bool introduce = false;  // the own end; `knows_yours` is is_connected()
  };

  // The rank needs the peer, or has waited long enough for an answer.
  Actions start() const { return {false, !is_ready_}; }
  // An introduction of the peer.
  Actions hear(bool knows_mine) {
    const bool first = !is_connected_;
    is_connected_ = true;
    is_ready_ |= knows_mine;
    return {first, first || !knows_mine};
  }

  bool is_connected() const { return is_connected_; }
  bool is_ready() const { return is_ready_; }

 private:
  bool is_connected_ = false;  // the own end to the peer's
  bool is_ready_ = false;      // both are: may send
};

}  // namespace treering::verbs

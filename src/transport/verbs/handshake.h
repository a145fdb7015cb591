// SPDX-License-Identifier: Apache-2.0
// Handshake: when the two ends of a queue pair may send. No I/O, no clock: events in, actions out.
//
//   this rank                                       peer
//   introduces its end               ----------->   connects its own end to it
//                                    <-----------   introduces its end: is connected
//   connects its end; may send       ----------->   is connected, may send: may send
//
// Each end sends only when it knows that the other is connected, because what reaches a queue pair that is not is lost,
// and repeated until the retries are over. Introductions may be lost: an end that may not send yet introduces itself
// again, and is answered.
#pragma once

namespace treering::verbs {

class Handshake {
 public:
  struct Actions {
    bool connect = false;    // the own end to the peer's
    bool introduce = false;  // the own end, with is_connected() and may_send()
  };

  // The rank needs the peer, or has waited long enough for an answer.
  Actions start() const { return {false, !may_send_}; }
  // An introduction of the peer, with its is_connected() and may_send().
  Actions hear(bool peer_is_connected, bool peer_may_send) {
    const bool first = !is_connected_;
    is_connected_ = true;
    may_send_ |= peer_is_connected;
    return {first, first || !peer_may_send};
  }

  bool is_connected() const { return is_connected_; }  // the own end to the peer's
  bool may_send() const { return may_send_; }

 private:
  bool is_connected_ = false;
  bool may_send_ = false;
};

}  // namespace treering::verbs

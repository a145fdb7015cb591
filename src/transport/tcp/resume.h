// SPDX-License-Identifier: Apache-2.0
// When a stream of a link is taken for dead, when it is asked for again, and for how long; when a rank may leave. Time
// and facts in, decisions out: no sockets.
//
//   stream:  open --- broken, or stalled ---> lost --- wanted ---> asked for --- failed ---> pause --- wanted ---> ...
//                                                                     '-- opened
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "transport/tcp/stream.h"

namespace treering {

using TcpClock = std::chrono::steady_clock;

// A stream that is there no more. `key` tells those of the same index apart: a later one has a greater key.
struct TcpLoss {
  uint32_t index = 0;
  uint64_t key = 0;
  std::string why;
  TcpClock::time_point since{};  // it was of no use; the least time: since now
};

// What a link makes of the deadline of its communicator (0: none).
struct TcpTimeouts {
  explicit TcpTimeouts(std::chrono::milliseconds deadline);
  std::chrono::milliseconds stall;  // without an acknowledgement, until a stream is taken for dead
  // Until a stream must be there again. Where a rank waits for it its own deadline comes first, whose error tells which
  // ranks do not answer. 0: for ever.
  std::chrono::milliseconds redial;
  // A rank that leaves waits so long for kernels that do not answer: what it sent last may be needed.
  std::chrono::milliseconds leave;
  // After so long the kernel itself gives a connection up, if nothing above looks after it.
  std::chrono::milliseconds kernel;
};

// Whether a stream's peer still acknowledges.
class TcpStall {
 public:
  // What the kernel says: whether something is under way that should be acknowledged; how many bytes were, in all; how
  // long ago anything at all came. A receiver without room answers, and is alive.
  struct Facts {
    bool under_way = false;
    uint64_t acknowledged = 0;
    std::chrono::milliseconds since_answer{};
  };
  // True: it is dead.
  bool look(const Facts& facts, TcpClock::time_point now, std::chrono::milliseconds timeout);
  TcpClock::time_point since() const { return since_; }  // that nothing was acknowledged

 private:
  TcpClock::time_point since_{};
  uint64_t acknowledged_ = 0;
};

// A rank is about to leave: may it close its streams to a peer?
class TcpDeparture {
 public:
  // A kernel acknowledges within 40 ms and a round trip.
  static constexpr auto kAnswersWithin = std::chrono::milliseconds(200);
  struct Facts {
    bool arrived = false;               // the peer's kernel has all that was sent
    TcpClock::duration since_answer{};  // on each stream on which something is under way
  };
  bool has_begun() const { return began_ != TcpClock::time_point(); }
  TcpClock::time_point began() const { return began_; }
  void begin(TcpClock::time_point now) { began_ = now; }
  // Also where the network works, and all takes its time: the kernels do the rest alone.
  bool is_over(const Facts& facts, TcpClock::time_point now, std::chrono::milliseconds timeout) const;

 private:
  TcpClock::time_point began_{};
};

// One stream of this rank's, as it is opened again and again.
class TcpRedial {
 public:
  // A stream that was open for so long did work: the next attempt is made at once.
  static constexpr auto kWorked = std::chrono::seconds(1);
  static constexpr auto kFirstPause = std::chrono::milliseconds(5), kLongestPause = std::chrono::milliseconds(500);

  // Asks for the stream now? Only where it is wanted.
  bool should_ask(TcpClock::time_point now) const { return !asked_ && now >= next_; }
  void ask(TcpClock::time_point now);
  bool asked() const { return asked_; }
  bool ever_asked() const { return ever_asked_; }
  void opened(TcpClock::time_point now);
  void failed(TcpClock::time_point now, const std::string& why) { not_there(now, why, false); }
  // An open one broke.
  void lost(TcpClock::time_point now, const std::string& why, TcpClock::time_point of_no_use_since = {});
  // It is not needed any more, or another does what it was for.
  void rest() { since_ = away_ = {}; }
  // Since when it is not there; the least time: it is, or was never wanted.
  TcpClock::time_point away_since() const { return away_; }
  // It was asked for, and is not there after so long. `heard`: when the peer was last heard by another way: the network
  // was there then, and the next attempt may succeed.
  bool over(TcpClock::time_point now, std::chrono::milliseconds timeout, TcpClock::time_point heard = {}) const;
  // What happened to it, for an error text.
  std::string story(TcpClock::time_point now) const;

 private:
  void not_there(TcpClock::time_point now, const std::string& why, bool was_open);

  bool asked_ = false, ever_asked_ = false;
  TcpClock::time_point since_{}, next_{}, opened_{};  // since: it has been wanted and not there
  TcpClock::time_point away_{};                       // the same, or since when it was of no use, though it was there
  std::chrono::milliseconds pause_{0};
  uint32_t attempts_ = 0;    // since then
  std::string broke_, why_;  // how it was lost; why the last attempt failed
};

}  // namespace treering

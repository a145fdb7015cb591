// SPDX-License-Identifier: Apache-2.0
// Exchange: what a process sends up the tree until its answer has come down, and the rounds in which each rank gives a
// blob and gets those of all. No I/O, no clock.
//
//   up     keep() --> unanswered() --> the top: take_part() ... complete()
//   down   finish_round() <-- the blobs of all          answered() <-- the process table, a verdict
//
// A parent may end with what it was sent: the next one gets all that was not answered. So a part or a result may come
// twice. A process that becomes the top takes what it kept itself; a top that gets a parent hands the parts over, and
// the blobs of the last round, if the one above did not get them.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/frames.h"
#include "bootstrap/job/process_tree.h"
#include "core/clock.h"

namespace treering {

// When all exchanges of a creation end. They have the timeout together, from when all ranks had met: else each could take
// as long as the whole creation may. `timeout_ms`: 0: none.
inline Clock::time_point creation_deadline(int timeout_ms, Clock::time_point met, Clock::time_point latest) {
  return timeout_ms == 0 ? latest : std::min(latest, met + std::chrono::milliseconds(timeout_ms));
}

class Exchange {
 public:
  struct Unanswered {
    Kind kind;
    std::string bytes;
  };
  void keep(Kind kind, std::string bytes) { unanswered_.push_back({kind, std::move(bytes)}); }
  void answered(Kind kind);
  const std::vector<Unanswered>& unanswered() const { return unanswered_; }
  std::vector<Unanswered> take_unanswered() { return std::exchange(unanswered_, {}); }

  // At the top. False: it is not of the next round, or not of a rank.
  bool take_part(const BlobMessage& blob, uint32_t ranks);
  bool is_under_way() const { return !parts_.empty(); }
  bool lacks(uint32_t rank) const { return is_under_way() && parts_.count(rank) == 0; }
  const std::map<uint32_t, std::string>& parts() const { return parts_; }
  // "rank 2 (pid 17 on b), rank 5 (pid 9 on c) of 6 ranks": whose part is not here; and through whom others are heard.
  std::string missing(const ProcessTree& tree) const;
  // The message with the blobs of all ranks; empty while some are missing.
  std::string complete(uint32_t ranks);
  void hand_over();
  // The round comes to no end.
  void drop_parts() { parts_.clear(); }

  // The blobs by rank; nullptr: it is no such message, or of a round that is known.
  std::shared_ptr<const std::vector<std::string>> finish_round(const std::string& bytes, uint32_t ranks);
  uint64_t round() const { return round_; }  // the last whose blobs are here
  // The message of that round, for a child that did not get it from its last parent.
  const std::string& last_blobs() const { return last_blobs_; }
  // Whether a rank waits for blobs that this process knows of.
  bool is_awaited() const;

 private:
  std::vector<Unanswered> unanswered_;
  uint64_t round_ = 0;
  std::string last_blobs_;
  std::map<uint32_t, std::string> parts_;  // of the next round, at the top
};

}  // namespace treering

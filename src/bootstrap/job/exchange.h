// SPDX-License-Identifier: Apache-2.0
// Exchange: what the top of a job's tree knows of the exchange at hand, in which every rank gives its part and gets all.
//
//   take(part)  ...  complete()  ->  finish(): all parts, in the order of the ranks
//   hand_over()                      this process has a parent again: the parts are for the top above it
//
// Decides alone: no I/O and no clock. A process below the top takes no parts, but finishes rounds like it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bootstrap/frames.h"
#include "core/clock.h"

namespace treering {

class Exchange {
 public:
  // A rank of this process gives its part at `now`.
  void given(Clock::time_point now) { begin(now); }
  // False: a part of another round, or of a rank that there is not.
  bool take(const BlobMessage& part, size_t ranks, Clock::time_point now);
  bool complete(size_t ranks) const { return parts_.size() >= ranks; }
  // All parts, for the ranks.
  BlobsMessage finish();
  // The round has ended with these parts; false: it had ended before.
  bool end(const BlobsMessage& all, const std::string& bytes);
  std::vector<BlobMessage> hand_over();

  // Some ranks have given their part, and others have not.
  bool is_open() const { return !parts_.empty(); }
  bool has(uint32_t rank) const { return parts_.count(rank) != 0; }
  const std::map<uint32_t, std::string>& parts() const { return parts_; }
  // Since when the first part is here; it stays, where parts are handed over.
  Clock::time_point began() const { return began_; }
  uint64_t round() const { return round_; }  // the last that has ended
  const std::string& last() const {
    return last_;
  }  // its bytes, for a child that did not get them from its last parent
  // "rank 2 (pid 17 on b), rank 5 (pid 9 on c) of 6 ranks": whose part is not here.
  std::string missing(const RosterMessage& roster) const;

 private:
  void begin(Clock::time_point now) {
    if (began_ == Clock::time_point()) began_ = now;
  }

  std::map<uint32_t, std::string> parts_;  // by rank
  Clock::time_point began_{};
  uint64_t round_ = 0;
  std::string last_;
};

}  // namespace treering

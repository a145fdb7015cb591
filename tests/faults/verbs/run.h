// SPDX-License-Identifier: Apache-2.0
// One run: ranks as threads of this process over the stand-in for libibverbs, a fault, and what became of each.
#pragma once

#include <string>
#include <vector>

#include "scenario.h"

namespace faults::verbs {

constexpr double kTimeout = 4;  // seconds: TREERING_TIMEOUT of the ranks
constexpr double kSlack = 3;

struct Error {
  int code = 0;
  double when = 0, began = 0;  // seconds of CLOCK_MONOTONIC
  std::string call, text;
  bool is_of_base = false;  // else of a communicator that was made from it
};

struct Report {
  std::vector<Error> errors;
  std::string wrong;     // a result that was wrong
  bool is_ok = false;    // all have agreed to stop
  bool is_gone = false;  // it left, as it was told to
  uint64_t calls = 0;
  std::string changed,
      unstopped;  // memory of the user after an error; queue pairs that were not in the error state by then
};

struct Record {
  std::vector<Report> ranks;
  std::vector<int> victims;  // ranks that are hit: both ends of a link
  double fault_at = 0;
  bool has_hit = true;    // the fault has met something
  bool was_long = false;  // it lasted longer than it was to, as the machine is busy
  std::string trouble;    // of the driver: nothing was tried
  std::string left;       // objects of the stand-in when all had ended
};

Record run(const Scenario& scenario);

}  // namespace faults::verbs

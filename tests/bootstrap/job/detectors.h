// SPDX-License-Identifier: Apache-2.0
// Failure detectors in a tree of processes, for tests of what they decide.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bootstrap/job/failure_detector.h"
#include "bootstrap/job/trees.h"

namespace treering::testing {

// 0 -- 1, 2;  1 -- 3, 4;  3 -- 5
inline const std::vector<uint32_t> kParents = {kNobody, 0, 0, 1, 1, 3};

inline NoticeMessage silence_of(uint32_t process, uint32_t length_ms = 0) {
  return {.type = NoticeType::kSilent, .process = process, .other = length_ms, .text = "its process does not answer"};
}

struct Detector : FailureDetector {
  explicit Detector(uint32_t own, const std::vector<uint32_t>& parents = kParents,
                    const std::vector<uint32_t>& process_of_rank = {})
      : Detector(std::make_shared<ProcessTree>(tree_at(own, parents, process_of_rank))) {}
  explicit Detector(std::shared_ptr<ProcessTree> its_tree) : FailureDetector(*its_tree), tree(std::move(its_tree)) {}

  // A neighbour's connection ends.
  void breaks(uint32_t process, pid_t pid, bool was_parent = false) {
    tree->remove(process);
    connection_ended(process, {"reset", kNow, pid, was_parent});
  }

  std::shared_ptr<ProcessTree> tree;
};

}  // namespace treering::testing

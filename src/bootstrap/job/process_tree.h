// SPDX-License-Identifier: Apache-2.0
// ProcessTree: the processes of a job as one of them knows them: the ranks of each and which of these have left, whose
// parent is whose, and its own place. No I/O.
//
//   0
//   |-- 1          in process 1:  parent() = 0, children() = {3, 4}; a message for 5 goes to 3, one for 2 goes to 0
//   |   |-- 3
//   |   |   '-- 5
//   |   '-- 4      after "4 has moved to 2": parent_of(4) = 2; that it is no child any more is the connections' business
//   '-- 2
//
// The parent and the children are those that this process has a connection to. The others' parents are what they have
// told. A process may lose its parent: then it has none for a while, and either finds another one or becomes a top.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "bootstrap/frames.h"

namespace treering {

class ProcessTree {
 public:
  // This process.
  void set_own(uint32_t process) { own_ = process; }
  uint32_t own() const { return own_; }
  bool is_top() const { return top_; }
  bool has_parent() const { return parent_ != kNobody; }
  uint32_t parent() const { return parent_; }
  bool is_parent(uint32_t process) const { return has_parent() && process == parent_; }
  const std::set<uint32_t>& children() const { return children_; }
  bool is_child(uint32_t process) const { return children_.count(process) != 0; }
  std::vector<uint32_t> neighbours() const;  // the parent first

  // What was a child is none any more when it becomes the parent.
  void attach_to(uint32_t parent);
  void become_top();
  void add_child(uint32_t process) { children_.insert(process); }
  // Takes a neighbour away.
  void remove(uint32_t process);

  // All processes, once the ranks have met.
  void meet(ProcessTableMessage table);
  bool has_met() const { return !process_table_.places.empty(); }
  const ProcessTableMessage& process_table() const { return process_table_; }
  // The message of the process table, for a process whose segment comes along, or not.
  std::string process_table_bytes(bool has_segment);
  uint32_t size() const { return static_cast<uint32_t>(process_table_.places.size()); }
  const Place& place(uint32_t process) const { return process_table_.places[process]; }
  uint32_t ranks() const { return static_cast<uint32_t>(process_table_.process_of_rank.size()); }
  uint32_t process_of(uint32_t rank) const { return process_table_.process_of_rank[rank]; }

  // kNobody: it is a top, or not known.
  uint32_t parent_of(uint32_t process) const { return process < parent_of_.size() ? parent_of_[process] : kNobody; }
  void move(uint32_t process, uint32_t parent);
  // The neighbour to whom a message for `process` goes that came from `from`; kNobody: there is none.
  uint32_t next_hop(uint32_t process, uint32_t from) const;

  // It may leave before the processes' ranks are known here.
  void rank_left(uint32_t rank);
  const std::set<uint32_t>& ranks_that_left() const { return left_; }
  // Whether no rank is there (any more), as in a process that never held one. No process has left before the ranks met.
  bool has_left(uint32_t process) const { return has_met() && (process >= size() || present_[process] == 0); }
  bool holds_ranks(uint32_t process) const { return process < size() && held_[process] != 0; }  // or did so
  std::vector<uint32_t> ranks_of(uint32_t process) const;
  std::vector<uint32_t> present_ranks(uint32_t process) const;  // that have not left
  // "rank 3 (pid 17 on b)".
  std::string describe(uint32_t process) const;
  // A loss or a silence in words. The process that noticed it may not have known its ranks yet; this process may.
  std::string say(const NoticeMessage& notice) const;
  // Who has not passed on what this process waits for; empty where it is the top.
  std::string heard_through() const;

 private:
  uint32_t own_ = kNobody;
  bool top_ = false;
  uint32_t parent_ = kNobody;
  std::set<uint32_t> children_;
  ProcessTableMessage process_table_;
  std::vector<uint32_t> parent_of_;
  std::vector<uint32_t> held_, present_;  // how many ranks, by process
  std::set<uint32_t> left_;               // ranks
};

}  // namespace treering

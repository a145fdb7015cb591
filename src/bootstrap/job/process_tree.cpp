// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/process_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace treering {

std::vector<uint32_t> ProcessTree::neighbours() const {
  std::vector<uint32_t> all;
  if (has_parent()) all.push_back(parent_);
  all.insert(all.end(), children_.begin(), children_.end());
  return all;
}

void ProcessTree::attach_to(uint32_t parent) {
  top_ = false;
  parent_ = parent;
  children_.erase(parent);
}

void ProcessTree::become_top() {
  top_ = true;
  parent_ = kNobody;
}

void ProcessTree::remove(uint32_t process) {
  if (is_parent(process)) parent_ = kNobody;
  children_.erase(process);
}

void ProcessTree::meet(ProcessTableMessage table) {
  process_table_ = std::move(table);
  parent_of_.clear();
  for (const Place& place : process_table_.places) parent_of_.push_back(place.parent);
  held_.assign(size(), 0);
  present_.assign(size(), 0);
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    ++held_[process_of(rank)];
    if (left_.count(rank) == 0) ++present_[process_of(rank)];
  }
}

std::string ProcessTree::process_table_bytes(bool has_segment) {
  process_table_.has_segment = has_segment;
  return encode(process_table_);
}

void ProcessTree::move(uint32_t process, uint32_t parent) {
  if (process < parent_of_.size()) parent_of_[process] = parent;
}

uint32_t ProcessTree::next_hop(uint32_t process, uint32_t from) const {
  uint32_t hop = process;
  // What is told of parents may be a circle for a moment.
  for (uint32_t i = 0; i < size() && hop < size(); ++i, hop = parent_of(hop))
    if (hop != from && is_child(hop)) return hop;
  return parent_ == from ? kNobody : parent_;
}

void ProcessTree::rank_left(uint32_t rank) {
  if (left_.insert(rank).second && rank < ranks()) --present_[process_of(rank)];
}

std::vector<uint32_t> ProcessTree::ranks_of(uint32_t process) const {
  std::vector<uint32_t> all;
  for (uint32_t rank = 0; rank < ranks(); ++rank)
    if (process_of(rank) == process) all.push_back(rank);
  return all;
}

std::vector<uint32_t> ProcessTree::present_ranks(uint32_t process) const {
  std::vector<uint32_t> present = ranks_of(process);
  std::erase_if(present, [this](uint32_t rank) { return left_.count(rank) != 0; });
  return present;
}

std::string ProcessTree::describe(uint32_t process) const {
  if (process >= size()) return fmt::format("process {}", process);
  const std::vector<uint32_t> ranks = ranks_of(process);
  const std::string who = ranks.empty() ? fmt::format("process {}", process)
                                        : fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
  return fmt::format("{} (pid {} on {})", who, place(process).pid, place(process).host_name);
}

std::string ProcessTree::say(const NoticeMessage& notice) const {
  return fmt::format("{}: {}", describe(notice.process), notice.text);
}

std::string ProcessTree::heard_through() const {
  if (is_top()) return {};
  if (!has_parent()) return "no other process answers " + describe(own());
  return fmt::format("{}, through which {} hears of the others, has not passed it on", describe(parent()),
                     describe(own()));
}

}  // namespace treering

// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/exchanger.h"

#include <fmt/format.h>

namespace treering {

// Keeps it until it is answered, for a parent may end with it.
void Exchanger::up(Kind kind, std::string bytes) {
  if (tree_.is_top()) return at_top(kind, bytes);
  if (tree_.has_parent()) connections_.send(tree_.parent(), bytes);
  exchange_.keep(kind, std::move(bytes));
}

// What flows up has arrived.
void Exchanger::at_top(Kind kind, const std::string& bytes) {
  HelloMessage hello;
  BlobMessage blob;
  SpreadMessage verdict;
  if (kind == Kind::kHello && decode(bytes, &hello)) {
    events_.hello(hello);
  } else if (kind == Kind::kBlob && decode(bytes, &blob)) {
    take_blob(blob);
  } else if (kind == Kind::kSpread && decode(bytes, &verdict) && !notices_.has_verdict()) {
    events_.verdict(verdict);
  }
}

void Exchanger::give_blob(uint32_t rank, uint64_t round, std::string blob) {
  if (notices_.has_verdict()) return members_.fail(notices_.verdict());
  // One that ended before this rank came so far has no part in the exchange, either.
  for (const NoticeMessage& notice : notices_.notices())
    if (notice.type == NoticeType::kLost && notice.process != tree_.own() && !tree_.has_left(notice.process))
      return members_.fail({trRemoteError, tree_.say(notice)});
  up(Kind::kBlob, encode(BlobMessage{rank, round, std::move(blob)}));
}

void Exchanger::take_blob(const BlobMessage& blob) {
  const bool is_first = !exchange_.is_under_way();
  if (!job_.runs() || notices_.has_verdict() || !exchange_.take_part(blob, tree_.ranks())) return;
  if (is_first && deadline() != Clock::time_point::max())
    deadline_.set(deadline() - Clock::now(), [this] {
      if (Status status = deadline_passed(); !status.ok()) events_.failed(status);
    });
  for (uint32_t rank : tree_.ranks_that_left())
    if (rendezvous_.root() != nullptr && !notices_.has_verdict() && exchange_.lacks(rank))
      return events_.failed(why_left(rank));
  const std::string all = exchange_.complete(tree_.ranks());
  if (all.empty()) return;
  take_blobs(all, tree_.own());
}

void Exchanger::take_blobs(const std::string& bytes, uint32_t from) {
  const auto blobs = exchange_.finish_round(bytes, tree_.ranks());
  if (!blobs) return;
  deadline_.cancel();
  rendezvous_.drop_segment();  // all have the process table
  connections_.send_to_children(bytes);
  if (tree_.has_parent() && !tree_.is_parent(from)) connections_.send(tree_.parent(), bytes);
  // Afterwards, for what the blobs say may end this process.
  connections_.after_sending([this, blobs, round = exchange_.round()] {
    members_.change([&](Member& member) {
      member.answered = round;
      member.answer = blobs;
    });
  });
}

void Exchanger::bring_up_to_date(uint32_t neighbour, uint64_t round) {
  if (round < exchange_.round()) connections_.send(neighbour, exchange_.last_blobs());
}

void Exchanger::hand_over() {
  deadline_.cancel();
  exchange_.hand_over();  // to the one above, with all that is unanswered
}

void Exchanger::attached(uint32_t parent) {
  for (const auto& [kind, bytes] : exchange_.unanswered()) connections_.send(parent, bytes);
}

void Exchanger::become_top() {
  for (const auto& [kind, bytes] : exchange_.take_unanswered()) at_top(kind, bytes);
}

// No rank gives its part of an exchange after a verdict.
void Exchanger::take_verdict() {
  exchange_.answered(Kind::kSpread);
  if (exchange_.is_awaited()) members_.fail(notices_.verdict());
}

void Exchanger::take_leaving(uint32_t rank) {
  if (!tree_.is_top() || rendezvous_.root() == nullptr || notices_.has_verdict()) return;
  if (!job_.meets() && !exchange_.lacks(rank)) return;
  if (Status status = why_left(rank); !status.ok()) events_.failed(status);
}

bool Exchanger::take_loss(const NoticeMessage& notice) {
  const RendezvousRoot* root = rendezvous_.root();
  if (tree_.is_top() && root != nullptr && (job_.meets() || exchange_.is_under_way())) {
    const Status status = root->lost_process(notice.process);
    if (!status.ok()) events_.failed(status);
    return !status.ok();
  }
  if (!job_.runs() || !exchange_.is_awaited()) return false;
  deadline_.cancel();
  exchange_.drop_parts();
  members_.fail({trRemoteError, tree_.say(notice)});
  return true;
}

// The failure of those who wait for a rank that has left.
Status Exchanger::why_left(uint32_t rank) const {
  const Status cause = notices_.cause_of_leaving(rank);
  return cause.ok() ? rendezvous_.root()->lost_rank(rank) : cause;
}

Status Exchanger::deadline_passed() const {
  if (!tree_.is_top()) return {};
  const RendezvousRoot* root = rendezvous_.root();
  if (root != nullptr && job_.meets()) return root->deadline_passed(nullptr, {});
  if (!exchange_.is_under_way()) return {};
  if (root != nullptr) return root->deadline_passed(&exchange_.parts(), detector_.silent_processes());
  return {trTimeout, fmt::format("the deadline passed while {} waited for the other ranks' part of an exchange; "
                                 "missing: {}",
                                 tree_.describe(tree_.own()), exchange_.missing(tree_))};
}

// All ranks have the same timeout. Only the rendezvous root can be without ranks of its own.
Clock::time_point Exchanger::deadline() const {
  const RendezvousRoot* root = rendezvous_.root();
  int timeout_ms = root != nullptr ? root->timeout_ms() : 0;
  auto latest = Clock::time_point::max();
  if (!members_.all().empty()) {
    const JoinRequest& request = members_.all().begin()->second->request;
    if (root == nullptr) timeout_ms = request.timeout_ms;
    latest = request.deadline;
  }
  return creation_deadline(timeout_ms, rendezvous_.met_at(), latest);
}

}  // namespace treering

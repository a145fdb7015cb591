// SPDX-License-Identifier: Apache-2.0
#include "failure/call_comparison.h"

#include <fmt/format.h>

#include <algorithm>

namespace treering {
namespace {

// Whether two tags are of one operation that two ranks called differently.
bool differ(uint64_t ours, uint64_t theirs) { return ours != theirs && operation_of(ours) == operation_of(theirs); }

}  // namespace

std::optional<uint64_t> CallComparison::first_difference(const RankStatusSnapshot& other) const {
  const uint64_t own = call_->number();
  const uint64_t kept = std::min<uint64_t>(own, kCallsKept);
  for (uint64_t operation = own - kept + 1; operation <= own; ++operation) {
    const uint64_t tag = status_->calls[operation % kCallsKept].tag.load(std::memory_order_relaxed);
    if (differ(tag, other.call(operation).tag)) return operation;
  }
  return {};
}

Status CallComparison::check_mapped(uint32_t peer) const {
  if (peer == peers_->own_rank()) return {};
  const RankStatus* status = peers_->mapped(peer);
  if (status == nullptr) return {};  // reading it costs a system call: Watch does, less often
  // Signatures stand for all calls so far: the last that both have made tells.
  const uint64_t both = std::min(call_->number(), status->operation.load(std::memory_order_acquire)) % kCallsKept;
  const uint64_t ours = status_->calls[both].tag.load(std::memory_order_relaxed);
  return differ(ours, status->calls[both].tag.load(std::memory_order_acquire))
             ? calls_differ(peer, snapshot_of(*status))
             : Status();
}

Status CallComparison::calls_differ(uint32_t peer, const RankStatusSnapshot& other) const {
  const RankStatusSnapshot own = snapshot_of(*status_);
  // Calls that both keep show where they began to differ. Else the messages met out of step.
  const std::optional<uint64_t> found = first_difference(other);
  const uint64_t ours = found.value_or(call_->number()), theirs = found.value_or(other.operation);
  const CallCopy &own_call = own.call(ours), &other_call = other.call(theirs);
  if (ours == theirs && text_of(other_call) == text_of(own_call))
    return {
        trInvalidUsage,
        fmt::format("the ranks' calls differ at or before operation {}: {} and {} both called {}, but with other "
                    "counts of {} or another compression, or an earlier call of theirs differed, as in its root. All "
                    "ranks must make the same calls in the same order",
                    ours, peers_->describe(peers_->own_rank()), peers_->describe(peer), text_of(own_call),
                    own_call.fused != 0 ? "the single calls" : "the ranks")};
  return {trInvalidUsage,
          fmt::format("the ranks' calls differ at operation {}: {} called {}; {} called {}{}. All ranks must make "
                      "the same calls in the same order",
                      ours, peers_->describe(peers_->own_rank()), text_of(own_call), peers_->describe(peer),
                      text_of(other_call), ours == theirs ? "" : fmt::format(" as its operation {}", theirs))};
}

// A size that is told is of a transfer of the same call: nothing else differs.
Status CallComparison::transfers_differ(uint32_t peer, const TransferSizes& sizes) const {
  const std::string own = peers_->describe(peers_->own_rank()), other = peers_->describe(peer);
  if (call_->is_counted())
    return {trInvalidUsage,
            fmt::format("the ranks' calls differ in {}: {} receives from rank {} {} bytes, but {} sends "
                        "it {} bytes. Their counts for one another must be equal",
                        call_->place(), own, peer, *sizes.expected, other, *sizes.sent)};
  if (sizes.sent)
    return {trInvalidUsage, fmt::format("{} receives from rank {} {} bytes, but {} sends it {} bytes: the k-th "
                                        "receive must have as many bytes as the k-th send",
                                        own, peer, *sizes.expected, other, *sizes.sent)};
  return {trInvalidUsage,
          fmt::format("{} receives from rank {} {} bytes that {} does not send: the k-th receive must have as "
                      "many bytes as the k-th send, and collectives must stand between the same ones",
                      own, peer, *sizes.expected, other)};
}

// The message of a send, which is in no collective.
Status CallComparison::meets_send(uint32_t peer, uint64_t bytes) const {
  return {trInvalidUsage,
          fmt::format(
              "the ranks' calls differ at operation {}: {} called {}; {} sends it {} bytes, which it has not received "
              "before. Collectives must stand between the same sends and receives on all ranks",
              call_->number(), peers_->describe(peers_->own_rank()), call_->text(), peers_->describe(peer), bytes)};
}

Status CallComparison::called_something_else(uint32_t peer, const RankStatusSnapshot* shown) const {
  std::string where = "does not answer any more";
  if (shown != nullptr && shown->operation > 0)
    where = fmt::format("is {} operation {} ({})", shown->operation > shown->completed ? "in" : "no further than",
                        shown->operation, text_of(shown->call(shown->operation)));
  return {
      trInvalidUsage,
      fmt::format("the ranks' calls differ at operation {}: {} called {}; {}, which called something else, {}. "
                  "All ranks must make the same calls in the same order",
                  call_->number(), peers_->describe(peers_->own_rank()), call_->text(), peers_->describe(peer), where)};
}

}  // namespace treering

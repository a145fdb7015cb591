// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stripes.h"

#include <algorithm>

namespace treering {
namespace {
// Fractions of a measured imbalance that are applied to the next message alone and to all later ones; the latter is larger
// during warm-up. Where messages queue up, an imbalance is the sum of all wrong parts so far: it swings if kForGood is more
// than the square of half of kAtOnce (docs/tcp.md).
constexpr double kAtOnce = 1.0 / 4, kForGood = 1.0 / 64, kForGoodAtFirst = 1.0 / 2;
// A stream that is slower still gets a fragment from time to time, which shows whether it has become faster.
constexpr double kMinWeight = 1.0 / 128;
// A stream that had no room for long is owed no more than so many bytes of an even part.
constexpr double kMaxOwed = 512 << 10;
constexpr double kMinPart = 1 << 10, kMinMore = 16 << 10;
constexpr uint32_t kMinStriped = 32 << 10;  // messages
}  // namespace

void StripeScheduler::open(uint32_t stream) {
  double least = 0;
  bool any = false;
  for (const Stream& other : streams_)
    if (other.open) least = any ? std::min(least, other.due) : other.due, any = true;
  streams_[stream - 1].open = true;
  streams_[stream - 1].due = least;  // what was sent before is no debt
}

bool StripeScheduler::stripes(uint32_t message) const { return streams_.size() > 1 && message >= kMinStriped; }

double StripeScheduler::find_least_weight(uint32_t message) const {
  if (stripes(message)) return 0;
  double greatest = 0;
  for (const Stream& stream : streams_)
    if (stream.open) greatest = std::max(greatest, stream.weight);
  return greatest / 2;
}

double StripeScheduler::due(const Stream& stream) const { return std::max(stream.due, clock_ - kMaxOwed); }

uint32_t StripeScheduler::fragment_bytes(uint32_t stream, uint32_t message, uint32_t left, uint32_t most) const {
  most = std::min(most, left);
  if (!stripes(message)) return most;
  double weights = 0, given = 0;
  for (const Stream& each : streams_)
    if (each.open) weights += each.weight, given += each.weight * due(each);
  const Stream& to = streams_[stream - 1];
  const double share = to.weight / weights * message;
  const double part =
      ((given + left) / weights - due(to)) * to.weight;  // the dues are to be equal at the message's end
  // One that has nearly all of its part gets more only where the others have no room.
  const double fragment = part >= share / 4 ? std::max(part, kMinPart) : std::max(share / 2, kMinMore);
  return static_cast<uint32_t>(std::min<double>(most, fragment + 1));
}

void StripeScheduler::gave(uint32_t stream, uint32_t message, uint32_t bytes) {
  Stream& to = streams_[stream - 1];
  to.due = due(to);
  clock_ = std::max(clock_, to.due);
  to.due += bytes / to.weight;
  if (stripes(message)) given_ += bytes;
}

bool StripeScheduler::learn(const ArrivalSkew& skew, uint64_t begin, uint64_t end) {
  if (skew.late == 0) return true;
  if (skew.late > streams_.size() || skew.early == 0 || skew.early > streams_.size() || skew.early == skew.late)
    return false;
  if (begin < learned_ || begin >= end || end > given_) return true;
  Stream &late = streams_[skew.late - 1], &early = streams_[skew.early - 1];
  // With this less of the one and more of the other both would have been through at the same time.
  const double off =
      std::min<double>(skew.left, static_cast<double>(end - begin)) * early.weight / (early.weight + late.weight);
  if (given_ > end) {
    late.due += kAtOnce * off / late.weight;
    early.due -= kAtOnce * off / early.weight;
  }
  // It arose over all that was given since the last lesson.
  const double gain = std::max(kForGood, kForGoodAtFirst / (1 + lessons_ / 4.0));
  const double shift = gain * off / static_cast<double>(end - learned_) * static_cast<double>(streams_.size());
  const double less = std::min(shift, (late.weight - kMinWeight) / 2);
  late.weight -= less;
  early.weight += less;
  learned_ = given_;
  ++lessons_;
  return true;
}

}  // namespace treering

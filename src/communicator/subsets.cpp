// SPDX-License-Identifier: Apache-2.0
#include "communicator/subsets.h"

#include <fmt/format.h>
#include <sodium.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "bootstrap/membership.h"
#include "bootstrap/unique_id.h"
#include "communicator/communicator.h"

namespace treering {

namespace {

// One deadline for all waits of a call. What this rank waited for before is over.
class CallDeadline {
 public:
  CallDeadline(Watch* watch, RankStatus* status, int timeout_ms) : watch_(watch) {
    status->waiting_for.store(0, std::memory_order_relaxed);
    if (timeout_ms > 0) watch->set_call_deadline(Clock::now() + std::chrono::milliseconds(timeout_ms));
  }
  ~CallDeadline() { watch_->set_call_deadline(Clock::time_point::max()); }
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

 private:
  Watch* watch_;
};

constexpr size_t kLookedAt = 32;  // members, in one look

// For those ranks, which users know by their numbers in the communicator that is there.
Status make_rendezvous_root(const Watch& watch, const std::vector<uint32_t>& members, SplitInfo* info) {
  UniqueId id;
  std::vector<std::string> names;
  for (uint32_t member : members) names.push_back(watch.peers().describe(member));
  const Status made = Membership::make_rendezvous_root(&id, names);
  if (made.ok()) info->hold(SplitInfo::kId, pack(id));
  return made;
}

Status no_rendezvous_root(const Watch& watch, const char* function, uint32_t rank) {
  return {trRemoteError, fmt::format("{}: {}, the first of the new communicator, could not make the rendezvous root",
                                     function, watch.peers().describe(rank))};
}

// Ranks that come to the rendezvous which this rank has made, if it did, hear why it came to nothing. Else its root would
// listen for as long as the process lives.
Status end_rendezvous(const SplitInfo& own, const char* function, const Status& status) {
  UniqueId id;
  if (status.ok() || own.content != SplitInfo::kId || !unpack(own.held<trUniqueId>(), &id).ok()) return status;
  std::string text = status.message();
  if (const std::string prefix = fmt::format("{}: ", function); text.starts_with(prefix)) text.erase(0, prefix.size());
  Membership::end_rendezvous(id, {status.code(), text});
  return status;
}

}  // namespace

// Data streams are not encrypted, and who reads a communicator's secret may join it.
Status Subsets::exchange_sealed(Purpose purpose, const char* function, const SplitInfo& own,
                                std::vector<SplitInfo>* infos) {
  struct Sealed {
    unsigned char nonce[crypto_secretbox_NONCEBYTES];
    unsigned char box[crypto_secretbox_MACBYTES + sizeof(SplitInfo)];
  };
  static_assert(sizeof parts_->split_key == crypto_secretbox_KEYBYTES);
  Sealed mine;
  randombytes_buf(mine.nonce, sizeof mine.nonce);
  crypto_secretbox_easy(mine.box, reinterpret_cast<const unsigned char*>(&own), sizeof own, mine.nonce,
                        parts_->split_key.data());
  std::vector<Sealed> all(parts_->context.ranks);
  TR_RETURN_IF_ERROR(
      communicator_->allgather_bytes(purpose, &mine, sizeof mine, reinterpret_cast<std::byte*>(all.data())));
  for (uint32_t rank = 0; rank < parts_->context.ranks; ++rank)
    if (crypto_secretbox_open_easy(reinterpret_cast<unsigned char*>(&(*infos)[rank]), all[rank].box,
                                   sizeof all[rank].box, all[rank].nonce, parts_->split_key.data()) != 0)
      return {trRemoteError, fmt::format("{}: what rank {} sent was changed on its way", function, rank)};
  return {};
}

Status Subsets::split(int color, int key, const Config& config, std::unique_ptr<Communicator>* result) {
  constexpr const char* kName = "trCommSplit";
  const CallDeadline deadline(parts_->watch.get(), parts_->context.status, parts_->config.timeout_ms);
  for (; parts_->watch->in_doubt() && parts_->watch->poll().ok(); usleep(500)) serve_();
  const bool failed = !communicator_->failure().ok();
  const uint64_t next_round = parts_->notices->rounds() + (failed ? kRoundsOfSplit : 0);
  std::vector<uint32_t> everyone(parts_->context.ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<SplitInfo> infos(parts_->context.ranks);
  SplitInfo own{color, key, parts_->context.rank, SplitInfo::kNothing, {}};
  auto exchange = [&] {
    return failed ? parts_->notices->exchange(everyone, kName, own, nullptr, &infos)
                  : communicator_->allgather_bytes(Purpose::kSplit, &own, sizeof own,
                                                   reinterpret_cast<std::byte*>(infos.data()));
  };
  Status status = exchange();
  std::vector<SplitInfo> members;
  for (const SplitInfo& info : infos)
    if (info.color == color) members.push_back(info);
  std::sort(members.begin(), members.end(),
            [](const SplitInfo& a, const SplitInfo& b) { return std::tie(a.key, a.rank) < std::tie(b.key, b.rank); });
  std::vector<uint32_t> ranks_of_color;
  for (const SplitInfo& info : members) ranks_of_color.push_back(info.rank);
  // The id is made only now: what listens for a rendezvous that never comes would listen until the deadline.
  Status made;
  if (status.ok() && color >= 0 && members.size() > 1 && members[0].rank == parts_->context.rank)
    made = make_rendezvous_root(*parts_->watch, ranks_of_color, &own);
  if (status.ok()) status = failed ? exchange() : exchange_sealed(Purpose::kSplit, kName, own, &infos);
  parts_->notices->skip_to(next_round);
  TR_RETURN_IF_ERROR(end_rendezvous(own, kName, status));
  TR_RETURN_IF_ERROR(made);
  if (color < 0) return {};
  if (members.size() == 1) return Communicator::create_alone(config, result);
  const SplitInfo& first = infos[members[0].rank];
  if (first.content != SplitInfo::kId) return no_rendezvous_root(*parts_->watch, kName, first.rank);
  status = create_of(static_cast<uint32_t>(members.size()), ranks_of_color, first.rank, first.held<trUniqueId>(), kName,
                     config, result);
  return end_rendezvous(own, kName, status);
}

// The communicator of those ranks, in that order, and of others that follow them. What is known here of their deaths
// ends its creation: they have not met there yet, or have no rank there that could be missed.
Status Subsets::create_of(uint32_t ranks, const std::vector<uint32_t>& members, uint32_t giver, const trUniqueId& id,
                          const char* function, const Config& config, std::unique_ptr<Communicator>* result) {
  CreationTerms terms;
  const auto new_rank =
      static_cast<uint32_t>(std::find(members.begin(), members.end(), parts_->context.rank) - members.begin());
  Status known;            // a death
  size_t next = new_rank;  // whose turn it is, which differs between the ranks: a look costs a system call
  terms.guard = [&]() -> Status {
    if (parts_->watch->peers().has_lost_any(members))
      return known = parts_->watch->peers().check_deaths(members, function);
    for (size_t i = 0; i < std::min(members.size(), kLookedAt); ++i, ++next)
      if (!parts_->watch->peers().check_death(members[next % members.size()], function).ok())
        return known = parts_->watch->peers().check_deaths(members, function);
    return {};
  };
  terms.deadline = parts_->watch->call_deadline();
  Status status = Communicator::create(ranks, id, new_rank, config, result, terms);
  if (status.ok() || !known.ok()) return status;
  std::string text = status.message();
  // Users know the process that cannot be reached by its rank.
  if (text.find("the process that made the unique id") != std::string::npos)
    text += fmt::format(". The id is from {}", parts_->watch->peers().describe(giver));
  if (status.code() == trTimeout)
    return parts_->watch->late(function, members, [&] { return text + parts_->notices->waits_of(members, function); });
  return {status.code(), fmt::format("{}: {}", function, text)};
}

// One that leaves after that tells the others of it: they are in the call, and know the communicator's failure.
Status Subsets::shrink(const std::vector<uint32_t>& members, const Config& config,
                       std::unique_ptr<Communicator>* result) {
  shrink_failure_ = agree_and_shrink(members, config, result);
  return shrink_failure_;
}

// A rank that is alone shows what it calls, too, for others that count on it.
Status Subsets::agree_and_shrink(const std::vector<uint32_t>& members, const Config& config,
                                 std::unique_ptr<Communicator>* result) {
  constexpr const char* kName = "trCommShrink";
  const CallDeadline deadline(parts_->watch.get(), parts_->context.status, parts_->config.timeout_ms);
  const uint64_t next_round = parts_->notices->rounds() + kRoundsOfSplit;
  RankSet set;
  for (const uint32_t member : members) set.set(member);
  std::vector<SplitInfo> infos;
  SplitInfo own{0, 0, parts_->context.rank, SplitInfo::kNothing, {}};
  own.hold(SplitInfo::kMembers, set);
  Status status = parts_->notices->exchange(members, kName, own, &set, &infos);
  Status made;
  if (status.ok() && members.size() > 1) {
    own.content = SplitInfo::kNothing;
    if (members[0] == parts_->context.rank) made = make_rendezvous_root(*parts_->watch, members, &own);
    status = parts_->notices->exchange(members, kName, own, nullptr, &infos);
  }
  parts_->notices->skip_to(next_round);
  TR_RETURN_IF_ERROR(end_rendezvous(own, kName, status));
  TR_RETURN_IF_ERROR(made);
  if (members.size() == 1) return Communicator::create_alone(config, result);
  if (infos[0].content != SplitInfo::kId) return no_rendezvous_root(*parts_->watch, kName, members[0]);
  status = create_of(static_cast<uint32_t>(members.size()), members, members[0], infos[0].held<trUniqueId>(), kName,
                     config, result);
  return end_rendezvous(own, kName, status);
}

// The new ranks wait at the id and know of no failure here: the rank that gave the id tells them.
Status Subsets::grow(uint32_t total, const trUniqueId* id, const Config& config,
                     std::unique_ptr<Communicator>* result) {
  const Status status = agree_and_grow(total, id, config, result);
  UniqueId given;
  if (!status.ok() && id != nullptr && unpack(*id, &given).ok())
    Membership::end_rendezvous(given,
                               {status.code(), "the communicator that was to grow has failed: " + status.message()});
  return status;
}

// Each rank has all infos, so all conclude the same.
Status Subsets::agree_and_grow(uint32_t total, const trUniqueId* id, const Config& config,
                               std::unique_ptr<Communicator>* result) {
  constexpr const char* kName = "trCommGrow";
  const CallDeadline deadline(parts_->watch.get(), parts_->context.status, parts_->config.timeout_ms);
  SplitInfo own{static_cast<int32_t>(total), 0, parts_->context.rank, SplitInfo::kNothing, {}};
  if (id != nullptr) own.hold(SplitInfo::kId, *id);
  std::vector<SplitInfo> infos(parts_->context.ranks);
  TR_RETURN_IF_ERROR(exchange_sealed(Purpose::kGrow, kName, own, &infos));
  const SplitInfo* giver = nullptr;
  for (const SplitInfo& info : infos) {
    if (info.color != infos[0].color)
      return {trInvalidUsage, fmt::format("{}: nranks differs: rank 0 gave {}, rank {} gave {}", kName, infos[0].color,
                                          info.rank, info.color)};
    if (info.content != SplitInfo::kId) continue;
    if (giver != nullptr)
      return {trInvalidUsage, fmt::format("{}: ranks {} and {} gave an id; one does, the one that handed it to the new "
                                          "ranks",
                                          kName, giver->rank, info.rank)};
    giver = &info;
  }
  if (total <= parts_->context.ranks)
    return {trInvalidArgument,
            fmt::format("{}: nranks is {}; give more than the communicator's {}", kName, total, parts_->context.ranks)};
  if (giver == nullptr)
    return {trInvalidUsage,
            fmt::format("{}: no rank gave an id; one does, the one that handed it to the new ranks", kName)};
  std::vector<uint32_t> members(parts_->context.ranks);
  std::iota(members.begin(), members.end(), 0);
  return create_of(total, members, giver->rank, giver->held<trUniqueId>(), kName, config, result);
}

}  // namespace treering

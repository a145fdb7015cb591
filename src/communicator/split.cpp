// Subsets of a communicator's ranks.
//
//   split     allgather (colour, key)   every rank knows who belongs together
//             allgather (id)            the first rank of each colour has made one
//   shrink    exchange of notices (id)  the survivors know one another; nothing of the communicator but the ranks'
//                                       status is used, so excluded ranks may be dead and the communicator may have failed
//   create()                            the ranks of each subset meet as those of any new communicator
//
// A split of a communicator that has failed on every rank (it was revoked) exchanges notices, too.
#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "communicator/communicator.h"
#include "communicator/membership.h"
#include "communicator/unique_id.h"

namespace treering {

struct SplitCard {
  int32_t color;
  int32_t key;
  uint32_t rank;
  uint32_t has_id;
  trUniqueId id;
};
static_assert(sizeof(SplitCard) == kNoticeWords * sizeof(uint64_t));

namespace {

// Rounds of a split or shrink, whatever becomes of it: ranks that fail at different points agree on the next one's.
constexpr uint64_t kRoundsOfMeeting = 2;

Status make_meeting_point(SplitCard* card) {
  UniqueId id;
  const Status made = Membership::make_meeting_point(&id);
  if (made.ok()) card->id = pack(id);
  card->has_id = made.ok();
  return made;
}

Status no_meeting_point(const char* function, uint32_t rank) {
  return {trRemoteError, fmt::format("{}: rank {}, the first of the new communicator, could not make the meeting point",
                                     function, rank)};
}

}  // namespace

// Blocks; the same bytes on all ranks.
Status Communicator::allgather_bytes(Purpose purpose, const void* own, size_t bytes, std::byte* all) {
  Operation operation;
  operation.function = "an exchange of the library";
  operation.collective = Collective::kAllGather;
  operation.purpose = purpose;
  operation.input = own;
  operation.output = all;
  operation.count = bytes;
  operation.type = trUint8;
  return run(operation);
}

// *arrived: the peer's notice of that round is here.
Status Communicator::read_notice(uint32_t peer, uint64_t round, const char* function, SplitCard* card,
                                 bool* arrived) const {
  *arrived = false;
  // Twice: a copy from another process may be half old, but not any more once the round was there before it was taken.
  for (int look = 0; look < 2; ++look) {
    RankStatusSnapshot snapshot;
    if (!watch_->read(peer, &snapshot)) return watch_->check_peer(peer, function);
    const auto& notice = snapshot.notices[round % 2];
    if (notice.round > round)
      return {trInvalidUsage,
              fmt::format("{}: rank {} has gone on to another one: the ranks' calls differ", function, peer)};
    if (notice.round < round) return watch_->check_peer(peer, function);
    std::memcpy(card, notice.words.data(), sizeof *card);
  }
  *arrived = true;
  return {};
}

// Shows `own` to the other members and waits for theirs.
Status Communicator::exchange_notices(const std::vector<uint32_t>& members, const char* function, const SplitCard& own,
                                      std::vector<SplitCard>* cards) {
  const uint64_t round = ++meetings_;
  Notice& notice = context_.status->notices[round % 2];
  uint64_t words[kNoticeWords];
  std::memcpy(words, &own, sizeof own);
  for (size_t i = 0; i < kNoticeWords; ++i) notice.words[i].store(words[i], std::memory_order_relaxed);
  notice.round.store(round, std::memory_order_release);
  const auto deadline = Clock::now() + std::chrono::milliseconds(config_.timeout_ms);
  Backoff backoff;
  cards->resize(members.size());
  for (size_t i = 0; i < members.size();) {
    bool arrived = false;
    if (Status status = read_notice(members[i], round, function, &(*cards)[i], &arrived); !status.ok()) {
      // A member that has gone on may have seen another one's death before this rank did.
      for (uint32_t member : members) TR_RETURN_IF_ERROR(watch_->check_peer(member, function));
      return status;
    }
    if (arrived) {
      ++i;
      backoff.reset();
      continue;
    }
    if (config_.timeout_ms > 0 && Clock::now() > deadline)
      return {trTimeout,
              fmt::format("{}: rank {} has not called it within {} ms", function, members[i], config_.timeout_ms)};
    (void)backoff.pause();
  }
  return {};
}

// Data streams are not encrypted, and who reads a communicator's secret may join it.
Status Communicator::exchange_sealed(const SplitCard& own, std::vector<SplitCard>* cards) {
  struct Sealed {
    unsigned char nonce[crypto_secretbox_NONCEBYTES];
    unsigned char box[crypto_secretbox_MACBYTES + sizeof(SplitCard)];
  };
  static_assert(sizeof split_key_ == crypto_secretbox_KEYBYTES);
  Sealed mine;
  randombytes_buf(mine.nonce, sizeof mine.nonce);
  crypto_secretbox_easy(mine.box, reinterpret_cast<const unsigned char*>(&own), sizeof own, mine.nonce,
                        split_key_.data());
  std::vector<Sealed> all(ranks());
  TR_RETURN_IF_ERROR(allgather_bytes(Purpose::kSplit, &mine, sizeof mine, reinterpret_cast<std::byte*>(all.data())));
  for (uint32_t rank = 0; rank < ranks(); ++rank)
    if (crypto_secretbox_open_easy(reinterpret_cast<unsigned char*>(&(*cards)[rank]), all[rank].box,
                                   sizeof all[rank].box, all[rank].nonce, split_key_.data()) != 0)
      return {trRemoteError, fmt::format("trCommSplit: what rank {} sent was changed on its way", rank)};
  return {};
}

Status Communicator::split(int color, int key, const Config& config, std::unique_ptr<Communicator>* result) {
  constexpr const char* kName = "trCommSplit";
  const bool failed = !failure().ok();
  const uint64_t next_meeting = meetings_ + (failed ? kRoundsOfMeeting : 0);
  std::vector<uint32_t> everyone(ranks());
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<SplitCard> cards(ranks());
  SplitCard own{color, key, rank(), 0, {}};
  auto exchange = [&] {
    return failed ? exchange_notices(everyone, kName, own, &cards)
                  : allgather_bytes(Purpose::kSplit, &own, sizeof own, reinterpret_cast<std::byte*>(cards.data()));
  };
  Status status = exchange();
  std::vector<SplitCard> members;
  for (const SplitCard& card : cards)
    if (card.color == color) members.push_back(card);
  std::sort(members.begin(), members.end(),
            [](const SplitCard& a, const SplitCard& b) { return std::tie(a.key, a.rank) < std::tie(b.key, b.rank); });
  // The id is made only now: what listens for a meeting that never comes would listen until the deadline.
  Status made;
  if (status.ok() && color >= 0 && members.size() > 1 && members[0].rank == rank()) made = make_meeting_point(&own);
  if (status.ok()) status = failed ? exchange() : exchange_sealed(own, &cards);
  meetings_ = std::max(meetings_, next_meeting);
  TR_RETURN_IF_ERROR(status);
  TR_RETURN_IF_ERROR(made);
  if (color < 0) return {};
  if (members.size() == 1) return create_alone(config, result);
  const SplitCard& first = cards[members[0].rank];
  if (first.has_id == 0) return no_meeting_point(kName, first.rank);
  uint32_t new_rank = 0;
  while (members[new_rank].rank != rank()) ++new_rank;
  return create(static_cast<uint32_t>(members.size()), first.id, new_rank, config, result);
}

Status Communicator::shrink(const std::vector<uint32_t>& members, const Config& config,
                            std::unique_ptr<Communicator>* result) {
  constexpr const char* kName = "trCommShrink";
  if (members.size() == 1) return create_alone(config, result);
  const uint64_t next_meeting = meetings_ + kRoundsOfMeeting;
  std::vector<SplitCard> cards;
  SplitCard own{0, 0, rank(), 0, {}};
  Status status = exchange_notices(members, kName, own, &cards);
  Status made;
  if (status.ok() && members[0] == rank()) made = make_meeting_point(&own);
  if (status.ok()) status = exchange_notices(members, kName, own, &cards);
  meetings_ = next_meeting;
  TR_RETURN_IF_ERROR(status);
  TR_RETURN_IF_ERROR(made);
  if (cards[0].has_id == 0) return no_meeting_point(kName, members[0]);
  const auto new_rank = static_cast<uint32_t>(std::find(members.begin(), members.end(), rank()) - members.begin());
  return create(static_cast<uint32_t>(members.size()), cards[0].id, new_rank, config, result);
}

}  // namespace treering

// Subsets of a communicator's ranks.
//
//   allgather (colour, key, id)   every rank knows who belongs together; the first rank of a colour has made the id
//   create()                      the ranks of each colour meet as those of any new communicator
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "communicator/communicator.h"
#include "communicator/root_service.h"
#include "communicator/unique_id.h"

namespace treering {
namespace {

struct SplitCard {
  int32_t color;
  int32_t key;
  uint32_t rank;
  uint32_t has_id;
  trUniqueId id;
};

}  // namespace

// Blocks; the same bytes on all ranks.
Status Communicator::allgather_bytes(const void* own, size_t bytes, std::byte* all) {
  Operation operation;
  operation.function = "an exchange of the library";
  operation.collective = Collective::kAllGather;
  operation.input = own;
  operation.output = all;
  operation.count = bytes;
  operation.type = trUint8;
  return run(operation);
}

Status Communicator::split(int color, int key, const Config& config, std::unique_ptr<Communicator>* result) {
  std::vector<SplitCard> cards(ranks());
  SplitCard own{color, key, rank(), 0, {}};
  auto exchange = [&] { return allgather_bytes(&own, sizeof own, reinterpret_cast<std::byte*>(cards.data())); };
  TR_RETURN_IF_ERROR(exchange());
  std::vector<SplitCard> members;
  for (const SplitCard& card : cards)
    if (card.color == color) members.push_back(card);
  std::sort(members.begin(), members.end(),
            [](const SplitCard& a, const SplitCard& b) { return std::tie(a.key, a.rank) < std::tie(b.key, b.rank); });
  // The id is made only now: what listens for a meeting that never comes would listen until the deadline.
  Status made;
  if (color >= 0 && members.size() > 1 && members[0].rank == rank()) {
    UniqueId id;
    made = make_unique_id(&id);
    if (made.ok()) made = start_root_service(id);
    if (made.ok()) own.id = pack(id);
    own.has_id = made.ok();
  }
  TR_RETURN_IF_ERROR(exchange());
  TR_RETURN_IF_ERROR(made);
  if (color < 0) return {};
  if (members.size() == 1) return create_alone(config, result);
  const SplitCard& first = cards[members[0].rank];
  if (first.has_id == 0)
    return {trRemoteError, fmt::format("trCommSplit: rank {}, the first of colour {}, could not make the meeting point",
                                       first.rank, color)};
  uint32_t new_rank = 0;
  while (members[new_rank].rank != rank()) ++new_rank;
  return create(static_cast<uint32_t>(members.size()), first.id, new_rank, config, result);
}

}  // namespace treering

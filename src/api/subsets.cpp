// SPDX-License-Identifier: Apache-2.0
// The C entry points that make a communicator from another, and those that tell its shape.
#include <optional>
#include <thread>

#include "api/common.h"
#include "core/config.h"
#include "core/names.h"

using namespace treering;

namespace {

Status split(trComm_t comm, int color, int key, trComm_t* newcomm, const trConfig_t* user_config) {
  if (newcomm == nullptr) return null_argument("trCommSplit", "newcomm");
  *newcomm = nullptr;
  if (color < TR_SPLIT_NOCOLOR)
    return {trInvalidArgument, fmt::format("trCommSplit: color is {}; give 0 or more, or TR_SPLIT_NOCOLOR", color)};
  Config config;
  if (user_config != nullptr) TR_RETURN_IF_ERROR(resolve_config(user_config, &config));
  const bool inherit = user_config == nullptr;
  auto create = [=]() -> Status {
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    if (lease->queued() != 0) Engine::instance().wait_idle(lease.get());
    std::unique_ptr<Communicator> made;
    TR_RETURN_IF_ERROR(lease->subsets().split(color, key, inherit ? lease->config() : config, &made));
    return made == nullptr ? Status() : add_communicator(std::move(made), newcomm);
  };
  if (!Group::current().open()) return create();
  Group::current().add_change(comm, create);
  return {};
}

Status check_excluded(const int* excluded, int count, const Communicator& communicator,
                      std::vector<uint32_t>* members) {
  // Before the list is read: a wrong count would lead past its end.
  if (static_cast<uint32_t>(count) > communicator.ranks())
    return {trInvalidArgument, fmt::format("trCommShrink: excluded_count is {}; the communicator has {} ranks", count,
                                           communicator.ranks())};
  std::vector<bool> out(communicator.ranks(), false);
  for (int i = 0; i < count; ++i) {
    if (excluded[i] < 0 || static_cast<uint32_t>(excluded[i]) >= communicator.ranks())
      return {trInvalidArgument, fmt::format("trCommShrink: excluded[{}] is {}; give {}", i, excluded[i],
                                             numbers_of_ranks(communicator.ranks()))};
    out[static_cast<size_t>(excluded[i])] = true;
  }
  if (out[communicator.rank()])
    return {trInvalidArgument,
            fmt::format("trCommShrink: this rank ({}) is among the excluded ones; those that go on call it",
                        communicator.rank())};
  members->clear();
  for (uint32_t rank = 0; rank < communicator.ranks(); ++rank)
    if (!out[rank]) members->push_back(rank);
  return {};
}

// A thread that is inside a call returns from it once the communicator has failed.
Status acquire_when_free(CommunicatorLease* lease, trComm_t comm) {
  for (;;) {
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    Status status = lease->acquire(comm);
    if (status.ok() || !pin->is_failing()) return status;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

Status shrink(trComm_t comm, const int* excluded, int count, trComm_t* newcomm, const trConfig_t* user_config,
              int flags) {
  if (newcomm == nullptr) return null_argument("trCommShrink", "newcomm");
  *newcomm = nullptr;
  if (excluded == nullptr && count > 0) return null_argument("trCommShrink", "excluded");
  if (count < 0) return {trInvalidArgument, fmt::format("trCommShrink: excluded_count is {}; give 0 or more", count)};
  if (flags != 0 && flags != TR_SHRINK_ABORT)
    return {trInvalidArgument, fmt::format("trCommShrink: flags is {}; give 0 or TR_SHRINK_ABORT", flags)};
  Config config;
  if (user_config != nullptr) TR_RETURN_IF_ERROR(resolve_config(user_config, &config));
  const bool inherit = user_config == nullptr;
  std::vector<uint32_t> members;
  {
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    TR_RETURN_IF_ERROR(check_excluded(excluded, count, *pin.operator->(), &members));
  }
  auto create = [=]() -> Status {
    if (flags == TR_SHRINK_ABORT) {
      CommunicatorPin pin;
      TR_RETURN_IF_ERROR(pin.acquire(comm));
      pin->abort(fmt::format("rank {} shrinks the communicator", pin->rank()));
    }
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(acquire_when_free(&lease, comm));
    if (lease->queued() != 0) Engine::instance().wait_idle(lease.get());
    std::unique_ptr<Communicator> made;
    TR_RETURN_IF_ERROR(lease->subsets().shrink(members, inherit ? lease->config() : config, &made));
    return add_communicator(std::move(made), newcomm);
  };
  if (!Group::current().open()) return create();
  Group::current().add_change(comm, create);
  return {};
}

Status grow(trComm_t comm, int nranks, const trUniqueId* id, trComm_t* newcomm, const trConfig_t* user_config) {
  if (newcomm == nullptr) return null_argument("trCommGrow", "newcomm");
  *newcomm = nullptr;
  if (nranks < 1 || nranks > kMaxRanks)
    return {
        trInvalidArgument,
        fmt::format("trCommGrow: nranks is {}; give more than the communicator has and at most {}", nranks, kMaxRanks)};
  Config config;
  if (user_config != nullptr) TR_RETURN_IF_ERROR(resolve_config(user_config, &config));
  std::optional<trUniqueId> own;
  if (id != nullptr) own = *id;
  auto create = [=, inherit = user_config == nullptr]() -> Status {
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    if (lease->queued() != 0) Engine::instance().wait_idle(lease.get());
    std::unique_ptr<Communicator> made;
    TR_RETURN_IF_ERROR(lease->subsets().grow(static_cast<uint32_t>(nranks), own ? &*own : nullptr,
                                             inherit ? lease->config() : config, &made));
    return add_communicator(std::move(made), newcomm);
  };
  if (!Group::current().open()) return create();
  Group::current().add_change(comm, create);
  return {};
}

}  // namespace

extern "C" {

trResult_t trCommSplit(trComm_t comm, int color, int key, trComm_t* newcomm, const trConfig_t* config) {
  return guarded(find_slot(comm), [&]() -> Status {
    Status status = split(comm, color, key, newcomm, config);
    if (!status.ok() && Group::current().open()) Group::current().add_failure(status);
    return status;
  });
}

trResult_t trCommDup(trComm_t comm, trComm_t* newcomm) { return trCommSplit(comm, 0, 0, newcomm, nullptr); }

trResult_t trCommShrink(trComm_t comm, const int* excluded, int excluded_count, trComm_t* newcomm,
                        const trConfig_t* config, int flags) {
  return guarded(find_slot(comm), [&]() -> Status {
    Status status = shrink(comm, excluded, excluded_count, newcomm, config, flags);
    if (!status.ok() && Group::current().open()) Group::current().add_failure(status);
    return status;
  });
}

trResult_t trCommGrow(trComm_t comm, int nranks, const trUniqueId* id, trComm_t* newcomm, const trConfig_t* config) {
  return guarded(find_slot(comm), [&]() -> Status {
    Status status = grow(comm, nranks, id, newcomm, config);
    if (!status.ok() && Group::current().open()) Group::current().add_failure(status);
    return status;
  });
}

trResult_t trCommGetLost(trComm_t comm, int* ranks, int* count) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (ranks == nullptr) return null_argument("trCommGetLost", "ranks");
    if (count == nullptr) return null_argument("trCommGetLost", "count");
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    *count = 0;
    for (uint32_t rank : pin->lost_ranks()) ranks[(*count)++] = static_cast<int>(rank);
    return {};
  });
}

trResult_t trCommGetRing(trComm_t comm, int* ring) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (ring == nullptr) return null_argument("trCommGetRing", "ring");
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    for (uint32_t rank : pin->plan().ring) *ring++ = static_cast<int>(rank);
    return {};
  });
}

trResult_t trCommGetTree(trComm_t comm, int tree, int* parent, int* children) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (parent == nullptr) return null_argument("trCommGetTree", "parent");
    if (children == nullptr) return null_argument("trCommGetTree", "children");
    if (tree != 0 && tree != 1) return {trInvalidArgument, fmt::format("trCommGetTree: tree is {}; give 0 or 1", tree)};
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    pin->tree_neighbours(tree == 1, parent, children);
    return {};
  });
}

}  // extern "C"

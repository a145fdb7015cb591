// SPDX-License-Identifier: Apache-2.0
// How communicators come to be: ids, ranks, splits, shrinks, grows.
#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "core/config.h"
#include "core/names.h"
#include "shim/entry.h"
#include "shim/group.h"
#include "shim/log.h"
#include "shim/report.h"
#include "shim/settings.h"
#include "shim/stream.h"
#include "shim/unique_ids.h"
#include "shim/variables.h"

using treering::kMaxRanks;
using treering::Status;
using namespace treering::nccl;

namespace {

// A handle for a communicator that `make` makes, in the open group or now. `parents` are not ready meanwhile.
using Make = std::function<Status(trComm_t* made)>;
Status create(const char* function, CommPtr comm, ncclComm_t* out, std::vector<CommPtr> parents, const Make& make) {
  ncclComm_t handle = add_comm(comm);
  *out = handle;
  Change change;
  change.comms = std::move(parents);
  change.comms.push_back(comm);
  change.work = [comm, make, function]() -> Status {
    trComm_t made = nullptr;
    TR_RETURN_IF_ERROR(make(&made));
    comm->attach(made);
    if (comm->get() != nullptr) report_comm(*comm, function);
    return {};
  };
  change.undo = [handle, out, function] {
    CommPtr ended;
    (void)remove_comm(function, handle, &ended);
    if (ended != nullptr) (void)ended->release(/*abort=*/false);
    *out = nullptr;
  };
  return submit(std::move(change));
}

// A wrong call in a group fails the group.
template <typename Body>
ncclResult_t grouped_entry(ncclComm_t comm, Body body) {
  return entry(comm, [&]() -> Status {
    Status status = body();
    if (!status.ok() && status.code() != trInProgress) Group::current().add_failure(status);
    return status;
  });
}

// Before an array of that many is read or written.
Status check_count(const char* function, const char* name, int count) {
  if (count < 1)
    return {trInvalidArgument, fmt::format("{}: {} is {}; give 1 to {}", function, name, count, kMaxRanks)};
  if (count <= kMaxRanks) return {};
  return {trInvalidArgument,
          fmt::format("{}: {} is {}; this version takes at most {}", function, name, count, kMaxRanks)};
}

Status check_rank(const char* function, ncclComm_t* comm, int nranks, int rank) {
  if (comm == nullptr) return null_argument(function, "comm");
  *comm = nullptr;
  TR_RETURN_IF_ERROR(check_count(function, "nranks", nranks));
  if (rank < 0 || rank >= nranks)
    return {trInvalidArgument, fmt::format("{}: rank is {}; give {}", function, rank,
                                           treering::numbers_of_ranks(static_cast<uint32_t>(nranks)))};
  return {};
}

Status init_rank(const char* function, ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank, int device,
                 const ncclConfig_t* config) {
  log_version();
  TR_RETURN_IF_ERROR(check_rank(function, out, nranks, rank));
  TR_RETURN_IF_ERROR(check_devices(function));
  Settings settings;
  TR_RETURN_IF_ERROR(resolve_settings(function, config, &settings));
  if (has_devices()) settings.device = device;
  auto comm = std::make_shared<Comm>(rank, nranks, device, settings.blocking, settings.name);
  return create(function, comm, out, {}, [=](trComm_t* made) -> Status {
    const trConfig_t tr_config = settings.config();
    trUniqueId resolved;
    TR_RETURN_IF_ERROR(resolve_id(id, nranks, rank, settings.timeout_ms, &resolved));
    return status_of(trCommInitRankConfig(made, nranks, resolved, rank, &tr_config));
  });
}

// What split and shrink share: the parent, and settings that are its own unless there are others.
struct Child {
  CommPtr parent;
  bool inherits = true;
  Settings settings;

  Status prepare(const char* function, ncclComm_t handle, ncclComm_t* out, const ncclConfig_t* config) {
    if (out == nullptr) return null_argument(function, "newcomm");
    *out = nullptr;
    TR_RETURN_IF_ERROR(find_comm(function, handle, &parent));
    inherits = config == nullptr;
    if (!inherits) TR_RETURN_IF_ERROR(resolve_settings(function, config, &settings));
    if (has_devices()) settings.device = parent->device;
    return {};
  }
  // Rank and size become known when it is attached.
  CommPtr comm() const {
    return std::make_shared<Comm>(0, 0, parent->device, inherits ? parent->blocking : settings.blocking,
                                  inherits ? parent->name : settings.name);
  }
};

// A rank of the communicator that grows.
Status grow(CommPtr parent, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* out, const ncclConfig_t* config) {
  constexpr const char* kName = "ncclCommGrow";
  TR_RETURN_IF_ERROR(parent->expect_usable(kName));
  if (rank != -1)
    return {trInvalidArgument,
            fmt::format("{}: rank is {}; give -1: a rank of the communicator keeps its rank", kName, rank)};
  if (nranks <= parent->ranks)
    return {trInvalidArgument,
            fmt::format("{}: nRanks is {}; give more than the communicator's {}", kName, nranks, parent->ranks)};
  std::optional<trUniqueId> own;
  if (id != nullptr) {
    if (!parent->is_grow_id(*id))
      return {trInvalidArgument, fmt::format("{}: uniqueId is not what ncclCommGetUniqueId gave for this communicator, "
                                             "or was used already",
                                             kName)};
    std::memcpy(&own.emplace(), id, sizeof *id);
  }
  Settings settings;
  TR_RETURN_IF_ERROR(resolve_settings(kName, config, &settings));
  if (config == nullptr) {
    settings.blocking = parent->blocking;
    settings.name = parent->name;
  }
  if (has_devices()) settings.device = parent->device;
  auto comm = std::make_shared<Comm>(parent->rank, nranks, parent->device, settings.blocking, settings.name);
  return create(kName, comm, out, {parent}, [=](trComm_t* made) -> Status {
    const trConfig_t tr_config = settings.config();
    Status status = status_of(trCommGrow(parent->get(), nranks, own.has_value() ? &*own : nullptr, made, &tr_config));
    // After a failure, too: ranks may have met there already, so that only a new id can be tried.
    if (own.has_value()) parent->end_grow_id();
    return status;
  });
}

}  // namespace

extern "C" {

ncclResult_t pncclGetUniqueId(ncclUniqueId* id) {
  return entry([&]() -> Status {
    log_version();
    if (id == nullptr) return null_argument("ncclGetUniqueId", "uniqueId");
    hand_on_variables();
    return make_id(id);
  });
}

ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return grouped_entry(
      nullptr, [&] { return init_rank("ncclCommInitRankConfig", comm, nranks, id, rank, current_device(), config); });
}

ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return grouped_entry(
      nullptr, [&] { return init_rank("ncclCommInitRank", comm, nranks, id, rank, current_device(), nullptr); });
}

ncclResult_t pncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int nid, ncclUniqueId* ids,
                                       ncclConfig_t* config) {
  return grouped_entry(nullptr, [&]() -> Status {
    constexpr const char* kName = "ncclCommInitRankScalable";
    if (ids == nullptr) return null_argument(kName, "commIds");
    if (nid < 1 || nid > nranks)
      return {trInvalidArgument, fmt::format("{}: nId is {}; give 1 to {}, the number of ranks", kName, nid, nranks)};
    // All meet at the first: on one machine a second rendezvous root saves nothing.
    return init_rank(kName, comm, nranks, ids[0], rank, current_device(), config);
  });
}

ncclResult_t pncclCommInitAll(ncclComm_t* comms, int ndev, const int* devices) {
  return grouped_entry(nullptr, [&]() -> Status {
    constexpr const char* kName = "ncclCommInitAll";
    if (comms == nullptr) return null_argument(kName, "comm");
    TR_RETURN_IF_ERROR(check_count(kName, "ndev", ndev));
    std::set<int> seen;
    for (int i = 0; devices != nullptr && i < ndev; ++i)
      if (devices[i] < 0 || !seen.insert(devices[i]).second)
        return {trInvalidUsage,
                fmt::format("{}: devlist[{}] is {}, which is negative or occurs twice", kName, i, devices[i])};
    ncclUniqueId id;
    TR_RETURN_IF_ERROR(make_id(&id));
    Group& group = Group::current();
    ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
    blocking.blocking = 1;
    group.start();
    for (int i = 0; i < ndev; ++i) {
      Status status = init_rank(kName, &comms[i], ndev, id, i, devices != nullptr ? devices[i] : i, &blocking);
      if (!status.ok()) group.add_failure(status);
    }
    return end_group(kName);
  });
}

ncclResult_t pncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  return grouped_entry(handle, [&]() -> Status {
    constexpr const char* kName = "ncclCommSplit";
    Child child;
    TR_RETURN_IF_ERROR(child.prepare(kName, handle, newcomm, config));
    TR_RETURN_IF_ERROR(child.parent->expect_awake(kName));
    if (color < NCCL_SPLIT_NOCOLOR)
      return {trInvalidArgument, fmt::format("{}: color is {}; give 0 or more, or NCCL_SPLIT_NOCOLOR", kName, color)};
    Make make = [child, color, key](trComm_t* made) {
      const trConfig_t settings = child.settings.config();
      return status_of(trCommSplit(child.parent->get(), color, key, made, child.inherits ? nullptr : &settings));
    };
    if (color != NCCL_SPLIT_NOCOLOR) return create(kName, child.comm(), newcomm, {child.parent}, make);
    Change change;
    change.comms = {child.parent};
    change.work = [make]() -> Status {
      trComm_t none = nullptr;
      return make(&none);
    };
    return submit(std::move(change));
  });
}

ncclResult_t pncclCommShrink(ncclComm_t handle, int* excluded, int count, ncclComm_t* newcomm, ncclConfig_t* config,
                             int flags) {
  return grouped_entry(handle, [&]() -> Status {
    constexpr const char* kName = "ncclCommShrink";
    Child child;
    TR_RETURN_IF_ERROR(child.prepare(kName, handle, newcomm, config));
    if (excluded == nullptr) return null_argument(kName, "excludeRanksList");
    TR_RETURN_IF_ERROR(check_count(kName, "excludeRanksCount", count));
    if (const int parents = child.parent->ranks; parents > 0 && count > parents)
      return {trInvalidArgument,
              fmt::format("{}: excludeRanksCount is {}; the communicator has {} ranks", kName, count, parents)};
    if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)
      return {trInvalidArgument, fmt::format("{}: shrinkFlags is {}; give 0 or NCCL_SHRINK_ABORT", kName, flags)};
    // What is under way on the parent, in the background too, is ended by the shrink itself.
    if (flags != NCCL_SHRINK_ABORT) TR_RETURN_IF_ERROR(child.parent->expect_awake(kName));
    const std::vector<int> ranks(excluded, excluded + count);
    return create(kName, child.comm(), newcomm, {child.parent}, [child, ranks, flags](trComm_t* made) {
      const trConfig_t settings = child.settings.config();
      return status_of(trCommShrink(child.parent->get(), ranks.data(), static_cast<int>(ranks.size()), made,
                                    child.inherits ? nullptr : &settings,
                                    flags == NCCL_SHRINK_ABORT ? TR_SHRINK_ABORT : 0));
    });
  });
}

ncclResult_t pncclCommGetUniqueId(ncclComm_t handle, ncclUniqueId* id) {
  return entry(handle, [&]() -> Status {
    constexpr const char* kName = "ncclCommGetUniqueId";
    if (id == nullptr) return null_argument(kName, "uniqueId");
    CommPtr comm;
    TR_RETURN_IF_ERROR(find_comm(kName, handle, &comm));
    TR_RETURN_IF_ERROR(comm->expect_usable(kName));
    return comm->make_grow_id(id);
  });
}

ncclResult_t pncclCommGrow(ncclComm_t handle, int nranks, const ncclUniqueId* id, int rank, ncclComm_t* newcomm,
                           ncclConfig_t* config) {
  return grouped_entry(handle, [&]() -> Status {
    constexpr const char* kName = "ncclCommGrow";
    if (newcomm == nullptr) return null_argument(kName, "newcomm");
    *newcomm = nullptr;
    if (handle == nullptr && id == nullptr)
      return {trInvalidArgument, fmt::format("{}: comm and uniqueId are NULL; a new rank gives the id, a rank of the "
                                             "communicator the communicator",
                                             kName)};
    if (handle == nullptr) return init_rank(kName, newcomm, nranks, *id, rank, current_device(), config);
    CommPtr parent;
    TR_RETURN_IF_ERROR(find_comm(kName, handle, &parent));
    return grow(parent, nranks, id, rank, newcomm, config);
  });
}

}  // extern "C"

NCCL_SHIM_EXPORT(GetUniqueId);
NCCL_SHIM_EXPORT(CommInitRank);
NCCL_SHIM_EXPORT(CommInitRankConfig);
NCCL_SHIM_EXPORT(CommInitRankScalable);
NCCL_SHIM_EXPORT(CommInitAll);
NCCL_SHIM_EXPORT(CommSplit);
NCCL_SHIM_EXPORT(CommShrink);
NCCL_SHIM_EXPORT(CommGetUniqueId);
NCCL_SHIM_EXPORT(CommGrow);

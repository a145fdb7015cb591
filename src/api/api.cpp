// SPDX-License-Identifier: Apache-2.0
// The C entry points for communicators, memory and explanations. Nothing throws across them.
#include <algorithm>
#include <cstring>
#include <string>

#include "api/common.h"
#include "bootstrap/membership.h"
#include "communicator/memory.h"
#include "core/config.h"
#include "core/names.h"
#include "core/types.h"
#include "core/variables.h"
#include "gpu/device_rank.h"
#include "launch/launch.h"

using namespace treering;

namespace {

// The struct as it was at first. Callers with a newer header than the library's get the fields that the library knows.
constexpr size_t kFirstDataTypeInfoBytes = offsetof(trDataTypeInfo_t, part) + sizeof(trDataType_t);

// Before anything is stored for each rank.
Status check_rank_count(const char* function, int nranks) {
  if (nranks < 1)
    return {trInvalidArgument, fmt::format("{}: nranks is {}; give 1 to {}", function, nranks, kMaxRanks)};
  if (nranks <= kMaxRanks) return {};
  return {trInvalidArgument,
          fmt::format("{}: nranks is {}; this version takes at most {}", function, nranks, kMaxRanks)};
}

Status init_rank(trComm_t* comm, int nranks, const trUniqueId& id, int rank, const trConfig_t* user_config) {
  if (comm == nullptr) return null_argument("trCommInitRank", "comm");
  TR_RETURN_IF_ERROR(check_rank_count("trCommInitRank", nranks));
  if (rank < 0 || rank >= nranks)
    return {trInvalidArgument,
            fmt::format("trCommInitRank: rank is {}; give {}", rank, numbers_of_ranks(static_cast<uint32_t>(nranks)))};
  tell_unknown_variables();
  Config config;
  TR_RETURN_IF_ERROR(resolve_config(user_config, &config));
  auto create = [=]() -> Status {
    std::unique_ptr<Communicator> made;
    TR_RETURN_IF_ERROR(
        Communicator::create(static_cast<uint32_t>(nranks), id, static_cast<uint32_t>(rank), config, &made));
    return add_communicator(std::move(made), comm);
  };
  if (!Group::current().open()) return create();
  *comm = nullptr;
  Group::current().add_change(nullptr, create);
  return {};
}

Status start_rendezvous(trUniqueId* id) {
  UniqueId made;
  TR_RETURN_IF_ERROR(Membership::make_rendezvous_root(&made));
  *id = pack(made);
  return {};
}

void copy_text(char* target, size_t capacity, const std::string& text) {
  size_t length = std::min(text.size(), capacity - 1);
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

Status check_query(const char* function, trCollective_t collective, trDataType_t datatype) {
  if (static_cast<size_t>(collective) >= kCollectiveCount)
    return {trInvalidArgument,
            fmt::format("{}: collective is {}; known are 0 (allreduce) to {} ({})", function,
                        static_cast<int>(collective), kCollectiveCount - 1, collectives().back().name)};
  if (find_type(datatype) == nullptr)
    return {trInvalidArgument, fmt::format("{}: {}", function, unknown_type(datatype))};
  return {};
}

// What kernels do, where they would run this; else false.
bool select_of_kernels(const Communicator& communicator, Collective collective, const void* buffer, size_t bytes,
                       trDataType_t type, trSelection_t* selection) {
  DeviceRank* device = device_of(communicator);
  if (device == nullptr || device->kernels() == nullptr) return false;
  if (buffer != nullptr && !DeviceRank::is_memory_of_device(buffer)) return false;
  cuda::DeviceSelection choice;
  if (!device->kernels()->predict(collective, bytes, find_type(type)->size, &choice)) return false;
  *selection = {};
  copy_text(selection->algorithm, sizeof selection->algorithm, choice.algorithm->name);
  copy_text(selection->protocol, sizeof selection->protocol, cuda::protocol_name(choice.protocol));
  selection->channels = static_cast<int>(choice.channels);
  selection->chunk_bytes = DeviceFifos::kSlotBytes;
  selection->predicted_us = choice.predicted_us;
  copy_text(selection->transport, sizeof selection->transport, communicator.ranks() > 1 ? "gpu" : "none");
  return true;
}

}  // namespace

extern "C" {

trResult_t trGetVersion(int* version) {
  if (version == nullptr) return report(null_argument("trGetVersion", "version"));
  *version = TR_VERSION_CODE;
  return trSuccess;
}

const char* trGetErrorString(trResult_t result) {
  switch (result) {
    case trSuccess:
      return "no error";
    case trDeviceError:
      return "a call of the GPU's driver failed";
    case trSystemError:
      return "a system call failed";
    case trInternalError:
      return "internal error of the library";
    case trInvalidArgument:
      return "invalid argument";
    case trInvalidUsage:
      return "invalid usage";
    case trRemoteError:
      return "another rank died, was aborted or failed";
    case trInProgress:
      return "operation in progress";
    case trTimeout:
      return "the deadline passed";
    case trResultForceInt:
      break;
  }
  return "unknown result code";
}

const char* trGetLastError(trComm_t comm) {
  thread_local std::string of_thread, of_communicator;  // both may be in one printf()
  CommunicatorSlot* slot = comm != nullptr ? find_slot(comm) : nullptr;
  if (slot == nullptr) return (of_thread = thread_error()).c_str();
  of_communicator = slot->last_error();
  CommunicatorPin pin;
  if (of_communicator.empty() && pin.acquire(comm).ok())  // what failed on a stream has been told to no call yet
    if (const Status verdict = pin->verdict(); !verdict.ok()) of_communicator = verdict.message();
  return of_communicator.c_str();
}

trResult_t trGetDataTypeInfo(trDataType_t datatype, trDataTypeInfo_t* info) {
  return guarded(nullptr, [&]() -> Status {
    if (info == nullptr) return null_argument("trGetDataTypeInfo", "info");
    if (info->size < kFirstDataTypeInfoBytes)
      return {trInvalidArgument, fmt::format("trGetDataTypeInfo: info->size is {}: initialise the struct with "
                                             "TR_DATA_TYPE_INFO_INITIALIZER",
                                             info->size)};
    const DataTypeInfo* row = find_type(datatype);
    if (row == nullptr) return {trInvalidArgument, "trGetDataTypeInfo: " + unknown_type(datatype)};
    trDataTypeInfo_t full = public_info(*row);
    full.size = info->size;
    std::memcpy(info, &full, std::min(info->size, sizeof full));
    return {};
  });
}

trResult_t trGetUniqueId(trUniqueId* id) {
  return guarded(nullptr, [&]() -> Status {
    if (id == nullptr) return null_argument("trGetUniqueId", "id");
    return start_rendezvous(id);
  });
}

trResult_t trCommInitRank(trComm_t* comm, int nranks, trUniqueId id, int rank) {
  return trCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

trResult_t trCommInitRankConfig(trComm_t* comm, int nranks, trUniqueId id, int rank, const trConfig_t* config) {
  return guarded(nullptr, [&] {
    Status status = init_rank(comm, nranks, id, rank, config);
    if (!status.ok() && Group::current().open()) Group::current().add_failure(status);
    return status;
  });
}

trResult_t trCommInitFromEnvironment(trComm_t* comm, const trConfig_t* user_config) {
  return guarded(nullptr, [&]() -> Status {
    if (comm == nullptr) return null_argument("trCommInitFromEnvironment", "comm");
    Config config;
    TR_RETURN_IF_ERROR(resolve_config(user_config, &config));
    Launch launch;
    trUniqueId id;
    TR_RETURN_IF_ERROR(meet_through_launcher(config.timeout_ms, &launch, &id));
    return init_rank(comm, static_cast<int>(launch.ranks), id, static_cast<int>(launch.rank), user_config);
  });
}

trResult_t trCommInitAll(trComm_t* comms, int nranks) {
  if (comms == nullptr) return report(null_argument("trCommInitAll", "comms"));
  if (Status fits = check_rank_count("trCommInitAll", nranks); !fits.ok()) return report(fits);
  std::fill_n(comms, nranks, nullptr);
  trUniqueId id;
  if (trResult_t result = trGetUniqueId(&id); result != trSuccess) return result;
  trGroupStart();
  for (int rank = 0; rank < nranks; ++rank) (void)trCommInitRank(&comms[rank], nranks, id, rank);
  trResult_t result = trGroupEnd();
  for (int rank = 0; result != trSuccess && rank < nranks; ++rank) {
    if (comms[rank] != nullptr) (void)remove_communicator(comms[rank], Ending::kDestroy);
    comms[rank] = nullptr;
  }
  return result;
}

trResult_t trCommCount(trComm_t comm, int* count) {
  return guarded(nullptr, [&]() -> Status {
    if (count == nullptr) return null_argument("trCommCount", "count");
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    *count = static_cast<int>(pin->ranks());
    return {};
  });
}

trResult_t trCommRank(trComm_t comm, int* rank) {
  return guarded(nullptr, [&]() -> Status {
    if (rank == nullptr) return null_argument("trCommRank", "rank");
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    *rank = static_cast<int>(pin->rank());
    return {};
  });
}

trResult_t trCommFinalize(trComm_t comm) {
  return guarded(find_slot(comm), [&]() -> Status {
    TR_RETURN_IF_ERROR(Group::current().refuse_to_overlook("trCommFinalize", comm));
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    Engine::instance().wait_idle(lease.get());
    if (device_of(*lease.get()) != nullptr) device_of(*lease.get())->wait_idle();
    return lease->settled_failure();
  });
}

trResult_t trCommDestroy(trComm_t comm) {
  return guarded(nullptr, [&]() -> Status {
    TR_RETURN_IF_ERROR(Group::current().refuse_held("trCommDestroy", comm));
    return remove_communicator(comm, Ending::kDestroy);
  });
}

trResult_t trCommAbort(trComm_t comm) {
  return guarded(nullptr, [&] { return remove_communicator(comm, Ending::kAbort); });
}

trResult_t trCommRevoke(trComm_t comm) {
  return guarded(nullptr, [&]() -> Status {
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    pin->abort(pin->describe(pin->rank()) + " revoked the communicator");
    return {};
  });
}

trResult_t trCommGetAsyncError(trComm_t comm, trResult_t* result) {
  return guarded(nullptr, [&]() -> Status {
    if (result == nullptr) return null_argument("trCommGetAsyncError", "result");
    CommunicatorPin pin;  // not leased: another thread may begin a call at any time, and must not find one under way
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    const bool busy = pin.in_call() || pin->queued() != 0;  // before the failure, or one between would be missed
    const Status failure = pin->settled_failure();
    if (failure.ok()) {
      *result = busy ? trInProgress : trSuccess;
    } else {
      pin.slot().set_last_error(failure.message());
      *result = failure.code();
    }
    return {};
  });
}

trResult_t trExplain(trComm_t comm, trCollective_t collective, size_t bytes, trDataType_t datatype, char* text,
                     size_t capacity, size_t* needed) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (text == nullptr && capacity > 0) return null_argument("trExplain", "text");
    TR_RETURN_IF_ERROR(check_query("trExplain", collective, datatype));
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    std::string whole, of_host;
    if (DeviceRank* device = device_of(*pin.get()); device != nullptr && device->kernels() != nullptr)
      whole = device->kernels()->explain(static_cast<Collective>(collective), bytes, find_type(datatype)->size);
    const CallSelection& selection = pin->selection();
    const SelectionQuery query = selection.query(static_cast<Collective>(collective), bytes, datatype);
    TR_RETURN_IF_ERROR(selection.explain(query, pin->transports(), &of_host));
    whole += (whole.empty() ? "" : "\nthrough memory of the host:\n") + of_host;
    if (needed != nullptr) *needed = whole.size();
    if (capacity > 0) copy_text(text, capacity, whole);
    return {};
  });
}

trResult_t trGetSelection(trComm_t comm, trCollective_t collective, const void* sendbuf, const void* recvbuf,
                          size_t bytes, trDataType_t datatype, trSelection_t* selection) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (selection == nullptr) return null_argument("trGetSelection", "selection");
    TR_RETURN_IF_ERROR(check_query("trGetSelection", collective, datatype));
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    if (select_of_kernels(*pin.get(), static_cast<Collective>(collective), sendbuf, bytes, datatype, selection))
      return {};
    const auto query = pin->selection().query(static_cast<Collective>(collective), bytes, datatype);
    const Choice& choice = pin->selection().choose(query);
    bool direct =
        !query.compressed() && sendbuf != nullptr && recvbuf != nullptr && pin->is_direct(sendbuf, recvbuf, bytes);
    *selection = {};
    copy_text(selection->algorithm, sizeof selection->algorithm, choice.candidate.algorithm->name);
    const char* of_messages = direct ? "direct" : "staged";
    copy_text(selection->protocol, sizeof selection->protocol, choice.mailbox ? "mailbox" : of_messages);
    selection->channels = static_cast<int>(choice.candidate.channels);
    selection->chunk_bytes = choice.candidate.chunk_bytes;
    selection->predicted_us = choice.candidate.predicted_us;
    copy_text(selection->transport, sizeof selection->transport, pin->transports());
    return {};
  });
}

trResult_t trPredictTransfer(trComm_t comm, size_t bytes, double* microseconds) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (microseconds == nullptr) return null_argument("trPredictTransfer", "microseconds");
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    const bool kernels = device_of(*pin.get()) != nullptr && device_of(*pin.get())->kernels() != nullptr;
    *microseconds = kernels ? device_of(*pin.get())->kernels()->predict_transfer(bytes) : pin->predict_transfer(bytes);
    return {};
  });
}

trResult_t trMemAlloc(void** ptr, size_t size) {
  return guarded(nullptr, [&]() -> Status {
    if (ptr == nullptr) return null_argument("trMemAlloc", "ptr");
    return allocate_memory(size, ptr);
  });
}

trResult_t trMemFree(void* ptr) {
  if (ptr == nullptr) return trSuccess;
  return guarded(nullptr, [&] { return free_memory(ptr); });
}

trResult_t trCommRegister(trComm_t comm, void* buffer, size_t size, void** handle) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (handle == nullptr) return null_argument("trCommRegister", "handle");
    if (buffer == nullptr) return null_argument("trCommRegister", "buffer");
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    uint32_t id = 0;
    TR_RETURN_IF_ERROR(register_memory(buffer, size, pages_of_gpus(), &id));
    *handle = reinterpret_cast<void*>(static_cast<uintptr_t>(id));
    return {};
  });
}

trResult_t trCommDeregister(trComm_t comm, void* handle) {
  if (handle == nullptr) return trSuccess;
  return guarded(find_slot(comm), [&]() -> Status {
    CommunicatorPin pin;
    TR_RETURN_IF_ERROR(pin.acquire(comm));
    const auto id = reinterpret_cast<uintptr_t>(handle);
    if (id > UINT32_MAX)
      return {trInvalidArgument, fmt::format("trCommDeregister: handle {} is none that trCommRegister gave", handle)};
    return deregister_memory(static_cast<uint32_t>(id));
  });
}

}  // extern "C"

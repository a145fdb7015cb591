// SPDX-License-Identifier: Apache-2.0
// Collectives, sends, receives, and groups of them.
#include "core/names.h"
#include "shim/entry.h"
#include "shim/group.h"
#include "shim/report.h"

using treering::Status;
using namespace treering::nccl;

namespace {

// What a caller passed, before it is checked.
struct Arguments {
  Function function;
  const char* name;
  const void* send;
  void* recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  ncclComm_t comm;
  cudaStream_t stream;
};

bool has_root(Function function) {
  return function == Function::kReduce || function == Function::kBroadcast || function == Function::kGather ||
         function == Function::kScatter;
}
bool has_peer(Function function) { return function == Function::kSend || function == Function::kRecv; }
bool reduces(Function function) {
  return function == Function::kAllReduce || function == Function::kReduce || function == Function::kReduceScatter;
}

// The buffers that this rank takes part with.
Status check_buffers(const Arguments& a, const Comm& comm) {
  if (a.count == 0) return {};
  const bool at_root = comm.rank == a.root;
  const bool sends =
      a.function == Function::kBroadcast || a.function == Function::kScatter ? at_root : a.function != Function::kRecv;
  const bool receives =
      a.function == Function::kReduce || a.function == Function::kGather ? at_root : a.function != Function::kSend;
  if (sends && a.send == nullptr) return null_argument(a.name, "sendbuff");
  if (receives && a.recv == nullptr) return null_argument(a.name, "recvbuff");
  return {};
}

Status check(const Arguments& a, Call* call) {
  TR_RETURN_IF_ERROR(find_comm(a.name, a.comm, &call->comm));
  const Comm& comm = *call->comm;
  TR_RETURN_IF_ERROR(comm.expect_usable(a.name));
  if (a.type < 0 || a.type >= ncclNumTypes)
    return {trInvalidArgument,
            fmt::format("{}: datatype is {}; known are 0 to {}", a.name, static_cast<int>(a.type), ncclNumTypes - 1)};
  if ((has_root(a.function) || has_peer(a.function)) && (a.root < 0 || a.root >= comm.ranks))
    return {trInvalidArgument, fmt::format("{}: {} is {}; give {}", a.name, has_peer(a.function) ? "peer" : "root",
                                           a.root, treering::numbers_of_ranks(static_cast<uint32_t>(comm.ranks)))};
  TR_RETURN_IF_ERROR(check_buffers(a, comm));
  TR_RETURN_IF_ERROR(classify_stream(a.name, comm.device, a.stream, &call->stream));
  call->function = a.function;
  call->name = a.name;
  call->send = a.send;
  call->recv = a.recv;
  call->count = a.count;
  call->type = static_cast<trDataType_t>(a.type);
  call->root = a.root;
  if (!reduces(a.function)) return {};
  call->op = static_cast<trRedOp_t>(a.op);
  if (a.op >= 0 && a.op < ncclNumOps) return {};
  TR_RETURN_IF_ERROR(comm.find_op(a.name, a.op, &call->made));
  if (call->made->type == call->type) return {};
  return {trInvalidArgument, fmt::format("{}: op {} was made for datatype {}, not {}", a.name, static_cast<int>(a.op),
                                         treering::name_of(call->made->type), treering::name_of(call->type))};
}

ncclResult_t run(const Arguments& arguments) {
  return entry(arguments.comm, [&]() -> Status {
    Call call;
    Status status = check(arguments, &call);
    if (status.ok()) return submit(std::move(call));
    Group::current().add_failure(status);
    return status;
  });
}

Status check_simulation(const ncclSimInfo_t* info) {
  constexpr unsigned kMagic = 0x74685283;
  if (info == nullptr || info->magic == kMagic) return {};
  return {trInvalidArgument, fmt::format("ncclGroupSimulateEnd: simInfo->magic is {:#x}, not {:#x}: initialise the "
                                         "struct with NCCL_SIM_INFO_INITIALIZER",
                                         info->magic, kMagic)};
}

// Fails its group, too: the other calls of a group may need what it was to bring.
ncclResult_t refuse_one_sided(const char* function, ncclComm_t handle) {
  return entry(handle, [&]() -> Status {
    CommPtr comm;
    Status status = find_comm(function, handle, &comm);
    if (status.ok())
      status = {trInvalidUsage, fmt::format("{}: there are no one-sided calls in this library (hostRmaSupport of "
                                            "ncclCommQueryProperties is false); use ncclSend and ncclRecv",
                                            function)};
    Group::current().add_failure(status);
    return status;
  });
}

}  // namespace

extern "C" {

ncclResult_t pncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream) {
  return run({Function::kAllReduce, "ncclAllReduce", send, recv, count, type, op, 0, comm, stream});
}

ncclResult_t pncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return run({Function::kReduce, "ncclReduce", send, recv, count, type, op, root, comm, stream});
}

ncclResult_t pncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return run({Function::kBroadcast, "ncclBroadcast", send, recv, count, type, ncclSum, root, comm, stream});
}

ncclResult_t pncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return run({Function::kBroadcast, "ncclBcast", buffer, buffer, count, type, ncclSum, root, comm, stream});
}

ncclResult_t pncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
  return run({Function::kAllGather, "ncclAllGather", send, recv, count, type, ncclSum, 0, comm, stream});
}

ncclResult_t pncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream) {
  return run({Function::kReduceScatter, "ncclReduceScatter", send, recv, count, type, op, 0, comm, stream});
}

ncclResult_t pncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return run({Function::kAlltoAll, "ncclAlltoAll", send, recv, count, type, ncclSum, 0, comm, stream});
}

ncclResult_t pncclGather(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return run({Function::kGather, "ncclGather", send, recv, count, type, ncclSum, root, comm, stream});
}

ncclResult_t pncclScatter(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                          cudaStream_t stream) {
  return run({Function::kScatter, "ncclScatter", send, recv, count, type, ncclSum, root, comm, stream});
}

ncclResult_t pncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return run({Function::kSend, "ncclSend", send, nullptr, count, type, ncclSum, peer, comm, stream});
}

ncclResult_t pncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return run({Function::kRecv, "ncclRecv", nullptr, recv, count, type, ncclSum, peer, comm, stream});
}

ncclResult_t pncclPutSignal(const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned int,
                            ncclComm_t comm, cudaStream_t) {
  return refuse_one_sided("ncclPutSignal", comm);
}
ncclResult_t pncclSignal(int, int, int, unsigned int, ncclComm_t comm, cudaStream_t) {
  return refuse_one_sided("ncclSignal", comm);
}
ncclResult_t pncclWaitSignal(int, ncclWaitSignalDesc_t*, ncclComm_t comm, cudaStream_t) {
  return refuse_one_sided("ncclWaitSignal", comm);
}

ncclResult_t pncclGroupStart(void) {
  Group::current().start();
  return ncclSuccess;
}

ncclResult_t pncclGroupEnd(void) {
  return entry([] { return end_group("ncclGroupEnd"); });
}

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* info) {
  return entry([&]() -> Status {
    TR_RETURN_IF_ERROR(check_simulation(info));
    Batch batch;
    bool outermost = false;
    Status status = Group::current().end("ncclGroupSimulateEnd", &batch, &outermost);
    double microseconds = 0;
    if (status.ok()) status = predict(batch, &microseconds);
    undo(batch);
    if (status.ok() && outermost && info != nullptr) info->estimatedTime = static_cast<float>(microseconds);
    return status;
  });
}

}  // extern "C"

NCCL_SHIM_EXPORT(AllReduce);
NCCL_SHIM_EXPORT(Reduce);
NCCL_SHIM_EXPORT(Broadcast);
NCCL_SHIM_EXPORT(Bcast);
NCCL_SHIM_EXPORT(AllGather);
NCCL_SHIM_EXPORT(ReduceScatter);
NCCL_SHIM_EXPORT(AlltoAll);
NCCL_SHIM_EXPORT(Gather);
NCCL_SHIM_EXPORT(Scatter);
NCCL_SHIM_EXPORT(Send);
NCCL_SHIM_EXPORT(Recv);
NCCL_SHIM_EXPORT(PutSignal);
NCCL_SHIM_EXPORT(Signal);
NCCL_SHIM_EXPORT(WaitSignal);
NCCL_SHIM_EXPORT(GroupStart);
NCCL_SHIM_EXPORT(GroupEnd);
NCCL_SHIM_EXPORT(GroupSimulateEnd);

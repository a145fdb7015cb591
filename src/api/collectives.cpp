// SPDX-License-Identifier: Apache-2.0
// The C entry points of the collectives with equal counts, and of groups.
#include <cstring>

#include "api/common.h"
#include "core/names.h"
#include "core/types.h"
#include "gpu/device_rank.h"

using namespace treering;

namespace {

Operation operation_of(const char* function, Collective collective, const void* input, void* output, size_t count,
                       trDataType_t type) {
  Operation operation;
  operation.function = function;
  operation.collective = collective;
  operation.input = input;
  operation.output = output;
  operation.count = count;
  operation.type = type;
  return operation;
}

// `read_later`: the scalar is read where it lies, when operations run.
Status create_pre_mul_sum(const char* function, bool read_later, trRedOp_t* op, const void* scalar,
                          trDataType_t datatype, trComm_t comm) {
  if (op == nullptr) return null_argument(function, "op");
  if (scalar == nullptr) return null_argument(function, "scalar");
  const DataTypeInfo* type = find_type(datatype);
  if (type == nullptr || datatype == trBool)
    return {trInvalidArgument,
            fmt::format("{}: datatype is {}; give an integer, float or complex type", function, name_of(datatype))};
  CommunicatorLease lease;
  TR_RETURN_IF_ERROR(lease.acquire(comm));
  auto reduction = std::make_shared<Reduction>();
  reduction->scale_type = datatype;
  if (!read_later) {
    std::memcpy(reduction->scale.data(), scalar, type->size);
  } else if (device_of(*lease.get()) == nullptr && DeviceRank::is_memory_of_device(scalar)) {
    return {trInvalidUsage, fmt::format("{}: scalar is memory of a GPU, but the communicator has no GPU: set "
                                        "trConfig_t::device",
                                        function)};
  } else {
    reduction->scale_at = scalar;
  }
  *op = lease->reductions().add(std::move(reduction));
  return {};
}

}  // namespace

extern "C" {

trResult_t trAllReduce(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, trRedOp_t op,
                       trComm_t comm, trStream_t stream) {
  Operation operation = operation_of("trAllReduce", Collective::kAllReduce, sendbuf, recvbuf, count, datatype);
  operation.op = op;
  return submit(comm, std::move(operation), stream);
}

trResult_t trReduce(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, trRedOp_t op, int root,
                    trComm_t comm, trStream_t stream) {
  Operation operation = operation_of("trReduce", Collective::kReduce, sendbuf, recvbuf, count, datatype);
  operation.op = op;
  operation.root = static_cast<uint32_t>(root);
  return submit(comm, std::move(operation), stream);
}

trResult_t trBroadcast(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, int root, trComm_t comm,
                       trStream_t stream) {
  Operation operation = operation_of("trBroadcast", Collective::kBroadcast, sendbuf, recvbuf, count, datatype);
  operation.root = static_cast<uint32_t>(root);
  return submit(comm, std::move(operation), stream);
}

trResult_t trAllGather(const void* sendbuf, void* recvbuf, size_t sendcount, trDataType_t datatype, trComm_t comm,
                       trStream_t stream) {
  return submit(comm, operation_of("trAllGather", Collective::kAllGather, sendbuf, recvbuf, sendcount, datatype),
                stream);
}

trResult_t trReduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount, trDataType_t datatype, trRedOp_t op,
                           trComm_t comm, trStream_t stream) {
  Operation operation =
      operation_of("trReduceScatter", Collective::kReduceScatter, sendbuf, recvbuf, recvcount, datatype);
  operation.op = op;
  return submit(comm, std::move(operation), stream);
}

trResult_t trAllToAll(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, trComm_t comm,
                      trStream_t stream) {
  return submit(comm, operation_of("trAllToAll", Collective::kAllToAll, sendbuf, recvbuf, count, datatype), stream);
}

trResult_t trGather(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, int root, trComm_t comm,
                    trStream_t stream) {
  Operation operation = operation_of("trGather", Collective::kGather, sendbuf, recvbuf, count, datatype);
  operation.root = static_cast<uint32_t>(root);
  return submit(comm, std::move(operation), stream);
}

trResult_t trScatter(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, int root, trComm_t comm,
                     trStream_t stream) {
  Operation operation = operation_of("trScatter", Collective::kScatter, sendbuf, recvbuf, count, datatype);
  operation.root = static_cast<uint32_t>(root);
  return submit(comm, std::move(operation), stream);
}

trResult_t trBarrier(trComm_t comm, trStream_t stream) {
  return submit(comm, operation_of("trBarrier", Collective::kBarrier, nullptr, nullptr, 0, trUint8), stream);
}

trResult_t trGroupStart(void) {
  return guarded(nullptr, [] {
    Group::current().start();
    return Status();
  });
}

trResult_t trGroupEnd(void) {
  return guarded(nullptr, [] { return Group::current().end(); });
}

trResult_t trRedOpCreatePreMulSum(trRedOp_t* op, const void* scalar, trDataType_t datatype, trComm_t comm) {
  return guarded(find_slot(comm),
                 [&] { return create_pre_mul_sum("trRedOpCreatePreMulSum", false, op, scalar, datatype, comm); });
}

trResult_t trRedOpCreatePreMulSumDevice(trRedOp_t* op, const void* scalar, trDataType_t datatype, trComm_t comm) {
  return guarded(find_slot(comm),
                 [&] { return create_pre_mul_sum("trRedOpCreatePreMulSumDevice", true, op, scalar, datatype, comm); });
}

trResult_t trRedOpCreateUser(trRedOp_t* op, trReduceFunction function, void* context, int commutative, trComm_t comm) {
  return guarded(find_slot(comm), [&]() -> Status {
    if (op == nullptr) return null_argument("trRedOpCreateUser", "op");
    if (function == nullptr) return null_argument("trRedOpCreateUser", "function");
    auto reduction = std::make_shared<Reduction>();
    reduction->function = function;
    reduction->context = context;
    reduction->commutative = commutative != 0;
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    *op = lease->reductions().add(std::move(reduction));
    return {};
  });
}

trResult_t trRedOpDestroy(trRedOp_t op, trComm_t comm) {
  return guarded(find_slot(comm), [&]() -> Status {
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    return lease->reductions().remove(op);
  });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// The C entry points of box exchange and sparse allreduce.
#include "communicator/sparse.h"

#include "api/common.h"
#include "api/overlap.h"
#include "communicator/calls/boxes.h"
#include "core/names.h"
#include "core/types.h"
#include "gpu/device_rank.h"

using namespace treering;

// A planned exchange: for each transfer of this rank the rows on this side, whose addresses each start fills in.
struct trExchange {
  struct Rows {
    Transfer transfer;
    size_t box = 0;                       // among this rank's held (sends) or needed boxes
    std::vector<size_t> offsets;          // bytes in the box's array, one for each segment
    std::vector<BufferSegment> segments;  // what the transfer's view sees
  };
  trComm_t comm = nullptr;
  std::vector<size_t> held_bytes, needed_bytes;  // of the boxes' arrays
  std::vector<Range> read, written;              // memory for the check of each start
  std::vector<std::unique_ptr<Rows>> rows;
  Operation operation;
  std::unique_ptr<Task> task = std::make_unique<Task>();
};

namespace {

constexpr const char* kCreate = "trExchangeCreate";

constexpr int kMaxBoxes = 1 << 20;  // of a rank: a count beyond is taken for a mistake, before the boxes are read
constexpr size_t kMaxBytes = SIZE_MAX / 64;   // of one box's array
constexpr size_t kMaxRows = size_t{1} << 30;  // of one side of a transfer: each costs some tens of bytes

// Stores the bytes of each box's array.
Status check_boxes(int dimensions, const char* name, int count, const trBox_t* boxes, const DataTypeInfo& type,
                   std::vector<size_t>* bytes) {
  if (count < 0) return {trInvalidArgument, fmt::format("{}: {}_count is {}", kCreate, name, count)};
  if (count > kMaxBoxes)
    return {trInvalidArgument,
            fmt::format("{}: {}_count is {}; at most {} are taken", kCreate, name, count, kMaxBoxes)};
  if (count > 0 && boxes == nullptr) return null_argument(kCreate, name);
  for (int i = 0; i < count; ++i) {
    for (int d = 0; d < dimensions; ++d)
      if (boxes[i].lo[d] > boxes[i].hi[d])
        return {trInvalidArgument,
                fmt::format("{}: {}[{}] is {}: lo is above hi", kCreate, name, i, box_text(boxes[i], dimensions))};
    size_t elements = 0;
    if (!volume_of(boxes[i], dimensions, &elements) || elements > kMaxBytes / type.size)
      return {trInvalidArgument, fmt::format("{}: {}[{}] is {} of {}: more elements than any memory holds", kCreate,
                                             name, i, box_text(boxes[i], dimensions), type.name)};
    bytes->push_back(elements * type.size);
  }
  return {};
}

// All ranks check all transfers, so all refuse.
Status check_rows(const BoxTransfer& transfer, const std::vector<RankBoxes>& all, int dimensions) {
  const trBox_t& held = all[transfer.source].held[transfer.held];
  const trBox_t& needed = all[transfer.destination].needed[transfer.needed];
  for (const trBox_t* box : {&held, &needed})
    if (const size_t rows = row_count(transfer.box, *box, dimensions); rows > kMaxRows)
      return {trInvalidArgument, fmt::format("{}: {} in {} that rank {} {} is {} separate rows; at most {} are planned",
                                             kCreate, box_text(transfer.box, dimensions), box_text(*box, dimensions),
                                             box == &held ? transfer.source : transfer.destination,
                                             box == &held ? "holds" : "needs", rows, kMaxRows)};
  return {};
}

struct BoxInfo {
  uint64_t held, needed;
  uint32_t dimensions, type;
};

// The boxes of all ranks, as each gave them.
Status gather_boxes(Communicator& communicator, int dimensions, trDataType_t type, const RankBoxes& own,
                    std::vector<RankBoxes>* all) {
  std::vector<BoxInfo> infos(communicator.ranks());
  const BoxInfo info{own.held.size(), own.needed.size(), static_cast<uint32_t>(dimensions),
                     static_cast<uint32_t>(type)};
  TR_RETURN_IF_ERROR(
      communicator.allgather_bytes(Purpose::kBoxPlan, &info, sizeof info, reinterpret_cast<std::byte*>(infos.data())));
  size_t most = 0;
  for (uint32_t rank = 0; rank < infos.size(); ++rank) {
    if (infos[rank].dimensions != info.dimensions || infos[rank].type != info.type)
      return {trInvalidUsage,
              fmt::format("{}: rank {} has {} dimensions of type {}; rank {} has {} of type {}", kCreate,
                          communicator.rank(), info.dimensions, name_of(static_cast<trDataType_t>(info.type)), rank,
                          infos[rank].dimensions, name_of(static_cast<trDataType_t>(infos[rank].type)))};
    most = std::max(most, infos[rank].held + infos[rank].needed);
  }
  if (most == 0) {
    all->resize(infos.size());
    return {};
  }
  std::vector<trBox_t> mine = own.held, gathered(most * infos.size());
  mine.insert(mine.end(), own.needed.begin(), own.needed.end());
  mine.resize(most);
  TR_RETURN_IF_ERROR(communicator.allgather_bytes(Purpose::kBoxPlan, mine.data(), most * sizeof(trBox_t),
                                                  reinterpret_cast<std::byte*>(gathered.data())));
  for (size_t rank = 0; rank < infos.size(); ++rank) {
    auto first = gathered.begin() + static_cast<std::ptrdiff_t>(rank * most);
    auto middle = first + static_cast<std::ptrdiff_t>(infos[rank].held);
    all->push_back({{first, middle}, {middle, middle + static_cast<std::ptrdiff_t>(infos[rank].needed)}});
  }
  return {};
}

// One side of a transfer.
void add_rows(trExchange* exchange, const BoxTransfer& transfer, bool send, const trBox_t& outer, int dimensions,
              size_t size) {
  auto rows = std::make_unique<trExchange::Rows>();
  rows->box = send ? transfer.held : transfer.needed;
  size_t at = 0;
  for (const Row& row : rows_of(transfer.box, outer, dimensions)) {
    rows->offsets.push_back(row.offset * size);
    rows->segments.push_back({nullptr, at});
    at += row.length * size;
  }
  rows->transfer = {send ? transfer.destination : transfer.source, send, View(rows->segments), at};
  exchange->rows.push_back(std::move(rows));
}

Status plan_exchange(trExchange* exchange, Communicator& communicator, int dimensions, const RankBoxes& own,
                     trDataType_t type) {
  std::vector<RankBoxes> all;
  std::vector<BoxTransfer> transfers;
  TR_RETURN_IF_ERROR(gather_boxes(communicator, dimensions, type, own, &all));
  TR_RETURN_IF_ERROR(plan_transfers(all, dimensions, &transfers));
  for (const BoxTransfer& transfer : transfers) TR_RETURN_IF_ERROR(check_rows(transfer, all, dimensions));
  const size_t size = find_type(type)->size;
  for (const BoxTransfer& transfer : transfers) {
    if (transfer.source == communicator.rank())
      add_rows(exchange, transfer, true, own.held[transfer.held], dimensions, size);
    if (transfer.destination == communicator.rank())
      add_rows(exchange, transfer, false, own.needed[transfer.needed], dimensions, size);
  }
  std::vector<Transfer> lanes;
  for (const auto& rows : exchange->rows) lanes.push_back(rows->transfer);
  exchange->operation.function = "trExchangeStart";
  exchange->operation.collective = Collective::kAllToAll;
  exchange->operation.purpose = Purpose::kBoxes;
  exchange->operation.type = type;
  exchange->operation.pairs = true;
  return communicator.make_lanes(lanes, kCreate, &exchange->operation.lanes);
}

Status check_arrays(trExchange* exchange, const void* const* held_data, void* const* needed_data) {
  exchange->read.clear();
  exchange->written.clear();
  for (size_t i = 0; i < exchange->held_bytes.size(); ++i)
    if (held_data[i] != nullptr) exchange->read.emplace_back(held_data[i], exchange->held_bytes[i]);
  for (size_t i = 0; i < exchange->needed_bytes.size(); ++i)
    if (needed_data[i] != nullptr) exchange->written.emplace_back(needed_data[i], exchange->needed_bytes[i]);
  Range one, other;
  if (!find_overlap(exchange->read, exchange->written, &one, &other)) return {};
  return {trInvalidArgument, fmt::format("trExchangeStart: the arrays {:#x} ({} bytes) and {:#x} ({} bytes) overlap",
                                         one.begin, one.end - one.begin, other.begin, other.end - other.begin)};
}

Status start_exchange(trExchange* exchange, const void* const* held_data, void* const* needed_data, StreamId stream) {
  constexpr const char* kName = "trExchangeStart";
  if (!exchange->held_bytes.empty() && held_data == nullptr) return null_argument(kName, "held_data");
  if (!exchange->needed_bytes.empty() && needed_data == nullptr) return null_argument(kName, "needed_data");
  if (Engine::instance().is_queued(*exchange->task))
    return {trInvalidUsage, "trExchangeStart: the last start has not ended; synchronize its stream first"};
  TR_RETURN_IF_ERROR(check_arrays(exchange, held_data, needed_data));
  for (auto& rows : exchange->rows) {
    const void* data = rows->transfer.send ? held_data[rows->box] : needed_data[rows->box];
    if (data == nullptr)
      return {trInvalidArgument,
              fmt::format("{}: {}_data[{}] is NULL", kName, rows->transfer.send ? "held" : "needed", rows->box)};
    for (size_t i = 0; i < rows->segments.size(); ++i)
      rows->segments[i].base = static_cast<std::byte*>(const_cast<void*>(data)) + rows->offsets[i];
  }
  CommunicatorLease lease;
  TR_RETURN_IF_ERROR(lease.acquire(exchange->comm));
  if (device_of(*lease.get()) != nullptr)
    for (const auto& rows : exchange->rows)
      if (!rows->segments.empty() && DeviceRank::is_memory_of_device(rows->segments[0].base))
        return {trInvalidArgument, fmt::format("{}: {}_data[{}] is memory of a GPU; boxes take memory of the host",
                                               kName, rows->transfer.send ? "held" : "needed", rows->box)};
  if (stream == 0) {
    if (lease->queued() != 0) Engine::instance().wait_idle(lease.get());
    return lease->run(exchange->operation);
  }
  TR_RETURN_IF_ERROR(lease->failure());
  Task& task = *exchange->task;
  task.owned = false;
  task.stream = stream;
  task.communicator = lease.get();
  task.operation = exchange->operation;
  return Engine::instance().enqueue(&task);
}

}  // namespace

extern "C" {

trResult_t trExchangeCreate(trExchange_t* exchange, int dimensions, int held_count, const trBox_t* held,
                            int needed_count, const trBox_t* needed, trDataType_t datatype, trComm_t comm) {
  return guarded(find_slot(comm), [&]() -> Status {
    TR_RETURN_IF_ERROR(refuse_in_group(kCreate));
    if (exchange == nullptr) return null_argument(kCreate, "exchange");
    if (dimensions < 1 || dimensions > TR_MAX_DIMENSIONS)
      return {trInvalidArgument,
              fmt::format("{}: dimensions is {}; give 1 to {}", kCreate, dimensions, TR_MAX_DIMENSIONS)};
    if (find_type(datatype) == nullptr)
      return {trInvalidArgument, fmt::format("{}: {}", kCreate, unknown_type(datatype))};
    auto made = std::make_unique<trExchange>();
    made->comm = comm;
    const DataTypeInfo& type = *find_type(datatype);
    TR_RETURN_IF_ERROR(check_boxes(dimensions, "held", held_count, held, type, &made->held_bytes));
    TR_RETURN_IF_ERROR(check_boxes(dimensions, "needed", needed_count, needed, type, &made->needed_bytes));
    made->read.reserve(made->held_bytes.size());
    made->written.reserve(made->needed_bytes.size());
    const RankBoxes own{{held, held + held_count}, {needed, needed + needed_count}};
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    if (lease->queued() != 0) Engine::instance().wait_idle(lease.get());
    TR_RETURN_IF_ERROR(plan_exchange(made.get(), *lease.get(), dimensions, own, datatype));
    *exchange = made.release();
    return {};
  });
}

trResult_t trExchangeStart(trExchange_t exchange, const void* const* held_data, void* const* needed_data,
                           trStream_t stream) {
  return guarded(nullptr, [&]() -> Status {
    TR_RETURN_IF_ERROR(refuse_in_group("trExchangeStart"));
    if (exchange == nullptr) return null_argument("trExchangeStart", "exchange");
    return start_exchange(exchange, held_data, needed_data, stream_id(stream));
  });
}

trResult_t trExchangeDestroy(trExchange_t exchange) {
  if (exchange == nullptr) return trSuccess;
  return guarded(nullptr, [&]() -> Status {
    Engine::instance().wait(*exchange->task);
    delete exchange;
    return {};
  });
}

trResult_t trSparseAllReduce(const int64_t* indices, const void* values, size_t rows, size_t row_elements,
                             trDataType_t datatype, trRedOp_t op, int64_t* out_indices, void* out_values,
                             size_t capacity, size_t* out_rows, trComm_t comm) {
  return guarded(find_slot(comm), [&]() -> Status {
    constexpr const char* kName = "trSparseAllReduce";
    TR_RETURN_IF_ERROR(refuse_in_group(kName));
    if (out_rows == nullptr) return null_argument(kName, "out_rows");
    if (rows > 0 && (indices == nullptr || (values == nullptr && row_elements > 0)))
      return null_argument(kName, indices == nullptr ? "indices" : "values");
    if (capacity > 0 && (out_indices == nullptr || (out_values == nullptr && row_elements > 0)))
      return null_argument(kName, out_indices == nullptr ? "out_indices" : "out_values");
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    for (const void* buffer : {static_cast<const void*>(indices), values, static_cast<const void*>(out_indices),
                               static_cast<const void*>(out_values)})
      if (device_of(*lease.get()) != nullptr && DeviceRank::is_memory_of_device(buffer))
        return {trInvalidArgument, fmt::format("{}: {} is memory of a GPU; give memory of the host", kName, buffer)};
    if (lease->queued() != 0) Engine::instance().wait_idle(lease.get());
    return sparse_allreduce(lease.get(), {indices, values, rows, row_elements, datatype, op}, out_indices, out_values,
                            capacity, out_rows);
  });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// The C entry points of the collectives with a count for each rank, and of sends and receives.
#include <array>
#include <memory_resource>
#include <numeric>

#include "api/common.h"
#include "api/overlap.h"
#include "core/names.h"
#include "core/types.h"

using namespace treering;

namespace {

template <typename... Args>
Status bad(const char* function, uint32_t rank, fmt::format_string<Args...> format, Args&&... args) {
  return {trInvalidArgument,
          fmt::format("{} on rank {}: {}", function, rank, fmt::format(format, std::forward<Args>(args)...))};
}

constexpr size_t kMaxElements = SIZE_MAX / 64;

// The count of one buffer.
Status check_count(const char* function, uint32_t rank, const char* name, size_t count, trDataType_t type) {
  if (count <= kMaxElements) return {};
  return bad(function, rank, "{} is {} x {}: more than any memory holds", name, count, find_type(type)->name);
}

// The count and the displacement of block r; that of an empty block is not used.
Status check_block(const char* function, const Communicator& communicator, const char* name, const size_t* counts,
                   const size_t* displs, uint32_t r, const char* type) {
  const size_t most = kMaxElements / communicator.ranks();
  if (counts[r] > most)
    return bad(function, communicator.rank(), "{}[{}] is {} x {}: more than any memory holds", name, r, counts[r],
               type);
  if (displs != nullptr && counts[r] > 0 && displs[r] > most)
    return bad(function, communicator.rank(), "the displacement of {}[{}] is {} x {}: more than any memory holds", name,
               r, displs[r], type);
  return {};
}

// Where block r begins, in elements.
size_t displacement(const size_t* counts, const size_t* displs, uint32_t r) { return counts[r] > 0 ? displs[r] : 0; }

// Counts and displacements of the blocks of one buffer, in bytes; what is wrong with them, if anything.
struct ByteBlocks {
  std::array<std::byte, 1024> stack;  // enough for 64 ranks: small calls allocate nothing
  std::pmr::monotonic_buffer_resource memory{stack.data(), stack.size()};
  std::pmr::vector<size_t> bytes{&memory}, offsets{&memory};
  size_t total = 0;
  Range extent;          // from the first byte of any block to the last
  bool in_order = true;  // each block begins behind those before it: none meets another

  Status fill(const char* function, const Communicator& communicator, const char* name, const size_t* counts,
              const size_t* displs, const void* buffer, const DataTypeInfo& type) {
    const uint32_t rank = communicator.rank(), ranks = communicator.ranks();
    if (counts == nullptr) return bad(function, rank, "{} is NULL", name);
    bytes.reserve(ranks);
    offsets.reserve(ranks);
    for (uint32_t r = 0; r < ranks; ++r) {
      TR_RETURN_IF_ERROR(check_block(function, communicator, name, counts, displs, r, type.name));
      bytes.push_back(counts[r] * type.size);
      offsets.push_back(displs == nullptr ? total : displacement(counts, displs, r) * type.size);
      total += bytes.back();
      if (bytes.back() == 0) continue;
      const Range block(at(buffer, r), bytes.back());
      in_order &= extent.end <= block.begin;
      extent.begin = extent.empty() ? block.begin : std::min(extent.begin, block.begin);
      extent.end = std::max(extent.end, block.end);
    }
    if (total > 0 && buffer == nullptr) return bad(function, rank, "the buffer of {} is NULL", name);
    return {};
  }
  std::byte* at(const void* buffer, uint32_t r) const {
    return static_cast<std::byte*>(const_cast<void*>(buffer)) + offsets[r];
  }
};

Status check_type(const char* function, uint32_t rank, trDataType_t type) {
  if (find_type(type) != nullptr) return {};
  return bad(function, rank, "{}", unknown_type(type));
}

Status check_rank(const char* function, const Communicator& communicator, const char* name, int peer) {
  if (peer >= 0 && static_cast<uint32_t>(peer) < communicator.ranks()) return {};
  return bad(function, communicator.rank(), "{} is {}; give {}", name, peer, numbers_of_ranks(communicator.ranks()));
}

void add(std::vector<Transfer>* transfers, uint32_t peer, bool send, const void* buffer, size_t bytes) {
  if (bytes > 0) transfers->push_back({peer, send, View(buffer), bytes});
}

Status overlapping(const char* function, uint32_t rank, const Range& one, const Range& other) {
  return bad(function, rank, "{:#x} ({} bytes) and {:#x} ({} bytes) overlap, but not so that the call is in place",
             one.begin, one.end - one.begin, other.begin, other.end - other.begin);
}

// Nothing that is received may lie in what is sent, or in something else that is received. A block that a rank sends to
// itself may stay where it is.
Status check_apart(const char* function, uint32_t rank, const std::vector<Transfer>& transfers) {
  std::vector<Range> read, written;
  const std::byte* own = nullptr;
  for (const Transfer& transfer : transfers)
    if (transfer.peer == rank && !transfer.send) own = transfer.view.base();
  for (const Transfer& transfer : transfers)
    if (!transfer.send)
      written.emplace_back(transfer.view.base(), transfer.bytes);
    else if (transfer.peer != rank || transfer.view.base() != own)
      read.emplace_back(transfer.view.base(), transfer.bytes);
  Range one, other;
  return find_overlap(read, written, &one, &other) ? overlapping(function, rank, one, other) : Status();
}

// The blocks that an allgatherv stores.
Status check_blocks(const char* function, uint32_t rank, const Blocks& blocks, const void* output, size_t size) {
  std::vector<Range> written;
  for (size_t r = 0; r < blocks.counts.size(); ++r)
    written.emplace_back(static_cast<const std::byte*>(output) + blocks.offsets[r] * size, blocks.counts[r] * size);
  Range one, other;
  return find_overlap({}, written, &one, &other) ? overlapping(function, rank, one, other) : Status();
}

// Allgatherv and reduce-scatterv: all ranks know all counts.
trResult_t submit_blocks(const char* function, Collective collective, const void* input, void* output,
                         const size_t* own_count, const size_t* counts, const size_t* displs, trDataType_t type,
                         trRedOp_t op, trComm_t comm, trStream_t stream) {
  Operation operation;
  operation.purpose = Purpose::kVariable;
  auto blocks = std::make_shared<Blocks>();
  Status status = [&]() -> Status {
    CommunicatorLease lease;
    TR_RETURN_IF_ERROR(lease.acquire(comm));
    const uint32_t rank = lease->rank(), ranks = lease->ranks();
    TR_RETURN_IF_ERROR(check_type(function, rank, type));
    const DataTypeInfo* row = find_type(type);
    if (counts == nullptr) return bad(function, rank, "recvcounts is NULL");
    if (own_count != nullptr && *own_count != counts[rank])
      return bad(function, rank, "sendcount is {}, but recvcounts[{}] is {}", *own_count, rank, counts[rank]);
    size_t at = 0;
    for (uint32_t r = 0; r < ranks; ++r) {
      TR_RETURN_IF_ERROR(check_block(function, *lease.get(), "recvcounts", counts, displs, r, row->name));
      blocks->counts.push_back(counts[r]);
      blocks->offsets.push_back(displs == nullptr ? at : displacement(counts, displs, r));
      at += counts[r];
      blocks->parts.largest = std::max(blocks->parts.largest, counts[r]);
    }
    blocks->parts.counts = blocks->counts.data();
    blocks->parts.offsets = blocks->offsets.data();
    if (displs != nullptr) TR_RETURN_IF_ERROR(check_blocks(function, rank, *blocks, output, row->size));
    operation.count = counts[rank];
    return {};
  }();
  if (!status.ok()) return report(fail_group(status), find_slot(comm));
  operation.function = function;
  operation.collective = collective;
  operation.input = input;
  operation.output = output;
  operation.type = type;
  operation.op = op;
  operation.blocks = std::move(blocks);
  return submit(comm, std::move(operation), stream);
}

Operation lanes_of(const char* function, Collective collective, size_t count, trDataType_t type, int root) {
  Operation operation;
  operation.purpose = Purpose::kVariable;
  operation.function = function;
  operation.collective = collective;
  operation.count = count;
  operation.type = type;
  operation.root = static_cast<uint32_t>(root);
  return operation;
}

}  // namespace

extern "C" {

trResult_t trAllGatherV(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                        const size_t* displs, trDataType_t datatype, trComm_t comm, trStream_t stream) {
  return submit_blocks("trAllGatherV", Collective::kAllGather, sendbuf, recvbuf, &sendcount, recvcounts, displs,
                       datatype, trSum, comm, stream);
}

trResult_t trReduceScatterV(const void* sendbuf, void* recvbuf, const size_t* recvcounts, trDataType_t datatype,
                            trRedOp_t op, trComm_t comm, trStream_t stream) {
  return submit_blocks("trReduceScatterV", Collective::kReduceScatter, sendbuf, recvbuf, nullptr, recvcounts, nullptr,
                       datatype, op, comm, stream);
}

trResult_t trAllToAllV(const void* sendbuf, const size_t* sendcounts, const size_t* sdispls, void* recvbuf,
                       const size_t* recvcounts, const size_t* rdispls, trDataType_t datatype, trComm_t comm,
                       trStream_t stream) {
  constexpr const char* kName = "trAllToAllV";
  return submit_transfers(
      comm, lanes_of(kName, Collective::kAllToAll, 0, datatype, 0), stream,
      [&](Communicator& communicator, std::vector<Transfer>* transfers) -> Status {
        const uint32_t rank = communicator.rank(), ranks = communicator.ranks();
        TR_RETURN_IF_ERROR(check_type(kName, rank, datatype));
        ByteBlocks send, receive;
        TR_RETURN_IF_ERROR(
            send.fill(kName, communicator, "sendcounts", sendcounts, sdispls, sendbuf, *find_type(datatype)));
        TR_RETURN_IF_ERROR(
            receive.fill(kName, communicator, "recvcounts", recvcounts, rdispls, recvbuf, *find_type(datatype)));
        if (sendbuf == recvbuf && send.total > 0)
          return bad(kName, rank, "sendbuf and recvbuf are the same: not in place");
        if (sendcounts[rank] != recvcounts[rank])
          return bad(kName, rank, "sendcounts[{0}] is {1}, but recvcounts[{0}] is {2}", rank, sendcounts[rank],
                     recvcounts[rank]);
        for (uint32_t i = 0; i < ranks; ++i) {
          const uint32_t to = (rank + i) % ranks, from = (rank + ranks - i) % ranks;
          add(transfers, to, true, send.at(sendbuf, to), send.bytes[to]);
          add(transfers, from, false, receive.at(recvbuf, from), receive.bytes[from]);
        }
        return receive.in_order && !receive.extent.meets(send.extent) ? Status() : check_apart(kName, rank, *transfers);
      });
}

trResult_t trGatherV(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                     const size_t* displs, trDataType_t datatype, int root, trComm_t comm, trStream_t stream) {
  constexpr const char* kName = "trGatherV";
  return submit_transfers(
      comm, lanes_of(kName, Collective::kGather, sendcount, datatype, root), stream,
      [&](Communicator& communicator, std::vector<Transfer>* transfers) -> Status {
        const uint32_t rank = communicator.rank(), ranks = communicator.ranks();
        TR_RETURN_IF_ERROR(check_type(kName, rank, datatype));
        TR_RETURN_IF_ERROR(check_rank(kName, communicator, "root", root));
        TR_RETURN_IF_ERROR(check_count(kName, rank, "sendcount", sendcount, datatype));
        if (sendcount > 0 && sendbuf == nullptr) return bad(kName, rank, "sendbuf is NULL");
        const size_t size = find_type(datatype)->size;
        add(transfers, static_cast<uint32_t>(root), true, sendbuf, sendcount * size);
        if (rank != static_cast<uint32_t>(root)) return {};
        ByteBlocks receive;
        TR_RETURN_IF_ERROR(
            receive.fill(kName, communicator, "recvcounts", recvcounts, displs, recvbuf, *find_type(datatype)));
        if (recvcounts[rank] != sendcount)
          return bad(kName, rank, "sendcount is {}, but recvcounts[{}] is {}", sendcount, rank, recvcounts[rank]);
        // Its own block first, beside the send.
        for (uint32_t i = 0; i < ranks; ++i) {
          const uint32_t from = (rank + i) % ranks;
          add(transfers, from, false, receive.at(recvbuf, from), receive.bytes[from]);
        }
        const bool in_place = sendbuf == receive.at(recvbuf, rank);
        if (receive.in_order && (in_place || !receive.extent.meets({sendbuf, sendcount * size}))) return {};
        return check_apart(kName, rank, *transfers);
      });
}

trResult_t trScatterV(const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf,
                      size_t recvcount, trDataType_t datatype, int root, trComm_t comm, trStream_t stream) {
  constexpr const char* kName = "trScatterV";
  return submit_transfers(
      comm, lanes_of(kName, Collective::kScatter, recvcount, datatype, root), stream,
      [&](Communicator& communicator, std::vector<Transfer>* transfers) -> Status {
        const uint32_t rank = communicator.rank(), ranks = communicator.ranks();
        TR_RETURN_IF_ERROR(check_type(kName, rank, datatype));
        TR_RETURN_IF_ERROR(check_rank(kName, communicator, "root", root));
        TR_RETURN_IF_ERROR(check_count(kName, rank, "recvcount", recvcount, datatype));
        if (recvcount > 0 && recvbuf == nullptr) return bad(kName, rank, "recvbuf is NULL");
        const size_t size = find_type(datatype)->size;
        Range sent;
        if (rank == static_cast<uint32_t>(root)) {
          ByteBlocks send;
          TR_RETURN_IF_ERROR(
              send.fill(kName, communicator, "sendcounts", sendcounts, displs, sendbuf, *find_type(datatype)));
          if (sendcounts[rank] != recvcount)
            return bad(kName, rank, "recvcount is {}, but sendcounts[{}] is {}", recvcount, rank, sendcounts[rank]);
          // Its own block last, beside the receive.
          for (uint32_t i = 1; i <= ranks; ++i) {
            const uint32_t to = (rank + i) % ranks;
            add(transfers, to, true, send.at(sendbuf, to), send.bytes[to]);
          }
          sent = send.extent;
        }
        add(transfers, static_cast<uint32_t>(root), false, recvbuf, recvcount * size);
        const bool apart = rank != static_cast<uint32_t>(root) || !sent.meets({recvbuf, recvcount * size});
        return apart ? Status() : check_apart(kName, rank, *transfers);
      });
}

trResult_t trSend(const void* sendbuf, size_t count, trDataType_t datatype, int peer, trComm_t comm,
                  trStream_t stream) {
  Operation operation;
  operation.function = "trSend";
  operation.point_to_point = true;
  return submit_transfers(
      comm, std::move(operation), stream, [&](Communicator& communicator, std::vector<Transfer>* transfers) -> Status {
        TR_RETURN_IF_ERROR(check_type("trSend", communicator.rank(), datatype));
        TR_RETURN_IF_ERROR(check_rank("trSend", communicator, "peer", peer));
        TR_RETURN_IF_ERROR(check_count("trSend", communicator.rank(), "count", count, datatype));
        if (count > 0 && sendbuf == nullptr) return null_argument("trSend", "sendbuf");
        transfers->push_back({static_cast<uint32_t>(peer), true, View(sendbuf), count * find_type(datatype)->size});
        return {};
      });
}

trResult_t trRecv(void* recvbuf, size_t count, trDataType_t datatype, int peer, trComm_t comm, trStream_t stream) {
  Operation operation;
  operation.function = "trRecv";
  operation.point_to_point = true;
  return submit_transfers(
      comm, std::move(operation), stream, [&](Communicator& communicator, std::vector<Transfer>* transfers) -> Status {
        TR_RETURN_IF_ERROR(check_type("trRecv", communicator.rank(), datatype));
        TR_RETURN_IF_ERROR(check_rank("trRecv", communicator, "peer", peer));
        TR_RETURN_IF_ERROR(check_count("trRecv", communicator.rank(), "count", count, datatype));
        if (count > 0 && recvbuf == nullptr) return null_argument("trRecv", "recvbuf");
        transfers->push_back({static_cast<uint32_t>(peer), false, View(recvbuf), count * find_type(datatype)->size});
        return {};
      });
}

trResult_t trSendRecv(const void* sendbuf, size_t sendcount, int dest, void* recvbuf, size_t recvcount, int source,
                      trDataType_t datatype, trComm_t comm, trStream_t stream) {
  Operation operation;
  operation.function = "trSendRecv";
  operation.point_to_point = true;
  return submit_transfers(
      comm, std::move(operation), stream, [&](Communicator& communicator, std::vector<Transfer>* transfers) -> Status {
        TR_RETURN_IF_ERROR(check_type("trSendRecv", communicator.rank(), datatype));
        TR_RETURN_IF_ERROR(check_rank("trSendRecv", communicator, "dest", dest));
        TR_RETURN_IF_ERROR(check_rank("trSendRecv", communicator, "source", source));
        TR_RETURN_IF_ERROR(check_count("trSendRecv", communicator.rank(), "sendcount", sendcount, datatype));
        TR_RETURN_IF_ERROR(check_count("trSendRecv", communicator.rank(), "recvcount", recvcount, datatype));
        if (sendcount > 0 && sendbuf == nullptr) return null_argument("trSendRecv", "sendbuf");
        if (recvcount > 0 && recvbuf == nullptr) return null_argument("trSendRecv", "recvbuf");
        const size_t size = find_type(datatype)->size;
        transfers->push_back({static_cast<uint32_t>(dest), true, View(sendbuf), sendcount * size});
        transfers->push_back({static_cast<uint32_t>(source), false, View(recvbuf), recvcount * size});
        const Range sent(sendbuf, sendcount * size), received(recvbuf, recvcount * size);
        if (!sent.meets(received)) return {};
        return bad("trSendRecv", communicator.rank(), "sendbuf {} ({} bytes) and recvbuf {} ({} bytes) overlap",
                   sendbuf, sendcount * size, recvbuf, recvcount * size);
      });
}

}  // extern "C"

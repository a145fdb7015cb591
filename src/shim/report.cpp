// SPDX-License-Identifier: Apache-2.0
#include "shim/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "shim/log.h"

namespace treering::nccl {
namespace {

constexpr size_t kLargestReported = size_t{1} << 30;

struct FunctionRow {
  const char* name;
  trCollective_t collective;
  bool blocks;  // the larger buffer holds `count` elements of every rank
};
// By Function.
constexpr FunctionRow kFunctionRows[] = {
    {"AllReduce", trCollAllReduce, false},
    {"Reduce", trCollReduce, false},
    {"Broadcast", trCollBroadcast, false},
    {"AllGather", trCollAllGather, true},
    {"ReduceScatter", trCollReduceScatter, true},
    {"AlltoAll", trCollAllToAll, true},
    {"Gather", trCollGather, true},
    {"Scatter", trCollScatter, true},
    {"Send", trCollForceInt, false},
    {"Recv", trCollForceInt, false},
};
const FunctionRow& row_of(Function function) { return kFunctionRows[static_cast<size_t>(function)]; }

// "up to 16384 bytes one-shot/mailbox x1, up to ... , above two-shot/staged x2"
std::string choices_of(const Comm& comm, trCollective_t collective) {
  std::string text, current;
  for (size_t bytes = 8; bytes <= kLargestReported; bytes *= 2) {
    trSelection_t selection;
    if (trGetSelection(comm.get(), collective, nullptr, nullptr, bytes, trFloat32, &selection) != trSuccess) return "?";
    std::string choice = fmt::format("{}/{} x{}", selection.algorithm, selection.protocol, selection.channels);
    if (!current.empty() && choice != current) text += fmt::format("up to {} bytes {}, ", bytes / 2, current);
    current = std::move(choice);
  }
  return text + (text.empty() ? "" : "above ") + current;
}

void report_rings(const Comm& comm) {
  std::vector<int> ring(static_cast<size_t>(comm.ranks));
  trSelection_t large;
  if (trCommGetRing(comm.get(), ring.data()) != trSuccess ||
      trGetSelection(comm.get(), trCollAllReduce, nullptr, nullptr, kLargestReported, trFloat32, &large) != trSuccess)
    return;
  for (int channel = 0; channel < large.channels; ++channel)
    log_info(kInit, comm.device,
             fmt::format("Channel {:02}/{:02} : {}", channel, large.channels, fmt::join(ring, " ")));
}

void report_trees(const Comm& comm) {
  std::string text = "Trees";
  for (int tree = 0; tree < 2; ++tree) {
    int parent = -1, children[2] = {-1, -1};
    if (trCommGetTree(comm.get(), tree, &parent, children) != trSuccess) return;
    text += fmt::format(" [{}] {}/{}/-1->{}->{}", tree, children[0], children[1], comm.rank, parent);
  }
  log_info(kInit, comm.device, text);
}

}  // namespace

bool collective_of(Function function, trCollective_t* collective) {
  *collective = row_of(function).collective;
  return *collective != trCollForceInt;
}

size_t type_bytes(trDataType_t type) {
  constexpr size_t kBytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kBytes[type];
}

size_t bytes_of(const Call& call) {
  const size_t block = call.count * type_bytes(call.type);
  return row_of(call.function).blocks ? block * static_cast<size_t>(call.comm->ranks) : block;
}

void report_call(const Call& call) {
  const FunctionRow& row = row_of(call.function);
  const uint64_t number = call.comm->calls.fetch_add(1, std::memory_order_relaxed);
  if (log_info_enabled(kColl))
    log_info(
        kColl, call.comm->device,
        fmt::format("{}: opCount {:x} sendbuff {} recvbuff {} count {} datatype {} op {} root {} comm {} [nranks={}] "
                    "stream {}",
                    row.name, number, call.send, call.recv, call.count, static_cast<int>(call.type),
                    static_cast<int>(call.op), call.root, static_cast<void*>(call.comm->handle), call.comm->ranks,
                    static_cast<void*>(call.stream.stream)));
  trCollective_t collective;
  if (!log_info_enabled(kTuning) || !collective_of(call.function, &collective)) return;
  trSelection_t selection;
  if (trGetSelection(call.comm->get(), collective, call.send, call.recv, bytes_of(call), call.type, &selection) !=
      trSuccess)
    return;
  log_info(kTuning, call.comm->device,
           fmt::format("{}: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}", row.name, bytes_of(call),
                       selection.algorithm, selection.protocol, selection.channels - 1));
}

void report_comm(const Comm& comm, const char* function) {
  if (!log_info_enabled(kInit)) return;
  if (comm.rank == 0) report_rings(comm);
  report_trees(comm);
  if (comm.rank == 0)
    for (const FunctionRow& row : kFunctionRows)
      if (row.collective != trCollForceInt)
        log_info(kInit, comm.device, fmt::format("{}: {}", row.name, choices_of(comm, row.collective)));
  log_info(kInit, comm.device,
           fmt::format("{} comm {} rank {} nranks {} cudaDev {}{}{} - Init COMPLETE", function,
                       static_cast<void*>(comm.handle), comm.rank, comm.ranks, comm.device,
                       comm.name.empty() ? "" : " commName ", comm.name));
}

}  // namespace treering::nccl

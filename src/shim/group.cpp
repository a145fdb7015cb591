// SPDX-License-Identifier: Apache-2.0
#include "shim/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <thread>

#include "core/change_chains.h"
#include "shim/entry.h"
#include "shim/report.h"

namespace treering::nccl {
namespace {

trResult_t issue(const Call& call) {
  const trComm_t comm = call.comm->get();
  const trRedOp_t op = call.made == nullptr ? call.op : call.made->op;
  const trStream_t stream = call.stream.stream;
  switch (call.function) {
    case Function::kAllReduce:
      return trAllReduce(call.send, call.recv, call.count, call.type, op, comm, stream);
    case Function::kReduce:
      return trReduce(call.send, call.recv, call.count, call.type, op, call.root, comm, stream);
    case Function::kBroadcast:
      return trBroadcast(call.send, call.recv, call.count, call.type, call.root, comm, stream);
    case Function::kAllGather:
      return trAllGather(call.send, call.recv, call.count, call.type, comm, stream);
    case Function::kReduceScatter:
      return trReduceScatter(call.send, call.recv, call.count, call.type, op, comm, stream);
    case Function::kAlltoAll:
      return trAllToAll(call.send, call.recv, call.count, call.type, comm, stream);
    case Function::kGather:
      return trGather(call.send, call.recv, call.count, call.type, call.root, comm, stream);
    case Function::kScatter:
      return trScatter(call.send, call.recv, call.count, call.type, call.root, comm, stream);
    case Function::kSend:
      return trSend(call.send, call.count, call.type, call.root, comm, stream);
    case Function::kRecv:
      return trRecv(call.recv, call.count, call.type, call.root, comm, stream);
  }
  return trInternalError;
}

Status run_call(const Call& call) {
  const Status status = status_of(issue(call));
  if (status.ok()) return status;
  Status named(status.code(), fmt::format("{}: {}", call.name, status.message()));
  call.comm->set_last_error(named.message());
  return named;
}

Status run_calls(const std::vector<Call>& calls) {
  if (calls.empty()) return {};
  if (calls.size() == 1) return run_call(calls[0]);
  (void)trGroupStart();
  Status failure;
  for (const Call& call : calls)
    if (failure.ok()) failure = run_call(call);
  // A wrong call has made the group of the C API fail, too: it starts nothing.
  Status ended = status_of(trGroupEnd());
  if (failure.ok() && !ended.ok()) {
    failure = ended;
    for (const Call& call : calls) call.comm->set_last_error(ended.message());
  }
  return failure;
}

// Those that use the same communicator (of a new one: the parent comes first) run one after another.
Status run_changes(const std::vector<Change>& changes) {
  std::vector<ChangeChain> chains;
  std::map<Comm*, size_t> chain_of;
  for (const Change& change : changes) {
    const size_t at = chain_of.try_emplace(change.comms.front().get(), chains.size()).first->second;
    if (at == chains.size()) chains.emplace_back();
    chains[at].push_back(change.work);
  }
  return run_chains(chains);
}

std::vector<CommPtr> comms_of(const Batch& batch) {
  std::vector<CommPtr> comms;
  for (const Change& change : batch.changes) comms.insert(comms.end(), change.comms.begin(), change.comms.end());
  for (const Call& call : batch.calls) comms.push_back(call.comm);
  return comms;
}

}  // namespace

Group& Group::current() {
  thread_local Group group;
  return group;
}

Status Group::end(const char* function, Batch* batch, bool* outermost) {
  *outermost = false;
  if (depth_ == 0) return {trInvalidUsage, fmt::format("{} without ncclGroupStart", function)};
  if (--depth_ > 0) return {};
  *outermost = true;
  *batch = std::exchange(batch_, Batch());
  return std::exchange(failure_, Status());
}

Status Batch::find_kind(bool* blocking) const {
  std::vector<const Comm*> deciding;
  for (const Change& change : changes) deciding.push_back(change.comms.front().get());
  for (const Call& call : calls) deciding.push_back(call.comm.get());
  *blocking = deciding.empty() || deciding[0]->blocking;
  for (const Comm* comm : deciding)
    if (comm->blocking != *blocking)
      return {trInvalidArgument, "a group has blocking and non-blocking communicators; use a group for each kind"};
  return {};
}

Status Batch::run() {
  Status status = run_changes(changes);
  return status.ok() ? run_calls(calls) : status;
}

// Where there are GPUs, calls are put into CUDA streams and wait for no other rank. PyTorch expects success of them, as NCCL
// gives it, and another thread would have another default stream.
Status launch(Batch batch) {
  bool blocking = true;
  Status kind = batch.find_kind(&blocking);
  if (!kind.ok() || blocking || (batch.changes.empty() && has_devices())) {
    Status status = kind.ok() ? batch.run() : kind;
    if (status.ok()) return status;
    undo(batch);
    return status;
  }
  const auto comms = comms_of(batch);
  for (const CommPtr& comm : comms) comm->begin_background();
  auto shared = std::make_shared<Batch>(std::move(batch));
  auto run = [comms, shared] {
    const Status status = run_guarded([&] { return shared->run(); });
    if (!status.ok()) (void)report(status);
    *shared = Batch();  // what the calls hold is released before the communicators count as ready
    for (const CommPtr& comm : comms) comm->end_background(status);
  };
  try {
    std::thread(std::move(run)).detach();
  } catch (const std::exception& error) {
    const Status failed(
        trSystemError, fmt::format("the thread of a non-blocking communicator could not be started: {} (see ulimit -u)",
                                   error.what()));
    for (const CommPtr& comm : comms) comm->end_background(failed);
    undo(*shared);
    return failed;
  }
  return {trInProgress, ""};
}

Status submit(Call call) {
  report_call(call);
  if (Group::current().open()) {
    Group::current().batch().calls.push_back(std::move(call));
    return {};
  }
  if (call.comm->blocking || has_devices()) return run_call(call);
  Batch batch;
  batch.calls.push_back(std::move(call));
  return launch(std::move(batch));
}

Status submit(Change change) {
  if (Group::current().open()) {
    Group::current().batch().changes.push_back(std::move(change));
    return {};
  }
  Batch batch;
  batch.changes.push_back(std::move(change));
  return launch(std::move(batch));
}

void undo(const Batch& batch) {
  for (const Change& change : batch.changes)
    if (change.undo) change.undo();
}

Status end_group(const char* function) {
  Batch batch;
  bool outermost = false;
  Status status = Group::current().end(function, &batch, &outermost);
  for (const CommPtr& comm : std::exchange(batch.aborted, {})) {
    const Status released = comm->release(/*abort=*/true);
    if (status.ok()) status = released;
  }
  if (status.ok()) return outermost ? launch(std::move(batch)) : Status();
  undo(batch);
  return status;
}

Status predict(const Batch& batch, double* microseconds) {
  *microseconds = 0;
  struct Line {
    double collectives_us = 0;
    bool transfers = false;  // all run at once
    size_t sent = 0, received = 0;
  };
  std::map<Comm*, Line> lines;  // communicators, ranks of one in several as well, run at the same time
  for (const Call& call : batch.calls) {
    TR_RETURN_IF_ERROR(call.comm->expect_usable(call.name));
    trSelection_t selection;
    trCollective_t collective;
    if (!collective_of(call.function, &collective)) {
      Line& all = lines[call.comm.get()];
      all.transfers = true;
      if (call.root != call.comm->rank) (call.function == Function::kSend ? all.sent : all.received) += bytes_of(call);
      continue;
    }
    TR_RETURN_IF_ERROR(status_of(
        trGetSelection(call.comm->get(), collective, call.send, call.recv, bytes_of(call), call.type, &selection)));
    lines[call.comm.get()].collectives_us += selection.predicted_us;
  }
  for (const auto& [comm, line] : lines) {
    double time = 0;  // both directions at once
    if (line.transfers)
      TR_RETURN_IF_ERROR(status_of(trPredictTransfer(comm->get(), std::max(line.sent, line.received), &time)));
    *microseconds = std::max(*microseconds, line.collectives_us + time);
  }
  return {};
}

}  // namespace treering::nccl

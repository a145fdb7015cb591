#include "api/group.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <thread>

namespace treering {
namespace {

// The operations of one communicator that the calling thread drives, in order.
struct Driven {
  CommunicatorLease lease;
  std::deque<AllReduceArguments> waiting;
};

// One turn; true when the communicator has nothing left to do.
bool take_turn(Driven& driven, bool look, bool* moved, Status* failure) {
  Communicator& communicator = *driven.lease.get();
  Status status;
  if (!communicator.active()) {
    if (driven.waiting.empty()) return true;
    status = communicator.begin(driven.waiting.front());
    driven.waiting.pop_front();
    *moved = true;
  }
  if (status.ok()) {
    auto progress = communicator.advance();
    *moved |= progress != Communicator::Progress::kBlocked;
    if (progress == Communicator::Progress::kFailed)
      status = communicator.failure();
    else if (progress == Communicator::Progress::kBlocked && look)
      status = communicator.look_around();
  }
  if (status.ok()) return false;
  driven.waiting.clear();
  driven.lease.slot().last_error = status.message();
  if (failure->ok()) *failure = status;
  return true;
}

}  // namespace

Group& Group::current() {
  thread_local Group group;
  return group;
}

void Group::add_operation(trComm_t comm, const AllReduceArguments& arguments, Engine::StreamId stream) {
  operations_.push_back({comm, arguments, stream});
}

Status Group::end() {
  if (depth_ == 0) return {trInvalidUsage, "trGroupEnd without trGroupStart"};
  if (--depth_ > 0) return {};
  auto operations = std::exchange(operations_, {});
  auto jobs = std::exchange(jobs_, {});
  Status failure = std::exchange(failure_, Status());
  if (!failure.ok()) return failure;
  TR_RETURN_IF_ERROR(run_jobs(std::move(jobs)));
  return run_operations(operations);
}

Status Group::run_jobs(std::vector<std::function<Status()>> jobs) {
  std::vector<Status> results(jobs.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < jobs.size(); ++i) threads.emplace_back([&, i] { results[i] = jobs[i](); });
  for (auto& thread : threads) thread.join();
  for (const Status& status : results)
    if (!status.ok()) return status;
  return {};
}

Status Group::run_operations(const std::vector<Operation>& operations) {
  std::vector<std::pair<trComm_t, std::unique_ptr<Driven>>> driven;
  for (const Operation& operation : operations) {
    auto found = std::find_if(driven.begin(), driven.end(), [&](auto& entry) { return entry.first == operation.comm; });
    if (found == driven.end()) {
      driven.emplace_back(operation.comm, std::make_unique<Driven>());
      found = driven.end() - 1;
      TR_RETURN_IF_ERROR(found->second->lease.acquire(operation.comm));
    }
    if (operation.stream != 0)
      TR_RETURN_IF_ERROR(Engine::instance().enqueue(operation.stream, found->second->lease.get(), operation.arguments));
    else
      found->second->waiting.push_back(operation.arguments);
  }
  // What streams hold of a communicator was issued before and goes first.
  for (auto& [comm, entry] : driven)
    if (!entry->waiting.empty() && entry->lease->queued.load() != 0) Engine::instance().wait_idle(entry->lease.get());
  std::erase_if(driven, [](auto& entry) { return entry.second->waiting.empty(); });
  Status failure;
  Backoff backoff(driven.empty() ? 0 : driven.front().second->lease->spins());
  bool look = false;
  while (!driven.empty()) {
    bool moved = false;
    std::erase_if(driven, [&](auto& entry) { return take_turn(*entry.second, look, &moved, &failure); });
    if (moved) backoff.reset();
    look = !moved && backoff.pause();
  }
  return failure;
}

}  // namespace treering

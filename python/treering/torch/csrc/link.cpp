// SPDX-License-Identifier: Apache-2.0
#include "link.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "errors.h"

namespace treering::pytorch {
namespace {

// In front of the id in the store; else words that say why there is none.
constexpr uint8_t kIsId = 1;
constexpr uint8_t kIsFailure = 0;

std::string publish_id(const Meeting& meeting, trUniqueId* id) {
  std::string failure;
  if (const trResult_t result = trGetUniqueId(id); result != trSuccess) failure = words_for(result, nullptr);
  std::vector<uint8_t> value{failure.empty() ? kIsId : kIsFailure};
  if (failure.empty())
    value.insert(value.end(), id->internal, id->internal + sizeof id->internal);
  else
    value.insert(value.end(), failure.begin(), failure.end());
  meeting.store->set(meeting.key, value);
  return failure;
}

std::string fetch_id(const Meeting& meeting, trUniqueId* id) {
  try {
    meeting.store->wait({meeting.key}, meeting.timeout);
  } catch (const std::exception& error) {
    return c10::str("rank 0 has not put the id of ", meeting.name, " into the store: ", words_of(error));
  }
  const std::vector<uint8_t> value = meeting.store->get(meeting.key);
  if (value.size() == 1 + sizeof id->internal && value[0] == kIsId) {
    std::memcpy(id->internal, value.data() + 1, sizeof id->internal);
    return "";
  }
  return "rank 0: " + std::string(value.begin() + (value.empty() ? 0 : 1), value.end());
}

}  // namespace

trComm_t join(const std::string& name, int size, const trUniqueId& id, int rank, std::chrono::milliseconds timeout) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.timeout_ms = static_cast<int>(std::min<int64_t>(timeout.count(), INT_MAX));
  config.name = name.c_str();
  trComm_t comm = nullptr;
  const trResult_t result = trCommInitRankConfig(&comm, size, id, rank, &config);
  if (result != trSuccess) raise(c10::str(name, ": ", words_for(result, nullptr)));
  return comm;
}

Link::Link(const Meeting& meeting) : rank_(meeting.rank) {
  trUniqueId id;
  const std::string failure = meeting.rank == 0 ? publish_id(meeting, &id) : fetch_id(meeting, &id);
  if (!failure.empty()) raise(c10::str(meeting.name, ": ", failure));
  comm_ = join(meeting.name, meeting.size, id, meeting.rank, meeting.timeout);
  // All ranks have the id. A later group with this store must not find it, so no rank goes on before it is deleted.
  if (meeting.rank == 0) meeting.store->deleteKey(meeting.key);
  trResult_t result = trBarrier(comm_, nullptr);
  if (result == trSuccess) result = trStreamCreate(&stream_);
  if (result != trSuccess) {
    const std::string words = words_for(result, nullptr);
    trCommDestroy(comm_);
    raise(c10::str(meeting.name, ": ", words));
  }
  revocable_ = comm_;
}

// The work of an operation on the stream, until that has ended.
struct Link::Pending {
  c10::intrusive_ptr<CollectiveWork> work;
  Link* link;  // lives as long as the stream
  trComm_t comm;
};

std::string Link::reason(trResult_t result, trComm_t comm) const {
  const char* closed = closed_;
  return closed != nullptr ? std::string(closed) : words_for(result, comm);
}

void Link::on_end(trResult_t result, void* context) {
  auto* pending = static_cast<Pending*>(context);
  std::exception_ptr exception;
  if (result != trSuccess)
    exception = failure(c10::str(pending->work->call().name(), ": ", pending->link->reason(result, pending->comm)));
  pending->work->end(exception);
  Finisher::instance().settle(std::move(pending->work));
  delete pending;
}

c10::intrusive_ptr<CollectiveWork> Link::run(Call call, const Issue& issue) {
  if (call.timeout <= kNoTimeout) call.timeout = timeout();
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(call));
  const bool has_timeout = work->call().timeout > kNoTimeout;
  if (work->call().is_async || has_timeout)
    run_on_stream(work, issue);
  else
    run_here(work.get(), issue);
  if (!work->call().is_async && has_timeout) wait_with_timeout(work.get());
  return work;
}

void Link::run_here(CollectiveWork* work, const Issue& issue) {
  std::exception_ptr exception;
  {
    std::lock_guard lock(mutex_);
    if (const char* closed = closed_; closed != nullptr) raise(c10::str(work->call().name(), ": ", closed));
    if (const trResult_t result = issue(comm_, nullptr); result != trSuccess)
      exception = failure(c10::str(work->call().name(), ": ", reason(result, nullptr)));
  }
  work->end(exception);
  work->settle();
  if (exception != nullptr) std::rethrow_exception(exception);
}

void Link::run_on_stream(const c10::intrusive_ptr<CollectiveWork>& work, const Issue& issue) {
  std::lock_guard lock(mutex_);
  if (const char* closed = closed_; closed != nullptr) raise(c10::str(work->call().name(), ": ", closed));
  auto pending = std::make_unique<Pending>(Pending{work, this, comm_});
  trResult_t result = issue(comm_, stream_);
  const bool is_given = result == trSuccess;
  if (is_given) result = trStreamAddCallback(stream_, &Link::on_end, pending.get());
  if (result == trSuccess) {
    static_cast<void>(pending.release());  // on_end() has it
    return;
  }
  const std::string words = reason(result, nullptr);
  if (is_given) {
    // Nobody would hear of its end, and it must not use the buffers any more.
    trCommRevoke(comm_);
    trStreamSynchronize(stream_);
  }
  const auto exception = failure(c10::str(work->call().name(), ": ", words));
  work->end(exception);
  std::rethrow_exception(exception);
}

// A timeout of one call: the library's are of the communicator. When it has passed nobody may use the buffers any more,
// so the operation ends on all ranks.
void Link::wait_with_timeout(CollectiveWork* work) {
  if (work->wait_until_ended(work->call().timeout)) return work->rethrow();
  revoke();
  work->wait_until_ended(kNoTimeout);
  raise(c10::str(work->call().name(), ": has not ended after ", work->call().timeout.count(),
                 " ms, the timeout of this call; the group cannot be used any more"));
}

void Link::revoke() {
  if (const trComm_t comm = revocable_; comm != nullptr) trCommRevoke(comm);
}

void Link::close(const char* why) {
  const char* none = nullptr;
  if (!closed_.compare_exchange_strong(none, why)) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    revoke();
    lock.lock();
  }
  revocable_ = nullptr;
  // What is on the stream ends by the first, and its works by the second.
  if (comm_ != nullptr) trCommDestroy(comm_);
  if (stream_ != nullptr) trStreamDestroy(stream_);
  comm_ = nullptr;
  stream_ = nullptr;
}

std::string Link::failure_text() {
  const trComm_t comm = revocable_;
  trResult_t result = trSuccess;
  if (comm == nullptr || trCommGetAsyncError(comm, &result) != trSuccess) return "the group was destroyed";
  return result == trSuccess || result == trInProgress ? "" : words_for(result, comm);
}

}  // namespace treering::pytorch

// SPDX-License-Identifier: Apache-2.0
#include "shim/comm.h"

#include <fmt/format.h>

#include <cstring>
#include <unordered_map>

#include "shim/entry.h"

namespace treering::nccl {
namespace {

// Never destroyed: background threads may still look up while the process ends.
struct Registry {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, CommPtr> comms;
  uintptr_t last = 0;
};
Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

Status bad_handle(const char* function, ncclComm_t handle) {
  if (handle == nullptr) return null_argument(function, "comm");
  return {trInvalidArgument,
          fmt::format("{}: comm {} is not a communicator, or was destroyed", function, static_cast<void*>(handle))};
}

}  // namespace

MadeOp::~MadeOp() { (void)trRedOpDestroy(op, comm); }

Comm::~Comm() { (void)release(/*abort=*/false); }

void Comm::attach(trComm_t made) {
  std::unique_lock lock(mutex_);
  if (!released_) {
    (void)trCommRank(made, &rank);
    (void)trCommCount(made, &ranks);
    comm_.store(made, std::memory_order_release);
    return;
  }
  lock.unlock();
  (void)trCommDestroy(made);
}

void Comm::begin_background() { background_.fetch_add(1); }

void Comm::end_background(const Status& status) {
  std::lock_guard lock(mutex_);
  if (!status.ok() && failure_.ok()) {
    failure_ = status;
    last_error_ = status.message();
  }
  background_.fetch_sub(1);
  ended_.notify_all();
}

Status Comm::expect_ready(const char* function) const {
  if (in_background())
    return {trInvalidArgument, fmt::format("{}: the communicator's last call has not ended; wait until "
                                           "ncclCommGetAsyncError gives something else than ncclInProgress",
                                           function)};
  if (get() != nullptr) return {};
  std::lock_guard lock(mutex_);
  if (!failure_.ok())
    return {trInvalidUsage, fmt::format("{}: the communicator was not created: {}", function, failure_.message())};
  return {trInvalidUsage, fmt::format("{}: the communicator is created by the ncclGroupEnd that is to come", function)};
}

Status Comm::expect_awake(const char* function) const {
  TR_RETURN_IF_ERROR(expect_ready(function));
  if (suspended_)
    return {trInvalidUsage, fmt::format("{}: the communicator is suspended; call ncclCommResume first", function)};
  return {};
}

Status Comm::expect_usable(const char* function) const {
  TR_RETURN_IF_ERROR(expect_awake(function));
  if (finalized_) return {trInvalidUsage, fmt::format("{}: the communicator was finalized", function)};
  if (revoked_) return {trInvalidUsage, fmt::format("{}: the communicator was revoked", function)};
  return {};
}

Status Comm::async_state() {
  if (in_background()) return {trInProgress, ""};
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  // A revoked communicator has nothing under way and takes what a revoked one takes: that is no failure.
  if (get() == nullptr || revoked_) return {};
  trResult_t state = trSuccess;
  TR_RETURN_IF_ERROR(status_of(trCommGetAsyncError(get(), &state)));
  // In progress: another thread is inside a blocking call, which is no failure either.
  if (state == trSuccess || state == trInProgress) return {};
  return {state, trGetLastError(get())};
}

Status Comm::finalize() {
  if (revoked_) return {trInvalidUsage, "ncclCommFinalize: the communicator was revoked"};
  if (finalized_.exchange(true)) return {trInvalidUsage, "ncclCommFinalize: the communicator was finalized already"};
  return status_of(trCommFinalize(get()));
}

Status Comm::revoke() {
  if (finalized_) return {trInvalidUsage, "ncclCommRevoke: the communicator was finalized"};
  TR_RETURN_IF_ERROR(status_of(trCommRevoke(get())));
  revoked_ = true;
  return {};
}

Status Comm::resume() {
  if (suspended_.exchange(false)) return {};
  return {trInvalidUsage, "ncclCommResume: the communicator is not suspended"};
}

Status Comm::make_grow_id(ncclUniqueId* id) {
  std::lock_guard lock(mutex_);
  if (grow_id_.has_value())
    return {trInvalidUsage,
            "ncclCommGetUniqueId: the id given before was not used yet; call ncclCommGrow with it first"};
  trUniqueId made;
  TR_RETURN_IF_ERROR(status_of(trGetUniqueId(&made)));
  grow_id_ = made;
  std::memcpy(id, &made, sizeof made);
  return {};
}

bool Comm::is_grow_id(const ncclUniqueId& id) const {
  std::lock_guard lock(mutex_);
  return grow_id_.has_value() && std::memcmp(&*grow_id_, &id, sizeof id) == 0;
}

void Comm::end_grow_id() {
  std::lock_guard lock(mutex_);
  grow_id_.reset();
}

Status Comm::begin_abort() {
  const trComm_t comm = get();
  return comm == nullptr ? Status() : status_of(trCommRevoke(comm));
}

Status Comm::release(bool abort) {
  trComm_t comm = nullptr;
  {
    std::unique_lock lock(mutex_);
    if (released_) return {};
    released_ = true;
    // A creation under way is not waited for, because the other ranks may never come; attach() releases what it makes.
    if (get() != nullptr && !abort) ended_.wait(lock, [this] { return background_ == 0; });
    ops_.clear();
    windows_.clear();
    comm = comm_.exchange(nullptr);
  }
  if (comm == nullptr) return {};
  if (abort && in_background()) (void)trCommRevoke(comm);  // what its thread may have yet to begin is under way, too
  return status_of(abort ? trCommAbort(comm) : trCommDestroy(comm));
}

ncclRedOp_t Comm::add_op(std::shared_ptr<const MadeOp> made) {
  // Numbers count over all communicators, so that an operation of another one is unknown here.
  static std::atomic<uint32_t> numbers{0};
  std::lock_guard lock(mutex_);
  for (;;) {
    const int number = ncclNumOps + static_cast<int>(numbers.fetch_add(1) % (ncclMaxRedOp - ncclNumOps));
    if (ops_.try_emplace(number, made).second) return static_cast<ncclRedOp_t>(number);
  }
}

Status Comm::find_op(const char* function, ncclRedOp_t op, std::shared_ptr<const MadeOp>* made) const {
  std::lock_guard lock(mutex_);
  auto found = ops_.find(static_cast<int>(op));
  if (found == ops_.end())
    return {trInvalidArgument, fmt::format("{}: op is {}; known are 0 (sum) to 4 (avg) and what "
                                           "ncclRedOpCreatePreMulSum made on this communicator",
                                           function, static_cast<int>(op))};
  *made = found->second;
  return {};
}

Status Comm::remove_op(ncclRedOp_t op) {
  std::shared_ptr<const MadeOp> made;
  TR_RETURN_IF_ERROR(find_op("ncclRedOpDestroy", op, &made));
  std::lock_guard lock(mutex_);
  ops_.erase(static_cast<int>(op));
  return {};
}

ncclWindow_t Comm::add_window(const Window& window) {
  // Never used twice, so that the handle of a window that is gone is an error.
  static std::atomic<uintptr_t> last{0};
  auto handle = reinterpret_cast<ncclWindow_t>(last += 64);
  std::lock_guard lock(mutex_);
  windows_[handle] = window;
  return handle;
}

Status Comm::find_window(const char* function, ncclWindow_t handle, Window* window) const {
  std::lock_guard lock(mutex_);
  auto found = windows_.find(handle);
  if (found == windows_.end())
    return {trInvalidArgument, fmt::format("{}: win {} is not a window of this communicator, or was deregistered",
                                           function, static_cast<void*>(handle))};
  *window = found->second;
  return {};
}

void Comm::remove_window(ncclWindow_t handle) {
  std::lock_guard lock(mutex_);
  windows_.erase(handle);
}

void Comm::set_last_error(const std::string& text) {
  std::lock_guard lock(mutex_);
  last_error_ = text;
}

std::string Comm::last_error() const {
  std::lock_guard lock(mutex_);
  return last_error_;
}

ncclComm_t add_comm(CommPtr comm) {
  std::lock_guard lock(registry().mutex);
  auto handle = reinterpret_cast<ncclComm_t>(registry().last += 64);
  comm->handle = handle;
  registry().comms[handle] = std::move(comm);
  return handle;
}

Status find_comm(const char* function, ncclComm_t handle, CommPtr* comm) {
  std::lock_guard lock(registry().mutex);
  auto found = registry().comms.find(handle);
  if (found == registry().comms.end()) return bad_handle(function, handle);
  *comm = found->second;
  return {};
}

Status remove_comm(const char* function, ncclComm_t handle, CommPtr* comm) {
  std::lock_guard lock(registry().mutex);
  auto found = registry().comms.find(handle);
  if (found == registry().comms.end()) return bad_handle(function, handle);
  *comm = std::move(found->second);
  registry().comms.erase(found);
  return {};
}

}  // namespace treering::nccl

// SPDX-License-Identifier: Apache-2.0
#include "peers/watched_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/clock.h"
#include "core/log.h"
#include "transport/address_space.h"

namespace treering {
namespace {

// What a core takes for a byte; the shortest of some copies.
double copy_seconds() {
  static const double measured = [] {
    std::vector<std::byte> from(1 << 20), to(from.size());
    double least = 1;
    for (int time = 0; time < 4; ++time) {
      const Clock::time_point begin = Clock::now();
      std::memcpy(to.data(), from.data(), to.size());
      std::atomic_signal_fence(std::memory_order_seq_cst);
      least = std::min(least, seconds_since(begin));
    }
    return least / static_cast<double>(to.size());
  }();
  return measured;
}

}  // namespace

WatchedBuffers::WatchedBuffers(std::vector<Transport*> transports, uint32_t rank, size_t most_bytes)
    : transports_(std::move(transports)), rank_(rank), reused_({.bytes = most_bytes, .copy_seconds = copy_seconds()}) {}

// The registrations end with the transports.
WatchedBuffers::~WatchedBuffers() {
  for (const Watched& watched : watched_) watch_->end(watched.range);
}

void WatchedBuffers::begin_call() {
  reused_.begin_call();
  settled_ = Settled::kNotAsked;
  if (!watched_.empty() && watch_->changes() != seen_changes_) end_changed();
}

Region WatchedBuffers::find(const void* data, size_t bytes) {
  if (bytes < kMinReused || is_denied_) return {};
  const ByteRange range = ByteRange::of(data, bytes);
  const ReusedBuffers::Advice advice = reused_.use(range);
  if (advice.action == ReusedBuffers::Action::kRegister) return try_add(range);
  if (advice.action == ReusedBuffers::Action::kCopy) return {};
  const uint32_t id = advice.buffer->id;
  if (!is_settled()) return {};
  if (watch_->is_intact(watched(id).range)) return watched(id).region;
  end(id);
  return {};
}

// Other memory may have come to a buffer's address while the kernel has not told yet: then the call copies.
bool WatchedBuffers::is_settled() {
  if (settled_ == Settled::kNotAsked) settled_ = watch_->is_settled() ? Settled::kYes : Settled::kNo;
  return settled_ == Settled::kYes;
}

bool WatchedBuffers::open() {
  if (watch_) return true;
  Status why_not;
  watch_ = PageWatch::open(&why_not);
  if (watch_) return true;
  is_denied_ = true;
  static std::atomic<bool> is_told{false};  // by the process
  if (!is_told.exchange(true))
    log_line(LogLevel::kWarn,
             fmt::format(
                 "buffers that are not of trMemAlloc or trCommRegister are copied: their pages cannot be watched: {}",
                 why_not.message()));
  return false;
}

Region WatchedBuffers::try_add(ByteRange bytes) {
  if (!open()) return {};
  const Clock::time_point begin = Clock::now();
  Watched added;
  added.region.base = reinterpret_cast<std::byte*>(bytes.begin);  // NOLINT(performance-no-int-to-ptr): of find()
  added.region.bytes = bytes.bytes();
  added.region.watched = true;
  Status status = watch(&added);
  if (status.code() == trInProgress) return {};  // it is tried again at its next use
  if (status.ok()) {
    status = make_room_and_add(bytes, &added);
    if (!status.ok()) watch_->end(added.range);
  }
  const double seconds = seconds_since(begin);
  log_line(LogLevel::kTrace, fmt::format("rank {} {} the buffer {}, {} KiB, in {:.0f} us{}{}", rank_,
                                         status.ok() ? "has registered and watches" : "goes on copying",
                                         static_cast<const void*>(added.region.base), bytes.bytes() >> 10,
                                         seconds * 1e6, status.ok() ? "" : ": ", status.message()));
  if (!status.ok()) {
    reused_.refused(bytes);
    return {};
  }
  reused_.added(bytes, added.region.id, seconds);
  watched_.push_back(added);
  return added.region;
}

Status WatchedBuffers::watch(Watched* added) {
  if (!is_private_anonymous(added->region.base, added->region.bytes))
    return {trSystemError, "it lies in memory of a file, in shared memory, or in memory that cannot be written"};
  return watch_->begin(ByteRange::of(added->region.base, added->region.bytes), &added->range);
}

// Others give way only to one that could be registered, were there room.
Status WatchedBuffers::make_room_and_add(ByteRange bytes, Watched* added) {
  while (const auto replaced = reused_.replaced_by(bytes)) end(*replaced);
  if (!reused_.has_room(bytes)) return {trSystemError, "the buffers of this call leave no room for it"};
  Status status = add(added);
  // Less may be locked than was thought: others give way, as many as it needs.
  for (size_t freed = 0; !status.ok() && freed < bytes.bytes();) {
    const auto oldest = reused_.least_recent();
    if (!oldest) break;
    freed += watched(*oldest).region.bytes;
    end(*oldest);
    status = add(added);
  }
  return status;
}

Status WatchedBuffers::add(Watched* added) {
  added->region.id = RegionTable::instance().take_id();
  Status status;
  for (Transport* transport : transports_)
    if (const Status registered = transport->register_region(added->region); !registered.ok()) status = registered;
  if (status.ok()) return {};
  for (Transport* transport : transports_) transport->end_region(added->region.id);
  return status;
}

const WatchedBuffers::Watched& WatchedBuffers::watched(uint32_t id) const {
  return *std::find_if(watched_.begin(), watched_.end(), [id](const Watched& one) { return one.region.id == id; });
}

void WatchedBuffers::end(uint32_t id) {
  for (Transport* transport : transports_) transport->end_region(id);
  watch_->end(watched(id).range);
  reused_.ended(id);
  std::erase_if(watched_, [id](const Watched& one) { return one.region.id == id; });
}

void WatchedBuffers::end_changed() {
  seen_changes_ = watch_->changes();
  std::vector<uint32_t> changed;
  for (const Watched& one : watched_)
    if (!watch_->is_intact(one.range)) changed.push_back(one.region.id);
  for (const uint32_t id : changed) end(id);
}

}  // namespace treering

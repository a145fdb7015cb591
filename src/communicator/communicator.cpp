// SPDX-License-Identifier: Apache-2.0
#include "communicator/communicator.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <new>

#include "bootstrap/membership.h"
#include "communicator/creation.h"
#include "communicator/recording.h"
#include "core/process.h"

namespace treering {

Communicator::Communicator() : subsets_(this, &parts_, [this] { serve_links(); }) {}

Status Communicator::create(uint32_t ranks, const trUniqueId& id, uint32_t rank, const Config& config,
                            std::unique_ptr<Communicator>* result, const CreationTerms& terms) {
  std::unique_ptr<Communicator> made(new Communicator);
  const LinkService service{[made = made.get()] { made->serve_links(); },
                            [made = made.get()] { IdleLinks::add(made, [made] { made->serve_idle_links(); }); }};
  TR_RETURN_IF_ERROR(Creation(&made->parts_, config, service).run(ranks, id, rank, terms));
  *result = std::move(made);
  return {};
}

Status Communicator::create_alone(const Config& config, std::unique_ptr<Communicator>* result) {
  std::unique_ptr<Communicator> made(new Communicator);
  TR_RETURN_IF_ERROR(Creation(&made->parts_, config, {}).run_alone());
  *result = std::move(made);
  return {};
}

std::function<bool()> Communicator::peers_left(Whose whose) const {
  if (!parts_.memory.is_shared()) return {};  // their memory cannot be seen later
  std::vector<std::pair<const RankStatus*, uint32_t>> peers;
  for (uint32_t peer = 0; peer < ranks(); ++peer)
    if (peer != rank() && (whose == Whose::kAll || parts_.info(peer).process_token != own_process()))
      peers.emplace_back(
          status_of(parts_.memory.of(peer)),
          parts_.info(peer).pid_namespace == parts_.info(rank()).pid_namespace ? parts_.info(peer).pid : 0);
  return [segment = parts_.memory.segment(), peers = std::move(peers)] {
    return std::all_of(peers.begin(), peers.end(), [](const auto& peer) {
      if (peer.first->left.load(std::memory_order_acquire) == kLeft) return true;
      return peer.second != 0 && process_has_ended(static_cast<pid_t>(peer.second));
    });
  };
}

std::function<void()> Communicator::tell_closed() const {
  if (!parts_.memory.is_shared()) return [] {};
  return [segment = parts_.memory.segment(), status = parts_.memory.status()] {
    status->left.store(kLeft, std::memory_order_release);
  };
}

Communicator::~Communicator() {
  IdleLinks::remove(this);
  // What was sent is waited for only where all went well; schedules are the last that a creation makes. A creation that
  // came to its deadline has no time left for it.
  const bool is_whole = parts_.schedules != nullptr && parts_.watch != nullptr && parts_.watch->known_failure().ok();
  if (!parts_.has_descriptors())
    Membership::keep_for_ever(std::move(parts_.peer_table));
  else if (has_failed_.load())
    end_links();
  else if (parts_.peer_table != nullptr && is_whole)
    parts_.peer_table->finish();
  else if (parts_.peer_table != nullptr)
    parts_.peer_table->abandon();
  if (parts_.peer_table != nullptr) parts_.peer_table->end_introductions();
  if (parts_.membership != nullptr && parts_.watch != nullptr) {
    const Status known = parts_.watch->known_failure();
    parts_.membership->leave_because(known.ok() || subsets_.shrink_failure().ok() ? known : subsets_.shrink_failure());
  }
  end_recording(&parts_);
  // That its GPU has closed everything may have been said already.
  uint32_t here = 0;
  if (parts_.memory.is_mapped())
    parts_.memory.status()->left.compare_exchange_strong(here, left_with_memory_ ? kLeftWithMemory : kLeft);
}

Status Communicator::check(Operation* operation) {
  parts_.selection->apply_settings(operation);
  if (operation->op >= trRedOpFirstCreated && info_of(operation->collective).reduces)
    if (const Status found = reductions_.find(operation->op, &operation->reduction); !found.ok())
      return {found.code(), fmt::format("{} on rank {}: {}", operation->function, rank(), found.message())};
  return check_operation(operation, rank(), ranks());
}

Status Communicator::begin(const Operation& operation) {
  CallRecorder* const recorder = parts_.recorder.get();
  if (recorder != nullptr) [[unlikely]]
    record_begin(operation, recorder);
  Status status = start(operation);
  if (recorder != nullptr) [[unlikely]] {
    record_start(operation, in_doubt_ || !status.ok(), *parts_.call, recorder);
    if (!status.ok()) recorder->fail();
  }
  return status;
}

Status Communicator::start(const Operation& operation) try {
  if (has_failed_.load(std::memory_order_relaxed)) return failure_;
  if (has_lost_descriptors()) return fail(Membership::descriptors_closed());
  if (Status verdict = parts_.watch->verdict(); !verdict.ok()) return fail(std::move(verdict));
  activate();
  if (links_lack_memory_ && !parts_.watch->in_doubt()) {
    stop_without_memory(kBetweenCalls);
    return has_ended() ? out_of_memory() : Status();
  }
  if (parts_.watch->in_doubt())
    in_doubt_ = true;  // it fails when it is known why
  else
    parts_.call->begin(operation, parts_.selection->constraints_of(operation));
  return {};
} catch (const std::bad_alloc&) {
  stop_without_memory();
  return has_ended() ? out_of_memory() : Status();
}

Progress Communicator::advance() try {
  if (in_doubt_) [[unlikely]]
    return Progress::kBlocked;
  switch (const Progress progress = parts_.call->advance()) {
    case Progress::kBlocked:
      if (parts_.recorder != nullptr && parts_.recorder->is_blocked()) [[unlikely]]
        parts_.recorder->blocked(parts_.call->peer());
      return progress;
    case Progress::kMoved:
      if (parts_.recorder != nullptr) [[unlikely]]
        parts_.recorder->moved();
      return progress;
    case Progress::kDone:
      finish();
      return progress;
    case Progress::kDiffers:
      parts_.watch->suspect_calls(parts_.call->peer(), parts_.call->differing_sizes());
      break;
    case Progress::kFailed:
      parts_.watch->suspect_link(parts_.call->peer(), parts_.call->status());
      break;
  }
  return doubt();
} catch (const std::bad_alloc&) {
  stop_without_memory();
  return has_ended() ? Progress::kFailed : Progress::kBlocked;
}

Status Communicator::run_out_of_memory(const char* call) try {
  std::string where = call == nullptr ? "a send or receive" : call;
  if (call == nullptr && parts_.call->number() != 0) where = fmt::format("operation {}", parts_.call->number());
  Status status(trSystemError,
                fmt::format("{} ran out of memory in {}", parts_.watch->peers().describe(rank()), where));
  parts_.watch->propose(status);  // any thread's: that of the operation which waits, if one does, is the deadline
  return status;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

void Communicator::stop_without_memory(const char* call) {
  if (has_failed_.load(std::memory_order_relaxed)) return;
  activate();
  in_doubt_ = true;
  Status status = run_out_of_memory(call);
  if (!parts_.watch->in_doubt()) (void)fail(std::move(status));  // not even for the words that the others are told
}

// Why the operation fails is found out by poll_failures(), a little at a time, unless it is known at once.
Progress Communicator::doubt() {
  in_doubt_ = true;
  Status status = parts_.watch->poll();
  if (status.ok()) return Progress::kBlocked;
  return fail(std::move(status)).ok() ? Progress::kBlocked : Progress::kFailed;
}

void Communicator::finish() {
  if (parts_.call->number() != 0)
    parts_.context.status->completed.store(parts_.call->number(), std::memory_order_release);
  parts_.context.status->waiting_for.store(0, std::memory_order_relaxed);
  deactivate();
  if (parts_.recorder != nullptr) [[unlikely]]
    parts_.recorder->end();
}

void Communicator::activate() {
  if (!std::exchange(active_, true) && parts_.membership != nullptr) link_turn_.take();
}

void Communicator::deactivate() {
  if (!std::exchange(active_, false)) return;
  parts_.watch->stop();
  if (parts_.membership != nullptr) link_turn_.give_back();
}

// Looks once a tick of the kernel's clock (1 to 10 ms): a system call in each call of 8 bytes took 9 % of its time.
bool Communicator::has_lost_descriptors() {
  if (parts_.membership == nullptr) return false;
  timespec time{};
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  const int64_t now = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  if (now == descriptors_seen_.load(std::memory_order_relaxed)) return false;
  if (!parts_.membership->has_descriptors()) return true;
  descriptors_seen_.store(now, std::memory_order_relaxed);
  return false;
}

// Between calls. After a failure the memory that messages refer to is the user's again.
template <typename Serve>
void Communicator::serve_between_calls(const Serve& serve) {
  if (parts_.membership == nullptr || !parts_.membership->has_descriptors() || !link_turn_.try_take()) return;
  try {
    if (links_lack_memory_ && !parts_.watch->in_doubt())
      (void)run_out_of_memory(kBetweenCalls);  // it lacked even the words
    if (!links_lack_memory_ && !has_failed_.load(std::memory_order_relaxed)) serve();
  } catch (const std::bad_alloc&) {
    links_lack_memory_ = true;  // what a link was about to keep is lost, and others may wait for it
    (void)run_out_of_memory(kBetweenCalls);
  }
  link_turn_.give_back();
}

void Communicator::serve_idle_links() {
  serve_between_calls([this] { parts_.context.serve_idle(); });
}

// In waits that are no operation.
void Communicator::serve_links() {
  serve_between_calls([this] { parts_.context.progress(); });
  IdleLinks::serve();
}

// Network cards may still have payloads to read from the user's memory, which is the user's again when the call returns.
// That takes a while where a peer's host is silent, and other communicators wait for the same thread: it is polled.
Status Communicator::fail(Status status) {
  activate();  // no other thread uses the links
  in_doubt_ = true;
  if (!has_failed_.load(std::memory_order_relaxed)) {
    failure_ = std::move(status);
    links_end_ = parts_.peer_table != nullptr && parts_.has_descriptors();
    has_failed_.store(true, std::memory_order_release);
    if (links_end_) parts_.peer_table->abandon();
  }
  return poll_end();
}

Status Communicator::poll_end() {
  if (links_end_ && parts_.has_descriptors() && !parts_.peer_table->is_abandoned()) return {};
  links_end_ = false;
  deactivate();
  if (parts_.recorder != nullptr) parts_.recorder->fail();
  return failure_;
}

void Communicator::end_links() {
  if (parts_.peer_table == nullptr || !parts_.has_descriptors()) return;
  activate();
  parts_.peer_table->abandon();
  while (!parts_.peer_table->is_abandoned()) sched_yield();
  deactivate();
}

Status Communicator::end_without_memory(const char* call) {
  const Status status = run_out_of_memory(call);
  if (queued() != 0) return status;  // what is active is the streams', which hear of it
  if (!parts_.watch->in_doubt()) (void)fail(status);
  if (!active_) return status;
  in_doubt_ = true;
  while (poll_failures().ok()) usleep(500);
  return status;
}

Status Communicator::poll_failures() try {
  IdleLinks::serve();
  if (has_failed_.load(std::memory_order_relaxed)) return poll_end();
  if (has_lost_descriptors()) return fail(Membership::descriptors_closed());
  if (in_doubt_) {
    parts_.context.progress();  // the operation has not ended: others may wait for what it has sent
    Status status = parts_.watch->poll();
    return status.ok() ? status : fail(std::move(status));
  }
  if (parts_.recorder != nullptr) parts_.recorder->look();
  Status status = parts_.watch->check(parts_.call->peer(), parts_.call->steps());
  in_doubt_ = parts_.watch->in_doubt();
  return status.ok() ? status : fail(std::move(status));
} catch (const std::bad_alloc&) {
  stop_without_memory();
  return has_ended() ? out_of_memory() : Status();
}

Backoff Communicator::backoff() const {
  Backoff backoff(parts_.wait_policy);
  backoff.sleep_on(parts_.waits.get(), parts_.host_ranks == 1);
  return backoff;
}

Status Communicator::run(const Operation& operation) {
  TR_RETURN_IF_ERROR(begin(operation));
  Backoff backoff = this->backoff();
  for (;;) {
    switch (advance()) {
      case Progress::kDone:
        return {};
      case Progress::kDiffers:
      case Progress::kFailed:
        return failure_;
      case Progress::kMoved:
        backoff.reset();
        break;
      case Progress::kBlocked:
        if (backoff.pause()) TR_RETURN_IF_ERROR(poll_failures());
    }
  }
}

Status Communicator::allgather_bytes(Purpose purpose, const void* own, size_t bytes, std::byte* all) {
  Operation operation;
  operation.function = "an exchange of the library";
  operation.collective = Collective::kAllGather;
  operation.purpose = purpose;
  operation.input = own;
  operation.output = all;
  operation.count = bytes;
  operation.type = trUint8;
  return run(operation);
}

Status Communicator::failure() const {
  if (gpu_side_ != nullptr) gpu_side_->find_failure();
  return has_failed_.load(std::memory_order_acquire) ? failure_ : parts_.watch->verdict();
}

Status Communicator::settled_failure() const {
  Status known = failure();
  return known.ok() ? parts_.watch->settled_verdict() : known;
}

void Communicator::abort(const std::string& reason) {
  parts_.watch->propose({trRemoteError, reason});  // ends what waits by its deadline; without a wait none runs
  if (gpu_side_ != nullptr) gpu_side_->abort();
}

bool Communicator::is_needed() const {
  if (queued() != 0 || !failure().ok()) return true;
  return gpu_side_ != nullptr && gpu_side_->is_needed();
}

bool Communicator::is_direct(const void* input, const void* output, size_t bytes) const {
  if (!parts_.peer_table->all_mapped()) return false;  // a peer maps no region over CMA or TCP
  return RegionTable::instance().find(input, bytes).id != 0 && RegionTable::instance().find(output, bytes).id != 0;
}

}  // namespace treering

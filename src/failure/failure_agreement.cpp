// SPDX-License-Identifier: Apache-2.0
#include "failure/failure_agreement.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace treering {

FailureAgreement::FailureAgreement(FailureRecord* shared, FailureRecord* own, std::string communicator_name,
                                   Broadcast broadcast)
    : shared_(shared), own_(own), name_(std::move(communicator_name)), broadcast_(std::move(broadcast)) {}

std::string FailureAgreement::prefix() const {
  return name_.empty() ? std::string() : fmt::format("communicator '{}': ", name_);
}

Status FailureAgreement::decided() const {
  if (shared_->state.load(std::memory_order_acquire) != static_cast<uint32_t>(FailureState::kSet)) return {};
  return {static_cast<trResult_t>(shared_->code.load(std::memory_order_relaxed)), shared_->text};
}

void FailureAgreement::propose(const Status& status, Clock::time_point limit) {
  {
    std::lock_guard lock(mutex_);
    if (proposed()) return;
    const bool has_prefix = status.message().rfind(prefix(), 0) == 0;  // what another rank said
    proposal_ = {status.code(), has_prefix ? status.message() : prefix() + status.message()};
    limit_ = limit;
    proposed_.store(true, std::memory_order_release);
  }
  if (broadcast_ && decided().ok()) return broadcast_(proposal_.code(), proposal_.message());  // it stays as it is
  take(proposal_.code(), proposal_.message());
}

Status FailureAgreement::poll(Clock::time_point now) {
  if (Status status = decided(); !status.ok()) {
    show(status);
    return status;
  }
  if (!proposed()) return {};
  std::lock_guard lock(mutex_);
  if (now >= limit_) take(proposal_.code(), proposal_.message());
  if (Status status = decided(); !status.ok()) return status;
  return now >= limit_ + kWriterTimeout ? proposal_ : Status();
}

// The clock is read once where nothing is being written.
Status FailureAgreement::settle(Clock::duration patience) {
  auto now = Clock::now();
  const auto end = now + patience;
  while (shared_->state.load(std::memory_order_acquire) == static_cast<uint32_t>(FailureState::kWriting) && now < end) {
    usleep(50);
    now = Clock::now();
  }
  return poll(now);
}

Status FailureAgreement::known() const {
  if (Status status = decided(); !status.ok() || !proposed()) return status;
  std::lock_guard lock(mutex_);
  return proposal_;
}

void FailureAgreement::take(trResult_t code, const std::string& text) {
  claim_failure(shared_, code, text);
  // Another rank may have been first, and may still be writing: then poll() shows what it wrote.
  if (Status status = decided(); !status.ok()) show(status);
}

// To those who read this rank's status.
void FailureAgreement::show(const Status& status) {
  claim_failure(own_, static_cast<uint32_t>(status.code()), status.message());
}

}  // namespace treering

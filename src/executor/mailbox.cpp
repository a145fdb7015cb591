// SPDX-License-Identifier: Apache-2.0
#include "executor/mailbox.h"

#include <cstring>

#include "core/types.h"

namespace treering {
namespace {

constexpr size_t kLine = MailboxMemory::kLineBytes;
constexpr size_t kReaderBytes = kLine * MailboxMemory::kReaderLines;

uint64_t make_flag(uint32_t turn, uint32_t signature) { return uint64_t{signature} << 32 | turn; }

// Data first, then the flag of the same cache line. A whole line's size is a constant: no call to memcpy.
void write_line(MailboxLine* line, const unsigned char* data, size_t bytes, uint64_t flag) {
  if (bytes >= kLine)
    std::memcpy(line->data, data, kLine);
  else if (bytes == 8)
    std::memcpy(line->data, data, 8);
  else if (bytes == 4)
    std::memcpy(line->data, data, 4);
  else if (bytes != 0)  // a barrier has no data
    std::memcpy(line->data, data, bytes);
  line->flag.store(flag, std::memory_order_release);
}

}  // namespace

Mailbox::Mailbox(uint32_t rank, std::vector<MailboxMemory> areas) : rank_(rank), areas_(std::move(areas)) {
  sources_.resize(areas_.size());
  copies_.resize(areas_.size() * kReaderBytes);
}

void Mailbox::start(uint32_t signature, const void* input, size_t bytes) {
  ++turn_;
  signature_ = signature;
  input_ = input;
  bytes_ = bytes;
  next_ = 0;
  uint64_t flag = make_flag(turn_, signature);
  uint32_t buffer = turn_ & 1;
  auto* data = static_cast<const unsigned char*>(input);
  if (bytes > kReaderBytes) {
    std::memcpy(areas_[rank_].shared_data(buffer), data, bytes);
    areas_[rank_].shared_flag(buffer)->flag.store(flag, std::memory_order_release);
    return;
  }
  // Each rank starts with its successor, so that not all write to the same reader at once.
  auto ranks = static_cast<uint32_t>(areas_.size());
  for (uint32_t i = 1; i < ranks; ++i) {
    uint32_t reader = rank_ + i < ranks ? rank_ + i : rank_ + i - ranks;
    MailboxLine* line = areas_[reader].lines(buffer, rank_);
    size_t done = 0;
    do {
      write_line(line++, data + done, bytes - done, flag);
      done += kLine;
    } while (done < bytes);
  }
}

Progress Mailbox::advance(const Call& call) {
  uint32_t buffer = turn_ & 1;
  auto ranks = static_cast<uint32_t>(areas_.size());
  bool shared = bytes_ > kReaderBytes;
  for (; next_ < ranks; ++next_) {
    if (next_ == rank_) {
      sources_[next_] = input_;
      continue;
    }
    const MailboxLine* line = shared ? areas_[next_].shared_flag(buffer) : areas_[rank_].lines(buffer, next_);
    const MailboxLine* first = line;
    unsigned char* copy = copies_.data() + next_ * kReaderBytes;
    size_t done = 0;
    do {
      uint64_t flag = line->flag.load(std::memory_order_acquire);
      if (static_cast<uint32_t>(flag) != turn_) return Progress::kBlocked;
      if (flag >> 32 != signature_) return Progress::kDiffers;
      if (!shared && bytes_ > kLine) std::memcpy(copy + done, line->data, kLine);
      ++line;
      done += kLine;
    } while (!shared && done < bytes_);
    if (shared)
      sources_[next_] = areas_[next_].shared_data(buffer);
    else if (bytes_ > kLine)
      sources_[next_] = copy;
    else
      sources_[next_] = first->data;
  }
  combine(call);
  return Progress::kDone;
}

void Mailbox::combine(const Call& call) {
  if (call.layout.count == 0) return;
  void* output = call.output.base();
  ReduceCall reduction;
  reduction.type = call.type;
  reduction.op = call.op;
  reduction.user = call.user;
  reduction.user_context = call.user_context;
  reduction.divisor = call.op == trAvg ? static_cast<uint32_t>(areas_.size()) : 1;
  reduction.sources = sources_.data();
  reduction.source_count = sources_.size();
  reduction.destinations = &output;
  reduction.destination_count = 1;
  reduction.count = call.layout.count;
  reduce(reduction);
}

}  // namespace treering

// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_probe.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/clock.h"

namespace treering {
namespace {

constexpr int kWordTurns = 4, kChunkTurns = 8;
// The first finds memory that was never touched.
constexpr int kMinTurns = 2;
// No further turn after that.
constexpr double kRepeatSeconds = 0.003;
// A link that reaches less than this part of the host's rate is measured again, for so long.
constexpr double kSuspicious = 4;
constexpr double kMaxSeconds = 0.05;
// A chunk that takes longer is enough.
constexpr double kSlowChunkSeconds = 0.0005;

// The best of a few turns: what disturbs a measurement only ever makes it slower.
template <class Turn>
Status best_of(int turns, double* best, const Turn& turn) {
  const auto begin = Clock::now();
  for (int i = 0; i < turns && (i < kMinTurns || seconds_since(begin) < kRepeatSeconds); ++i) {
    double seconds = 0;
    TR_RETURN_IF_ERROR(turn(&seconds));
    *best = i == 0 ? seconds : std::min(*best, seconds);
  }
  return {};
}

}  // namespace

Status DeviceProbe::create(DeviceCopies* copies, std::unique_ptr<DeviceProbe>* made) {
  std::unique_ptr<DeviceProbe> probe(new DeviceProbe(copies));
  TR_RETURN_IF_ERROR(best_of(kWordTurns, &probe->own_seconds_, [&](double* seconds) {
    return probe->exchange_word(word_of(copies->scratch(), 2), seconds);
  }));
  TR_RETURN_IF_ERROR(probe->measure_host());
  *made = std::move(probe);
  return {};
}

Status DeviceProbe::write_word(void* to, uint64_t word) {
  std::byte* const from = word_of(copies_->pinned(), 0);
  std::memcpy(from, &word, sizeof word);
  TR_RETURN_IF_ERROR(copies_->copy(to, from, sizeof word));
  return copies_->finish();
}

Status DeviceProbe::read_word(const void* from, uint64_t* word) {
  std::byte* const to = word_of(copies_->pinned(), 1);
  TR_RETURN_IF_ERROR(copies_->copy(to, from, sizeof *word));
  TR_RETURN_IF_ERROR(copies_->finish());
  std::memcpy(word, to, sizeof *word);
  return {};
}

Status DeviceProbe::exchange_word(void* word, double* seconds) {
  std::byte *const sent = word_of(copies_->scratch(), 0), *const returned = word_of(copies_->scratch(), 1);
  uint64_t nonce = 0, read = 0;
  randombytes_buf(&nonce, sizeof nonce);
  TR_RETURN_IF_ERROR(write_word(sent, nonce));
  const auto begin = Clock::now();
  TR_RETURN_IF_ERROR(copies_->copy(word, sent, sizeof nonce));
  TR_RETURN_IF_ERROR(copies_->copy(returned, word, sizeof nonce));
  TR_RETURN_IF_ERROR(copies_->finish());
  *seconds = seconds_since(begin);
  TR_RETURN_IF_ERROR(read_word(returned, &read));
  if (read == nonce) return {};
  return {trDeviceError, fmt::format("{:#x} was written and {:#x} read back", nonce, read)};
}

Status DeviceProbe::write_chunks(const std::vector<std::byte*>& chunks, double* seconds) {
  const auto begin = Clock::now();
  for (std::byte* chunk : chunks) TR_RETURN_IF_ERROR(copies_->copy(chunk, copies_->scratch(), kChunkBytes));
  TR_RETURN_IF_ERROR(copies_->finish());
  *seconds = seconds_since(begin);
  return {};
}

Status DeviceProbe::measure(void* word, const std::vector<std::byte*>& chunks, cuda::LinkFigures* figures) {
  double word_seconds = 0;
  TR_RETURN_IF_ERROR(best_of(kWordTurns, &word_seconds, [&](double* s) { return exchange_word(word, s); }));
  // What the driver takes for a copy is no part of the link: it is that of the GPU's own memory.
  figures->latency_us = std::max(word_seconds - own_seconds_, 0.0) / 2 * 1e6;
  uint64_t nonce = 0, read = 0;
  randombytes_buf(&nonce, sizeof nonce);
  TR_RETURN_IF_ERROR(write_word(copies_->scratch() + kChunkBytes - sizeof nonce, nonce));
  // A link that seems slow may have been busy for a moment.
  const auto begin = Clock::now();
  do {
    double rate = 0;
    TR_RETURN_IF_ERROR(measure_rate(chunks, &rate));
    figures->gbps = std::max(figures->gbps, rate);
  } while (figures->gbps * kSuspicious < host_gbps_ && seconds_since(begin) < kMaxSeconds);
  TR_RETURN_IF_ERROR(read_word(chunks.back() + kChunkBytes - sizeof read, &read));
  if (read != nonce)
    return {trDeviceError,
            fmt::format("of {} bytes the last are {:#x} instead of {:#x}", kChunkBytes * chunks.size(), read, nonce)};
  figures->measured = true;
  return {};
}

Status DeviceProbe::measure_rate(const std::vector<std::byte*>& chunks, double* gbps) {
  double one = 0, all = 0;
  const auto rate = [&](size_t bytes, double seconds) {
    return static_cast<double>(bytes) / std::max(seconds - own_seconds_ / 2, seconds / 4) / 1e9;
  };
  TR_RETURN_IF_ERROR(best_of(kChunkTurns, &one, [&](double* s) { return write_chunks({chunks.back()}, s); }));
  *gbps = rate(kChunkBytes, one);
  if (one > kSlowChunkSeconds) return {};
  TR_RETURN_IF_ERROR(best_of(kMinTurns, &all, [&](double* s) { return write_chunks(chunks, s); }));
  *gbps = std::max(*gbps, rate(kChunkBytes * chunks.size(), all));
  return {};
}

Status DeviceProbe::measure_host() {
  double in = 0, out = 0;
  const auto timed = [&](void* to, const void* from) {
    return [this, to, from](double* seconds) -> Status {
      const auto begin = Clock::now();
      TR_RETURN_IF_ERROR(copies_->copy(to, from, kChunkBytes));
      TR_RETURN_IF_ERROR(copies_->finish());
      *seconds = seconds_since(begin);
      return {};
    };
  };
  TR_RETURN_IF_ERROR(best_of(kChunkTurns, &in, timed(copies_->pinned(), copies_->scratch())));
  TR_RETURN_IF_ERROR(best_of(kChunkTurns, &out, timed(copies_->scratch(), copies_->pinned())));
  const double seconds = std::max(in, out);
  host_gbps_ = static_cast<double>(kChunkBytes) / std::max(seconds - own_seconds_ / 2, seconds / 4) / 1e9;
  return {};
}

}  // namespace treering

// SPDX-License-Identifier: Apache-2.0
#include "device/choose.h"

#include <algorithm>
#include <cmath>

namespace treering::cuda {
namespace {

struct ProtocolCost {
  DeviceProtocol protocol;
  double gpu_us;      // of a hop, apart from the link
  double trips;       // over the link
  double block_gbps;  // that one block moves
  double share;       // of the link's rate that is data
};
constexpr ProtocolCost kCosts[] = {{DeviceProtocol::kLl, 0.7, 1, 10, 0.5},
                                   {DeviceProtocol::kLl128, 1.2, 1, 18.75, 0.9375},
                                   {DeviceProtocol::kSimple, 3.4, 2, 20, 1}};
// Where nothing was measured: a link like NVLink, which blocks do not fill.
constexpr LinkFigures kAssumedLink{false, 0.3, 1e6};
constexpr double kStagedOverheadUs = 30;  // an assumption: host functions, waits for values, the engine's thread
constexpr double kMargin = 3;
constexpr uint32_t kMinChannels = 8;

double hop_us(const ProtocolCost& cost, const LinkFigures& link) { return cost.gpu_us + cost.trips * link.latency_us; }
double gbps(const ProtocolCost& cost, const LinkFigures& link, uint32_t channels) {
  return std::min(cost.block_gbps * channels, link.gbps * cost.share);
}
// About half of what is exchanged goes either way, at once.
double exchanged_gbps(const ProtocolCost& cost, const LinkFigures& link, uint32_t channels) {
  return std::min(cost.block_gbps * channels, 2 * link.gbps * cost.share);
}
const LinkFigures& known(const LinkFigures& link) { return link.measured ? link : kAssumedLink; }

constexpr uint32_t kPipelineDepths[] = {1, 4, 16};
constexpr double kTie = 1.02;

bool fits(const DeviceSelectionInput& input, const Algorithm& algorithm) {
  if (input.forced != nullptr && input.forced != &algorithm) return false;
  return input.ranks >= algorithm.min_ranks && input.ranks <= algorithm.max_ranks &&
         (!input.rank_ordered || algorithm.rank_ordered) && !(input.unequal && algorithm.equal_parts_only);
}

}  // namespace

size_t largest_device_chunk(DeviceProtocol protocol, size_t message_bytes, uint32_t max_span, size_t element_bytes) {
  size_t chunk = 0;
  switch (protocol) {
    case DeviceProtocol::kLl:
      chunk = std::min(message_bytes, kLlSlotBytes) / max_span;
      break;
    case DeviceProtocol::kLl128:
      // An element of 16 bytes does not fit between flags; an extent is padded to whole lines.
      if (element_bytes <= 8) chunk = std::min(message_bytes, kLl128SlotBytes) / kLineData / max_span * kLineData;
      break;
    case DeviceProtocol::kSimple:
      chunk = message_bytes / max_span;
      break;
  }
  return chunk / kUnit * kUnit / element_bytes;
}

const char* protocol_name(DeviceProtocol protocol) {
  if (protocol == DeviceProtocol::kLl) return "ll";
  return protocol == DeviceProtocol::kLl128 ? "ll128" : "simple";
}

uint32_t channels_to_fill(const LinkFigures& link) {
  const double blocks = std::ceil(2 * known(link).gbps / kCosts[2].block_gbps);
  return static_cast<uint32_t>(std::clamp<double>(blocks, kMinChannels, kMaxDeviceChannels));
}

DeviceSelection choose_for_device(const DeviceSelectionInput& input) {
  DeviceSelection best;
  const LinkFigures& link = known(input.link);
  for (const Algorithm* algorithm : algorithms_of(input.collective)) {
    if (!fits(input, *algorithm)) continue;
    for (uint32_t depth : kPipelineDepths) {
      if (depth > 1 && !algorithm->pipelined) break;
      const Work work =
          algorithm->work({.ranks = input.ranks, .bytes = static_cast<double>(input.bytes), .pipeline_chunks = depth});
      for (const ProtocolCost& cost : kCosts) {
        if (cost.protocol == DeviceProtocol::kLl128 && !input.keeps_lines) continue;
        if ((input.protocols >> static_cast<uint32_t>(cost.protocol) & 1) == 0) continue;
        // Powers of two, and the most.
        for (uint32_t next = 1, channels = 0; channels < input.most_channels; next *= 2) {
          channels = std::min(next, input.most_channels);
          const size_t chunk =
              largest_device_chunk(cost.protocol, input.slot_bytes, work.max_span, input.element_bytes);
          if (chunk == 0) continue;
          const double slice = static_cast<double>(chunk * input.element_bytes) * work.chunks * channels;
          const double slices = std::max(1.0, std::ceil(static_cast<double>(input.bytes) / slice));
          const double time = slices * work.rounds * hop_us(cost, link) +
                              work.exchanged_bytes / (1e3 * exchanged_gbps(cost, link, channels)) + 0.05 * channels;
          if (best.algorithm != nullptr && time * kTie >= best.predicted_us) continue;
          best = {algorithm, cost.protocol, channels, depth, time};
        }
      }
    }
  }
  return best;
}

double transfer_us(const LinkFigures& figures, size_t bytes, uint32_t channels) {
  const ProtocolCost& cost = kCosts[2];
  const LinkFigures& link = known(figures);
  return hop_us(cost, link) + static_cast<double>(bytes) / (1e3 * gbps(cost, link, channels));
}

// Copies in, exchange and copies out of successive pieces overlap.
double staged_us(const StagedInput& input) {
  const double copy = static_cast<double>(input.bytes) / (1e3 * input.host_gbps);
  const double pieces = std::max(1.0, static_cast<double>(input.bytes) / static_cast<double>(input.piece_bytes));
  return kStagedOverheadUs + (2 * copy + input.host_us) / pieces +
         std::max(copy, input.host_us) * (pieces - 1) / pieces;
}

bool is_staged_better(const LinkFigures& link, double kernel_us, double staged_us) {
  return link.measured && kMargin * staged_us < kernel_us;
}

}  // namespace treering::cuda

#include "executor/cuda/choose.h"

#include <algorithm>
#include <cmath>

#include "executor/cuda/bind.h"

namespace treering::cuda {
namespace {

struct ProtocolCost {
  DeviceProtocol protocol;
  double hop_us;
  double block_gbps;  // that one block moves
};
constexpr ProtocolCost kCosts[] = {
    {DeviceProtocol::kLl, 1.0, 10}, {DeviceProtocol::kLl128, 1.5, 18.75}, {DeviceProtocol::kSimple, 4.0, 20}};
constexpr uint32_t kPipelineDepths[] = {1, 4, 16};
constexpr double kTie = 1.02;

bool fits(const DeviceQuestion& question, const Algorithm& algorithm) {
  if (question.forced != nullptr && question.forced != &algorithm) return false;
  return question.ranks >= algorithm.min_ranks && question.ranks <= algorithm.max_ranks &&
         (!question.rank_ordered || algorithm.rank_ordered);
}

}  // namespace

const char* protocol_name(DeviceProtocol protocol) {
  return protocol == DeviceProtocol::kLl ? "ll" : protocol == DeviceProtocol::kLl128 ? "ll128" : "simple";
}

DeviceChoice choose_for_device(const DeviceQuestion& question) {
  DeviceChoice best;
  for (const Algorithm* algorithm : algorithms_of(question.collective)) {
    if (!fits(question, *algorithm)) continue;
    for (uint32_t depth : kPipelineDepths) {
      if (depth > 1 && !algorithm->pipelined) break;
      const Work work = algorithm->work(
          {.ranks = question.ranks, .bytes = static_cast<double>(question.bytes), .pipeline_chunks = depth});
      for (const ProtocolCost& cost : kCosts) {
        if (cost.protocol == DeviceProtocol::kLl128 && !question.keeps_lines) continue;
        if ((question.protocols >> static_cast<uint32_t>(cost.protocol) & 1) == 0) continue;
        for (uint32_t channels = 1; channels <= question.most_channels; channels *= 2) {
          const size_t chunk =
              largest_device_chunk(cost.protocol, question.slot_bytes, work.max_span, question.element_bytes);
          if (chunk == 0) continue;
          const double slice = static_cast<double>(chunk * question.element_bytes) * work.chunks * channels;
          const double slices = std::max(1.0, std::ceil(static_cast<double>(question.bytes) / slice));
          const double time = slices * work.rounds * cost.hop_us +
                              work.exchanged_bytes / (1e3 * cost.block_gbps * channels) + 0.05 * channels;
          if (best.algorithm != nullptr && time * kTie >= best.predicted_us) continue;
          best = {algorithm, cost.protocol, channels, depth, time};
        }
      }
    }
  }
  return best;
}

}  // namespace treering::cuda

// SPDX-License-Identifier: Apache-2.0
// What a communicator's kernels do for each size, and what is left to the host.
#include <fmt/format.h>

#include <bit>

#include "communicator/communicator.h"
#include "core/device_protocols.h"
#include "core/log.h"
#include "core/types.h"
#include "gpu/device_kernels.h"

namespace treering {
namespace {

// Below it, not the rate of a link counts but what is hard to measure.
constexpr size_t kMinStagedBytes = 1 << 20;

// Options name protocols by bits in the order of the enumeration.
constexpr uint32_t bit(cuda::DeviceProtocol protocol) { return 1u << static_cast<uint32_t>(protocol); }
static_assert(bit(cuda::DeviceProtocol::kLl) == kAllowLl && bit(cuda::DeviceProtocol::kLl128) == kAllowLl128 &&
              bit(cuda::DeviceProtocol::kSimple) == kAllowSimple);

}  // namespace

bool DeviceKernels::takes(const Operation& operation) {
  if (operation.pairs) return true;
  const bool user = operation.reduction != nullptr && operation.reduction->function != nullptr;
  const bool wide = communicator_->config().wide_partials && find_type(operation.type)->narrow_float;
  const bool truth = communicator_->ranks() == 1 && gives_truth(operation.type, operation.op);  // more than a copy
  if (user || wide || truth || operation.segments != nullptr || operation.compression != nullptr ||
      !info_of(operation.collective).has_data)
    return false;
  const size_t size = find_type(operation.type)->size;
  return !choose(operation.collective, operation.elements(communicator_->ranks()) * size,
                 info_of(operation.collective).reduces ? size : 1, operation.blocks != nullptr)
              .staged;
}

bool DeviceKernels::predict(Collective collective, size_t bytes, size_t element_bytes, cuda::DeviceSelection* choice) {
  if (!info_of(collective).has_data) return false;
  const Chosen& chosen = choose(collective, bytes, info_of(collective).reduces ? element_bytes : 1, false);
  *choice = chosen.choice;
  return !chosen.staged && choice->algorithm != nullptr;
}

const DeviceKernels::Chosen& DeviceKernels::choose(Collective collective, size_t bytes, size_t element_bytes,
                                                   bool unequal) {
  const size_t band = std::bit_ceil(std::max<size_t>(bytes, 1));
  std::lock_guard lock(choices_mutex_);
  const auto [at, is_new] = choices_.try_emplace({collective, band, element_bytes, unequal});
  Chosen& chosen = at->second;
  cuda::DeviceSelection& choice = chosen.choice;
  if (!is_new) return chosen;
  const Config& config = communicator_->config();
  const char* name = info_of(collective).name;
  cuda::DeviceSelectionInput input = selection_input(collective, band, element_bytes);
  input.unequal = unequal;
  // What was forced may not be able to do it: as on the host, the choice is free then.
  for (const Algorithm* forced :
       {forced_algorithm(config.algorithm, collective), static_cast<const Algorithm*>(nullptr)})
    for (uint32_t protocols : {allowed_protocols(config.device_protocol, name), uint32_t{kAllowSimple}}) {
      if (choice.algorithm != nullptr) break;
      input.forced = forced;
      input.protocols = protocols;
      choice = cuda::choose_for_device(input);
    }
  if (choice.algorithm == nullptr) return chosen;
  chosen.staged = is_staged_better(collective, band, choice.predicted_us);
  if (communicator_->rank() == 0 && log_enabled(LogLevel::kInfo)) {
    const LogRank line_has_it(communicator_->rank());
    log_line(LogLevel::kInfo,
             fmt::format("GPUs: {} of up to {} bytes: {} ({}), {} block(s), {:.2f} us predicted{}", name, band,
                         choice.algorithm->name, cuda::protocol_name(choice.protocol), choice.channels,
                         choice.predicted_us, chosen.staged ? "; staged in host memory, which takes less" : ""));
  }
  return chosen;
}

cuda::DeviceSelectionInput DeviceKernels::selection_input(Collective collective, size_t bytes,
                                                          size_t element_bytes) const {
  cuda::DeviceSelectionInput input{collective,    communicator_->ranks(),  bytes,
                                   element_bytes, DeviceFifos::kSlotBytes, fifos_->channels()};
  input.keeps_lines = fifos_->keep_lines();
  input.rank_ordered = communicator_->config().deterministic;
  input.link = fifos_->link();
  return input;
}

std::string DeviceKernels::explain(Collective collective, size_t bytes, size_t element_bytes) {
  if (!info_of(collective).has_data) return {};
  const CollectiveInfo& info = info_of(collective);
  if (!info.reduces) element_bytes = 1;
  const Chosen& chosen = choose(collective, bytes, element_bytes, false);
  const cuda::LinkFigures& link = fifos_->link();
  std::string text =
      fmt::format("{} of up to {} in memory of GPUs: {} ranks, up to {} blocks each; ", info.name,
                  format_bytes(std::bit_ceil(std::max<size_t>(bytes, 1))), communicator_->ranks(), fifos_->channels());
  text += link.measured ? fmt::format("links of {:.2f} us and {:.1f} GB/s, copies to the host {:.1f} GB/s, measured\n",
                                      link.latency_us, link.gbps, fifos_->host_gbps())
                        : "links were not measured\n";
  if (chosen.choice.algorithm == nullptr) return text + "no kernel does it: staged in memory of the host\n";
  text += chosen.staged ? "chosen: staged in memory of the host, because kernels take more than three times as long\n"
                        : fmt::format("chosen: {} ({}), {} block(s)\n", chosen.choice.algorithm->name,
                                      cuda::protocol_name(chosen.choice.protocol), chosen.choice.channels);
  text += fmt::format("\n  {:<18} {:<8} {:>6} {:>8} {:>12}\n", "algorithm", "protocol", "blocks", "pipeline",
                      "predicted us");
  for (const Algorithm* algorithm : algorithms_of(collective))
    for (uint32_t protocol = 0; protocol < cuda::kProtocols; ++protocol) {
      cuda::DeviceSelectionInput input =
          selection_input(collective, std::bit_ceil(std::max<size_t>(bytes, 1)), element_bytes);
      input.forced = algorithm;
      input.protocols = 1u << protocol;
      const cuda::DeviceSelection choice = cuda::choose_for_device(input);
      if (choice.algorithm == nullptr) continue;
      const bool is_chosen =
          !chosen.staged && choice.algorithm == chosen.choice.algorithm && choice.protocol == chosen.choice.protocol;
      text += fmt::format("{} {:<18} {:<8} {:>6} {:>8} {:>12.2f}\n", is_chosen ? '*' : ' ', algorithm->name,
                          cuda::protocol_name(choice.protocol), choice.channels, choice.pipeline_chunks,
                          choice.predicted_us);
    }
  return text;
}

bool DeviceKernels::is_staged_better(Collective collective, size_t bytes, double kernel_us) const {
  const Config& config = communicator_->config();
  if (bytes < kMinStagedBytes) return false;
  if (!config.algorithm.empty() || !config.device_protocol.empty()) return false;  // the user knows what to use
  const CallSelection& selection = communicator_->selection();
  const auto query = selection.query(collective, bytes, trUint8);  // kernels compress nothing
  const double host_us = selection.choose(query).candidate.predicted_us;
  const cuda::StagedInput staged{bytes, static_cast<size_t>(config.device_piece_bytes), fifos_->host_gbps(), host_us};
  return cuda::is_staged_better(fifos_->link(), kernel_us, cuda::staged_us(staged));
}

}  // namespace treering

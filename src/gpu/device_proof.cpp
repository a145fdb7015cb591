// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "communicator/communicator.h"
#include "core/log.h"

namespace treering {
namespace {

// What each rank tells.
struct Outcome {
  uint32_t failed, stuck, keep_lines, measured;
  double latency_us, gbps, host_gbps;
  char text[224];
};

void add_slower(const cuda::LinkFigures& other, cuda::LinkFigures* link) {
  link->latency_us = std::max(link->latency_us, other.latency_us);
  link->gbps = link->measured ? std::min(link->gbps, other.gbps) : other.gbps;
  link->measured |= other.measured;
}

}  // namespace

Status of_link(uint32_t peer, const Status& status) {
  if (status.ok() || status.code() != trDeviceError) return status;
  return {status.code(), fmt::format("on the link to rank {}'s GPU, {}", peer, status.message())};
}

Status probe_device_fifos(Communicator* communicator, DeviceCopies* copies, DeviceAreas* areas,
                          const std::function<ProofPlace(std::byte* area)>& place, LinkFindings* findings) {
  const uint32_t rank = communicator->rank(), ranks = communicator->ranks();
  std::unique_ptr<DeviceProbe> probe;
  TR_RETURN_IF_ERROR(DeviceProbe::create(copies, &probe));
  findings->host_gbps = probe->host_gbps();
  std::string text;
  for (uint32_t distance = 0; distance < ranks; ++distance) {
    const uint32_t peer = (rank + distance) % ranks;
    TR_RETURN_IF_ERROR(of_link(peer, areas->map(peer, copies)));
    if (peer == rank) continue;
    cuda::LinkFigures figures;
    const ProofPlace at = place(areas->of(peer));
    TR_RETURN_IF_ERROR(of_link(peer, probe->measure(at.word, at.chunks, &figures)));
    text += fmt::format("{} rank {} {:.2f} us {:.1f} GB/s", text.empty() ? "" : ",", peer, figures.latency_us,
                        figures.gbps);
    add_slower(figures, &findings->link);
  }
  log_line(LogLevel::kInfo, fmt::format("GPU {} of rank {} reaches by copies:{}; the host {:.1f} GB/s",
                                        communicator->config().device, rank, text, findings->host_gbps));
  return {};
}

Status agree_on_links(Communicator* communicator, const Status& own, LinkFindings* findings, std::string* why_not) {
  Outcome outcome{!own.ok(),
                  findings->stuck,
                  findings->keep_lines,
                  findings->link.measured,
                  findings->link.latency_us,
                  findings->link.gbps,
                  findings->host_gbps,
                  {}};
  std::strncpy(outcome.text, own.message().c_str(), sizeof outcome.text - 1);
  std::vector<Outcome> outcomes(communicator->ranks());
  TR_RETURN_IF_ERROR(communicator->allgather_bytes(Purpose::kGpus, &outcome, sizeof outcome,
                                                   reinterpret_cast<std::byte*>(outcomes.data())));
  for (const Outcome& other : outcomes) {
    findings->keep_lines &= other.keep_lines != 0;
    findings->stuck |= other.stuck != 0;
    add_slower({other.measured != 0, other.latency_us, other.gbps}, &findings->link);
    findings->host_gbps = std::min(findings->host_gbps, other.host_gbps);
    if (other.failed != 0 && why_not->empty())
      *why_not = fmt::format("rank {}: {}", &other - outcomes.data(), other.text);
  }
  return {};
}

}  // namespace treering

// SPDX-License-Identifier: Apache-2.0
#include "shim/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "core/config.h"
#include "shim/log.h"
#include "shim/variables.h"

namespace treering::nccl {
namespace {

constexpr unsigned kMagic = 0xcafebeef;
// What Treering's own choice lies between, and what it takes.
constexpr int kChosenChannels = 2;
constexpr int kMaxTimeout = 2'000'000;  // seconds

struct IntegerField {
  const char* name;
  int ncclConfig_t::*field;
  int low, high;
  unsigned since;  // release that has it
};
constexpr IntegerField kIntegers[] = {
    {"blocking", &ncclConfig_t::blocking, 0, 1, NCCL_VERSION(2, 14, 0)},
    {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, 0, 8, NCCL_VERSION(2, 17, 0)},
    {"minCTAs", &ncclConfig_t::minCTAs, 1, INT_MAX, NCCL_VERSION(2, 17, 0)},
    {"maxCTAs", &ncclConfig_t::maxCTAs, 1, INT_MAX, NCCL_VERSION(2, 17, 0)},
    {"splitShare", &ncclConfig_t::splitShare, 0, 1, NCCL_VERSION(2, 17, 0)},
    {"trafficClass", &ncclConfig_t::trafficClass, INT_MIN, INT_MAX, NCCL_VERSION(2, 25, 0)},
    {"collnetEnable", &ncclConfig_t::collnetEnable, 0, 1, NCCL_VERSION(2, 27, 0)},
    {"CTAPolicy", &ncclConfig_t::CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO,
     NCCL_VERSION(2, 27, 0)},
    {"shrinkShare", &ncclConfig_t::shrinkShare, 0, 1, NCCL_VERSION(2, 27, 0)},
    {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, 1, INT_MAX, NCCL_VERSION(2, 27, 0)},
    {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, 1, INT_MAX, NCCL_VERSION(2, 28, 0)},
    {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, 0, 1, NCCL_VERSION(2, 28, 0)},
};

// Whether the user has set Treering's own variable, which says more precisely what is wanted.
bool has_own(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0';
}

// The library reads it, too, but later than ranks meet by NCCL_COMM_ID.
Status read_timeout(int* timeout_ms) {
  const std::string text = std::getenv("TREERING_TIMEOUT");
  int whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (error != std::errc() || end != text.data() + text.size() || whole < 0 || whole > kMaxTimeout)
    return {trInvalidArgument,
            fmt::format("TREERING_TIMEOUT is '{}'; give seconds, 0 (none) to {}", text, kMaxTimeout)};
  *timeout_ms = 1000 * whole;
  return {};
}

int channels_of(const Request& request) {
  if (request.min_channels != INT_MIN && request.min_channels >= kChosenChannels)
    return std::min(request.min_channels, kMaxChannels);
  if (request.max_channels != INT_MIN && request.max_channels < kChosenChannels) return request.max_channels;
  return TR_CONFIG_UNDEF_INT;
}

std::string transports_of(const Request& request) {
  if (request.without_p2p && request.without_shm)
    log_info(kEnv, -1, "NCCL_P2P_DISABLE and NCCL_SHM_DISABLE together leave nothing; the first is left aside");
  if (request.without_shm) return "^shared-memory";
  return request.without_p2p ? "^in-process,cma" : "";
}

}  // namespace

trConfig_t Settings::config() const {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.channels = channels;
  config.staging_bytes = staging_bytes;
  config.timeout_ms = timeout_ms;
  config.device = device;
  config.device_blocks = device_blocks;
  if (!algorithm.empty()) config.algorithm = algorithm.c_str();
  if (!device_protocol.empty()) config.device_protocol = device_protocol.c_str();
  if (!transports.empty()) config.transports = transports.c_str();
  if (!name.empty()) config.name = name.c_str();
  return config;
}

Status read_config(const char* function, const ncclConfig_t* user, ncclConfig_t* full) {
  *full = NCCL_CONFIG_INITIALIZER;
  if (user == nullptr) return {};
  if (user->magic != kMagic)
    return {trInvalidArgument, fmt::format("{}: config->magic is {:#x}, not {:#x}: initialise the struct with "
                                           "NCCL_CONFIG_INITIALIZER",
                                           function, user->magic, kMagic)};
  if (user->size < offsetof(ncclConfig_t, blocking))
    return {trInvalidArgument, fmt::format("{}: config->size is {}: initialise the struct with NCCL_CONFIG_INITIALIZER",
                                           function, user->size)};
  if (user->size > sizeof *full)
    log_info(kInit, -1,
             fmt::format("{}: the last {} bytes of config are of a newer header ({}); they have no effect", function,
                         user->size - sizeof *full, user->version));
  std::memcpy(full, user, std::min(user->size, sizeof *full));
  if (full->version < NCCL_VERSION(2, 17, 0)) full->netName = nullptr;
  if (full->version < NCCL_VERSION(2, 27, 0)) full->commName = nullptr;
  for (const IntegerField& row : kIntegers) {
    int& value = full->*row.field;
    if (full->version < row.since) value = NCCL_CONFIG_UNDEF_INT;
    if (value != NCCL_CONFIG_UNDEF_INT && (value < row.low || value > row.high))
      return {trInvalidArgument, fmt::format("{}: config->{} is {}; give {} to {}, or NCCL_CONFIG_UNDEF_INT", function,
                                             row.name, value, row.low, row.high)};
  }
  if (full->minCTAs != NCCL_CONFIG_UNDEF_INT && full->maxCTAs != NCCL_CONFIG_UNDEF_INT && full->minCTAs > full->maxCTAs)
    return {trInvalidArgument, fmt::format("{}: config->minCTAs is {}, more than config->maxCTAs, {}", function,
                                           full->minCTAs, full->maxCTAs)};
  return {};
}

Status resolve_settings(const char* function, const ncclConfig_t* user, Settings* settings) {
  ncclConfig_t config;
  TR_RETURN_IF_ERROR(read_config(function, user, &config));
  Request request;
  request.blocking = config.blocking;
  request.min_channels = config.minCTAs;
  request.max_channels = config.maxCTAs;
  TR_RETURN_IF_ERROR(apply_variables(&request));  // they win, as they do with NCCL
  *settings = Settings();
  settings->blocking = request.blocking != 0;
  if (config.commName != nullptr) settings->name = config.commName;
  if (!has_own("TREERING_ALGO")) settings->algorithm = request.algorithm;
  if (!has_own("TREERING_DEVICE_PROTOCOL")) settings->device_protocol = request.protocol;
  if (!has_own("TREERING_TRANSPORTS")) settings->transports = transports_of(request);
  if (!has_own("TREERING_CHANNELS")) settings->channels = channels_of(request);
  if (!has_own("TREERING_DEVICE_BLOCKS") && request.max_channels != INT_MIN)
    settings->device_blocks = std::min(request.max_channels, kMaxDeviceBlocks);
  if (!has_own("TREERING_STAGING") && request.buffer_bytes != INT_MIN)
    settings->staging_bytes = std::clamp(request.buffer_bytes, kMinStaging, kMaxStaging);
  // A rank may compute for longer than any deadline that would suit others; one that dies is noticed at once.
  settings->timeout_ms = 0;
  return has_own("TREERING_TIMEOUT") ? read_timeout(&settings->timeout_ms) : Status();
}

}  // namespace treering::nccl

// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

namespace treering::ucx {
namespace {

// Payloads are read where UCX has put them.
constexpr size_t kPayloadAlignment = 64;

// Settings of UCX, unless the user has set them.
struct Setting {
  const char *name, *variable, *value;
};
// UCX 1.13 ends the process where a peer of its TCP dies while a payload is sent in several parts without a copy: their
// requests end twice. Payloads that are fetched by a network card are not concerned.
constexpr Setting kNoZeroCopy{"ZCOPY_THRESH", "UCX_ZCOPY_THRESH", "inf"};
// A rank that opens a connection to a host that is cut off would be held up within UCX until TCP gives up, for minutes.
constexpr Setting kOpensWithoutWaiting{"CONN_NB", "UCX_TCP_CONN_NB", "y"};

// The largest buffer that the kernel gives a socket of this network namespace, for sending or receiving.
size_t max_socket_buffer() {
  size_t least = SIZE_MAX;
  for (const char* const path : {"/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/ipv4/tcp_rmem"}) {
    std::ifstream file(path);
    size_t min = 0, usual = 0, max = 0;
    if (file >> min >> usual >> max) least = std::min(least, max);
  }
  return least;
}

// What UCX's TCP sends by one system call. A longer message is sent in parts, which its receiver copies together.
size_t segment_for(size_t payload) {
  constexpr size_t kHeaders = 4096, kMax = 2 << 20;  // UCX's and a message's; it allocates eight segments at a time
  return std::min(payload + kHeaders, kMax);
}

void set_unless_given(ucp_config_t* config, const Setting& setting) {
  if (std::getenv(setting.variable) == nullptr) (void)ucp_config_modify(config, setting.name, setting.value);
}

// UCX prints a warning about settings of transports that it does not use.
bool may_use_tcp() {
  const char* const named = std::getenv("UCX_TLS");
  const std::string_view names = named == nullptr ? "all" : named;
  return names.find("tcp") != names.npos || names.find("all") != names.npos;
}

}  // namespace

Status ucx_error(const char* what, ucs_status_t status) {
  return {trSystemError, fmt::format("{}: {}", what, ucs_status_string(status))};
}

Status Worker::open(uint32_t ranks, size_t longest, std::unique_ptr<Worker>* opened) {
  std::unique_ptr<Worker> worker(new Worker);
  // Not all of UCX's transports can be slept on.
  if (!worker->make(ranks, longest, true).ok()) {
    worker->end();
    TR_RETURN_IF_ERROR(worker->make(ranks, longest, false));
  }
  *opened = std::move(worker);
  return {};
}

Worker::~Worker() { end(); }

Status Worker::make(uint32_t ranks, size_t longest, bool wakes) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t read = ucp_config_read(nullptr, nullptr, &config); read != UCS_OK)
    return ucx_error("ucp_config_read, of the variables UCX_*", read);
  set_unless_given(config, kNoZeroCopy);
  if (may_use_tcp()) {
    const size_t segment = segment_for(longest);
    const std::string received = std::to_string(segment);
    // UCX 1.13 stands still for seconds where a segment is many times as large as a socket's buffer.
    const std::string sent = std::to_string(std::min(segment, max_socket_buffer()));
    set_unless_given(config, kOpensWithoutWaiting);
    set_unless_given(config, {"TX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE", sent.c_str()});
    set_unless_given(config, {"RX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE", received.c_str()});
  }
  ucp_params_t wanted{};
  wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  wanted.features = UCP_FEATURE_AM | (wakes ? UCP_FEATURE_WAKEUP : 0);
  wanted.estimated_num_eps = ranks;
  wanted.name = "treering";
  const ucs_status_t made = ucp_init(&wanted, config, &context_);
  ucp_config_release(config);
  if (made != UCS_OK) {
    context_ = nullptr;
    return ucx_error("ucp_init", made);
  }

  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.am_alignment = kPayloadAlignment;
  if (const ucs_status_t created = ucp_worker_create(context_, &params, &worker_); created != UCS_OK) {
    worker_ = nullptr;
    return ucx_error("ucp_worker_create", created);
  }
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (const ucs_status_t found = ucp_worker_get_address(worker_, &address, &bytes); found != UCS_OK)
    return ucx_error("ucp_worker_get_address", found);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  if (!wakes) return {};
  const ucs_status_t told = ucp_worker_get_efd(worker_, &descriptor_);
  return told == UCS_OK ? Status() : ucx_error("ucp_worker_get_efd", told);
}

void Worker::end() {
  if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
  if (context_ != nullptr) ucp_cleanup(std::exchange(context_, nullptr));
  descriptor_ = -1;
}

// What has come already cannot be asked for: then the descriptor is made readable here.
void Worker::arm() {
  if (ucp_worker_arm(worker_) != UCS_OK) (void)ucp_worker_signal(worker_);
}

}  // namespace treering::ucx

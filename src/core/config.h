// SPDX-License-Identifier: Apache-2.0
// Config: every option of the library, in one table.
//
// A row gives an option its name, environment variable, default and documentation; docs/options.md is generated from
// the rows and a test compares the two. A communicator's settings are resolved once, at its creation: the caller's
// trConfig_t wins over the environment, which wins over the default.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/status.h"

namespace treering {

inline constexpr int kMaxRanks = 1024;  // of a communicator: what the slots of the staging memory are laid out for

// Limits of settings that others need, too.
inline constexpr int kMaxChannels = 4;
inline constexpr int kMaxTcpStreams = 32;
inline constexpr int kMaxDeviceBlocks = 32;
inline constexpr int kMinStaging = 64 << 10, kMaxStaging = 256 << 20;  // bytes

// The effective settings of one communicator.
struct Config {
  int timeout_ms = 300'000;  // 0 = none
  int warn_ms = 10'000;      // of waiting in a collective, until it is said; 0 = never
  std::string metrics;       // a file, or ":" and a port; empty = none
  std::string trace;         // a directory; empty = none
  bool wide_partials = false;
  int channels = 0;        // 0 = chosen by the selection
  int staging_bytes = 0;   // 0 = chosen from the cache sizes
  std::string algorithm;   // empty = chosen by the selection
  std::string transports;  // empty = all
  std::string name;
  bool deterministic = false;
  int fusion_bytes = 64 << 20;  // 0 = calls of a group are not fused
  int fusion_alignment = 64;    // bytes, a power of two
  std::string wire;             // empty = float32 travels as it is
  int link_mbps = 0;            // 0 = sends are not paced
  double link_gbps = 0;         // Gbit/s of a host's links to others; 0 = measured
  double link_us = 0;           // their latency
  int device = -1;              // the rank's GPU; -1 = none
  bool device_p2p = true;       // whether this rank's GPU may be reached by others
  int device_blocks = 0;        // blocks of a kernel at most; 0 = chosen
  std::string host_id;          // empty = found out
  std::string switches;         // that the host hangs on; empty = found out
  std::string socket_ifname;    // empty = all that lead to other machines
  std::string socket_family;    // ipv4, ipv6; empty = any
  int tcp_streams = 0;          // sockets to each peer on another host; 0: one for each interface
  std::string tcp_congestion;   // control of the TCP streams; empty = chosen
  std::string verbs_devices;    // that may be used; empty = all
  int verbs_gid = -1;           // index of the GID; -1 = chosen
  int verbs_service_level = 0;
  int verbs_traffic_class = 0;
  int verbs_timeout = 0;      // of an acknowledgement: 4.096 us * 2^n; 0: from timeout_ms
  bool watch_buffers = true;  // those used again are registered with devices, and watched
  int first_port = 0;         // to listen on; 0 = chosen by the kernel
  int last_port = 0;
  int device_piece_bytes = 4 << 20;
  std::string device_protocol;  // empty = all
};

struct OptionRow {
  const char* name;         // as in trConfig_t
  const char* environment;  // nullptr: has no variable
  const char* values;       // what is accepted, with its unit, for the documentation and for errors
  const char* example;      // a value that is accepted, for errors
  const char* default_text;
  const char* documentation;
  bool must_agree;  // the ranks of a communicator must have the same value
  Status (*parse)(const std::string& text, Config* config);
  std::string (*print)(const Config& config);
};

std::span<const OptionRow> option_table();

// The settings that `user` (may be nullptr), the environment and the defaults give.
Status resolve_config(const trConfig_t* user, Config* config);

// "name=value" of every option that ranks must agree on, for the comparison at init.
std::vector<std::string> agreed_settings(const Config& config);

// docs/options.md
std::string options_markdown();

}  // namespace treering

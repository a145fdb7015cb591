// SPDX-License-Identifier: Apache-2.0
// The content of a trUniqueId: where the ranks meet and the job's secret.
#pragma once

#include <array>
#include <string>

#include "core/status.h"

namespace treering {

inline constexpr size_t kSecretBytes = 32;  // crypto_auth_KEYBYTES
using JobName = std::array<unsigned char, 16>;
using Secret = std::array<unsigned char, kSecretBytes>;

struct UniqueId {
  char magic[8];  // "treering"
  uint32_t version;
  uint32_t root_pid;      // for messages
  uint64_t root_local;    // names the Unix socket of the process where the ranks meet (local_socket_name)
  uint64_t root_network;  // its network namespace (host.h)
  JobName job;
  Secret secret;
  uint16_t port;
  unsigned char addresses[44];  // pack_addresses()
  uint16_t check;               // of what stands before it; pack() writes it
};
static_assert(sizeof(UniqueId) == TR_UNIQUE_ID_BYTES);

// Makes the job and its secret; the process that listens adds where.
Status make_unique_id(UniqueId* id);
trUniqueId pack(const UniqueId& id);
// Refuses bytes that are no id, an id of another version, and one of which bits were changed.
Status unpack(const trUniqueId& packed, UniqueId* id);

// Hexadecimal text of the job's id.
std::string job_name(const UniqueId& id);

}  // namespace treering

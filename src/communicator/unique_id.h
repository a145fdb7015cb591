// The content of a trUniqueId: where the ranks meet and the job's secret.
#pragma once

#include <array>
#include <string>

#include "core/status.h"

namespace treering {

inline constexpr size_t kSecretBytes = 32;  // crypto_auth_KEYBYTES

struct UniqueId {
  char magic[8];  // "treering"
  uint32_t version;
  uint32_t root_pid;                  // for messages
  std::array<unsigned char, 16> job;  // names the meeting point
  std::array<unsigned char, kSecretBytes> secret;
};
static_assert(sizeof(UniqueId) <= TR_UNIQUE_ID_BYTES);

Status make_unique_id(UniqueId* id);
trUniqueId pack(const UniqueId& id);
Status unpack(const trUniqueId& packed, UniqueId* id);

// Hexadecimal text of the job's id.
std::string job_name(const UniqueId& id);
// Name of the meeting point: a Unix socket in the abstract namespace, so that no file is ever left behind.
std::string socket_name(const UniqueId& id);

}  // namespace treering

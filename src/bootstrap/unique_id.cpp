// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/unique_id.h"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace treering {
namespace {

// The first bytes of a hash: a damaged id passes once in 65,536 times.
uint16_t check_of(const UniqueId& id) {
  std::array<unsigned char, crypto_generichash_BYTES_MIN> hash;
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(&id), offsetof(UniqueId, check),
                     nullptr, 0);
  uint16_t check = 0;
  std::memcpy(&check, hash.data(), sizeof check);
  return check;
}

}  // namespace

Status make_unique_id(UniqueId* id) {
  if (sodium_init() < 0) return {trSystemError, "libsodium could not be initialised (no source of random numbers?)"};
  *id = UniqueId{};
  std::memcpy(id->magic, "treering", sizeof id->magic);
  id->version = TR_VERSION_CODE;
  id->root_pid = static_cast<uint32_t>(getpid());
  randombytes_buf(id->job.data(), id->job.size());
  randombytes_buf(id->secret.data(), id->secret.size());
  return {};
}

trUniqueId pack(const UniqueId& id) {
  UniqueId checked = id;
  checked.check = check_of(id);
  trUniqueId packed{};
  std::memcpy(packed.internal, &checked, sizeof checked);
  return packed;
}

Status unpack(const trUniqueId& packed, UniqueId* id) {
  std::memcpy(static_cast<void*>(id), packed.internal, sizeof *id);
  if (std::memcmp(id->magic, "treering", sizeof id->magic) != 0)
    return {trInvalidArgument, "the unique id was not made by trGetUniqueId (or was damaged on its way here)"};
  const bool damaged = id->check != check_of(*id);
  if (id->version != TR_VERSION_CODE)
    return {trInvalidUsage,
            fmt::format("the unique id was made by version {} of the library, this rank runs {}{}", id->version,
                        TR_VERSION_CODE, damaged ? "; or it was damaged on its way here" : "")};
  if (damaged)
    return {
        trInvalidArgument,
        "the unique id was damaged on its way here (its checksum is wrong), or another build of the library made it"};
  return {};
}

std::string job_name(const UniqueId& id) {
  char text[2 * sizeof(id.job) + 1];
  sodium_bin2hex(text, sizeof text, id.job.data(), id.job.size());
  return text;
}

}  // namespace treering

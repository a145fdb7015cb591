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

// CRC-16-CCITT (ITU-T V.41, 2.2): finds every change of up to three bits.
uint16_t check_of(const UniqueId& id) {
  constexpr uint16_t kPolynomial = 0x1021;
  std::array<unsigned char, offsetof(UniqueId, check)> bytes;
  std::memcpy(bytes.data(), &id, bytes.size());
  uint16_t check = 0xffff;
  for (const unsigned char byte : bytes) {
    check = static_cast<uint16_t>(check ^ byte << 8);
    for (int bit = 0; bit < 8; ++bit)
      check = static_cast<uint16_t>((check & 0x8000) != 0 ? check << 1 ^ kPolynomial : check << 1);
  }
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

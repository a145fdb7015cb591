// SPDX-License-Identifier: Apache-2.0
#include "launch/launch.h"

#include <fmt/format.h>
#include <sodium.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "bootstrap/membership.h"
#include "core/config.h"

namespace treering {
namespace {

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

Status from_own_variables(Launch* launch, trUniqueId* id) {
  launch->launcher = "TREERING_RANK";
  TR_RETURN_IF_ERROR(environment_number("TREERING_RANKS", 1, kMaxRanks, &launch->ranks));
  TR_RETURN_IF_ERROR(environment_number("TREERING_RANK", 0, launch->ranks - 1, &launch->rank));
  const char* given = variable("TREERING_ID");
  if (given == nullptr)
    return {trInvalidUsage,
            "TREERING_RANK is set but TREERING_ID is not: give it the id in hex, or \"-\" for a line of "
            "standard input"};
  std::string text = given;
  if (text == "-" && !std::getline(std::cin, text))
    return {trInvalidUsage, "TREERING_ID is \"-\", but standard input ended before a line with the id came"};
  if (Status status = parse_id_text(text, id); !status.ok()) return {status.code(), "TREERING_ID: " + status.message()};
  return {};
}

// PyTorch's own store listens on MASTER_PORT; the ranks of the k-th communicator agree on k by counting. A call that
// fails before it can meet the others does not count: it may be made again, while the others wait.
Status from_torchrun(Launch* launch, trUniqueId* id) {
  static std::atomic<uint32_t> made{0};
  launch->launcher = "torchrun";
  uint32_t port = 0;
  TR_RETURN_IF_ERROR(environment_number("WORLD_SIZE", 1, kMaxRanks, &launch->ranks));
  TR_RETURN_IF_ERROR(environment_number("RANK", 0, launch->ranks - 1, &launch->rank));
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    if (variable(name) == nullptr)
      return {trInvalidUsage,
              fmt::format("RANK and WORLD_SIZE are set, but {} is not: start with torchrun, or set it, too", name)};
  const char* address = variable("MASTER_ADDR");
  TR_RETURN_IF_ERROR(environment_number("MASTER_PORT", 1, UINT16_MAX - 1, &port));
  const char* secret = variable("TREERING_SECRET");
  if (secret == nullptr) secret = variable("TORCHELASTIC_RUN_ID");
  UniqueId point;
  const uint32_t number = made;
  Status status = Membership::rendezvous_root_at(address, static_cast<uint16_t>(port + 1),
                                                 secret != nullptr ? secret : "", number, launch->rank == 0, &point);
  if (!status.ok()) return {status.code(), "MASTER_ADDR and the port after MASTER_PORT: " + status.message()};
  made = number + 1;
  *id = pack(point);
  return {};
}

std::string range_text(uint32_t low, uint32_t high) {
  return low == high ? std::to_string(low) : fmt::format("a number from {} to {}", low, high);
}

Status make_fresh(trUniqueId* id) {
  UniqueId made;
  TR_RETURN_IF_ERROR(Membership::make_rendezvous_root(&made));
  *id = pack(made);
  return {};
}

}  // namespace

Status environment_number(const char* name, uint32_t low, uint32_t high, uint32_t* value) {
  const char* text = variable(name);
  if (text == nullptr) return {trInvalidUsage, fmt::format("{} is not set; give {}", name, range_text(low, high))};
  const char* end = text + std::strlen(text);
  auto [at, error] = std::from_chars(text, end, *value);
  if (error != std::errc() || at != end || *value < low || *value > high)
    return {trInvalidUsage, fmt::format("{} is '{}'; give {}", name, text, range_text(low, high))};
  return {};
}

std::string id_text(const trUniqueId& id) {
  std::string text(2 * sizeof id.internal + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), reinterpret_cast<const unsigned char*>(id.internal), sizeof id.internal);
  text.pop_back();
  return text;
}

Status parse_id_text(const std::string& text, trUniqueId* id) {
  size_t bytes = 0;
  const char* end = nullptr;
  if (sodium_hex2bin(reinterpret_cast<unsigned char*>(id->internal), sizeof id->internal, text.data(), text.size(),
                     nullptr, &bytes, &end) != 0 ||
      bytes != sizeof id->internal || end != text.data() + text.size())
    return {trInvalidUsage, fmt::format("not a unique id: {} characters, not {} hexadecimal digits", text.size(),
                                        2 * sizeof id->internal)};
  return {};
}

Status meet_through_launcher(int timeout_ms, Launch* launch, trUniqueId* id) {
  if (variable("TREERING_RANK") != nullptr) return from_own_variables(launch, id);
  if (variable("PMIX_RANK") != nullptr) return exchange_through_pmix(launch, make_fresh, timeout_ms, id);
  if (variable("PMI_FD") != nullptr) return exchange_through_pmi(launch, make_fresh, timeout_ms, id);
  if (variable("RANK") != nullptr && variable("WORLD_SIZE") != nullptr) return from_torchrun(launch, id);
  if (variable("SLURM_PROCID") != nullptr && variable("SLURM_STEP_NUM_TASKS") != nullptr)
    return {trInvalidUsage, "srun gave the processes no way to meet: start them with srun --mpi=pmi2 or --mpi=pmix"};
  for (const char* name : {"TREERING_RANKS", "TREERING_ID"})
    if (variable(name) != nullptr)
      return {trInvalidUsage, fmt::format("{} is set, but TREERING_RANK is not: give this process its rank", name)};
  return {
      trInvalidUsage,
      "nothing in the environment says which rank this process is: looked for TREERING_RANK (treering-perf --hosts, a script of your own), "
      "PMIX_RANK (mpirun of Open MPI, srun --mpi=pmix), PMI_FD (mpirun of MPICH, srun --mpi=pmi2), RANK and WORLD_SIZE (torchrun)"};
}

}  // namespace treering

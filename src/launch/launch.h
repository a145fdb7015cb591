// SPDX-License-Identifier: Apache-2.0
// Launch: rank, number of ranks and a common unique id from whatever started this process.
//
//   found by                         launcher                              the id travels
//   TREERING_RANK                    treering-perf --hosts, scripts        TREERING_ID: the id in hex, or "-": a line of
//                                                                          standard input
//   PMIX_RANK                        mpirun (Open MPI), srun --mpi=pmix    through PMIx, put by rank 0
//   PMI_FD                           mpirun (MPICH), srun --mpi=pmi2       through PMI-1, put by rank 0
//   RANK, WORLD_SIZE, MASTER_ADDR    torchrun                              not at all: it follows from MASTER_ADDR, the
//                                                                          port after MASTER_PORT and TREERING_SECRET
//
// Invariant: every way either gives all ranks the same id or fails with words that name the variable and what to do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/status.h"

namespace treering {

struct Launch {
  std::string launcher;
  uint32_t rank = 0;
  uint32_t ranks = 1;
};

// Makes a unique id in this process; called on rank 0 alone.
using MakeId = std::function<Status(trUniqueId* id)>;
Status meet_through_launcher(int timeout_ms, Launch* launch, trUniqueId* id);

std::string id_text(const trUniqueId& id);
Status parse_id_text(const std::string& text, trUniqueId* id);

// The name under which the launcher keeps the id.
constexpr const char* kIdKey = "treering-id";
// Both put `id` on rank 0 and fetch it on the others, before the deadline. pmix.cpp, pmi.cpp
Status exchange_through_pmix(Launch* launch, const MakeId& fresh, int timeout_ms, trUniqueId* id);
Status exchange_through_pmi(Launch* launch, const MakeId& fresh, int timeout_ms, trUniqueId* id);

// A number of the environment from `low` on; an error names the variable and its value.
Status environment_number(const char* name, uint32_t low, uint32_t high, uint32_t* value);

}  // namespace treering

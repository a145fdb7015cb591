// SPDX-License-Identifier: Apache-2.0
// Words for numbers, as the real library has them, and fork.
#include <infiniband/verbs.h>

#include <cstddef>

namespace {

template <size_t kCount>
const char* word(const char* const (&words)[kCount], int number, const char* unknown) {
  return number >= 0 && static_cast<size_t>(number) < kCount ? words[number] : unknown;
}

constexpr const char* kStatuses[] = {"success",
                                     "local length error",
                                     "local QP operation error",
                                     "local EE context operation error",
                                     "local protection error",
                                     "Work Request Flushed Error",
                                     "memory management operation error",
                                     "bad response error",
                                     "local access error",
                                     "remote invalid request error",
                                     "remote access error",
                                     "remote operation error",
                                     "transport retry counter exceeded",
                                     "RNR retry counter exceeded",
                                     "local RDD violation error",
                                     "remote invalid RD request",
                                     "aborted error",
                                     "invalid EE context number",
                                     "invalid EE context state",
                                     "fatal error",
                                     "response timeout error",
                                     "general error",
                                     "TM error",
                                     "TM software rendezvous"};
constexpr const char* kEvents[] = {"CQ error",
                                   "local work queue catastrophic error",
                                   "invalid request local work queue error",
                                   "local access violation work queue error",
                                   "communication established",
                                   "send queue drained",
                                   "path migrated",
                                   "path migration request error",
                                   "local catastrophic error",
                                   "port active",
                                   "port error",
                                   "LID change",
                                   "P_Key change",
                                   "SM change",
                                   "SRQ catastrophic error",
                                   "SRQ limit reached",
                                   "last WQE reached",
                                   "client reregistration",
                                   "GID table change",
                                   "WQ fatal"};
constexpr const char* kNodes[] = {"unknown",           "InfiniBand channel adapter",
                                  "InfiniBand switch", "InfiniBand router",
                                  "iWARP NIC",         "usNIC",
                                  "usNIC UDP",         "unspecified"};
constexpr const char* kPorts[] = {"no state change (NOP)", "down", "init", "armed", "active", "active defer"};

}  // namespace

extern "C" {

const char* ibv_wc_status_str(ibv_wc_status status) { return word(kStatuses, status, "unknown"); }
const char* ibv_event_type_str(ibv_event_type event) { return word(kEvents, event, "unknown"); }
const char* ibv_node_type_str(ibv_node_type type) { return word(kNodes, type, "unknown"); }
const char* ibv_port_state_str(ibv_port_state state) { return word(kPorts, state, "invalid state"); }

// Nothing is mapped into a device: processes may fork.
int ibv_fork_init(void) { return 0; }
ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

}  // extern "C"

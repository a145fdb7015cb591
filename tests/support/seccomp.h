// SPDX-License-Identifier: Apache-2.0
// System call filters of the calling process, for tests that take system calls away. A filter cannot be
// removed: only for forked children.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

namespace treering::testing {

// In all threads of the process (or only the calling one), each of `calls` gets `on_match`, every other
// `otherwise` (SECCOMP_RET_*). False when the kernel does not allow filters.
inline bool filter_system_calls(const std::vector<long>& calls, uint32_t on_match, uint32_t otherwise,
                                bool all_threads) {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (long call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, on_match));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, otherwise));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, all_threads ? SECCOMP_FILTER_FLAG_TSYNC : 0, &filter) == 0;
}

// The calls fail with EPERM from now on.
inline bool deny_system_calls(const std::vector<long>& calls) {
  return filter_system_calls(calls, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW, true);
}

}  // namespace treering::testing

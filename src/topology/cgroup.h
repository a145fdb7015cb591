// SPDX-License-Identifier: Apache-2.0
// The CPU time that the control groups of this process grant it.
//
// A quota binds every group below the one that sets it, so the smallest one from the process's own group up
// to the root counts. Both hierarchies are read: version 2 (cpu.max) and version 1 (cpu.cfs_quota_us,
// cpu.cfs_period_us). Inside a container the path that the kernel names may not exist below the mount; its
// parents up to the mount's root are then looked at, which is where a container's own limit is.
#pragma once

#include <string>

namespace treering {

struct CpuQuota {
  double cpus = 0;     // 0 = no limit
  std::string source;  // the file that sets the limit
};

// Reads <root>/proc/self/cgroup and <root>/sys/fs/cgroup. Files that are missing or make no sense set no
// limit.
CpuQuota read_cpu_quota(const std::string& root = "");

}  // namespace treering

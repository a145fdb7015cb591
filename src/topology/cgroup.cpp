// SPDX-License-Identifier: Apache-2.0
#include "topology/cgroup.h"

#include <fstream>
#include <sstream>
#include <vector>

namespace treering {
namespace {

void keep_smaller(CpuQuota& best, double quota_us, double period_us, const std::string& source) {
  if (!(quota_us > 0) || !(period_us > 0)) return;
  const double cpus = quota_us / period_us;
  if (best.cpus > 0 && best.cpus <= cpus) return;
  best = {cpus, source};
}

// "max 100000" or "150000 100000".
void read_version_2(CpuQuota& best, const std::string& directory) {
  const std::string path = directory + "/cpu.max";
  std::ifstream file(path);
  double quota_us = 0, period_us = 0;
  if (file >> quota_us >> period_us) keep_smaller(best, quota_us, period_us, path);
}

void read_version_1(CpuQuota& best, const std::string& directory) {
  const std::string path = directory + "/cpu.cfs_quota_us";
  std::ifstream quota(path), period(directory + "/cpu.cfs_period_us");
  double quota_us = 0, period_us = 0;
  if (quota >> quota_us && period >> period_us) keep_smaller(best, quota_us, period_us, path);
}

// Calls read(mount + path) for the path and each of its parents, the mount itself last.
template <class Read>
void for_each_level(const std::string& mount, std::string path, Read read) {
  while (!path.empty()) {
    if (path != "/") read(mount + path);
    const size_t slash = path.rfind('/');
    path.resize(slash == std::string::npos ? 0 : slash);
  }
  read(mount);
}

bool lists_cpu(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string word; std::getline(list, word, ',');)
    if (word == "cpu") return true;
  return false;
}

}  // namespace

CpuQuota read_cpu_quota(const std::string& root) {
  CpuQuota best;
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  // Each line is "id:controllers:path"; version 2 has id 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const char* below : {"", "/unified"})
        for_each_level(mount + below, path, [&](const std::string& level) { read_version_2(best, level); });
    } else if (lists_cpu(controllers)) {
      for (const std::string& below : {std::string("/cpu"), "/" + controllers})
        for_each_level(mount + below, path, [&](const std::string& level) { read_version_1(best, level); });
    }
  }
  return best;
}

}  // namespace treering

// SPDX-License-Identifier: Apache-2.0
#include "peers/rank_info.h"

#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "core/bytes.h"
#include "core/job_shared.h"
#include "peers/placement.h"

namespace treering {
namespace {

uint64_t namespace_number(const char* path) {
  struct stat info {};
  return stat(path, &info) == 0 ? info.st_ino : 0;
}

// Names this process among all of the job, also where pids repeat (pid namespaces). A forked child gets a new one.
uint64_t process_token() {
  static std::mutex mutex;
  static pid_t owner = 0;
  static uint64_t token = 0;
  std::lock_guard lock(mutex);
  if (owner != getpid()) {
    owner = getpid();
    randombytes_buf(&token, sizeof token);
  }
  return token;
}

}  // namespace

RankInfo make_info(uint32_t rank, RankCores* cores) {
  RankInfo info{};
  info.pid = static_cast<uint32_t>(getpid());
  info.rank = rank;
  info.uid = geteuid();
  info.pid_namespace = namespace_number("/proc/self/ns/pid");
  info.network_namespace = namespace_number("/proc/self/ns/net");
  info.user_namespace = namespace_number("/proc/self/ns/user");
  info.process_token = process_token();
  randombytes_buf(&info.nonce, sizeof info.nonce);
  *cores = {};
  if (sched_getaffinity(0, sizeof cores->all, &cores->all) != 0) CPU_ZERO(&cores->all);
  info.location = locate_rank(&cores->quota_cpus);
  info.machine = info.location.host;
  return info;
}

std::string pack_info(const RankInfo& info, const RankCores& cores, const std::vector<std::string>& of_transports) {
  Writer writer;
  writer(of_transports);
  return std::string(reinterpret_cast<const char*>(&info), sizeof info) +
         std::string(reinterpret_cast<const char*>(&cores), sizeof cores) + writer.take();
}

Status unpack_transport_infos(const std::string& blob, uint32_t rank, std::vector<std::string>* of_transports) {
  const size_t wanted = of_transports->size();
  Reader reader(std::string_view(blob).substr(sizeof(RankInfo) + sizeof(RankCores)));
  of_transports->clear();
  reader(*of_transports);
  if (reader.complete() && of_transports->size() == wanted) return {};
  return {trInvalidUsage, fmt::format("rank {} has other transports: all ranks must run the same build", rank)};
}

Status unpack_infos(const std::string& job, const std::vector<std::string>& blobs, RankInfos* infos) {
  for (size_t rank = 0; rank < blobs.size(); ++rank)
    if (blobs[rank].size() < sizeof(RankInfo) + sizeof(RankCores))
      return {trInvalidUsage, fmt::format("rank {} runs another build of the library", rank)};
  *infos = JobShared<std::vector<RankInfo>>::get(job, [&] {
    std::vector<RankInfo> all(blobs.size());
    for (size_t rank = 0; rank < blobs.size(); ++rank) std::memcpy(&all[rank], blobs[rank].data(), sizeof(RankInfo));
    return all;
  });
  return {};
}

std::pair<uint32_t, uint32_t> count_hosts(const std::vector<RankInfo>& infos) {
  std::map<uint64_t, uint32_t> ranks;
  uint32_t most = 0;
  for (const RankInfo& info : infos) most = std::max(most, ++ranks[info.location.host]);
  return {static_cast<uint32_t>(ranks.size()), most};
}

uint32_t count_cores(const std::vector<std::string>& blobs, uint32_t host_ranks) {
  struct Cores {
    cpu_set_t all;
    uint32_t quota = UINT32_MAX;
    uint32_t ranks = 0;
  };
  std::map<uint64_t, Cores> machines;
  for (const std::string& blob : blobs) {
    RankInfo info;
    RankCores own;
    std::memcpy(&info, blob.data(), sizeof info);
    std::memcpy(&own, blob.data() + sizeof info, sizeof own);
    Cores& cores = machines[info.machine];
    if (cores.ranks++ == 0) CPU_ZERO(&cores.all);
    CPU_OR(&cores.all, &cores.all, &own.all);
    if (own.quota_cpus != 0) cores.quota = std::min(cores.quota, own.quota_cpus);
  }
  uint32_t least = UINT32_MAX;
  for (const auto& [machine, cores] : machines) {
    const auto count = std::min(cores.quota, static_cast<uint32_t>(CPU_COUNT(&cores.all)));
    least = std::min(least, count * host_ranks / std::max(cores.ranks, host_ranks));
  }
  return std::max(1u, least);
}

}  // namespace treering

// SPDX-License-Identifier: Apache-2.0
// Protection domains and memory regions. A region has two different keys, which no other region has had before.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "support/fake_verbs/world.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace treering::fake_verbs {

namespace {

bool is_mapped(const void* addr, size_t length) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(addr) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(addr) + length;
  return msync(reinterpret_cast<void*>(begin), end - begin, MS_ASYNC) == 0;
}

int refused(const void* addr, size_t length, unsigned access) {
  constexpr unsigned kRemote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | kRemote | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED |
                              IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return EOPNOTSUPP;
  if ((access & ~kKnown) != 0 || length == 0) return EINVAL;
  if ((access & kRemote) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
  if (!is_mapped(addr, length)) return EFAULT;
  const uint64_t registered = world().counters.bytes_registered;
  const uint64_t limit = world().settings.limits.memlock;
  return registered > limit || length > limit - registered ? ENOMEM : 0;
}

ibv_mr* add_region(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access, const char* function) {
  wait_if_held("ibv_reg_mr");
  const Lock lock;
  auto* const domain = checked<Pd>(pd, Kind::kPd, function);
  int error = world().injected(function);
  // Every way to register memory is the same to a program, which does not see into which function the header turns it.
  if (error == 0 && std::string(function) != "ibv_reg_mr") error = world().injected("ibv_reg_mr");
  if (error == 0) error = refused(addr, length, access);
  if (error != 0) return errno = error, nullptr;
  auto* const mr = new Mr();
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = addr;
  mr->length = length;
  mr->lkey = world().new_key();
  mr->rkey = world().new_key();
  mr->handle = mr->lkey;
  mr->iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova;
  mr->access = access;
  world().lkeys[mr->lkey] = mr;
  world().rkeys[mr->rkey] = mr;
  world().add(mr, Kind::kMr);
  world().counters.bytes_registered += length;
  ++world().counters.regions_registered;
  ++domain->uses;
  return mr;
}

bool uses(const std::vector<ibv_sge>& sges, uint32_t lkey) {
  return std::any_of(sges.begin(), sges.end(), [&](const ibv_sge& sge) { return sge.lkey == lkey; });
}

// Whether work that is outstanding refers to it. What peers send to it is not known here, as it is not to hardware.
bool in_use(const Mr& mr) {
  for (const auto& [number, qp] : world().qps) {
    for (const Send& send : qp->sends) {
      if (!send.is_inlined && uses(send.sges, mr.lkey)) return true;
    }
    for (const Receive& receive : qp->receives) {
      if (uses(receive.sges, mr.lkey)) return true;
    }
    for (const auto& message : qp->incoming) {
      if (message->receive && uses(message->receive->sges, mr.lkey)) return true;
    }
  }
  return false;
}

}  // namespace

uint8_t* resolve(const std::unordered_map<uint32_t, Mr*>& keys, uint32_t key, const ibv_pd* pd, uint64_t addr,
                 uint64_t length, unsigned access, Mr** region) {
  const auto found = keys.find(key);
  if (found == keys.end()) return nullptr;
  Mr& mr = *found->second;
  if (mr.pd != pd || (mr.access & access) != access) return nullptr;
  if (addr < mr.iova || addr - mr.iova > mr.length || length > mr.length - (addr - mr.iova)) return nullptr;
  if (region != nullptr) *region = &mr;
  return static_cast<uint8_t*>(mr.addr) + (addr - mr.iova);
}

}  // namespace treering::fake_verbs

using namespace treering::fake_verbs;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  const Lock lock;
  Context& known = context_of(context);
  world().check(&known, Kind::kContext, "ibv_alloc_pd");
  if (const int error = world().injected("ibv_alloc_pd")) return errno = error, nullptr;
  auto* const pd = new Pd();
  pd->context = context;
  world().add(pd, Kind::kPd);
  ++known.uses;
  return pd;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  const Lock lock;
  auto* const known = checked<Pd>(pd, Kind::kPd, "ibv_dealloc_pd");
  if (const int error = world().injected("ibv_dealloc_pd")) return error;
  if (known->uses != 0) return EBUSY;
  --context_of(pd->context).uses;
  world().remove(known);
  delete known;
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  return add_region(pd, addr, length, reinterpret_cast<uintptr_t>(addr), static_cast<unsigned>(access), "ibv_reg_mr");
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access) {
  return add_region(pd, addr, length, iova, static_cast<unsigned>(access), "ibv_reg_mr_iova");
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova, unsigned access) {
  return add_region(pd, addr, length, iova, access, "ibv_reg_mr_iova2");
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t, size_t, uint64_t, int, int) {
  const Lock lock;
  world().check(pd, Kind::kPd, "ibv_reg_dmabuf_mr");
  const int error = world().injected("ibv_reg_dmabuf_mr");
  return errno = error != 0 ? error : EOPNOTSUPP, nullptr;
}

int ibv_dereg_mr(ibv_mr* mr) {
  const Lock lock;
  auto* const known = checked<Mr>(mr, Kind::kMr, "ibv_dereg_mr");
  if (const int error = world().injected("ibv_dereg_mr")) return error;
  if (in_use(*known)) return EBUSY;
  observe(known->mark);
  world().lkeys.erase(known->lkey);
  world().rkeys.erase(known->rkey);
  world().counters.bytes_registered -= known->length;
  --static_cast<Pd*>(known->pd)->uses;
  world().remove(known);
  delete known;
  return 0;
}

}  // extern "C"

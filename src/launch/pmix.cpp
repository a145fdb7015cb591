// SPDX-License-Identifier: Apache-2.0
// PMIx, the interface of Open MPI's mpirun and of srun --mpi=pmix. Its library is opened at run time, so that a machine
// without it runs everything else; what its functions look like comes from its header, where the build found one.
#include "launch/launch.h"

#if defined(TREERING_HAVE_PMIX)
#include <dlfcn.h>
#include <fmt/format.h>
#include <pmix.h>

#include <cstdlib>
#include <cstring>
#endif

namespace treering {

#if defined(TREERING_HAVE_PMIX)
namespace {

constexpr const char* kLibrary = "libpmix.so.2";
constexpr pmix_status_t kToldByPmix = -2;  // PMIX_ERR_SILENT, which not every version's header has

struct Functions {
  decltype(&PMIx_Init) init;
  decltype(&PMIx_Finalize) finalize;
  decltype(&PMIx_Put) put;
  decltype(&PMIx_Commit) commit;
  decltype(&PMIx_Fence) fence;
  decltype(&PMIx_Get) get;
  decltype(&PMIx_Error_string) error_string;
};

template <typename Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

Status open_library(Functions* f) {
  // It stays open: it has threads.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return {trSystemError, fmt::format("PMIX_RANK is set, but {} cannot be opened: {}; install it (libpmix2), or unset "
                                       "PMIX_RANK and give TREERING_RANK, TREERING_RANKS and TREERING_ID",
                                       kLibrary, dlerror())};
  if (find(library, "PMIx_Init", &f->init) && find(library, "PMIx_Finalize", &f->finalize) &&
      find(library, "PMIx_Put", &f->put) && find(library, "PMIx_Commit", &f->commit) &&
      find(library, "PMIx_Fence", &f->fence) && find(library, "PMIx_Get", &f->get) &&
      find(library, "PMIx_Error_string", &f->error_string))
    return {};
  return {trSystemError, fmt::format("{} lacks a function that PMIx has", kLibrary)};
}

// What to do about an error of PMIx_Init, where it is known.
const char* advice(pmix_status_t status) {
  switch (status) {
    case PMIX_ERR_UNREACH:  // no launcher answers
      return ". Without mpirun or srun --mpi=pmix unset PMIX_RANK; with them see whether the launcher's PMIx and "
             "libpmix.so.2 have the same version";
    case PMIX_ERR_UNPACK_FAILURE:
    case PMIX_ERR_UNPACK_INADEQUATE_SPACE:
    case PMIX_ERR_UNPACK_READ_PAST_END_OF_BUFFER:
    case PMIX_ERR_UNKNOWN_DATA_TYPE:
    case PMIX_ERR_TYPE_MISMATCH:
      return ". See whether the launcher's PMIx and libpmix.so.2 have the same version";
    case kToldByPmix:
      return ". PMIx has printed the reason";
    default:
      return "";
  }
}

class Session {
 public:
  ~Session() {
    if (started_) f_.finalize(nullptr, 0);
  }
  Status start() {
    TR_RETURN_IF_ERROR(open_library(&f_));
    if (const pmix_status_t status = f_.init(&own_, nullptr, 0); status != PMIX_SUCCESS)
      return {trSystemError, fmt::format("PMIX_RANK is set, but PMIx_Init fails: {} ({}){}", f_.error_string(status),
                                         status, advice(status))};
    started_ = true;
    return {};
  }
  uint32_t rank() const { return own_.rank; }

  Status job_size(uint32_t* ranks) {
    pmix_value_t* value = nullptr;
    const pmix_proc_t job = process(PMIX_RANK_WILDCARD);
    TR_RETURN_IF_ERROR(check(f_.get(&job, PMIX_JOB_SIZE, nullptr, 0, &value), "PMIx_Get of the job's size"));
    *ranks = value->data.uint32;
    std::free(value);  // PMIX_VALUE_RELEASE would need the library when this is linked
    return {};
  }
  Status put(const std::string& text) {
    pmix_value_t value;
    value.type = PMIX_STRING;
    value.data.string = const_cast<char*>(text.c_str());
    TR_RETURN_IF_ERROR(check(f_.put(PMIX_GLOBAL, kIdKey, &value), "PMIx_Put"));
    return check(f_.commit(), "PMIx_Commit");
  }
  Status fence(int timeout_ms) {
    pmix_info_t info[2];
    std::memset(info, 0, sizeof info);
    std::strncpy(info[0].key, PMIX_COLLECT_DATA, PMIX_MAX_KEYLEN);
    info[0].value.type = PMIX_BOOL;
    info[0].value.data.flag = true;
    std::strncpy(info[1].key, PMIX_TIMEOUT, PMIX_MAX_KEYLEN);
    info[1].value.type = PMIX_INT;
    info[1].value.data.integer = (timeout_ms + 999) / 1000;
    return check(f_.fence(nullptr, 0, info, timeout_ms > 0 ? 2 : 1), "PMIx_Fence");
  }
  Status get(std::string* text) {
    pmix_value_t* value = nullptr;
    const pmix_proc_t root = process(0);
    TR_RETURN_IF_ERROR(check(f_.get(&root, kIdKey, nullptr, 0, &value), "PMIx_Get of the id"));
    if (value->type == PMIX_STRING) {
      *text = value->data.string;
      std::free(value->data.string);
    }
    std::free(value);
    return {};
  }

 private:
  Status check(pmix_status_t status, const char* what) const {
    if (status == PMIX_SUCCESS) return {};
    return {status == PMIX_ERR_TIMEOUT ? trTimeout : trSystemError,
            fmt::format("{}: {}", what, f_.error_string(status))};
  }
  pmix_proc_t process(pmix_rank_t rank) const {
    pmix_proc_t other = own_;
    other.rank = rank;
    return other;
  }

  Functions f_{};
  pmix_proc_t own_{};
  bool started_ = false;
};

}  // namespace

Status exchange_through_pmix(Launch* launch, const MakeId& fresh, int timeout_ms, trUniqueId* id) {
  launch->launcher = "PMIx";
  Session session;
  TR_RETURN_IF_ERROR(session.start());
  launch->rank = session.rank();
  TR_RETURN_IF_ERROR(session.job_size(&launch->ranks));
  std::string text;
  if (launch->rank == 0) {
    TR_RETURN_IF_ERROR(fresh(id));
    TR_RETURN_IF_ERROR(session.put(id_text(*id)));
  }
  TR_RETURN_IF_ERROR(session.fence(timeout_ms));
  if (launch->rank == 0) return {};
  TR_RETURN_IF_ERROR(session.get(&text));
  return parse_id_text(text, id);
}

#else

Status exchange_through_pmix(Launch*, const MakeId&, int, trUniqueId*) {
  return {trSystemError,
          "PMIX_RANK is set, but this build has no PMIx: install libpmix-dev and build again, or give TREERING_RANK, "
          "TREERING_RANKS and TREERING_ID"};
}

#endif

}  // namespace treering

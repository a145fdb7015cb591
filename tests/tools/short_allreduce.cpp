// SPDX-License-Identifier: Apache-2.0
// Put in front of the library (LD_PRELOAD): allreduces leave the last element as it was. With LOST_FROM=n they are
// whole, but rank 1 makes only those before its n-th.
#include <dlfcn.h>
#include <treering/treering.h>

#include <cstdlib>

extern "C" TR_API trResult_t trAllReduce(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype,
                                         trRedOp_t op, trComm_t comm, trStream_t stream) {
  static const auto library = reinterpret_cast<decltype(&trAllReduce)>(dlsym(RTLD_NEXT, "trAllReduce"));
  static const char* lost_from = std::getenv("LOST_FROM");
  if (lost_from == nullptr) return library(sendbuf, recvbuf, count - 1, datatype, op, comm, stream);
  thread_local int calls = 0;
  int rank = 0;
  const trResult_t asked = trCommRank(comm, &rank);
  if (asked != trSuccess || (++calls >= std::atoi(lost_from) && rank == 1)) return asked;
  return library(sendbuf, recvbuf, count, datatype, op, comm, stream);
}

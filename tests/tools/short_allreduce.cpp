// Put in front of the library (LD_PRELOAD): allreduces leave the last element as it was. With LOST_BY_RANK=1 they are whole,
// but those of rank 1 are not made.
#include <dlfcn.h>
#include <treering/treering.h>

#include <cstdlib>

extern "C" TR_API trResult_t trAllReduce(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype,
                                         trRedOp_t op, trComm_t comm, trStream_t stream) {
  static const auto library = reinterpret_cast<decltype(&trAllReduce)>(dlsym(RTLD_NEXT, "trAllReduce"));
  static const char* lost = std::getenv("LOST_BY_RANK");
  if (lost == nullptr) return library(sendbuf, recvbuf, count - 1, datatype, op, comm, stream);
  int rank = 0;
  const trResult_t asked = trCommRank(comm, &rank);
  if (asked != trSuccess || rank == std::atoi(lost)) return asked;
  return library(sendbuf, recvbuf, count, datatype, op, comm, stream);
}

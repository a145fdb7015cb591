// Put in front of the library (LD_PRELOAD): allreduces leave the last element as it was.
#include <dlfcn.h>
#include <treering/treering.h>

extern "C" TR_API trResult_t trAllReduce(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype,
                                         trRedOp_t op, trComm_t comm, trStream_t stream) {
  static const auto library = reinterpret_cast<decltype(&trAllReduce)>(dlsym(RTLD_NEXT, "trAllReduce"));
  return library(sendbuf, recvbuf, count - 1, datatype, op, comm, stream);
}

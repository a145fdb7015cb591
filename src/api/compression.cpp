// SPDX-License-Identifier: Apache-2.0
// The C entry points of compression on the wire.
#include "api/common.h"
#include "core/names.h"

using namespace treering;

struct trCompression {
  std::shared_ptr<Compression> settings;
};

namespace treering {
std::shared_ptr<Compression> compression_of(trCompression_t handle) {
  return handle == nullptr ? nullptr : handle->settings;
}
}  // namespace treering

extern "C" {

trResult_t trCompressionCreate(trCompression_t* compression, trDataType_t wire, int error_feedback, size_t count) {
  return guarded(nullptr, [&]() -> Status {
    if (compression == nullptr) return null_argument("trCompressionCreate", "compression");
    if (find_wire_type(wire) == nullptr)
      return {trInvalidArgument, fmt::format("trCompressionCreate: wire is {}; give trFloat16, trBfloat16, "
                                             "trFloat8e4m3 or trFloat8e5m2",
                                             name_of(wire))};
    if (error_feedback != 0 && count > SIZE_MAX / 64)
      return {trInvalidArgument,
              fmt::format("trCompressionCreate: count is {} x float: more than any memory holds", count)};
    auto settings = std::make_shared<Compression>();
    settings->wire = wire;
    settings->error_feedback = error_feedback != 0;
    if (error_feedback != 0) {
      settings->residual.resize(count);
      settings->adjusted.resize(count);
    }
    *compression = new trCompression{std::move(settings)};
    return {};
  });
}

trResult_t trCompressionDestroy(trCompression_t compression) {
  delete compression;  // calls under way keep what they need
  return trSuccess;
}

trResult_t trAllReduceCompressed(const void* sendbuf, void* recvbuf, size_t count, trRedOp_t op,
                                 trCompression_t compression, trComm_t comm, trStream_t stream) {
  if (compression == nullptr) return report(fail_group(null_argument("trAllReduceCompressed", "compression")));
  Operation operation;
  operation.function = "trAllReduceCompressed";
  operation.input = sendbuf;
  operation.output = recvbuf;
  operation.count = count;
  operation.op = op;
  operation.compression = compression->settings;
  return submit(comm, std::move(operation), stream);
}

}  // extern "C"

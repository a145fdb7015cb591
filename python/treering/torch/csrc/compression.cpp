// SPDX-License-Identifier: Apache-2.0
#include "compression.h"

#include "backend.h"
#include "errors.h"
#include "reductions.h"
#include "tensors.h"

namespace treering::pytorch {
namespace {

trDataType_t wire_of(const std::string& name) {
  if (name == "fp16") return trFloat16;
  if (name == "bf16") return trBfloat16;
  if (name == "fp8-e4m3") return trFloat8e4m3;
  if (name == "fp8-e5m2") return trFloat8e5m2;
  TORCH_CHECK_VALUE(false, "wire is \"", name, "\"; \"fp16\", \"bf16\", \"fp8-e4m3\" or \"fp8-e5m2\" is wanted");
}

struct Sum {
  Elements elements;
  trCompression_t compression;
};

}  // namespace

Compression::Compression(const std::string& wire, bool error_feedback, int64_t count) {
  const trDataType_t type = wire_of(wire);
  TORCH_CHECK_VALUE(count >= 0, "count is ", count, "; how many values a tensor has is wanted");
  trCompression_t made = nullptr;
  const trResult_t result = trCompressionCreate(&made, type, error_feedback ? 1 : 0, static_cast<size_t>(count));
  if (result != trSuccess) raise(words_for(result, nullptr));
  made_.reset(made);
}

c10::intrusive_ptr<c10d::Work> average(const c10::intrusive_ptr<c10d::Backend>& backend,
                                       std::vector<at::Tensor> tensors,
                                       const std::vector<std::shared_ptr<Compression>>& compressions) {
  auto* own = dynamic_cast<Backend*>(backend.get());
  TORCH_CHECK_VALUE(own != nullptr, "the backend of the group for these tensors is ",
                    backend ? backend->getBackendName() : "missing", "; treering is wanted");
  return own->average(std::move(tensors), compressions);
}

WorkPointer Backend::average(Tensors tensors, const std::vector<std::shared_ptr<Compression>>& compressions) {
  const char* name = "average";
  TORCH_CHECK_VALUE(tensors.size() == compressions.size(), name, ": there are ", tensors.size(), " tensors and ",
                    compressions.size(), " compressions; as many are wanted");
  std::vector<Sum> sums;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto argument = c10::str("tensors[", i, "]");
    TORCH_CHECK_TYPE(compressions[i] == nullptr || tensors[i].scalar_type() == at::kFloat, name, ": ", argument,
                     " is of dtype ", tensors[i].scalar_type(), "; only float32 travels compressed");
    sums.push_back({elements_of(name, argument, tensors[i], Use::kComputes),
                    compressions[i] == nullptr ? nullptr : compressions[i]->get()});
  }
  return run({"treering:average", c10d::OpType::ALLREDUCE_COALESCED, true, kNoTimeout, tensors, tensors},
             [sums](trComm_t comm, trStream_t stream) {
               return as_group([&] {
                 trResult_t result = trSuccess;
                 for (const Sum& sum : sums) {
                   const Elements& x = sum.elements;
                   if (result != trSuccess) break;
                   result = sum.compression == nullptr
                                ? trAllReduce(x.data, x.data, x.count, x.type, trAvg, comm, stream)
                                : trAllReduceCompressed(x.data, x.data, x.count, trAvg, sum.compression, comm, stream);
                 }
                 return result;
               });
             });
}

}  // namespace treering::pytorch

// SPDX-License-Identifier: Apache-2.0
#include "backend.h"
#include "tensors.h"

namespace treering::pytorch {

WorkPointer Backend::post(Call call, int peer, Lane::Way way, Tensors& tensors, int tag) {
  const char* name = call.name();
  const at::Tensor& tensor = only_one(name, "tensor", tensors);
  const Elements x = elements_of(name, "tensor", tensor, Use::kMoves);
  check_root(name, way == Lane::Way::kSends ? "dst" : "src", peer);
  auto work = c10::make_intrusive<CollectiveWork>(rank_, std::move(call));
  if (way == Lane::Way::kReceives) work->set_source(peer);
  lanes_->post(peer, way, {work, x.data, tensor.nbytes(), tag});
  return noted(work);
}

WorkPointer Backend::send(Tensors& tensors, int to, int tag) {
  return post({"treering:send", c10d::OpType::SEND, true, link_->timeout(), tensors, {}}, to, Lane::Way::kSends,
              tensors, tag);
}

WorkPointer Backend::recv(Tensors& tensors, int from, int tag) {
  return post({"treering:recv", c10d::OpType::RECV, true, link_->timeout(), {}, tensors}, from, Lane::Way::kReceives,
              tensors, tag);
}

}  // namespace treering::pytorch

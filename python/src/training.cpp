// SPDX-License-Identifier: Apache-2.0
#include "training.h"

namespace treering::python {

Compression::Compression(nb::handle wire, bool error_feedback, size_t count) {
  check(
      trCompressionCreate(&handle_, type_of_argument("Compression", "wire", wire).type, error_feedback ? 1 : 0, count));
}

DoubleBuffer::DoubleBuffer(nb::object comm, nb::handle dtype, bool owned, bool restart, nb::object compression)
    : comm_(std::move(comm)),
      compression_(std::move(compression)),
      type_(type_of_argument("DoubleBuffer", "dtype", dtype).type),
      owned_(owned),
      comm_handle_(nb::cast<Communicator&>(comm_).handle("DoubleBuffer")) {
  trCompression_t wire = compression_.is_none() ? nullptr : nb::cast<Compression&>(compression_).handle();
  const int flags = (owned ? TR_DOUBLE_BUFFER_OWNED : 0) | (restart ? TR_DOUBLE_BUFFER_RESTART : 0);
  check(trDoubleBufferCreate(&handle_, comm_handle_, type_, flags, wire));
}

DoubleBuffer::~DoubleBuffer() {
  nb::gil_scoped_release release;
  trDoubleBufferDestroy(handle_);
}

void DoubleBuffer::fail(trResult_t code) {
  const std::string message = trGetLastError(nullptr);
  raise_signals();
  raise(code, message);
}

nb::object DoubleBuffer::ended(int ready, nb::list handed_out) {
  retained_.clear();
  if (owned_) return nb::bool_(ready != 0);
  return ready != 0 ? nb::object(std::move(handed_out)) : nb::none();
}

nb::object DoubleBuffer::exchange(nb::handle tensors) {
  std::vector<View> views;
  std::vector<void*> addresses;
  std::vector<size_t> counts;
  nb::list arrays;
  for (nb::handle tensor : tensors) {
    views.push_back(view_of(tensor, Access::kWrite, "DoubleBuffer.exchange", "tensors"));
    const View& view = views.back();
    if (view.type() != type_)
      refuse_type("DoubleBuffer.exchange", "a tensor has dtype " + data_type(view.type()).name + "; " +
                                               data_type(type_).name + " is wanted, as this DoubleBuffer was made for");
    addresses.push_back(view.data());
    counts.push_back(view.count());
    arrays.append(tensor);
  }
  int ready = 0;
  trResult_t code = trSuccess;
  {
    BlockingCall blocking(&comm_handle_, 1);
    code = trDoubleBufferExchange(handle_, static_cast<int>(addresses.size()), addresses.data(), counts.data(), &ready);
  }
  // The step before stays the pending one where these were refused.
  if (code != trSuccess) {
    for (View& view : views) retained_.push_back(std::move(view));
    fail(code);
  }
  // The library gives back the addresses of the step before: the arrays that were given then.
  nb::list before = std::exchange(pending_, arrays);
  std::swap(views_, views);
  return ended(ready, std::move(before));
}

nb::object DoubleBuffer::flush() {
  std::vector<void*> addresses;
  for (const View& view : views_) addresses.push_back(view.data());
  int ready = 0;
  trResult_t code = trSuccess;
  {
    BlockingCall blocking(&comm_handle_, 1);
    code = trDoubleBufferFlush(handle_, static_cast<int>(addresses.size()), addresses.data(), &ready);
  }
  if (code != trSuccess) fail(code);
  nb::list before = std::exchange(pending_, nb::list());
  views_.clear();
  return ended(ready, std::move(before));
}

void bind_training(nb::module_& module) {
  using nb::arg;
  const nb::kw_only named;
  nb::class_<Compression>(
      module, "Compression",
      "How float32 travels in Communicator.allreduce(compression=) and DoubleBuffer.\n\n"
      "wire: 'float16', 'bfloat16', 'float8_e4m3fn' or 'float8_e5m2'. error_feedback: what rounding\n"
      "took from this rank's input is added to the next call's; such an object is for one tensor of\n"
      "up to `count` elements, in one call at a time. docs/compression.md has the bounds.")
      .def(nb::init<nb::handle, bool, size_t>(), arg("wire"), named, arg("error_feedback") = false, arg("count") = 0,
           nb::sig("def __init__(self, wire: typing.Any, *, error_feedback: bool = False, count: int = 0) -> None"));
  nb::class_<DoubleBuffer>(
      module, "DoubleBuffer",
      "The mean of the gradients of step k over the ranks, computed in the background during step\n"
      "k + 1: each step uses the mean of the step before.\n\n"
      "dtype: of all tensors. owned: the object has buffers of its own, and exchange() replaces the\n"
      "contents of the tensors; else it works in the tensors of the step before, and gives those.\n"
      "restart: another set of tensors starts over instead of being an error.")
      .def(nb::init<nb::object, nb::handle, bool, bool, nb::object>(), arg("comm"), arg("dtype"), named,
           arg("owned") = true, arg("restart") = false, arg("compression").none() = nb::none(),
           nb::sig(
               "def __init__(self, comm: CommunicatorBase, dtype: typing.Any, *, owned: bool = True, restart: bool = "
               "False, compression: Compression | None = None) -> None"))
      .def(
          "exchange", &DoubleBuffer::exchange, arg("tensors"), nb::lock_self(),
          nb::sig("def exchange(self, tensors: typing.Sequence[typing.Any]) -> typing.Any"),
          "Hands in the gradients of a step, a list of arrays, and gives the mean of the step before.\n\n"
          "Owned: True when the tensors hold that mean now, False when there is none yet. Else: the arrays of the step\n"
          "before, which hold their mean, or None; the arrays of this step stay untouched until the next exchange.")
      .def("flush", &DoubleBuffer::flush, nb::lock_self(), nb::sig("def flush(self) -> typing.Any"),
           "Waits for the last mean and gives it as exchange() does; owned: in the tensors of the last exchange.");
}

}  // namespace treering::python

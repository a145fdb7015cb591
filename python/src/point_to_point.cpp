// SPDX-License-Identifier: Apache-2.0
#include "collectives.h"

namespace treering::python {
namespace {

nb::object send(Communicator& comm, nb::handle x, int dest, nb::handle stream) {
  Call call(comm, "send", stream);
  check_root(call, dest, "dest");
  View in = call.input(x);
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  call.keep(std::move(in));
  return call.run([&](trStream_t s) { return trSend(from, count, type, dest, call.handle(), s); });
}

nb::object recv(Communicator& comm, nb::handle out, int source, nb::handle stream) {
  Call call(comm, "recv", stream);
  check_root(call, source, "source");
  View into = view_of(out, Access::kWrite, "recv", "out");
  void* to = into.data();
  const size_t count = into.count();
  const trDataType_t type = into.type();
  call.keep(std::move(into));
  call.set_result(out);
  return call.run([&](trStream_t s) { return trRecv(to, count, type, source, call.handle(), s); });
}

nb::object sendrecv(Communicator& comm, nb::handle x, int dest, int source, nb::handle out, nb::handle stream) {
  Call call(comm, "sendrecv", stream);
  check_root(call, dest, "dest");
  check_root(call, source, "source");
  View in = call.input(x);
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  size_t out_count = count;
  void* to = nullptr;
  if (out.is_none()) {
    to = call.output(out, x, type, in.shape(), "as many as x has");
  } else {
    // What comes may be of another size than what goes.
    const View into = view_of(out, Access::kWrite, "sendrecv", "out");
    out_count = into.count();
    to = call.output(out, x, type, into.shape(), "as many as it has");
  }
  call.keep(std::move(in));
  return call.run(
      [&](trStream_t s) { return trSendRecv(from, count, dest, to, out_count, source, type, call.handle(), s); });
}

}  // namespace

void bind_point_to_point(CommunicatorClass& communicator) {
  using nb::arg;
  const nb::kw_only named;
  const auto stream = arg("stream").none() = nb::none();
  communicator
      .def("send", &send, arg("x").none(), arg("dest"), named, stream,
           nb::sig("def send(self, x: typing.Any, dest: int, *, stream: Stream | None = None) -> typing.Any"),
           "Sends the array x to rank `dest`. It may end before the receive begins, and must not be relied on to.")
      .def("recv", &recv, arg("out").none(), arg("source"), named, stream,
           nb::sig("def recv(self, out: typing.Any, source: int, *, stream: Stream | None = None) -> typing.Any"),
           "Receives from rank `source` into the array out, which has as many bytes as were sent. Gives out.")
      .def("sendrecv", &sendrecv, arg("x").none(), arg("dest"), arg("source"), named, arg("out").none() = nb::none(),
           stream,
           nb::sig("def sendrecv(self, x: typing.Any, dest: int, source: int, *, out: typing.Any | None = None, "
                   "stream: Stream | None = None) -> typing.Any"),
           "Sends x to `dest` and receives from `source` at once; neither waits for the other.\n\n"
           "out: of x's dtype, with as many elements as `source` sends; None makes a new array like x.");
}

}  // namespace treering::python

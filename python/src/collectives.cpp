// SPDX-License-Identifier: Apache-2.0
#include "collectives.h"

#include "training.h"

namespace treering::python {

std::vector<int64_t> with_rows(const View& view, size_t rows) {
  std::vector<int64_t> shape = view.shape();
  if (shape.empty()) shape.push_back(1);
  shape[0] = static_cast<int64_t>(rows);
  return shape;
}

size_t rows_of_block(const Call& call, const View& view) {
  if (view.rows() % call.ranks() == 0 && !view.shape().empty()) return view.rows() / call.ranks();
  refuse(call.name(), "x is " + view.text() + "; a first axis is wanted that the " + std::to_string(call.ranks()) +
                          " ranks divide: it is a block for each of them");
}

void check_root(const Call& call, int root, const char* argument) {
  if (root >= 0 && static_cast<size_t>(root) < call.ranks()) return;
  refuse(call.name(), std::string(argument) + " is " + std::to_string(root) + "; a rank from 0 to " +
                          std::to_string(call.ranks() - 1) + " is wanted");
}

namespace {

constexpr const char* kAsX = "as many as x has";
constexpr const char* kBlocks = "a block of x from each rank";
constexpr const char* kOneBlock = "as many as a block of x has";

nb::object allreduce(Communicator& comm, nb::handle x, nb::handle op, nb::handle out, nb::handle stream,
                     nb::handle compression) {
  Call call(comm, "allreduce", stream);
  View in = call.input(x);
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  const trRedOp_t operation = call.operation(op);
  void* to = call.output(out, x, type, in.shape(), kAsX, &in);
  call.keep(std::move(in));
  if (compression.is_none())
    return call.run([&](trStream_t s) { return trAllReduce(from, to, count, type, operation, call.handle(), s); });
  Compression* wire = nullptr;
  if (!nb::try_cast(compression, wire))
    refuse_type("allreduce", "compression is " + kind_of(compression) + "; a treering.Compression or None is wanted");
  if (type != trFloat32)
    refuse_type("allreduce", "x has dtype " + data_type(type).name + "; float32 is wanted with compression");
  call.keep(compression);
  return call.run([&](trStream_t s) {
    return trAllReduceCompressed(from, to, count, operation, wire->handle(), call.handle(), s);
  });
}

nb::object reduce(Communicator& comm, nb::handle x, nb::handle op, int root, nb::handle out, nb::handle stream) {
  Call call(comm, "reduce", stream);
  check_root(call, root, "root");
  View in = call.input(x);
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  const trRedOp_t operation = call.operation(op);
  void* to = call.is_root(root) ? call.output(out, x, type, in.shape(), kAsX, &in) : nullptr;
  call.keep(std::move(in));
  return call.run([&](trStream_t s) { return trReduce(from, to, count, type, operation, root, call.handle(), s); });
}

nb::object broadcast(Communicator& comm, nb::handle x, int root, nb::handle out, nb::handle stream) {
  Call call(comm, "broadcast", stream);
  check_root(call, root, "root");
  const bool is_root = call.is_root(root);
  if (x.is_none() && (is_root || out.is_none()))
    refuse_type("broadcast", is_root
                                 ? "x is None; the root's array is wanted"
                                 : "x and out are None; an array is wanted that says shape and dtype, or is filled");
  View in = view_of(x.is_none() ? out : x, Access::kRead, "broadcast", "x");
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  void* to = call.output(out, x, type, in.shape(), kAsX, &in);
  call.keep(std::move(in));
  return call.run(
      [&](trStream_t s) { return trBroadcast(is_root ? from : nullptr, to, count, type, root, call.handle(), s); });
}

nb::object allgather(Communicator& comm, nb::handle x, nb::handle out, nb::handle stream) {
  Call call(comm, "allgather", stream);
  View in = call.input(x);
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  void* to = call.output(out, x, type, with_rows(in, in.rows() * call.ranks()), kBlocks);
  call.keep(std::move(in));
  return call.run([&](trStream_t s) { return trAllGather(from, to, count, type, call.handle(), s); });
}

nb::object reduce_scatter(Communicator& comm, nb::handle x, nb::handle op, nb::handle out, nb::handle stream) {
  Call call(comm, "reduce_scatter", stream);
  View in = call.input(x);
  const size_t rows = rows_of_block(call, in);
  const void* from = in.data();
  const size_t count = rows * in.row();
  const trDataType_t type = in.type();
  const trRedOp_t operation = call.operation(op);
  void* to = call.output(out, x, type, with_rows(in, rows), kOneBlock);
  call.keep(std::move(in));
  return call.run([&](trStream_t s) { return trReduceScatter(from, to, count, type, operation, call.handle(), s); });
}

nb::object alltoall(Communicator& comm, nb::handle x, nb::handle out, nb::handle stream) {
  Call call(comm, "alltoall", stream);
  View in = call.input(x);
  const size_t count = rows_of_block(call, in) * in.row();
  const void* from = in.data();
  const trDataType_t type = in.type();
  void* to = call.output(out, x, type, in.shape(), kAsX, &in);
  call.keep(std::move(in));
  return call.run([&](trStream_t s) { return trAllToAll(from, to, count, type, call.handle(), s); });
}

nb::object gather(Communicator& comm, nb::handle x, int root, nb::handle out, nb::handle stream) {
  Call call(comm, "gather", stream);
  check_root(call, root, "root");
  View in = call.input(x);
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  void* to = call.is_root(root) ? call.output(out, x, type, with_rows(in, in.rows() * call.ranks()), kBlocks) : nullptr;
  call.keep(std::move(in));
  return call.run([&](trStream_t s) { return trGather(from, to, count, type, root, call.handle(), s); });
}

nb::object scatter(Communicator& comm, nb::handle x, int root, nb::handle out, nb::handle stream) {
  Call call(comm, "scatter", stream);
  check_root(call, root, "root");
  const bool is_root = call.is_root(root);
  if (x.is_none()) {
    if (is_root || out.is_none())
      refuse_type("scatter", is_root ? "x is None; the root's array is wanted"
                                     : "x and out are None; out, or an array of the root's shape and dtype, is wanted");
    const View like = view_of(out, Access::kWrite, "scatter", "out");
    const size_t count = like.count();
    const trDataType_t type = like.type();
    void* to = call.output(out, out, type, like.shape(), kOneBlock);
    return call.run([&](trStream_t s) { return trScatter(nullptr, to, count, type, root, call.handle(), s); });
  }
  View in = call.input(x);
  const size_t rows = rows_of_block(call, in);
  const size_t count = rows * in.row();
  const void* from = is_root ? in.data() : nullptr;
  const trDataType_t type = in.type();
  void* to = call.output(out, x, type, with_rows(in, rows), kOneBlock);
  call.keep(std::move(in));
  return call.run([&](trStream_t s) { return trScatter(from, to, count, type, root, call.handle(), s); });
}

nb::object barrier(Communicator& comm, nb::handle stream) {
  Call call(comm, "barrier", stream);
  return call.run([&](trStream_t s) { return trBarrier(call.handle(), s); });
}

}  // namespace

#define ARRAY "typing.Any"
#define OUT "out: typing.Any | None = None, stream: Stream | None = None"
#define OP "op: str | Operation = 'sum'"

void bind_collectives(CommunicatorClass& communicator) {
  using nb::arg;
  const nb::kw_only named;
  const auto out = arg("out").none() = nb::none();
  const auto stream = arg("stream").none() = nb::none();
  const auto op = arg("op").none() = "sum";
  const auto root = arg("root") = 0;
  communicator
      .def(
          "allreduce", &allreduce, arg("x").none(), op, named, out, stream, arg("compression").none() = nb::none(),
          nb::sig("def allreduce(self, x: " ARRAY ", " OP ", *, " OUT
                  ", compression: Compression | None = None) -> " ARRAY),
          "Element by element `op` over the arrays x of all ranks, on every rank, with the same bits.\n\n"
          "x: an array of any shape, the same on all ranks. out: an array of x's dtype with as many elements; x itself\n"
          "is in place; None makes a new one like x. stream: returns a Request at once.\n"
          "compression: float32 travels in a narrower type (Compression).\n"
          "Raises InvalidArgument for an array that does not fit, InvalidUsage where ranks call differently,\n"
          "RemoteError where a rank has failed, TimeoutError at the communicator's deadline.")
      .def("reduce", &reduce, arg("x").none(), op, root, named, out, stream,
           nb::sig("def reduce(self, x: " ARRAY ", " OP ", root: int = 0, *, " OUT ") -> " ARRAY),
           "As allreduce(), with the result on rank `root` alone; the other ranks get None and need no out.")
      .def("broadcast", &broadcast, arg("x").none(), root, named, out, stream,
           nb::sig("def broadcast(self, x: " ARRAY ", root: int = 0, *, " OUT ") -> " ARRAY),
           "The root's x on every rank.\n\n"
           "x: on the root what is sent; elsewhere it says shape and dtype alone, and may be None where out is given.\n"
           "out: filled; out=x is in place; None makes a new array like x.")
      .def("allgather", &allgather, arg("x").none(), named, out, stream,
           nb::sig("def allgather(self, x: " ARRAY ", *, " OUT ") -> " ARRAY),
           "The arrays x of all ranks one after another, on every rank.\n\n"
           "x: shape (k, ...), the same on all ranks. The result has shape (size * k, ...), rank 0's rows first.\n"
           "In place where x is the rank's own rows of out.")
      .def("reduce_scatter", &reduce_scatter, arg("x").none(), op, named, out, stream,
           nb::sig("def reduce_scatter(self, x: " ARRAY ", " OP ", *, " OUT ") -> " ARRAY),
           "Element by element `op` over the arrays x of all ranks, of which rank r gets block r.\n\n"
           "x: shape (size * k, ...). The result has shape (k, ...). In place where out is the rank's own rows of x.")
      .def("alltoall", &alltoall, arg("x").none(), named, out, stream,
           nb::sig("def alltoall(self, x: " ARRAY ", *, " OUT ") -> " ARRAY),
           "Block d of rank s becomes block s of rank d.\n\n"
           "x: shape (size * k, ...), a block of k rows for each rank. The result has x's shape. out=x is in place.")
      .def("gather", &gather, arg("x").none(), root, named, out, stream,
           nb::sig("def gather(self, x: " ARRAY ", root: int = 0, *, " OUT ") -> " ARRAY),
           "As allgather(), with the result on rank `root` alone; the other ranks get None and need no out.")
      .def("scatter", &scatter, arg("x").none(), root, named, out, stream,
           nb::sig("def scatter(self, x: " ARRAY ", root: int = 0, *, " OUT ") -> " ARRAY),
           "Block r of the root's x on rank r.\n\n"
           "x: on the root shape (size * k, ...). Elsewhere an array of that shape and dtype, whose contents do not\n"
           "count, or None where out is given. The result has shape (k, ...).")
      .def("barrier", &barrier, named, stream,
           nb::sig("def barrier(self, *, stream: Stream | None = None) -> typing.Any"),
           "Ends on no rank before every rank has begun it.");
}

}  // namespace treering::python

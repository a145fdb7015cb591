// SPDX-License-Identifier: Apache-2.0
// Counts are rows: the elements of a rank's block are its rows times the elements of a row.
#include <numeric>

#include "collectives.h"

namespace treering::python {
namespace {

struct Counts {
  std::vector<size_t> rows;
  size_t total() const { return std::accumulate(rows.begin(), rows.end(), size_t{0}); }
  // In elements of rows of `row` each; NULL for the library where there are none.
  std::vector<size_t> elements(size_t row) const {
    std::vector<size_t> scaled(rows);
    for (size_t& count : scaled) count *= row;
    return scaled;
  }
};

Counts counts_of(const Call& call, nb::handle argument, const char* name) {
  Counts counts;
  const std::string wanted = "; " + std::to_string(call.ranks()) + " numbers of rows are wanted, one for each rank";
  nb::object sequence = nb::steal(PySequence_Fast(argument.ptr(), ""));
  if (!sequence.is_valid()) {
    PyErr_Clear();
    refuse_type(call.name(), std::string(name) + " is " + kind_of(argument) + wanted);
  }
  for (nb::handle value : sequence) {
    const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
    if (!number.is_valid()) throw nb::python_error();
    const auto rows = PyLong_AsLongLong(number.ptr());
    if (rows == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (rows < 0) refuse(call.name(), std::string(name) + " has " + std::to_string(rows) + wanted);
    counts.rows.push_back(static_cast<size_t>(rows));
  }
  if (counts.rows.size() != call.ranks())
    refuse(call.name(), std::string(name) + " has " + std::to_string(counts.rows.size()) + " entries" + wanted);
  return counts;
}

// Where blocks begin, in rows, and how many rows reach to the end of the last one.
struct Layout {
  Counts begins;
  bool given = false;
  size_t end = 0;
  std::vector<size_t> elements(size_t row) const { return given ? begins.elements(row) : std::vector<size_t>(); }
};

Layout layout_of(const Call& call, const Counts& counts, nb::handle displacements, const char* name) {
  Layout layout;
  layout.end = counts.total();
  if (displacements.is_none()) return layout;
  layout.given = true;
  layout.begins = counts_of(call, displacements, name);
  layout.end = 0;
  for (size_t i = 0; i < counts.rows.size(); ++i)
    layout.end = std::max(layout.end, counts.rows[i] == 0 ? 0 : layout.begins.rows[i] + counts.rows[i]);
  return layout;
}

const size_t* pointer(const std::vector<size_t>& values) { return values.empty() ? nullptr : values.data(); }

void check_rows(const Call& call, const View& view, size_t rows, const char* argument, const std::string& because) {
  if (view.rows() == rows) return;
  refuse(call.name(),
         std::string(argument) + " is " + view.text() + "; " + std::to_string(rows) + " rows are wanted, " + because);
}

// An array of blocks: at least `rows` rows of `row` elements. The result of the call.
void* output_of_rows(Call* call, nb::handle out, nb::handle like, const View& in, size_t rows, bool exact) {
  if (out.is_none() || exact)
    return call->output(out, like, in.type(), with_rows(in, rows), "what the counts add up to");
  const View into = view_of(out, Access::kWrite, call->name(), "out");
  if (into.count() < rows * in.row())
    refuse(call->name(), "out is " + into.text() + "; " + std::to_string(rows) +
                             " rows are wanted, which displacements and counts reach to");
  return call->output(out, like, in.type(), into.shape(), "as many as it has");
}

nb::object allgatherv(Communicator& comm, nb::handle x, nb::handle counts, nb::handle displacements, nb::handle out,
                      nb::handle stream) {
  Call call(comm, "allgatherv", stream);
  View in = call.input(x);
  const Counts rows = counts_of(call, counts, "counts");
  check_rows(call, in, rows.rows[call.rank()], "x", "counts[" + std::to_string(call.rank()) + "]");
  const Layout layout = layout_of(call, rows, displacements, "displacements");
  const auto recv = rows.elements(in.row()), begins = layout.elements(in.row());
  void* to = output_of_rows(&call, out, x, in, layout.end, !layout.given);
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  call.keep(std::move(in));
  return call.run([&](trStream_t s) {
    return trAllGatherV(from, count, to, recv.data(), pointer(begins), type, call.handle(), s);
  });
}

nb::object reduce_scatterv(Communicator& comm, nb::handle x, nb::handle counts, nb::handle op, nb::handle out,
                           nb::handle stream) {
  Call call(comm, "reduce_scatterv", stream);
  View in = call.input(x);
  const Counts rows = counts_of(call, counts, "counts");
  check_rows(call, in, rows.total(), "x", "the sum of counts");
  const auto recv = rows.elements(in.row());
  const trRedOp_t operation = call.operation(op);
  void* to = output_of_rows(&call, out, x, in, rows.rows[call.rank()], true);
  const void* from = in.data();
  const trDataType_t type = in.type();
  call.keep(std::move(in));
  return call.run(
      [&](trStream_t s) { return trReduceScatterV(from, to, recv.data(), type, operation, call.handle(), s); });
}

nb::object alltoallv(Communicator& comm, nb::handle x, nb::handle send_counts, nb::handle recv_counts,
                     nb::handle send_displacements, nb::handle recv_displacements, nb::handle out, nb::handle stream) {
  Call call(comm, "alltoallv", stream);
  View in = call.input(x);
  const Counts sent = counts_of(call, send_counts, "send_counts"),
               received = counts_of(call, recv_counts, "recv_counts");
  const Layout from_layout = layout_of(call, sent, send_displacements, "send_displacements");
  const Layout to_layout = layout_of(call, received, recv_displacements, "recv_displacements");
  if (!from_layout.given) check_rows(call, in, sent.total(), "x", "the sum of send_counts");
  if (in.rows() < from_layout.end)
    refuse("alltoallv", "x is " + in.text() + "; " + std::to_string(from_layout.end) +
                            " rows are wanted, which send_displacements and send_counts reach to");
  const auto send = sent.elements(in.row()), send_begins = from_layout.elements(in.row());
  const auto recv = received.elements(in.row()), recv_begins = to_layout.elements(in.row());
  void* to = output_of_rows(&call, out, x, in, to_layout.end, !to_layout.given);
  const void* from = in.data();
  const trDataType_t type = in.type();
  call.keep(std::move(in));
  return call.run([&](trStream_t s) {
    return trAllToAllV(from, send.data(), pointer(send_begins), to, recv.data(), pointer(recv_begins), type,
                       call.handle(), s);
  });
}

nb::object gatherv(Communicator& comm, nb::handle x, nb::handle counts, int root, nb::handle displacements,
                   nb::handle out, nb::handle stream) {
  Call call(comm, "gatherv", stream);
  check_root(call, root, "root");
  View in = call.input(x);
  void* to = nullptr;
  std::vector<size_t> recv, begins;
  if (call.is_root(root)) {
    const Counts rows = counts_of(call, counts, "counts");
    check_rows(call, in, rows.rows[call.rank()], "x", "counts[" + std::to_string(call.rank()) + "]");
    const Layout layout = layout_of(call, rows, displacements, "displacements");
    recv = rows.elements(in.row());
    begins = layout.elements(in.row());
    to = output_of_rows(&call, out, x, in, layout.end, !layout.given);
  }
  const void* from = in.data();
  const size_t count = in.count();
  const trDataType_t type = in.type();
  call.keep(std::move(in));
  return call.run([&](trStream_t s) {
    return trGatherV(from, count, to, pointer(recv), pointer(begins), type, root, call.handle(), s);
  });
}

nb::object scatterv(Communicator& comm, nb::handle x, nb::handle counts, int root, nb::handle displacements,
                    nb::handle out, nb::handle stream) {
  Call call(comm, "scatterv", stream);
  check_root(call, root, "root");
  if (!call.is_root(root)) {
    if (out.is_none())
      refuse_type("scatterv", "out is None; the array that is filled is wanted on ranks other than the root");
    const View into = view_of(out, Access::kWrite, "scatterv", "out");
    void* to = call.output(out, out, into.type(), into.shape(), "as many as it has");
    return call.run([&](trStream_t s) {
      return trScatterV(nullptr, nullptr, nullptr, to, into.count(), into.type(), root, call.handle(), s);
    });
  }
  View in = call.input(x);
  const Counts rows = counts_of(call, counts, "counts");
  const Layout layout = layout_of(call, rows, displacements, "displacements");
  if (!layout.given) check_rows(call, in, rows.total(), "x", "the sum of counts");
  if (in.rows() < layout.end)
    refuse("scatterv", "x is " + in.text() + "; " + std::to_string(layout.end) +
                           " rows are wanted, which displacements and counts reach to");
  const size_t own = rows.rows[call.rank()];
  const auto send = rows.elements(in.row()), begins = layout.elements(in.row());
  void* to = output_of_rows(&call, out, x, in, own, true);
  const void* from = in.data();
  const size_t count = own * in.row();
  const trDataType_t type = in.type();
  call.keep(std::move(in));
  return call.run([&](trStream_t s) {
    return trScatterV(from, send.data(), pointer(begins), to, count, type, root, call.handle(), s);
  });
}

}  // namespace

#define COUNTS "typing.Sequence[int]"
#define OUT "out: typing.Any | None = None, stream: Stream | None = None) -> typing.Any"

void bind_variable_counts(CommunicatorClass& communicator) {
  using nb::arg;
  const nb::kw_only named;
  const auto out = arg("out").none() = nb::none();
  const auto stream = arg("stream").none() = nb::none();
  const auto displacements = arg("displacements").none() = nb::none();
  const auto root = arg("root") = 0;
  communicator
      .def("allgatherv", &allgatherv, arg("x").none(), arg("counts").none(), named, displacements, out, stream,
           nb::sig("def allgatherv(self, x: typing.Any, counts: " COUNTS ", *, displacements: " COUNTS
                   " | None = None, " OUT),
           "allgather() of arrays with other numbers of rows.\n\n"
           "x: shape (counts[rank], ...). counts: rows of each rank, the same on all ranks. displacements: the row of\n"
           "out where each rank's block begins; None: one after another. The result has shape (sum(counts), ...).")
      .def("reduce_scatterv", &reduce_scatterv, arg("x").none(), arg("counts").none(), arg("op") = "sum", named, out,
           stream,
           nb::sig("def reduce_scatterv(self, x: typing.Any, counts: " COUNTS ", op: str | Operation = 'sum', *, " OUT),
           "reduce_scatter() with other numbers of rows.\n\n"
           "x: shape (sum(counts), ...). counts: rows that each rank gets, the same on all ranks.\n"
           "The result has shape (counts[rank], ...).")
      .def("alltoallv", &alltoallv, arg("x").none(), arg("send_counts"), arg("recv_counts"), named,
           arg("send_displacements").none() = nb::none(), arg("recv_displacements").none() = nb::none(), out, stream,
           nb::sig("def alltoallv(self, x: typing.Any, send_counts: " COUNTS ", recv_counts: " COUNTS
                   ", *, send_displacements: " COUNTS " | None = None, recv_displacements: " COUNTS
                   " | None = None, " OUT),
           "alltoall() with other numbers of rows: send_counts[d] of rank s equals recv_counts[s] of rank d.\n\n"
           "x: shape (sum(send_counts), ...). The result has shape (sum(recv_counts), ...). Not in place.")
      .def("gatherv", &gatherv, arg("x").none(), arg("counts").none() = nb::none(), root, named, displacements, out,
           stream,
           nb::sig("def gatherv(self, x: typing.Any, counts: " COUNTS
                   " | None = None, root: int = 0, *, displacements: " COUNTS " | None = None, " OUT),
           "As allgatherv(), with the result on rank `root` alone, which alone needs counts. Others get None.")
      .def("scatterv", &scatterv, arg("x").none() = nb::none(), arg("counts").none() = nb::none(), root, named,
           displacements, out, stream,
           nb::sig("def scatterv(self, x: typing.Any | None = None, counts: " COUNTS
                   " | None = None, root: int = 0, *, displacements: " COUNTS " | None = None, " OUT),
           "Rows of the root's x on each rank: counts[r] of them on rank r.\n\n"
           "x and counts are the root's alone. out: on other ranks the array that is filled; on the root None makes a\n"
           "new one.");
}

}  // namespace treering::python

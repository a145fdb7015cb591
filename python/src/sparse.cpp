// SPDX-License-Identifier: Apache-2.0
#include "sparse.h"

namespace treering::python {
namespace {

// Boxes as [(lo, hi), ...] with tuples lo and hi of one number for each dimension.
std::vector<trBox_t> boxes_of(nb::handle boxes, const char* argument, int* dimensions) {
  std::vector<trBox_t> result;
  for (nb::handle box : boxes) {
    trBox_t made{};
    int64_t* const ends[] = {made.lo, made.hi};
    for (size_t side = 0; side < 2; ++side) {
      int dimension = 0;
      for (nb::handle index : nb::object(box[side])) {
        if (dimension == TR_MAX_DIMENSIONS)
          refuse("Exchange", std::string(argument) + " has a box of more than " + std::to_string(TR_MAX_DIMENSIONS) +
                                 " dimensions; 1 to " + std::to_string(TR_MAX_DIMENSIONS) + " are wanted");
        ends[side][dimension++] = nb::cast<int64_t>(nb::int_(index));
      }
      if (*dimensions == 0) *dimensions = dimension;
      if (dimension != *dimensions)
        refuse("Exchange", std::string(argument) + " has a box of " + std::to_string(dimension) + " dimensions; " +
                               std::to_string(*dimensions) + " are wanted, as other boxes have");
    }
    result.push_back(made);
  }
  return result;
}

std::vector<int64_t> shape_of(const trBox_t& box, int dimensions) {
  std::vector<int64_t> shape;
  for (int d = 0; d < dimensions; ++d) shape.push_back(std::max<int64_t>(box.hi[d] - box.lo[d], 0));
  return shape;
}

class Exchange {
 public:
  Exchange(nb::object comm, nb::handle held, nb::handle needed, nb::handle dtype, nb::handle dimensions)
      : comm_(std::move(comm)), type_(type_of_argument("Exchange", "dtype", dtype).type) {
    if (!dimensions.is_none()) dimensions_ = nb::cast<int>(dimensions);
    held_ = boxes_of(held, "held", &dimensions_);
    needed_ = boxes_of(needed, "needed", &dimensions_);
    const trComm_t handle = nb::cast<Communicator&>(comm_).handle("Exchange");
    trResult_t code = trSuccess;
    {
      BlockingCall blocking(&handle, 1);
      code = trExchangeCreate(&handle_, dimensions_, static_cast<int>(held_.size()), held_.data(),
                              static_cast<int>(needed_.size()), needed_.data(), type_, handle);
    }
    if (code == trSuccess) return;
    const std::string message = trGetLastError(nullptr);
    raise_signals();
    raise(code, message);
  }
  ~Exchange() {
    nb::gil_scoped_release release;
    trExchangeDestroy(handle_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  nb::object start(nb::handle held, nb::handle needed, nb::handle stream) {
    Call call(nb::cast<Communicator&>(comm_), "Exchange.start", stream);
    std::vector<const void*> from;
    nb::handle like = nb::none();
    for (nb::handle array : held) {
      View view = call.input(array, "held");
      check_box(view, held_, from.size(), "held");
      from.push_back(view.data());
      call.keep(std::move(view));
      like = array;
    }
    check_number(from.size(), held_.size(), "held");
    nb::list made = needed.is_none() ? new_arrays(like) : nb::list(needed);
    std::vector<void*> to;
    for (nb::handle array : made) {
      View view = view_of(array, Access::kWrite, "Exchange.start", "needed");
      check_box(view, needed_, to.size(), "needed");
      to.push_back(view.data());
      call.keep(std::move(view));
    }
    check_number(to.size(), needed_.size(), "needed");
    call.keep(nb::find(this));
    call.set_result(made);
    return call.run([&](trStream_t s) { return trExchangeStart(handle_, from.data(), to.data(), s); });
  }

 private:
  nb::list new_arrays(nb::handle like) const {
    nb::list made;
    for (const trBox_t& box : needed_) made.append(new_array(like, type_, shape_of(box, dimensions_)));
    return made;
  }

  void check_box(const View& view, const std::vector<trBox_t>& boxes, size_t i, const char* argument) const {
    if (i >= boxes.size()) check_number(i + 1, boxes.size(), argument);
    const auto shape = shape_of(boxes[i], dimensions_);
    if (view.type() == type_ && view.shape() == shape) return;
    refuse("Exchange.start", std::string(argument) + "[" + std::to_string(i) + "] is " + view.text() + "; " +
                                 data_type(type_).name + " of its box's shape " + text_of_shape(shape) + " is wanted");
  }

  static void check_number(size_t came, size_t wanted, const char* argument) {
    if (came == wanted) return;
    refuse("Exchange.start", std::string(argument) + " has " + std::to_string(came) + " arrays; " +
                                 std::to_string(wanted) + " are wanted, one for each box");
  }

  nb::object comm_;
  trDataType_t type_;
  int dimensions_ = 0;
  std::vector<trBox_t> held_, needed_;
  trExchange_t handle_ = nullptr;
};

nb::object sparse_allreduce(Communicator& comm, nb::handle indices, nb::handle values, nb::handle op, size_t capacity) {
  Call call(comm, "sparse_allreduce", nb::none());
  View index = call.input(indices, "indices"), value = call.input(values, "values");
  if (index.type() != trInt64)
    refuse_type("sparse_allreduce", "indices has dtype " + data_type(index.type()).name + "; int64 is wanted");
  if (value.shape().empty() || index.count() != value.rows())
    refuse("sparse_allreduce",
           "values is " + value.text() + "; as many rows are wanted as indices has, " + std::to_string(index.count()));
  const trRedOp_t operation = call.operation(op);
  nb::object out_indices = new_array(indices, trInt64, {static_cast<int64_t>(capacity)});
  nb::object out_values = new_array(values, value.type(), with_rows(value, capacity));
  View to_indices = view_of(out_indices, Access::kWrite, "sparse_allreduce", "the result");
  View to_values = view_of(out_values, Access::kWrite, "sparse_allreduce", "the result");
  size_t rows = 0;
  call.run([&](trStream_t) {
    return trSparseAllReduce(static_cast<const int64_t*>(index.data()), value.data(), index.count(), value.row(),
                             value.type(), operation, static_cast<int64_t*>(to_indices.data()), to_values.data(),
                             capacity, &rows, call.handle());
  });
  const nb::slice used{rows};
  return nb::make_tuple(finished_array(out_indices.attr("__getitem__")(used), indices),
                        finished_array(out_values.attr("__getitem__")(used), values));
}

}  // namespace

void bind_sparse(nb::module_& module, CommunicatorClass& communicator) {
  using nb::arg;
  communicator.def(
      "sparse_allreduce", &sparse_allreduce, arg("indices"), arg("values"), arg("op") = "sum", nb::kw_only(),
      arg("capacity"),
      nb::sig(
          "def sparse_allreduce(self, indices: typing.Any, values: typing.Any, op: str = 'sum', *, capacity: int) -> "
          "tuple[typing.Any, typing.Any]"),
      "The union of the ranks' rows with summed values, as embedding gradients need it: (indices, values).\n\n"
      "indices: int64, shape (k,); an index may occur several times. values: shape (k, ...), a row for each index.\n"
      "op: 'sum' or 'avg'. capacity: rows that the result has room for; with more the error says how many there are.\n"
      "Every rank gets the same rows in ascending order of their indices.");
  nb::class_<Exchange>(
      module, "Exchange",
      "Moves a distributed array of 1 to 5 dimensions from the boxes that ranks hold to those they need.\n\n"
      "held, needed: boxes (lo, hi) of this rank, with lo[d] <= index[d] < hi[d] of the global array;\n"
      "some rank holds each needed element. dimensions: where a rank has no box. Made by all ranks\n"
      "together; started any number of times.")
      .def(nb::init<nb::object, nb::handle, nb::handle, nb::handle, nb::handle>(), arg("comm"), arg("held"),
           arg("needed"), arg("dtype"), nb::kw_only(), arg("dimensions").none() = nb::none(),
           nb::sig("def __init__(self, comm: CommunicatorBase, held: typing.Sequence[typing.Any], needed: "
                   "typing.Sequence[typing.Any], dtype: typing.Any, *, dimensions: int | None = None) -> None"))
      .def(
          "start", &Exchange::start, arg("held"), arg("needed").none() = nb::none(), nb::kw_only(),
          arg("stream").none() = nb::none(),
          nb::sig("def start(self, held: typing.Sequence[typing.Any], needed: typing.Sequence[typing.Any] | None = "
                  "None, *, stream: Stream | None = None) -> typing.Any"),
          "Moves the data: an array of its box's shape for each box. needed: filled; None makes new ones. Gives needed.");
}

}  // namespace treering::python

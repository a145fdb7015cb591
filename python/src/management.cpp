// SPDX-License-Identifier: Apache-2.0
// How communicators are made, asked and ended.
#include "management.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "config.h"
#include "operations.h"

namespace treering::python {
namespace {

trUniqueId id_of(const char* call, const nb::bytes& bytes) {
  trUniqueId id;
  if (bytes.size() != sizeof id.internal)
    refuse(call, "id has " + std::to_string(bytes.size()) + " bytes; " + std::to_string(sizeof id.internal) +
                     " are wanted, as treering.unique_id() gives");
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  return id;
}

// Makes a communicator by a call that waits for other ranks and cannot be ended. What it uses is held by the call,
// which may go on when the caller has been interrupted.
template <class Make>
nb::object make_communicator(nb::handle type, trComm_t from, Make make) {
  if (current_recording() != nullptr)
    raise(trInvalidUsage, "communicators are not made inside of a group here; leave the group first");
  auto made = std::make_shared<trComm_t>(nullptr);
  const auto drop = [made] {
    if (*made != nullptr) trCommDestroy(*made);
  };
  const Outcome outcome = run_long_call({[made, make] { return make(made.get()); }, drop, from});
  if (outcome.code != trSuccess) raise(outcome.code, outcome.message);
  return *made == nullptr ? nb::none() : own_communicator(type, *made);
}

nb::object init_from_environment(nb::handle type, nb::kwargs settings) {
  auto config = std::make_shared<Config>("init", settings);
  return make_communicator(type, nullptr,
                           [config](trComm_t* comm) { return trCommInitFromEnvironment(comm, config->get()); });
}

nb::object init_rank(nb::handle type, int size, nb::bytes id, int rank, nb::kwargs settings) {
  auto config = std::make_shared<Config>("init_rank", settings);
  const trUniqueId given = id_of("init_rank", id);
  return make_communicator(
      type, nullptr, [=](trComm_t* comm) { return trCommInitRankConfig(comm, size, given, rank, config->get()); });
}

nb::list init_all(nb::handle type, int size) {
  if (size < 1) refuse("init_all", "the number of ranks is " + std::to_string(size) + "; 1 or more is wanted");
  std::vector<trComm_t> comms(static_cast<size_t>(size));
  trResult_t code = trSuccess;
  {
    nb::gil_scoped_release release;
    code = trCommInitAll(comms.data(), size);
  }
  check(code);
  nb::list made;
  for (trComm_t comm : comms) made.append(own_communicator(type, comm));
  return made;
}

void refuse_in_group(const std::string& call) {
  if (current_recording() != nullptr)
    raise(trInvalidUsage, call +
                              ": objects cannot travel inside of a group, where calls only begin at its end; leave "
                              "the group first");
}

nb::bytes unique_id() {
  trUniqueId id;
  check(trGetUniqueId(&id));
  return nb::bytes(id.internal, sizeof id.internal);
}

Communicator& native(nb::handle self) { return *nb::inst_ptr<Communicator>(self); }

nb::object split(nb::handle self, nb::handle color, int key, nb::kwargs settings) {
  auto config = std::make_shared<Config>("split", settings);
  const trComm_t comm = native(self).handle("split");
  const int chosen = color.is_none() ? TR_SPLIT_NOCOLOR : nb::cast<int>(color);
  return make_communicator(self.type(), comm,
                           [=](trComm_t* made) { return trCommSplit(comm, chosen, key, made, config->get()); });
}

nb::object dup(nb::handle self) {
  const trComm_t comm = native(self).handle("dup");
  return make_communicator(self.type(), comm, [=](trComm_t* made) { return trCommDup(comm, made); });
}

nb::object shrink(nb::handle self, nb::handle excluded, bool abort, nb::kwargs settings) {
  auto config = std::make_shared<Config>("shrink", settings);
  const trComm_t comm = native(self).handle("shrink");
  std::vector<int> ranks;
  for (nb::handle rank : excluded) ranks.push_back(nb::cast<int>(nb::int_(rank)));
  return make_communicator(self.type(), comm, [=](trComm_t* made) {
    return trCommShrink(comm, ranks.data(), static_cast<int>(ranks.size()), made, config->get(),
                        abort ? TR_SHRINK_ABORT : 0);
  });
}

nb::object grow(nb::handle self, int size, nb::handle id, nb::kwargs settings) {
  auto config = std::make_shared<Config>("grow", settings);
  const trComm_t comm = native(self).handle("grow");
  const bool has_id = !id.is_none();
  const trUniqueId given = has_id ? id_of("grow", nb::cast<nb::bytes>(id)) : trUniqueId{};
  return make_communicator(self.type(), comm, [=](trComm_t* made) {
    return trCommGrow(comm, size, has_id ? &given : nullptr, made, config->get());
  });
}

void finalize(Communicator& comm) {
  const trComm_t handle = comm.handle("finalize");
  trResult_t code = trSuccess;
  {
    BlockingCall blocking(&handle, 1);
    code = trCommFinalize(handle);
  }
  check(code);
}

constexpr const char* kCollectives[] = {"allreduce", "reduce", "broadcast", "allgather", "reduce_scatter",
                                        "alltoall",  "gather", "scatter",   "barrier"};

std::string explain(Communicator& comm, const std::string& collective, size_t bytes, nb::handle dtype) {
  const auto found = std::find(std::begin(kCollectives), std::end(kCollectives), collective);
  if (found == std::end(kCollectives))
    refuse("explain", "collective is '" + collective +
                          "'; allreduce, reduce, broadcast, allgather, reduce_scatter, "
                          "alltoall, gather, scatter or barrier is wanted");
  const auto number = static_cast<trCollective_t>(found - std::begin(kCollectives));
  const trDataType_t type = type_of_argument("explain", "dtype", dtype).type;
  size_t needed = 0;
  check(trExplain(comm.handle("explain"), number, bytes, type, nullptr, 0, &needed));
  std::string text(needed + 1, '\0');
  check(trExplain(comm.handle("explain"), number, bytes, type, text.data(), text.size(), nullptr));
  text.resize(std::strlen(text.c_str()));
  return text;
}

void check_state(Communicator& comm) {
  trResult_t state = trSuccess;
  const trComm_t handle = comm.handle("check");
  check(trCommGetAsyncError(handle, &state));
  if (state != trSuccess && state != trInProgress) raise(state, trGetLastError(handle));
}

std::vector<int> lost(Communicator& comm) {
  const trComm_t handle = comm.handle("lost");
  std::vector<int> ranks(static_cast<size_t>(std::max(comm.size() - 1, 1)));
  int count = 0;
  check(trCommGetLost(handle, ranks.data(), &count));
  ranks.resize(static_cast<size_t>(count));
  return ranks;
}

}  // namespace

#define SETTINGS "**settings: typing.Any"
#define SELF "typing.Self"

void bind_making(CommunicatorClass& communicator) {
  using nb::arg;
  communicator
      .def("split", &split, arg("color").none(), arg("key") = 0, arg("settings"),
           nb::sig("def split(self, color: int | None, key: int = 0, " SETTINGS ") -> " SELF " | None"),
           "A new communicator of the ranks that give the same color (0 or more), ranked by key, then by rank.\n\n"
           "color None: this rank gets None. settings: as of init(); by default those of this communicator.")
      .def("dup", &dup, nb::sig("def dup(self) -> " SELF), "A new communicator of the same ranks.")
      .def(
          "shrink", &shrink, arg("excluded"), nb::kw_only(), arg("abort") = true, arg("settings"),
          nb::sig("def shrink(self, excluded: typing.Iterable[int], *, abort: bool = True, " SETTINGS ") -> " SELF),
          "A new communicator of the ranks that are not `excluded`, in their order; called by those alone.\n\n"
          "This communicator may have failed and the excluded ranks may be dead. abort: ends what is under way first.\n"
          "InvalidUsage where ranks give other sets: they may call again.")
      .def("grow", &grow, arg("size"), arg("id").none() = nb::none(), arg("settings"),
           nb::sig("def grow(self, size: int, id: bytes | None = None, " SETTINGS ") -> " SELF),
           "A new communicator of `size` ranks: those of this one, then new ones, which call init_rank().\n\n"
           "id: of unique_id(), on one rank, which hands it to the new ones; the others give None.");
}

void bind_state(CommunicatorClass& communicator) {
  using nb::arg;
  communicator.def_prop_ro("rank", &Communicator::rank, "The rank of this object, from 0.")
      .def_prop_ro("size", &Communicator::size, "The number of ranks.")
      .def_prop_ro("is_open", &Communicator::is_open, "False after close() or abort().")
      .def("finalize", &finalize, "Waits until every call given to the communicator has ended.")
      .def("close", &Communicator::close,
           "Releases the communicator and waits for no other rank; also at the end of `with`, and of the program.\n"
           "Calls under way end. Between hosts call barrier() before, where the last messages matter.")
      .def("abort", &Communicator::abort,
           "Ends every call on the communicator, on all ranks, with RemoteError, and releases it.")
      .def(
          "revoke", [](Communicator& self) { check(trCommRevoke(self.handle("revoke"))); },
          "Ends every call on the communicator, on all ranks, with RemoteError. It still takes shrink(). May be called\n"
          "by another thread.")
      .def(
          "lost", &lost,
          "The ranks that this one knows to be lost: ended, stopped, without an answer, or no longer in the communicator.\n"
          "Also after a failure, for shrink(); other ranks may know of others for a moment. Waits for nothing.")
      .def("check", &check_state, "Raises the first failure of the communicator, if there was one. Waits for nothing.")
      .def("explain", &explain, arg("collective"), arg("bytes"), arg("dtype") = "float32",
           nb::sig("def explain(self, collective: str, bytes: int, dtype: typing.Any = 'float32') -> str"),
           "What a collective of `bytes` bytes would do, and why: every algorithm with its predicted time.")
      .def(
          "scaled_sum",
          [](nb::handle self, nb::handle factor, nb::handle dtype) {
            auto made = std::make_unique<Operation>(nb::borrow(self), native(self).handle("scaled_sum"));
            made->make_scaled_sum(factor, dtype);
            return made.release();
          },
          arg("factor"), arg("dtype"), nb::rv_policy::take_ownership,
          nb::sig("def scaled_sum(self, factor: typing.Any, dtype: typing.Any) -> Operation"),
          "An operation: the sum over all ranks of factor * x. Each rank gives its own factor. For this dtype alone.")
      .def(
          "operation",
          [](nb::handle self, nb::object function, bool commutative) {
            auto made = std::make_unique<Operation>(nb::borrow(self), native(self).handle("operation"));
            made->make_of_function(std::move(function), commutative);
            return made.release();
          },
          arg("function"), nb::kw_only(), arg("commutative") = true, nb::rv_policy::take_ownership,
          nb::sig(
              "def operation(self, function: typing.Callable[[typing.Any, typing.Any], typing.Any], *, commutative: "
              "bool = True) -> Operation"),
          "An operation: function(a, b) gives a op b for NumPy arrays of equal length, where a is of lower ranks than b.\n\n"
          "It must be associative, work element by element, be the same on all ranks, and not call this library.\n"
          "Not commutative: operands are combined in the order of the ranks. What it raises, the call raises.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> " SELF))
      .def(
          "__exit__", [](Communicator& self, nb::args) { self.close(); },
          nb::sig("def __exit__(self, *error: typing.Any) -> None"));
}

void bind_starts(nb::module_& module) {
  using nb::arg;
  module.def("init_from_environment", &init_from_environment, arg("type"), arg("settings"),
             "A communicator of the ranks that a launcher has started; treering.init().");
  module.def("init_rank", &init_rank, arg("type"), arg("size"), arg("id"), arg("rank"), arg("settings"),
             "Rank `rank` of `size` ranks that have an id; treering.init_rank().");
  module.def("init_all", &init_all, arg("type"), arg("size"),
             nb::sig("def init_all(type: typing.Any, size: int) -> list"),
             "All ranks of one communicator in this process; treering.threads().");
  module.def(
      "unique_id", &unique_id,
      "The id of a new communicator, 128 bytes. It reaches the other ranks by the program's own means, and holds a\n"
      "secret. The process that made it must live until all ranks have met.");
  module.def("refuse_in_group", &refuse_in_group, arg("call"),
             "Raises InvalidUsage inside of a group: for calls that are made of several.");
  module.def("close_all", &close_all, "Closes all communicators of the process.");
  module.def(
      "library_version",
      [] {
        int version = 0;
        check(trGetVersion(&version));
        return version;
      },
      "Version of libtreering that is loaded: major * 10000 + minor * 100 + patch.");
  module.def(
      "data_type_names",
      [] {
        nb::list names;
        for (const DataType& type : data_types()) names.append(type.name);
        return names;
      },
      nb::sig("def data_type_names() -> list[str]"), "The names of all data types.");
  module.def("op_names", &names_of_ops, "The names of all operations, separated by ', '.");
}

}  // namespace treering::python

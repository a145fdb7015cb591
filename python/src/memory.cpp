// SPDX-License-Identifier: Apache-2.0
#include "sparse.h"

namespace treering::python {
namespace {

// Memory of trMemAlloc() with the buffer protocol: arrays on it keep it.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    // An array without elements has an address, too.
    check(trMemAlloc(&data_, std::max<size_t>(bytes, 1)));
  }
  ~Memory() { trMemFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  static int get_buffer(PyObject* self, Py_buffer* buffer, int flags) {
    const Memory* memory = nb::inst_ptr<Memory>(self);
    return PyBuffer_FillInfo(buffer, self, memory->data_, static_cast<Py_ssize_t>(memory->bytes_), 0, flags);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&Memory::get_buffer)}, {0, nullptr}};

// An array whose pages are shareable as long as this lives, or until close().
class Registration {
 public:
  Registration(nb::object comm, nb::handle array) : comm_(std::move(comm)) {
    comm_handle_ = nb::cast<Communicator&>(comm_).handle("register");
    view_ = view_of(array, Access::kWrite, "register", "array");
    check(trCommRegister(comm_handle_, view_.data(), view_.count() * data_type(view_.type()).bytes, &handle_));
  }
  ~Registration() { close(); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  void close() {
    // After the communicator's end there is nothing to end here.
    if (handle_ != nullptr) trCommDeregister(comm_handle_, std::exchange(handle_, nullptr));
    view_.release();
  }

 private:
  nb::object comm_;
  trComm_t comm_handle_;
  View view_;
  void* handle_ = nullptr;
};

}  // namespace

void bind_memory(nb::module_& module, CommunicatorClass& communicator) {
  nb::class_<Memory>(module, "Memory", nb::type_slots(memory_slots),
                     "Bytes that other ranks of the machine map; treering.empty() makes arrays on them.")
      .def(nb::init<size_t>(), nb::arg("bytes"));
  nb::class_<Registration>(module, "Registration", "A registered array; see Communicator.register().")
      .def("close", &Registration::close, nb::lock_self(), "Ends the registration. No call may be using the array.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Registration"))
      .def(
          "__exit__", [](Registration& self, nb::args) { self.close(); }, nb::lock_self(),
          nb::sig("def __exit__(self, *error: typing.Any) -> None"));
  communicator.def(
      "register", [](nb::handle self, nb::handle array) { return new Registration(nb::borrow(self), array); },
      nb::arg("array"), nb::rv_policy::take_ownership, nb::sig("def register(self, array: typing.Any) -> Registration"),
      "Makes the memory of an array as fast as that of treering.empty(): whole pages are moved into memory that the\n"
      "other ranks of this machine map, in place. Good as long as the Registration lives, or until its close(); also\n"
      "`with comm.register(x):`. Memory of stacks and files is refused.");
}

}  // namespace treering::python

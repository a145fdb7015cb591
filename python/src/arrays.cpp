// SPDX-License-Identifier: Apache-2.0
#include "arrays.h"

#include <atomic>
#include <string_view>

#include "dlpack.h"
#include "errors.h"

namespace treering::python {
namespace {

constexpr const char* kWanted = "an array is wanted: buffer protocol, DLPack or __cuda_array_interface__";

size_t elements_of(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (int64_t extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

// `unit`: what strides are counted in, in bytes of an element or in elements.
bool is_contiguous(const std::vector<int64_t>& shape, const int64_t* strides, int64_t unit) {
  int64_t expected = unit;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// numpy.empty, looked up once.
PyObject* numpy_empty() {
  static std::atomic<PyObject*> kept{nullptr};
  PyObject* function = kept.load(std::memory_order_acquire);
  if (function == nullptr) kept = function = python_function("numpy", "empty").release().ptr();
  return function;
}

}  // namespace

// Reads one argument. Each way returns false where the object does not offer it.
class Reader {
 public:
  Reader(nb::handle object, Access access, const char* call, const char* argument)
      : object_(object), access_(access), call_(call), argument_(argument) {}

  View read() {
    if (!by_buffer(object_, nullptr) && !by_cuda_interface() && !by_name_of_dtype() && !by_dlpack())
      refuse_type(call_, std::string(argument_) + " is " + kind_of(object_) + "; " + kWanted);
    if (access_ == Access::kWrite && !view_.writable_)
      refuse(call_, std::string(argument_) + " is read-only; an array that can be written is wanted");
    return std::move(view_);
  }

 private:
  // `type`: what the elements are where the buffer has another name for them, else nullptr.
  bool by_buffer(nb::handle object, const DataType* type) {
    if (!PyObject_CheckBuffer(object.ptr())) return false;
    if (PyObject_GetBuffer(object.ptr(), &view_.buffer_, PyBUF_FULL_RO) != 0) {
      // As arrays with types that the protocol has no format for.
      PyErr_Clear();
      return false;
    }
    view_.has_buffer_ = true;
    const Py_buffer& buffer = view_.buffer_;
    if (type == nullptr) type = type_of_format(buffer.format, static_cast<size_t>(buffer.itemsize));
    if (type == nullptr) refuse_format(buffer);
    if (PyBuffer_IsContiguous(&buffer, 'C') == 0)
      refuse_strides(std::vector<int64_t>(buffer.strides, buffer.strides + buffer.ndim), "bytes");
    set(buffer.buf, type, std::vector<int64_t>(buffer.shape, buffer.shape + buffer.ndim), buffer.readonly == 0);
    return true;
  }

  // NumPy arrays with types of ml_dtypes, which neither protocol has: their bytes, with the type's name.
  bool by_name_of_dtype() {
    const nb::object dtype = nb::getattr(object_, "dtype", nb::none());
    if (dtype.is_none() || !nb::hasattr(object_, "view") || !PyObject_CheckBuffer(object_.ptr())) return false;
    const std::string name = nb::cast<std::string>(nb::str(dtype));
    const DataType* type = type_of_name(name);
    if (type == nullptr) refuse_dtype(name);
    const nb::object bytes = object_.attr("view")("u" + std::to_string(type->bytes));
    return by_buffer(bytes, type);
  }

  bool by_cuda_interface() {
    const nb::object value = nb::getattr(object_, "__cuda_array_interface__", nb::none());
    if (!nb::isinstance<nb::dict>(value)) return false;
    const nb::dict interface = nb::cast<nb::dict>(value);
    // Without a word about streams DLPack is better: there the producer is told which one to wait on.
    if (!interface.contains("stream") && by_dlpack()) return true;
    const std::string typestr = nb::cast<std::string>(nb::str(interface["typestr"]));
    const DataType* type =
        typestr.size() < 3 || typestr[0] == '>' ? nullptr : type_of_kind(typestr[1], std::stoul(typestr.substr(2)));
    if (type == nullptr) refuse_dtype(typestr);
    const auto shape = integers(interface["shape"]);
    const nb::object strides = interface.contains("strides") ? nb::object(interface["strides"]) : nb::none();
    if (!strides.is_none()) {
      const auto steps = integers(strides);
      if (!is_contiguous(shape, steps.data(), static_cast<int64_t>(type->bytes))) refuse_strides(steps, "bytes");
    }
    if (interface.contains("stream")) {
      const nb::object stream = interface["stream"];
      if (!stream.is_none()) wait_for_producer(nb::cast<uintptr_t>(nb::int_(stream)), current_device());
    } else if (has_devices()) {
      wait_for_producer(0, current_device());
    }
    const nb::object data = interface["data"];
    const auto address = nb::cast<uintptr_t>(data[0]);
    view_.keeper_ = nb::borrow(object_);
    set(reinterpret_cast<void*>(address), type, shape, !nb::cast<bool>(data[1]));
    return true;
  }

  // What the producer has given to its CUDA stream must have ended before the memory is used.
  // 0: the default stream, which itself waits for all streams that were not made as non-blocking ones.
  static void wait_for_producer(uintptr_t cuda_stream, int device) {
    trStream_t handle = nullptr;  // the same one for each call; the stream stays its owner's
    check(trStreamFromCuda(&handle, device, reinterpret_cast<void*>(cuda_stream)));
    trResult_t code = trSuccess;
    {
      nb::gil_scoped_release release;
      code = trStreamSynchronize(handle);
    }
    check(code);
  }

  static int current_device() {
    int device = 0;
    check(trDeviceCurrent(&device));
    return device;
  }

  static bool has_devices() {
    int count = 0;
    return trDeviceCount(&count) == trSuccess && count > 0;
  }

  bool by_dlpack() {
    if (!nb::hasattr(object_, "__dlpack__") || !nb::hasattr(object_, "__dlpack_device__")) return false;
    const nb::object device = object_.attr("__dlpack_device__")();
    const int kind = nb::cast<int>(nb::int_(device[0]));
    const bool host = kind == dlpack::kCpu || kind == dlpack::kCudaHost;
    if (!host && kind != dlpack::kCuda && kind != dlpack::kCudaManaged)
      refuse(call_, std::string(argument_) + " is on device " + std::to_string(kind) +
                        " (a number of DLPack); memory of the host (1) or of a CUDA GPU (2) is wanted");
    view_.keeper_ = capsule_of(host);
    // The capsule's producer has put what it still does before the default stream, on which nothing here waits.
    if (!host) wait_for_producer(0, nb::cast<int>(nb::int_(device[1])));
    PyObject* capsule = view_.keeper_.ptr();
    if (PyCapsule_IsValid(capsule, "dltensor_versioned") != 0) {
      auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
      by_tensor(managed->tensor, (managed->flags & dlpack::kReadOnly) == 0);
      return true;
    }
    auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    if (managed == nullptr) throw nb::python_error();
    by_tensor(managed->tensor, true);
    return true;
  }

  // The capsule is kept, not consumed: it is valid as long as it lives.
  nb::object capsule_of(bool host) {
    const nb::object make = object_.attr("__dlpack__");
    nb::dict arguments;
    // Work of a GPU's producer is ordered before the default stream (1).
    if (!host) arguments["stream"] = 1;
    arguments["max_version"] = nb::make_tuple(1, 1);
    try {
      return make(**arguments);
    } catch (nb::python_error& error) {
      // Older producers have no max_version.
      if (!error.matches(PyExc_TypeError)) throw;
    }
    nb::del(arguments["max_version"]);
    return make(**arguments);
  }

  void by_tensor(const dlpack::Tensor& tensor, bool writable) {
    const DataType* type = type_of_dlpack(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes);
    if (type == nullptr) refuse_dtype(nb::cast<std::string>(nb::str(nb::getattr(object_, "dtype", nb::none()))));
    std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.ndim);
    if (tensor.strides != nullptr && !is_contiguous(shape, tensor.strides, 1))
      refuse_strides(std::vector<int64_t>(tensor.strides, tensor.strides + tensor.ndim), "elements");
    set(static_cast<char*>(tensor.data) + tensor.byte_offset, type, std::move(shape), writable);
  }

  static std::vector<int64_t> integers(nb::handle sequence) {
    std::vector<int64_t> values;
    for (nb::handle value : sequence) values.push_back(nb::cast<int64_t>(nb::int_(value)));
    return values;
  }

  void set(void* data, const DataType* type, std::vector<int64_t> shape, bool writable) {
    view_.data_ = data;
    view_.type_ = type->type;
    view_.count_ = elements_of(shape);
    view_.shape_ = std::move(shape);
    view_.writable_ = writable;
  }

  [[noreturn]] void refuse_format(const Py_buffer& buffer) {
    const nb::object dtype = nb::getattr(object_, "dtype", nb::none());
    if (!dtype.is_none()) refuse_dtype(nb::cast<std::string>(nb::str(dtype)));
    refuse_dtype(std::string("'") + (buffer.format == nullptr ? "" : buffer.format) + "' (a format of buffers)");
  }

  [[noreturn]] void refuse_dtype(const std::string& came) {
    refuse_type(call_, std::string(argument_) + " has dtype " + came + "; one of " + names_of_types() + " is wanted");
  }

  [[noreturn]] void refuse_strides(const std::vector<int64_t>& strides, const char* unit) {
    refuse(call_, std::string(argument_) + " has strides " + text_of_shape(strides) + " (" + unit +
                      "); a C-contiguous array is wanted, as numpy.ascontiguousarray() gives");
  }

  nb::handle object_;
  Access access_;
  const char* call_;
  const char* argument_;
  View view_;
};

View& View::operator=(View&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = other.data_;
  count_ = other.count_;
  type_ = other.type_;
  writable_ = other.writable_;
  shape_ = std::move(other.shape_);
  keeper_ = std::move(other.keeper_);
  has_buffer_ = std::exchange(other.has_buffer_, false);
  // Py_buffer::shape may point into the structure itself, as bytes have it: it is not looked at after a move.
  if (has_buffer_) buffer_ = other.buffer_;
  return *this;
}

void View::release() {
  if (std::exchange(has_buffer_, false)) PyBuffer_Release(&buffer_);
  keeper_.reset();
}

size_t View::row() const {
  size_t elements = 1;
  for (size_t i = 1; i < shape_.size(); ++i) elements *= static_cast<size_t>(shape_[i]);
  return elements;
}

std::string View::text() const { return data_type(type_).name + " of shape " + text_of_shape(shape_); }

View view_of(nb::handle object, Access access, const char* call, const char* argument) {
  return Reader(object, access, call, argument).read();
}

bool is_plain_numpy(nb::handle array) { return std::string_view(Py_TYPE(array.ptr())->tp_name) == "numpy.ndarray"; }

nb::object new_array(nb::handle like, trDataType_t type, const std::vector<int64_t>& shape) {
  nb::object extents = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (size_t i = 0; i < shape.size(); ++i)
    PyTuple_SET_ITEM(extents.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  // The most frequent ones by themselves: the calls of small arrays take as long as this.
  if (is_plain_numpy(like)) return nb::handle(numpy_empty())(extents, like.attr("dtype"));
  return python_function("treering._arrays", "empty")(like, extents, data_type(type).name);
}

nb::object finished_array(nb::handle made, nb::handle like) {
  if (is_plain_numpy(made) && is_plain_numpy(like)) return nb::borrow(made);
  return python_function("treering._arrays", "finished")(made, like);
}

std::string text_of_shape(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace treering::python

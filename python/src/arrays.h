// SPDX-License-Identifier: Apache-2.0
// Memory of arrays: anything with the buffer protocol, DLPack or __cuda_array_interface__.
//
//   object --- view_of() ---> View: address, elements, type, shape      (the object cannot let go of it meanwhile)
//
// A view is of C-contiguous memory. It keeps what the protocol wants kept: a buffer until it is released, else the
// capsule or the object. Made, moved and destroyed with the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "types.h"

namespace treering::python {

namespace nb = nanobind;

class View {
 public:
  View() = default;
  View(View&& other) noexcept { *this = std::move(other); }
  View& operator=(View&& other) noexcept;
  ~View() { release(); }

  void* data() const { return data_; }
  // Elements.
  size_t count() const { return count_; }
  trDataType_t type() const { return type_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  bool writable() const { return writable_; }
  // The length of the first axis; 1 for an array without axes.
  size_t rows() const { return shape_.empty() ? 1 : static_cast<size_t>(shape_[0]); }
  // Elements of a row.
  size_t row() const;
  // "float32 of shape (3, 4)"
  std::string text() const;
  // Drops what it holds; for types that the garbage collector looks through.
  void release();

 private:
  friend class Reader;
  void* data_ = nullptr;
  size_t count_ = 0;
  trDataType_t type_ = trUint8;
  bool writable_ = false;
  std::vector<int64_t> shape_;
  Py_buffer buffer_{};
  bool has_buffer_ = false;
  nb::object keeper_;
};

enum class Access { kRead, kWrite };

// The memory of `object`, or an error that says which argument of which call it was, what came and what is wanted.
View view_of(nb::handle object, Access access, const char* call, const char* argument);

// An array of the library and on the device that `like` is of, with its type, which is `type`, and `shape`. Where `like` is of no array
// library that this package knows, a NumPy array.
nb::object new_array(nb::handle like, trDataType_t type, const std::vector<int64_t>& shape);
// What the caller gets for an array that new_array() made: for libraries whose arrays cannot be written, a copy.
nb::object finished_array(nb::handle made, nb::handle like);

std::string text_of_shape(const std::vector<int64_t>& shape);

}  // namespace treering::python

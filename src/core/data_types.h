// SPDX-License-Identifier: Apache-2.0
// The data types, one row each. kDataTypes (core/types.h), the dispatch of the host's kernels (executor/reduce), the
// device's kernels (device/kernels.h), the list of those that nvcc compiles (device/cuda/meson.build) and
// trGetDataTypeInfo() follow from it.
//
//   family(enumerator, kernels, name, storage, bits, representation)
//
//   family           integer, floating, complex or truth: which operations it takes and which kernels
//   enumerator       of trDataType_t; rows stand in its order
//   kernels          what the device's kernels are called after; truth values have those of uint8
//   name             in messages and in the tools
//   storage          an element in memory, for its size
//   bits             significant ones: of integers without the sign, of floats with the hidden bit
//   representation   how an element is loaded, held and stored: a Type of executor/reduce/reduce_types-inl.h and a Number of
//                    device/numbers.h, by the same name; of complex numbers a Number alone
//   part             complex alone: the enumerator of the real and the imaginary part, which storage is an array of
//
// A row is one line, because Meson reads the file.
#pragma once

// clang-format off
#define TR_DATA_TYPES(integer, floating, complex, truth)                                                    \
  integer (trInt8,       int8,       "int8",       int8_t,    7,  Plain<int8_t>)                            \
  integer (trUint8,      uint8,      "uint8",      uint8_t,   8,  Plain<uint8_t>)                           \
  integer (trInt32,      int32,      "int32",      int32_t,   31, Plain<int32_t>)                           \
  integer (trUint32,     uint32,     "uint32",     uint32_t,  32, Plain<uint32_t>)                          \
  integer (trInt64,      int64,      "int64",      int64_t,   63, Plain<int64_t>)                           \
  integer (trUint64,     uint64,     "uint64",     uint64_t,  64, Plain<uint64_t>)                          \
  floating(trFloat16,    float16,    "half",       uint16_t,  11, Float16)                                  \
  floating(trFloat32,    float32,    "float",      float,     24, Plain<float>)                             \
  floating(trFloat64,    float64,    "double",     double,    53, Plain<double>)                            \
  floating(trBfloat16,   bfloat16,   "bfloat16",   uint16_t,  8,  Bfloat16)                                 \
  floating(trFloat8e4m3, float8e4m3, "f8e4m3",     uint8_t,   4,  Float8e4m3)                               \
  floating(trFloat8e5m2, float8e5m2, "f8e5m2",     uint8_t,   3,  Float8e5m2)                               \
  complex (trComplex64,  complex64,  "complex64",  float[2],  24, Plain<Complex<float>>,  trFloat32)        \
  complex (trComplex128, complex128, "complex128", double[2], 53, Plain<Complex<double>>, trFloat64)        \
  truth   (trBool,       uint8,      "bool",       uint8_t,   1,  Plain<uint8_t>)                           \
  /* here the next one */
// clang-format on

// For the families that a use of the table leaves out.
#define TR_NO_ROW(...)

# SPDX-License-Identifier: Apache-2.0
"""Arrays of the libraries that a program uses: made like another one, and named by dtype.

No array library is imported here but NumPy, and that one when it is needed: an array of another library is there only
when the program has imported it.
"""
import sys

_numpy = None


def numpy():
    global _numpy
    if _numpy is None:
        import numpy as module

        _numpy = module
    return _numpy


def _library(array):
    """The name of the array library that the object is of."""
    return type(array).__module__.partition(".")[0]


def numpy_dtype(name):
    """NumPy's dtype of that name; ml_dtypes has those that NumPy lacks."""
    try:
        return numpy().dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"NumPy has no dtype {name}; the package ml_dtypes adds it") from None
        return numpy().dtype(getattr(ml_dtypes, name))


def empty(like, shape, dtype):
    """An array with undefined contents, of `like`'s library and on its device; else a NumPy array."""
    library = _library(like)
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if library == "cupy":
        return sys.modules["cupy"].empty(shape, dtype=dtype)
    if library == "numpy":
        return _numpy_empty(like, shape, dtype)
    return numpy().empty(shape, dtype=numpy_dtype(dtype))


def _numpy_empty(like, shape, dtype):
    own = like.dtype
    return numpy().empty(shape, dtype=own if own.name == dtype else numpy_dtype(dtype))


def finished(made, like):
    """What the caller gets: arrays of JAX are made from what was filled, for they cannot be written."""
    if _library(like) in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy.asarray(made)
    return made


def name_of_dtype(dtype):
    """ "float32" of "float32", numpy.float32, numpy.dtype("float32"), torch.float32; None where it is no dtype."""
    if isinstance(dtype, str):
        return dtype
    text = str(dtype)
    if text.startswith("torch."):
        return text.partition(".")[2]
    try:
        return numpy().dtype(dtype).name
    except TypeError:
        return None


def element(value, dtype):
    """One element, for operations with a factor."""
    return numpy().asarray(value, dtype=numpy_dtype(dtype)).reshape(1)


def apply(function, lower, inout, dtype):
    """inout = function(lower, inout), for memory of the library."""
    kind = numpy_dtype(dtype)
    result = numpy().frombuffer(inout, dtype=kind)
    result[...] = function(numpy().frombuffer(lower, dtype=kind), result.copy())

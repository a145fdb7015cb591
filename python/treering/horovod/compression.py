# SPDX-License-Identifier: Apache-2.0
"""How gradients travel: as they are, or as fp16."""
import torch


class NoneCompressor:
    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        return tensor


class FP16Compressor:
    @staticmethod
    def compress(tensor):
        if not tensor.is_floating_point() or tensor.dtype.itemsize <= 2:
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor, context):
        return tensor if context is None else tensor.to(context)


class Compression:
    """Either has compress(tensor), which gives the tensor that travels and a context, and decompress(tensor, context)."""

    none = NoneCompressor
    fp16 = FP16Compressor

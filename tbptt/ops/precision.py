"""Products of float32 matrices on bfloat16 units, where a CPU has them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def bfloat16_products(wanted: bool) -> Iterator[None]:
    """Inside, float32 products on the CPU round their factors to bfloat16 and add up in float32.

    oneDNN does it on the way (AMX or AVX-512-bf16), so no converted copy of a matrix exists, and results stay float32.
    On a CPU without such units torch ignores the wish, and products are float32.
    """
    if not wanted:
        yield
        return
    matmul = torch.backends.mkldnn.matmul if hasattr(torch.backends.mkldnn, "matmul") else None
    if matmul is not None:
        before = matmul.fp32_precision
        matmul.fp32_precision = "bf16"
        try:
            yield
        finally:
            matmul.fp32_precision = before
        return
    # torch before 2.9 has one switch for all.
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

"""Use a device: its memory, threads and randomness, and numbers on it."""

import functools
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from epsilometer.errors import InvalidArgument, OutOfMemory
from epsilometer.networks.trainer import Precision
from epsilometer.sampling.samplers import WithoutReplacement

_CACHED = 20e6  # bytes that are quickest on a core, measured: 16 models of an MLP of 22,532 weights
_LEAST_CPU, _MOST_CPU, _MOST_GPU = 8, 256, 8192
MANY_ROWS = 64  # from which a copy of the weights is a small part of a product with them
_KEPT = 31 << 20  # bytes; glibc learns nothing from more than 32 MiB
_SHARE = 0.6  # of the free memory that is counted on
_ON_CPU = SimpleNamespace(fp32_precision="ieee")  # of a torch that cannot be asked


def choose_at_once(training: Any, features: ArrayLike, labels: ArrayLike) -> int:
    """Return how many runs to train at once on the device of ``training``.

    On a GPU, memory is measured with a few models, and as many as fit are fastest; on a CPU, as
    many as fit into its cache.
    """
    if training.device == "cpu":
        each = _on_cpu(training, features, labels)
        wanted = int(min(max(_CACHED / each, _LEAST_CPU), _MOST_CPU))
        free = _free_on_cpu()
    else:
        wanted = _MOST_GPU
        each = _on_gpu(training, features, labels)
        free = torch.cuda.mem_get_info(training.device)[0] + torch.cuda.memory_reserved()
    fit = int(min(_SHARE * free / each, wanted))
    if fit < 1:
        raise OutOfMemory(
            f"Expected one model to fit into {_SHARE * free / 2**30:.2g} GiB of {training.device} "
            f"memory, it takes {each / 2**30:.2g}. Give a smaller batch_size."
        )
    return fit


def _free_on_cpu() -> float:
    """Return the available bytes, including those of the page cache."""
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # not on every system
        return math.inf


def _on_cpu(training: Any, features: ArrayLike, labels: ArrayLike) -> float:
    """Return bytes of one model: outputs forwards and back, patches, weights and noise.

    And the copies of weights, with their gradients, that unknown layers need for every example.
    """
    copied = training.check(features, labels).copied
    example = as_tensor(np.asarray(features)[:1], "cpu")
    sizes = [
        sum(p.numel() for p in training.module.parameters()) * 6,
        example.numel() * 2,
        copied * 2,
    ]

    def seen(module: nn.Module, given: tuple[object, ...], gave: object) -> None:
        inputs = [part for part in given if isinstance(part, torch.Tensor)]
        if isinstance(gave, torch.Tensor) and not any(
            part.data_ptr() == gave.data_ptr() for part in inputs
        ):
            patch = np.prod(module.kernel_size) if isinstance(module, nn.Conv2d) else 1
            sizes.append(int(3 * gave.numel() * patch))

    leaves = [part for part in training.module.modules() if not list(part.children())]
    handles = [part.register_forward_hook(seen) for part in leaves]
    # Dropout may draw; training itself will tell what is wrong.
    with torch.no_grad(), torch.random.fork_rng([]), suppress(Exception):
        training.module(example)
    for handle in handles:
        handle.remove()
    parameters, *activations = sizes
    return float(4 * (parameters + training.batch_size * sum(activations)))


def _on_gpu(training: Any, features: ArrayLike, labels: ArrayLike) -> float:
    """Return bytes per further model; the first run is for what libraries allocate."""
    peaks = []
    for runs in (10, 2, 10):
        torch.cuda.reset_peak_memory_stats(training.device)
        few = replace(training, runs=runs, epochs=1, sampler=WithoutReplacement(steps=1))
        few.train(features, labels, rng=np.random.default_rng(0))
        peaks.append(torch.cuda.max_memory_allocated(training.device))
    return float(max((peaks[2] - peaks[1]) / 8, 2**16))


@contextmanager
def explain_full(device: str) -> Iterator[None]:
    """Turn a device's out-of-memory error into one sentence with advice.

    It also suppresses vmap's warnings about layers without a rule: they are slow, but correct.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            yield
    except (MemoryError, RuntimeError) as error:
        if not is_full(error):
            raise
        raise OutOfMemory(
            f"Expected the runs to fit into the memory of {device}, they do not. "
            "Train fewer at once: give a smaller at_once (or runs), or a smaller batch_size."
        ) from error


@contextmanager
def own_randomness(device: str, rng: np.random.Generator) -> Iterator[None]:
    """Seed torch's global generators, of which dropout draws, and restore them afterwards."""
    devices = [torch.device(device)] if device != "cpu" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(rng.integers(2**63)))
        yield


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """Take one thread on the CPU: processes share the work, and sums have one order.

    And let malloc keep what one step frees for the next: new pages cost more than what is written.
    """
    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
        torch.empty(_KEPT, dtype=torch.uint8)  # glibc keeps twice the most that it saw freed
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_numbers(values: ArrayLike) -> NDArray[Any]:
    """Return a numeric array, not copied if it is one already; refuse other types."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument(f"Expected numbers, got an array of {array.dtype}.")
    return array


def as_tensor(values: ArrayLike, device: str) -> Tensor:
    """Return numbers on a device: floats in single precision, all others as 64-bit integers."""
    if isinstance(values, Tensor):
        tensor = values.to(device)
    else:
        array = as_numbers(values)
        wide = np.float32 if array.dtype.kind == "f" else np.int64
        with np.errstate(over="ignore"):  # what is too large becomes inf, and is found as such
            copied = array.astype(wide)  # which may be written to
        tensor = torch.from_numpy(copied).to(device)
    return tensor.float() if tensor.is_floating_point() else tensor.long()


@contextmanager
def use_precision(precision: Precision, *, rows: int = 0) -> Iterator[None]:
    """Round factors on a GPU to TF32 or not at all, whatever was set; sum in one order.

    On a CPU nothing is rounded, and products of many rows per model are oneDNN's where it is known
    to keep that: it copies weights first.
    """
    cudnn: Any = torch.backends.cudnn
    products: Any = torch.backends.cuda.matmul
    on_cpu: Any = getattr(torch.backends.mkldnn, "matmul", _ON_CPU)
    before = cudnn.allow_tf32, cudnn.deterministic, products.allow_tf32
    allowed = on_cpu.fp32_precision
    cudnn.allow_tf32 = products.allow_tf32 = precision == "tf32"
    cudnn.deterministic = True
    on_cpu.fp32_precision = "bf16" if rows >= MANY_ROWS and _rounds_nothing() else "ieee"
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.deterministic, products.allow_tf32 = before
        on_cpu.fp32_precision = allowed


@functools.cache
def _rounds_nothing() -> bool:
    """Tell whether oneDNN keeps all bits of factors even where it may round them to bfloat16.

    Only then does torch ask it for products in single precision. It rounds for AMX alone; its
    AVX-512 is twice as quick as MKL on CPUs of AMD.
    """
    capable: Any = getattr(torch.cpu, "get_capabilities", dict)()
    on_cpu: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if on_cpu is None or not capable.get("avx512_f") or capable.get("amx_tile", True):
        return False
    factor = 1 + torch.rand(256, 256, generator=torch.Generator().manual_seed(0))
    before, on_cpu.fp32_precision = on_cpu.fp32_precision, "bf16"
    product = factor @ factor
    on_cpu.fp32_precision = before
    return torch.allclose(product.double(), factor.double() @ factor.double(), rtol=1e-5, atol=0)


def is_full(error: Exception) -> bool:
    """Tell whether an error means out of memory; in torch only GPUs have a type for that."""
    said = ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in said)
    )

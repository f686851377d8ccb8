"""A device that this machine does not have: its tensors are computed on the CPU, by a GPU's rules.

    with PretendedDevice() as device:
        federation = Federation(method, data, device=device.name)
        federation.run_round()

A tensor on the device holds an ordinary one, so a run computes real numbers; torch sees a device
`meta` and takes no path that is for CPUs. As on a GPU, the device's tensors do not meet those of
the CPU in one operation (but for single numbers and indices), are no NumPy arrays, and do not use a
CPU's generator. The device also notes each operation for which a GPU would have to wait.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten

ACROSS = {aten.copy_.default, aten._to_copy.default}
"""Operations between devices."""

INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default,
            aten._unsafe_index.Tensor, aten._index_put_impl_.default}  # fmt: skip
"""Operations on a GPU whose indices may be on the CPU."""

PACKAGES = ("stforecast", "vision")


class OnDevice(Tensor):
    """A tensor on the pretended device.

    Args:
        held: the same tensor on the CPU.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        return Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device="meta"
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, numbers: Any) -> Tensor:
        return self.held.new_tensor(numbers).to(self.device)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} on the device after it was left")


class _Constants(TorchFunctionMode):
    """Makes tensors of given numbers, for which torch leaves out the numbers on `meta`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        made = func in (torch.tensor, torch.as_tensor)
        if made and str(kwargs.get("device")) == PretendedDevice.name:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


class PretendedDevice(TorchDispatchMode):
    """The device, within a context of this thread.

    Attributes:
        name: name for torch.
        waits: operation and line of code of each operation that waits for the device.
    """

    name = "meta"

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._constants = _Constants()

    def __enter__(self) -> PretendedDevice:
        self._constants.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._constants.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        ours = any(isinstance(v, OnDevice) for v in given)
        to = kwargs.get("device")
        there = ours if to is None else torch.device(to).type == self.name
        if not ours and not there:
            return func(*args, **kwargs)
        if ours:
            _refuse_two_devices(func, args, given)
        if any(isinstance(v, torch.Generator) for v in given):
            raise RuntimeError(f"{func} draws on the device with a generator of the CPU")
        if ours and (not there or _waits(func, args)):
            self.waits.append(f"{func} in {_place()}")
        if to is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        held, held_kwargs = tree_map(_held, (args, kwargs))
        if func is aten._to_copy.default and ours != there:  # On one device no copy is needed.
            held = (held[0].clone(), *held[1:])
        out = func(*held, **held_kwargs)
        if not there:
            return out
        wrapped = tree_map(lambda v: OnDevice(v) if isinstance(v, Tensor) else v, out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if ours else wrapped


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _refuse_two_devices(func: Any, args: Any, given: list[Any]) -> None:
    """Raise a RuntimeError if an operation mixes devices as a GPU could not."""
    if func in ACROSS or (func in INDEXING and isinstance(args[0], OnDevice)):
        return
    for t in given:
        if isinstance(t, Tensor) and not isinstance(t, OnDevice) and t.ndim:
            raise RuntimeError(f"{func} of tensors on the device and a {tuple(t.shape)} on the CPU")


def _waits(func: Any, args: Any) -> bool:
    """Return whether a GPU's result, or its shape, is needed before the program can go on."""
    if func in INDEXING:
        return any(isinstance(t, Tensor) and t.dtype == torch.bool for t in tree_leaves(args[1]))
    if func in ACROSS:
        return not isinstance(args[0], OnDevice)
    return func is aten._local_scalar_dense.default or torch.Tag.dynamic_output_shape in func.tags


def _place() -> str:
    """Return the line of the project's code that is running."""
    frames = [f for f in traceback.extract_stack() if set(PACKAGES) & set(Path(f.filename).parts)]
    # A clone may be called stforecast, and have its environment inside.
    others = {"tests", "site-packages"}
    frame = next((f for f in reversed(frames) if not others & set(Path(f.filename).parts)), None)
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.line}" if frame else "a test"

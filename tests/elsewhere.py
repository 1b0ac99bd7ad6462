"""A second device that computes, where no GPU is at hand.

PyTorch lets a program register a device of its own. The numbers of this one lie in the processor's memory,
so that results and random numbers are the processor's, to the bit. But it is another device: operations on
tensors of both are refused, and so are `.numpy()` and the processor's generators, as on a GPU. Registering
changes the whole process, so it belongs in one of its own.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "elsewhere"
BETWEEN = ("_to_copy", "copy_")  # take tensors of both devices; these take indices of the processor:
KEPT: list[torch.library.Library] = []
# What autocast computes in half precision on a GPU, and what in float32.
SMALLER = "linear matmul mm bmm addmm baddbmm scaled_dot_product_attention"
LARGER = "log_softmax.int softmax.int cross_entropy_loss nll_loss layer_norm norm.Scalar"
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")


class Backend(_DummyBackendModule):
    """What `torch` asks of a device's module; it draws from the processor's generator."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        pass

    manual_seed_all = manual_seed


class There(Tensor):
    """A tensor of the other device; `held` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        place: dict[str, Any] = {"dtype": held.dtype, "device": f"{NAME}:0"}
        sizes = held.size(), held.stride(), held.storage_offset()
        return Tensor._make_wrapper_subclass(cls, *sizes, **place)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __tensor_flatten__(self) -> tuple[list[str], None]:  # `Module.to` asks for these two
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> There:
        return There(inner["held"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        return There, (self.held,)

    def __format__(self, form: str) -> str:
        return format(self.cpu(), form)

    def __repr__(self) -> str:  # type: ignore
        return f"{self.cpu()!r} {NAME}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new: Any = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            new = torch.nn.Parameter(new, self.requires_grad)
        new.grad = None if self.grad is None else self.grad.clone()
        memo[id(self)] = new
        return new

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute here what was asked for there, unless it mixes the two."""
    name = func.overloadpacket.__name__
    given, form = tree_flatten((args, kwargs))
    there = {id(x.held): x for x in given if isinstance(x, There)}
    here = [x for x in given if isinstance(x, Tensor) and not isinstance(x, There) and x.dim()]
    between = name in BETWEEN or (name in INDEXED and isinstance(args[0], There))
    if there and here and not between:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} was given two")
    asked = kwargs.get("device")
    goes = bool(there) if asked is None else torch.device(asked).type == NAME
    if goes and kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a {NAME!r} device type for generator but found 'cpu'")
    args, kwargs = tree_unflatten([x.held if isinstance(x, There) else x for x in given], form)
    found = func(*args, **kwargs | ({} if asked is None else {"device": "cpu"}))

    def sent(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return there[id(x)] if id(x) in there else There(x)  # the first where it changed in place

    return tree_map(sent, found) if goes else found


class Factories(TorchDispatchMode):
    """Makes tensors there of arguments that aren't."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def casting(name: str, dtype: torch.dtype | None) -> Any:
    """An operation whose floating-point arguments autocast brings to a type, or to its own."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    own = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore

    def kernel(*args: Any, **options: Any) -> Any:
        def cast(x: Any) -> Any:
            floating = isinstance(x, Tensor) and x.is_floating_point()
            return x.to(dtype or torch.get_autocast_dtype(NAME)) if floating else x

        with torch._C._ExcludeDispatchKeyGuard(own):
            return op(*map(cast, args), **{key: cast(value) for key, value in options.items()})

    return kernel


def enter() -> torch.device:
    """Register the device, and make it the `best_device` of this process."""
    importlib.import_module("transformer.__main__")  # and with it what uses `best_device`
    _setup_privateuseone_for_python_backend(NAME, Backend())
    torch.serialization.add_safe_globals([There])
    KEPT.append(torch.library.Library("_", "IMPL", "AutocastPrivateUse1"))
    KEPT[0].fallback(torch.library.fallthrough_kernel)  # autocast leaves the others' types as they are
    KEPT.append(torch.library.Library("aten", "IMPL", "AutocastPrivateUse1"))
    for names, dtype in ((SMALLER, None), (LARGER, torch.float32)):
        for name in names.split():
            KEPT[1].impl(name, casting(name, dtype))
    Factories().__enter__()
    device, made = torch.device(NAME, 0), torch.tensor

    def tensor(data: Any, *, device: Any = "cpu", **options: Any) -> Tensor:
        return made(data, **options).to(device)  # made there it would pass by all of the above

    torch.tensor = tensor  # type: ignore
    for name, module in list(sys.modules.items()):
        if name.startswith("transformer") and hasattr(module, "best_device"):
            module.best_device = lambda dtype=torch.float32: device  # type: ignore
    return device

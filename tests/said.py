"""Tensors that lie on the CPU and say that they are on an accelerator, so that its mistakes show without one.

    with Saying("cuda") as said: ...      # device="cuda" is there now
    said.waits                            # what would have made the host wait for the device, by name

A tensor of that device is a wrapper around one of the CPU. It fails where two devices meet, where a random draw is by
a generator of another device, and where an operation has a dtype that the device lacks (MPS has no float64); and it
counts what waits: values that come to the host, and shapes that depend on them.

PyTorch's fake tensors raise for mixed devices, too, but hold no values, so that nothing that depends on data can be
followed; a private backend needs compiled code. The device is said to Python alone: autograd asks C++, which would look
for the device's stream.
"""

from collections import Counter
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

ATEN = torch.ops.aten
# scalars, shapes that depend on values, and solvers that look whether they could
WAITING = (ATEN._local_scalar_dense, ATEN.equal, ATEN.nonzero, ATEN.masked_select, ATEN._unique2, ATEN.unique_dim)
WAITING += (ATEN.bincount, ATEN.repeat_interleave, ATEN._linalg_check_errors, ATEN._linalg_eigh, ATEN._linalg_svd)
MOVING = (ATEN._to_copy, ATEN.copy_)
BY_INDEX = (ATEN.index, ATEN.index_put, ATEN.index_put_)
INSIDE = ("one_hot",)  # makes a tensor where C++ says that its argument is
TO_HOST = ("tolist", "numpy", "item", "__array__", "__bool__", "__float__", "__int__", "__index__", "cpu")


class DeviceError(Exception):
    """What a device would refuse."""


class Said(torch.Tensor):
    """A tensor of the device that `Saying` is about."""

    saying: "Saying"

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner):
        self.inner = inner

    device = property(lambda self: Said.saying.device)
    is_cuda = property(lambda self: Said.saying.device.type == "cuda")
    is_cpu = property(lambda self: False)

    def __repr__(self):
        return f"said to be on {self.device}: {self.inner!r}"

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), type(self)(self.inner.clone()).requires_grad_(self.requires_grad))

    def untyped_storage(self):
        return self.inner.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return Said.saying.run(func, args, kwargs or {})


class _Up(torch.autograd.Function):
    """From the host to the device."""

    @staticmethod
    def forward(ctx, tensor):
        return Said(tensor.detach().clone())

    @staticmethod
    def backward(ctx, gradient):
        return gradient.inner


class _Down(torch.autograd.Function):
    """From the device to the host."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.inner.detach().clone()

    @staticmethod
    def backward(ctx, gradient):
        return Said(gradient)


class Saying(TorchFunctionMode):
    """Inside, there is one such device, and tensors are made on it and moved to it.

    Attributes:
        waits: name -> how often something of that name made the host wait.
    """

    def __init__(self, kind="cuda", lacking=()):
        super().__init__()
        self.device, self.lacking, self.waits = torch.device(kind, 0), lacking, Counter()

    def __enter__(self):
        Said.saying = self
        there = {"is_available": True, "device_count": 1}
        backend = getattr(torch, self.device.type)
        self._patches = [patch.object(backend, name, lambda answer=answer: answer) for name, answer in there.items()]
        # optimisers ask the device whether a graph is being captured
        checks = [name for name in vars(torch.optim.Optimizer) if name.endswith("graph_capture_health_check")]
        self._patches += [patch.object(torch.optim.Optimizer, name, lambda self: None) for name in checks]
        for each in self._patches:
            each.start()
        # else `module.to` would leave each parameter what it is and change its data
        self._before = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return super().__enter__()

    def __exit__(self, *error):
        torch.__future__.set_overwrite_module_params_on_conversion(self._before)
        for each in self._patches:
            each.stop()
        return super().__exit__(*error)

    def named(self, value):
        """Whether a device's name, or a device, is this one."""
        return isinstance(value, (str, torch.device)) and torch.device(value).type == self.device.type

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        first = args[0] if args else None
        if name in TO_HOST and isinstance(first, Said):
            self.waits[name] += 1
            if name == "numpy":
                raise DeviceError("a tensor of the device became an array without `.cpu()`")
            plain = _Down.apply(first)
            return plain if name == "cpu" else func(plain.detach(), *args[1:], **kwargs)
        if name in INSIDE and isinstance(first, Said):
            return Said(func(first.inner, *args[1:], **kwargs))
        if name == "to" and isinstance(first, torch.Tensor):
            return self._moved(first, args[1:], kwargs)
        if name == self.device.type and isinstance(first, torch.Tensor):
            return self._moved(first, (self.device,), {})
        if isinstance(first, Said) and kwargs.get("device") is not None and not self.named(kwargs["device"]):
            # like one of the device, and made on the host: zeros_like, new_zeros
            return func(first.inner, *args[1:], **kwargs)
        if self.named(kwargs.get("device")):
            if (draw := kwargs.get("generator")) is not None and draw.device.type != self.device.type:
                raise DeviceError(f"{name} on {self.device} draws by a generator of {draw.device}")
            made = func(*args, **kwargs | {"device": "cpu"})
            self._refuse_lacking(name, [made])
            wanted = made.requires_grad
            return made if isinstance(made, Said) else Said(made.detach()).requires_grad_(wanted)
        return func(*args, **kwargs)

    def _moved(self, tensor, args, kwargs):
        values = [*args, *kwargs.values()]
        wanted = next((v for v in values if isinstance(v, (str, torch.device))), None)
        like = next((v for v in values if isinstance(v, torch.Tensor)), None)
        up = isinstance(like, Said) if like is not None else self.named(wanted)
        stays = wanted is None and like is None
        dtypes = [like.dtype] if like is not None else [v for v in values if isinstance(v, torch.dtype)]
        more = {
            name: value for name, value in kwargs.items() if name in ("copy", "memory_format") and value is not None
        }
        if not stays and up != isinstance(tensor, Said):
            if not up:
                self.waits["to"] += 1
                tensor = _Down.apply(tensor)
            else:
                # MPS converts on the host
                tensor = _Up.apply(tensor.to(*dtypes) if dtypes else tensor)
                self._refuse_lacking("to", [tensor])
        if isinstance(tensor, Said) and "memory_format" in more:
            # torch names the device that it sees, which is the host, where a layout alone is asked for
            tensor = tensor.clone(memory_format=more.pop("memory_format"))
        return tensor.to(*dtypes, **more) if dtypes or more else tensor

    def run(self, func, args, kwargs):
        """An operation with at least one tensor of the device."""
        packet, tensors = func.overloadpacket, []
        inner, named = self._inside(args, func, tensors), self._inside(kwargs, func, tensors)
        said = [each for each in tensors if isinstance(each, Said)]
        if packet in MOVING and len(tensors) == 2 and len(said) == 1:
            self.waits["copy_"] += tensors[0] is not said[0]
        elif any(each.dim() and not isinstance(each, Said) for each in tensors):
            raise DeviceError(f"{func}: tensors of the CPU and of {self.device} meet")
        masks = packet in BY_INDEX and any(each.dtype == torch.bool for each in args[1] if each is not None)
        if packet in WAITING or masks:
            self.waits[packet.__name__ if not masks else "mask"] += 1
        self._refuse_lacking(func, said)
        if packet in MOVING and not self.named(kwargs.get("device")) and kwargs.get("device") is not None:
            raise DeviceError(f"{func}: a copy to {kwargs['device']} that nobody asked for by name")
        named.pop("device", None)
        result = func(*inner, **named)
        host = packet is ATEN.copy_ and tensors[0] is not said[0]
        return result if host else self._outside(result, func, said)

    def _inside(self, value, func, tensors):
        """The same of what lies behind tensors of the device; `tensors` gets all that there are."""
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return value.inner if isinstance(value, Said) else value
        # by hand: PyTorch's own walk through a tree took most of the time
        if isinstance(value, (list, tuple)):
            return [self._inside(each, func, tensors) for each in value]
        if isinstance(value, dict):
            return {name: self._inside(each, func, tensors) for name, each in value.items()}
        if isinstance(value, torch.Generator) and value.device.type != self.device.type:
            raise DeviceError(f"{func} on {self.device} draws by a generator of {value.device}")
        return value

    def _outside(self, value, func, said):
        """What changed in place stays itself."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._outside(each, func, said) for each in value)
        if not isinstance(value, torch.Tensor):
            return value
        self._refuse_lacking(func, [value])
        for each in said:
            if each.inner is value:
                return each
        return Said(value)

    def _refuse_lacking(self, name, tensors):
        for each in tensors:
            if each.dtype in self.lacking:
                raise DeviceError(f"{name}: {self.device} has no {each.dtype}")

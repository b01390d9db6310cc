"""Torch's SGD, to the bit, without loading `torch.compile`.

Torch imports its compiler (900 modules, some two seconds) as soon as an optimiser is made, only to keep the compiler
away from it. A deployment starts a process a message, so every client would pay that in every round.
"""

from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import nn


class EagerSGD(torch.optim.SGD):
    """What a client trains with; not to be compiled.

    The methods are torch's own from below the decorators that import the compiler. What else those do is to keep the
    update out of the graph of gradients.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ):
        # a differentiable update would need the decorators
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))
    add_param_group = unwrap(torch.optim.SGD.add_param_group)
    zero_grad = unwrap(torch.optim.SGD.zero_grad)
    state_dict = unwrap(torch.optim.SGD.state_dict)
    load_state_dict = unwrap(torch.optim.SGD.load_state_dict)

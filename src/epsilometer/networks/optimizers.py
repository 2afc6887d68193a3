"""Optimize many models at once: one row per model, with the arithmetic of ``torch.optim``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from epsilometer import _validate
from epsilometer.errors import InvalidArgument

if TYPE_CHECKING:  # the settings serve other backends too, where torch is not installed
    import torch

State: TypeAlias = "list[torch.Tensor]"


class Optimizer(Protocol):
    """Move parameters against a gradient, both of shape ``(runs, size)``, in place.

    Example:
        >>> import torch
        >>> optimizer: Optimizer = SGD()
        >>> parameters, gradient = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]])
        >>> optimizer.step(parameters, gradient, optimizer.start(parameters), rate=0.5)
        >>> parameters
        tensor([[0.5000, 2.0000]])
    """

    def start(self, parameters: "torch.Tensor") -> State:
        """Return the initial optimizer state."""
        ...

    def step(
        self, parameters: "torch.Tensor", gradient: "torch.Tensor", state: State, *, rate: float
    ) -> None:
        """Take one step at a learning rate; may overwrite ``gradient``."""
        ...


@dataclass(frozen=True)
class SGD:
    """``torch.optim.SGD``: v ← momentum · v + g, then θ ← θ − rate · v.

    Attributes:
        momentum: Momentum of the velocity, which is the first gradient itself at the first step.
        weight_decay: Times the parameters, added to the gradient.

    Example:
        >>> import torch
        >>> parameters = torch.zeros(1, 2)
        >>> optimizer = SGD(momentum=0.9)
        >>> state = optimizer.start(parameters)
        >>> optimizer.step(parameters, torch.ones(1, 2), state, rate=0.5)
        >>> parameters
        tensor([[-0.5000, -0.5000]])
    """

    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _validate.at_least(0, momentum=self.momentum, weight_decay=self.weight_decay)

    def start(self, parameters: "torch.Tensor") -> State:
        """Return the initial velocity, if there is momentum."""
        return [parameters.new_zeros(parameters.shape)] if self.momentum else []

    def step(
        self, parameters: "torch.Tensor", gradient: "torch.Tensor", state: State, *, rate: float
    ) -> None:
        """Take one step, as of :class:`Optimizer`."""
        if self.weight_decay:
            gradient.add_(parameters, alpha=self.weight_decay)
        if self.momentum:
            gradient = state[0].mul_(self.momentum).add_(gradient)
        parameters.add_(gradient, alpha=-rate)


@dataclass(frozen=True)
class Adam:
    """``torch.optim.Adam``.

    Attributes:
        betas: Decay of the mean and of the mean square of gradients.
        epsilon: Constant added to the denominator; torch calls it ``eps``.
        weight_decay: Times the parameters, added to the gradient.

    Example:
        >>> import torch
        >>> parameters = torch.zeros(1, 2)
        >>> optimizer = Adam()
        >>> state = optimizer.start(parameters)
        >>> optimizer.step(parameters, torch.ones(1, 2), state, rate=0.5)
        >>> parameters
        tensor([[-0.5000, -0.5000]])
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _validate.at_least(0, weight_decay=self.weight_decay)
        _validate.positive(epsilon=self.epsilon)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidArgument(f"Expected betas in [0, 1), got {self.betas}.")

    def start(self, parameters: "torch.Tensor") -> State:
        """Return both means, and the number of steps."""
        import torch

        return [
            torch.zeros_like(parameters),
            torch.zeros_like(parameters),
            torch.zeros((), dtype=torch.int64),  # on the CPU: asking for it waits for nothing
        ]

    def step(
        self, parameters: "torch.Tensor", gradient: "torch.Tensor", state: State, *, rate: float
    ) -> None:
        """Take one step, as of :class:`Optimizer`."""
        mean, square, count = state
        first, second = self.betas
        count += 1
        if self.weight_decay:
            gradient.add_(parameters, alpha=self.weight_decay)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        corrected = 1 - second ** int(count)
        root = gradient.copy_(square).sqrt_().div_(corrected**0.5).add_(self.epsilon)
        parameters.addcdiv_(mean, root, value=-rate / (1 - first ** int(count)))

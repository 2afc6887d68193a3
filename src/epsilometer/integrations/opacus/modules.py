"""Watch which of the modules that process a batch mix its records."""

import weakref
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook

from epsilometer.core import judge
from epsilometer.core.findings import Check
from epsilometer.integrations.opacus.objects import call_weakly

NAME = "modules that mix records"
_EXPECTED = "no module mixes the records of a batch"


class ModuleWatch:
    """Watch the types of modules that are called until the first step is done.

    Normalisation over the batch makes the gradient of one record depend on others, and keeps
    running statistics that no noise hides. Losses and your own functions are not covered: replay
    finds what they mix.

    Args:
        parameters: Trainable parameters; their names are looked up in the called module.
    """

    def __init__(self, parameters: Any) -> None:
        self._parameters = list(parameters)
        self._seen: dict[int, str] = {}
        self._mixing: dict[str, None] = {}
        self._names: dict[int, str] = {}
        self._hook: Any = register_module_forward_pre_hook(call_weakly(self._look))
        weakref.finalize(self, self._hook.remove)

    def close(self) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def names(self) -> tuple[str, ...]:
        """Return the names of parameters in the module that holds most of them."""
        return tuple(
            self._names.get(id(each), f"parameter {place}")
            for place, each in enumerate(self._parameters)
        )

    def check(self) -> Check:
        """Return the observations so far."""
        count = None if not self._seen else float(len(self._mixing))
        return Check(
            name=NAME,
            outcome=judge.judge_limit(count, limit=0.0),
            expected=_EXPECTED,
            seen=", ".join(self._mixing)
            or (f"none among {len(self._seen)}" if self._seen else "no module was called"),
            value=count,
            detail="by the types of modules; replay finds what losses and functions mix",
            steps=1 if self._seen else 0,
        )

    def _look(self, module: Any, args: Any) -> None:
        if id(module) in self._seen:
            return
        self._seen[id(module)] = type(module).__name__
        mixes = isinstance(module, _BatchNorm) and (
            module.training or not module.track_running_stats
        )
        keeps = isinstance(module, _NormBase) and module.training and module.track_running_stats
        if mixes or keeps:
            self._mixing[type(module).__name__] = None
        if not self._names:
            wanted = {id(each) for each in self._parameters}
            found = {
                id(each): name.replace("_module.", "")
                for name, each in module.named_parameters()
                if id(each) in wanted
            }
            if len(found) > len(wanted) // 2:
                self._names = found

"""Audit a Keras model that JAX-Privacy made private, by watching its ``fit``.

JAX-Privacy makes the privatizer while Keras compiles the step. Meanwhile, and for this model only,
the factory is replaced by one whose privatizer is watched.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import optax
from jax_privacy import noise_addition
from msgspec.structs import replace

from epsilometer.conformance.books import Booked
from epsilometer.core import judge
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim, as_claim
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.engine.framework_audits import make_framework_audit
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.jax_privacy.books import BookedSampling
from epsilometer.integrations.jax_privacy.run_watch import SHARE, RunWatch
from epsilometer.integrations.jax_privacy.samplers import Recognised
from epsilometer.sampling.samplers import Poisson

_NONE = np.zeros(0)


def audited_keras(model: Any) -> "AuditedKeras":
    """Audit the training of a Keras model: one line after ``keras_api.make_private``.

    ``run = audited_keras(model)``, then ``model.fit`` as usual and ``run.result()``.

    Guarantee: at most 1 correct run in 1,000 is found violated. What ``fit`` computes is unchanged.
    Assumption: the model is trained by ``fit``, on one device.

    Args:
        model: Model from ``make_private``.
    """
    if not hasattr(model, "_dp_params"):
        raise InvalidArgument(
            "Expected a model that keras_api.make_private returned, got another: "
            f"{type(model).__name__}."
        )
    return AuditedKeras(model)


def read_keras_books(params: Any, noise_multiplier: float) -> list[Booked]:
    """Return the books of JAX-Privacy's accountant for a ``DPKerasConfig``.

    If the noise multiplier is given, 2.0.0 accounts for ``batch_size`` records per step; if it is
    calibrated, for the records of all accumulated batches.
    """
    given = params.noise_multiplier is not None
    size = params.batch_size if given else params.effective_batch_size
    return [(noise_multiplier, min(1.0, size / params.train_size), int(params.train_steps))]


class AuditedKeras:
    """Watch a Keras model; made by :func:`audited_keras`.

    Attributes:
        watch: What was seen so far.
    """

    def __init__(self, model: Any) -> None:
        params = model._dp_params
        noise = float(model.get_noise_multiplier())
        self._model, self._params, self._noise_multiplier = model, params, noise
        self._together = int(params.gradient_accumulation_steps)
        self._bare = ""  # how batches were drawn, if not by Poisson sampling
        self._waiting = 0
        self._before = self._count_steps()
        bound = (1.0 if params.rescale_to_unit_norm else params.clipping_norm) / params.batch_size
        rate = min(1.0, params.effective_batch_size / params.train_size)
        by_coin = bool(params.poisson_sampling_in_fit)
        self.watch = RunWatch(
            # Every batch of an update has its share of the noise.
            noise_multiplier=noise / self._together**0.5,
            unit=noise * bound / self._together**0.5,
            clip=bound,
            records=int(params.train_size),
            known=Recognised(
                sampler=Poisson(rate=rate) if by_coin and self._together == 1 else None,
                words="Poisson sampling in fit()" if by_coin else "what fit() was given",
                batch_size=int(params.batch_size),
                rate=rate / self._together,
            ),
            history=read_keras_books(params, noise),
            booked=BookedSampling(),
            noise=None,
            updates=(noise, rate, self._together),
        )
        model.train_step = self._wrap(model.train_step, self._patch_privatizer)
        model.fit = self._wrap(model.fit, self._patch_dataset)
        model.train_function = None  # compiled again, with the watch

    @property
    def conformance(self) -> ConformanceFinding:
        """Whether the run did what was accounted for, by what was seen so far."""
        return self._find()

    def result(
        self,
        *,
        delta: float | None = None,
        claim: Claim | float | None = None,
        confidence: float = 0.95,
    ) -> Audit:
        """Judge a claim by the measured noise; by default the claim of the configuration."""
        params = self._params
        given = as_claim(claim, delta=delta)
        if given is None:
            at = params.delta if delta is None else delta
            given = Claim(float(params.epsilon), at, sampler="Poisson", accountant="PLD")
        request = Request(claim=given, delta=given.delta, confidence=confidence)
        given = request.fill_claim(adjacency="add_remove", unit="record")
        spent = min(SHARE, (1 - confidence) / 2)
        jax.effects_barrier()
        bound = None
        if self.watch.steps and not self._bare:
            bound = self.watch.bound_epsilon(delta=request.known_delta, alpha=spent)
        found = self._find()
        return make_framework_audit(
            "jax_privacy",
            ("jax", "jax_privacy", "keras"),
            "audited_keras",
            subject=f"JAX-Privacy's Keras API, {self.watch.steps:,} steps, {self.watch.words}",
            findings=(replace(found, bound=bound),),
            caveats=("No canaries were planted: the claim is judged by conformance alone.",),
            supplied={"model": self._model},
            settings={},
            claim=given,
            delta=request.delta,
            confidence=confidence,
            seed=0,
        )

    def _find(self) -> ConformanceFinding:
        jax.effects_barrier()  # what was computed may not have left the device yet
        found = self.watch.finding()
        taken = self._count_steps() - self._before
        lost = max(0, taken - self.watch.steps)
        checks = [
            Check(
                name="steps with noise",
                outcome=judge.judge_limit(lost if taken else None, limit=0),
                expected="every step of the model adds noise by its privatizer",
                seen=f"{taken} steps taken, noise in {self.watch.steps}",
                value=float(lost),
                steps=taken,
            )
        ]
        if self._bare:
            checks.append(
                Check(
                    name="batches of fit",
                    outcome=judge.judge_limit(1.0, limit=0.0),
                    expected="records enter batches independently, as is accounted for",
                    seen=f"{self._bare}; DPKerasConfig(poisson_sampling_in_fit=True) samples them",
                    value=1.0,
                    steps=taken,
                )
            )
        return replace(found, checks=(*found.checks, *checks))

    def _count_steps(self) -> int:
        counts = [
            weight
            for weight in self._model.non_trainable_weights
            if "_optimizer_steps" in weight.name
        ]
        return int(np.asarray(counts[0].value)[0]) if counts else 0

    def _wrap(self, own: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def call(*args: Any, **kwargs: Any) -> Any:
            with around(*args, **kwargs):
                return own(*args, **kwargs)

        return call

    @contextmanager
    def _patch_privatizer(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Watch the privatizers that are made while a step is compiled."""
        own = noise_addition.gaussian_privatizer

        def make(*args: Any, **kwargs: Any) -> Any:
            privatizer = own(*args, **kwargs)

            def update(sums: Any, state: Any, params: Any = None) -> Any:
                noisy, state = privatizer.update(sums, state, params)
                residual = jax.tree.map(lambda a, b: a - b, noisy, sums)
                jax.debug.callback(self._see, residual, optax.global_norm(sums), ordered=True)
                return noisy, state

            return optax.GradientTransformation(privatizer.init, update)

        noise_addition.gaussian_privatizer = make
        try:
            yield
        finally:
            noise_addition.gaussian_privatizer = own

    @contextmanager
    def _patch_dataset(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Watch the batches that ``fit`` samples; note where it does not sample."""
        if not self._params.poisson_sampling_in_fit:
            x = args[0] if args else kwargs.get("x")
            if all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in jax.tree.leaves(x)):
                kept = kwargs.get("shuffle", True) is False
                self._bare = "fit() took arrays " + ("in their order" if kept else "shuffled")
            yield
            return
        from jax_privacy import keras_api  # it imports Keras, which may not be installed

        own, see = keras_api._PoissonSampledTrainingDataset, self.watch.see_batch
        made: list[Any] = []

        class Watched(own):  # type: ignore[valid-type, misc]
            """Wrap a dataset to record the batches that each epoch takes.

            Epochs are drawn ahead, and the last one is never used. Keras uses one batch of the
            first to build the model, and then draws another epoch.
            """

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self._taken: list[int] = []
                self._built = False
                super().__init__(*args, **kwargs)
                made.append(self)

            def __getitem__(self, index: int) -> Any:
                self._taken.append(index)
                return super().__getitem__(index)

            def on_epoch_end(self) -> None:
                self.show_taken()
                super().on_epoch_end()

            def show_taken(self) -> None:
                if len(self._taken) > 1 or self._built:
                    for index in dict.fromkeys(self._taken):
                        see(self._epoch_batches[index])
                self._built = self._built or bool(self._taken)
                self._taken = []

        keras_api._PoissonSampledTrainingDataset = Watched
        try:
            yield
        finally:
            keras_api._PoissonSampledTrainingDataset = own
            for dataset in made:
                dataset.show_taken()

    def _see(self, residual: Any, norm: Any) -> None:
        self.watch.see(residual, norm=norm, noise=_NONE, added=_NONE)

"""Audit a Hugging Face Trainer with a callback and no other change."""

# mypy: allow-subclassing-any

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from transformers import TrainerCallback

from epsilometer import _validate
from epsilometer._dispatch import audit as run_audit
from epsilometer._files import write_whole
from epsilometer.audits.text.canary_counts import BatchWatch, CanaryCounts, load_counts
from epsilometer.audits.text.causal_model import CausalModel
from epsilometer.audits.text.measuring import (
    MEASUREMENTS,
    Measured,
    load_measured,
    save_measured,
)
from epsilometer.audits.text.planting import PlantedTexts
from epsilometer.audits.text.subject import LanguageModel
from epsilometer.core.audit import Audit
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Claim, as_claim
from epsilometer.core.findings import Check, ConformanceFinding
from epsilometer.core.renderers import render
from epsilometer.errors import InvalidArgument
from epsilometer.integrations.huggingface.run_checks import RunChecks, unwrap_optimizer
from epsilometer.report.model_card import write_model_card

AUDIT, PAGE, CARD = "audit.json", "audit.html", "README.md"
_log = logging.getLogger(__name__)


class PrivacyAudit(TrainerCallback):
    """Audit your normal training run: ``Trainer(…, callbacks=[PrivacyAudit(planted, 8.0, …)])``.

    Before training it reports which claims the canaries can refute, and measures them on the model
    before training: the reference. During training it counts canaries in batches, and watches
    batches and books, or lets ``watch`` do so. At the end it measures the canaries again, and
    writes ``audit.json``, ``audit.html`` and a section of ``README.md`` into the output folder.

    Guarantees: weights, batches and random streams of training are unchanged. All bounds hold
        jointly at ``confidence``.
    Assumes: ``train_dataset`` is made from ``planted.dataset``, one record per text; every process
        plants with the same seed.

    Args:
        planted: The result of ``plant_texts``.
        claim: The claimed ε, or a ``Claim``; by default the accountant's ε at ``delta``.
        delta: δ; not needed with a ``Claim``.
        confidence: Confidence of all bounds together.
        scores: See ``LanguageModel``.
        watch: ``watch(optimizer, loader)`` starts watching the noise and clipping of the run: with
            Opacus ``lambda optimizer, loader: audited(engine, optimizer, loader)``.
        accountant: Object with ``history`` and ``get_epsilon``, as in Opacus. Its books are
            compared with the run; not needed with ``watch``.
        trained: See ``LanguageModel``: for a loss computed outside the model, as with label
            smoothing, or a model that was compiled before.
        tokenizer: Tokenizer, if the Trainer has none.
        batch_size: Number of canaries measured at once.
        card: Whether to write ``README.md``.
        seed: Seed for breaking ties.

    Attributes:
        audit: The audit, once training has ended; None before, and in other processes.
    """

    def __init__(
        self,
        planted: PlantedTexts,
        claim: Claim | float | None = None,
        *,
        delta: float | None = None,
        confidence: float = DEFAULT_CONFIDENCE,
        scores: Sequence[str] | None = None,
        watch: Callable[[Any, Any], Any] | None = None,
        accountant: Any = None,
        trained: bool = False,
        tokenizer: Any = None,
        batch_size: int = 128,
        card: bool = True,
        seed: int = 0,
    ) -> None:
        if not isinstance(planted, PlantedTexts):
            raise InvalidArgument(
                f"Expected what plant_texts returned, got {type(planted).__name__}."
            )
        _validate.open_unit(confidence=confidence)
        self._planted, self._claim = planted, as_claim(claim, delta=delta)
        self._delta = delta if self._claim is None else self._claim.delta
        if self._delta is None:
            raise InvalidArgument("Expected delta, got none. Pass delta=1e-5 or a Claim.")
        if accountant is not None and not hasattr(accountant, "history"):
            raise InvalidArgument(
                f"Expected an accountant with history, got {type(accountant).__name__}."
            )
        self._confidence, self._scores = confidence, None if scores is None else tuple(scores)
        self._watch_with, self._accountant, self._trained = watch, accountant, trained
        self._tokenizer, self._batch_size = tokenizer, batch_size
        self._card, self._seed = card, seed
        self._reference: Measured | None = None
        self._batches: BatchWatch | None = None
        self._best: CanaryCounts | None = None  # of the checkpoint that is loaded at the end
        self._warned = False
        self._watch: Any = None
        self._own: RunChecks | None = None
        self.audit: Audit | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Report what can be refuted, measure the reference, and start watching."""
        _refuse_shards(args)
        _refuse_published_coins(self._planted.folder, Path(args.output_dir))
        if getattr(args, "packing", False):
            raise InvalidArgument(
                "Expected packing=False, got True: packed rows join several records, so that a "
                "claim about one record says nothing about a planted text."
            )
        model = self._wrap(parts, completions=False)  # only the trained model's are read
        self._refuse_split_tokens(model)
        _refuse_frozen_tokens(self._planted, parts["model"])
        loader, optimizer = parts.get("train_dataloader"), parts.get("optimizer")
        self._begin_counts(model, parts, args, state)
        if self._watch_with is not None:
            self._watch = self._watch_with(unwrap_optimizer(optimizer), loader)
        elif self._accountant is not None and not _count_records(loader):
            raise InvalidArgument(
                "Expected a dataset with a length, whose batches can be compared with the books, "
                "got a stream. Train on a map-style dataset, or leave accountant= out."
            )
        elif self._accountant is not None:
            self._own = RunChecks(
                loader,
                optimizer,
                self._accountant,
                processes=args.world_size,
                accumulated=args.gradient_accumulation_steps,
            )
        if not state.is_world_process_zero:
            return
        views = 1 if self._scores is None else len(self._scores)
        forecast = self._planted.forecast(
            self._claim, delta=self._delta, confidence=self._confidence, views=views
        )
        _log.warning("epsilometer: %s", forecast)  # a forecast after training is useless
        if self._reference is None:
            self._reference = model.measure(self._planted.canaries)
            if self._planted.folder is not None:  # where a run that is resumed finds it
                save_measured(self._planted.folder, reference=self._reference)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Count a step."""
        if self._own is not None:
            self._own.take_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Warn while training can still be stopped: at steps 1, 2, 4, 8 and so on."""
        if self._batches is None or state.global_step & (state.global_step - 1):
            return
        found, planted = self._batches.collect(), self._planted  # of all processes, so each time
        wrong = found.joined or any(
            found.take(planted.included, places).is_short(wanted.repetitions)
            for wanted, places in planted.groups
        )
        if wrong and not self._warned and state.is_world_process_zero:
            _log.warning(
                "epsilometer: %d rows held whole planted texts, %d of them several at once. "
                "Texts that are truncated, packed or filtered prove nothing.",
                int(found.counts[planted.included].sum()),
                found.joined,
            )
            self._warned = True

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Save the counts of canaries for a run that is resumed, or returns to this step."""
        if self._batches is None:
            return
        found = replace(self._batches.collect(), steps=state.global_step)
        if getattr(state, "best_global_step", None) == state.global_step:
            self._best = found
        if self._planted.folder is not None and state.is_world_process_zero:
            found.save(self._planted.folder)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Measure the canaries, judge the claim, and write the results to the output folder."""
        for each in (self._watch, self._own):
            if each is not None:
                each.close()
        counts = self._end_counts(args, state)
        if not state.is_world_process_zero:
            return
        if self._planted.folder is not None:
            counts.save(self._planted.folder)
        found = run_audit(
            LanguageModel(
                self._wrap(parts),
                self._planted,
                reference=self._reference,
                counts=counts,
                trained=self._trained,
                scores=self._scores,
                title=f"{type(parts.get('model')).__name__}, {state.global_step:,} steps",
            ),
            self._find_claim(),
            delta=self._delta,
            confidence=self._confidence,
            seed=self._seed,
        )
        checks = self._find_checks()
        if checks is not None:
            found = msgspec.structs.replace(found, findings=(*found.findings, checks))
        self.audit = found
        self._write(Path(args.output_dir))

    def _begin_counts(
        self, model: CausalModel, parts: dict[str, Any], args: Any, state: Any
    ) -> None:
        """Start counting canaries in batches; continue with earlier counts for this model."""
        folder, before, module = self._planted.folder, None, parts["model"]
        self._best, self._warned = None, False
        if self._batches is not None and self._batches.module is module:
            before = self._batches.collect()
        else:
            self._reference = None
            if state.global_step and folder is not None and (folder / MEASUREMENTS).exists():
                self._reference = load_measured(folder, "reference")
            if state.global_step:
                before = None if folder is None else load_counts(folder)
                if before is None or before.steps != state.global_step:
                    nothing = np.zeros(len(self._planted.canaries), np.int64)
                    before = CanaryCounts(counts=nothing, rows=0, whole=False)
        self._batches = BatchWatch(
            module,
            model.tokenizer,
            self._planted.canaries,
            records=_count_records(parts.get("train_dataloader")),
            before=before,
            compiled=bool(args.torch_compile),
            labelled=True,
        )

    def _end_counts(self, args: Any, state: Any) -> CanaryCounts:
        """Return the counts for the model that is kept."""
        assert self._batches is not None  # training began
        self._batches.close()
        found = self._batches.collect()
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            return replace(found, whole=False) if self._best is None else self._best
        return replace(found, steps=state.global_step)

    def _write(self, folder: Path) -> None:
        assert self.audit is not None  # it was just made
        folder.mkdir(parents=True, exist_ok=True)
        for name in (AUDIT, PAGE):
            write_whole(folder / name, render(self.audit, Path(name).suffix), private=False)
        if self._card:
            card = folder / CARD
            try:  # an unreadable card must not lose the trained model
                before = card.read_bytes().decode("utf-8") if card.exists() else ""
                after = write_model_card(before, self.audit).encode("utf-8")
                write_whole(card, after, private=False)
            except (InvalidArgument, UnicodeDecodeError) as error:
                _log.warning("epsilometer: %s was left as it is. %s", card, error)
        _log.warning("epsilometer: %s; written to %s", self.audit.verdict, folder)

    def _find_claim(self) -> Claim | None:
        """Return the claim; the accountant's if none was given."""
        if self._claim is not None or self._accountant is None:
            return self._claim
        epsilon = float(self._accountant.get_epsilon(self._delta))
        return Claim(epsilon, self._delta or 0.0, sampler="Poisson", accountant="the run's own")

    def _find_checks(self) -> ConformanceFinding | None:
        watch = self._own if self._watch is None else self._watch
        if watch is None:
            return None
        finding: ConformanceFinding = watch.conformance
        checks: tuple[Check, ...] = finding.checks
        return finding if checks else None

    def _wrap(self, parts: dict[str, Any], *, completions: bool = True) -> CausalModel:
        tokenizer = self._tokenizer or parts.get("processing_class")
        if tokenizer is None:
            raise InvalidArgument(
                "Expected a tokenizer, got none. Give tokenizer= or processing_class=."
            )
        return CausalModel(
            parts["model"], tokenizer, batch_size=self._batch_size, completions=completions
        )

    def _refuse_split_tokens(self, model: CausalModel) -> None:
        """Refuse to train if new tokens are not in the vocabulary: they would prove little."""
        new = self._planted.new_tokens
        if split := sum(len(model.tokenizer.encode(token)) != 1 for token in new):
            raise InvalidArgument(
                f"Expected {len(new):,} new tokens in the vocabulary, found {len(new) - split:,}. "
                "Before training: tokenizer.add_tokens(list(planted.new_tokens)), and then "
                "model.resize_token_embeddings(len(tokenizer))."
            )


def _refuse_frozen_tokens(planted: PlantedTexts, module: Any) -> None:
    """Refuse to train if new tokens cannot be learned, as with LoRA: they would prove little."""
    find = getattr(module, "get_output_embeddings", None)
    head = find() if callable(find) else None
    weights = () if head is None else tuple(head.parameters())
    if planted.new_tokens and weights and not any(each.requires_grad for each in weights):
        raise InvalidArgument(
            "Expected a trainable output layer for new tokens, got a frozen one. With PEFT: "
            "LoraConfig(modules_to_save=['lm_head']), by that layer's name. Or use "
            "kind='typical'."
        )


def _count_records(loader: Any) -> int:
    """Return the number of records of a loader; 0 if unknown, as for a stream."""
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return 0


def _refuse_shards(args: Any) -> None:
    """Refuse runs in which no process holds the whole model."""
    names = ("fsdp", "deepspeed")
    launched = (os.environ.get(f"ACCELERATE_USE_{name.upper()}", "") for name in names)
    if any(getattr(args, name, None) for name in names) or "true" in map(str.lower, launched):
        raise InvalidArgument(
            "Expected a model that every process holds as a whole (one process, or DDP), got FSDP "
            "or DeepSpeed. Save the model, and audit it: epsilometer audit with source.type = "
            '"saved-model".'
        )


def _refuse_published_coins(folder: Path | None, output: Path) -> None:
    """Refuse to keep the coin tosses in a folder that a Trainer uploads."""
    if folder is not None and folder.resolve().is_relative_to(output.resolve()):
        raise InvalidArgument(
            "Expected the private folder of canaries outside the output folder, which a Trainer "
            f"uploads to the Hub, got {str(folder)!r} in {str(output)!r}. Give another out=."
        )

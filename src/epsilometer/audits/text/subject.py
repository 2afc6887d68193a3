"""Audit a language model by canaries planted in its training texts."""

from collections.abc import Collection, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

from epsilometer.audits.text.canaries import TextCanaries
from epsilometer.audits.text.canary_counts import (
    COUNTS,
    CanaryCounts,
    digest_tokens,
    load_counts,
)
from epsilometer.audits.text.measuring import (
    SCORES,
    Measured,
    choose_scores,
    load_measured,
    save_measured,
)
from epsilometer.audits.text.memorisation import measure_memorisation
from epsilometer.audits.text.planting import PlantedTexts, load_planted
from epsilometer.audits.text.views import Question, measure_view
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim
from epsilometer.core.findings import Finding
from epsilometer.core.scores import Scores
from epsilometer.core.settings import DATA
from epsilometer.engine.request import Request
from epsilometer.errors import InvalidArgument
from epsilometer.files.readers import hash_file
from epsilometer.types import BoolArray, FloatArray

_TRAINED = 1e-4  # probability that a reference seems trained on the canaries though it was not
_UNCHANGED = 1e-4  # difference of log-probabilities between two computations of the same model
_WORDS = {
    "loss": "the loss of its text",
    "reference": "its loss against a reference model",
    "rank": "the ranks of its tokens",
    "min-k": "its least likely tokens",
    "completion": "what the model completes its prompt to",
}


@dataclass(frozen=True)
class TextRun:
    """Name a private folder of canaries and their measurements: the source of a result.

    Attributes:
        folder: Where ``plant_texts(out=…)`` wrote, and later an audit of the model.
    """

    folder: Path

    def load(self) -> dict[str, Any]:
        """Read canaries, coin tosses and measurements."""
        model = load_measured(self.folder, "model")
        return {
            "model": Measured() if model is None else model,
            "planted": load_planted(self.folder),
            "reference": load_measured(self.folder, "reference"),
            "counts": load_counts(self.folder),
        }

    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """Return the names of the files and the SHA-256 of their contents."""
        names = ["canaries.json", "measurements.npz"]
        names += [COUNTS] * (self.folder / COUNTS).exists()
        return tuple(hash_file(self.folder / name) for name in names)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """Audit a language model that was trained on texts with planted canaries.

    Guarantee: all bounds together exceed the true ε of one record in at most ``1 - confidence`` of
        audits, whatever the model. Several scores and kinds share the confidence.
    Assumption: training used the planted dataset, and depends on the coin tosses in no other way.

    Attributes:
        model: Has ``measure(canaries)``: a ``CausalModel`` with its tokenizer, a ``TextService``
            behind an address, or ``Measured``.
        planted: What ``plant_texts`` returned, or ``load_planted`` read.
        reference: The model before training, or another, in the same form; for the score
            ``reference``.
        counts: How often each canary was in the training batches, as counted by a ``BatchWatch``;
            None if not counted. Canaries that were in none do not count towards the reach.
        trained: Whether you vouch that all planted texts were trained on as whole texts, if
            ``counts`` is not given. Without either, no claim is cleared.
        scores: Among ``loss``, ``reference``, ``rank``, ``min-k`` and ``completion``. By default
            ``reference`` if there is one, else ``loss``, else ``completion``.
        memorisation: Whether extraction and exposure are measured too.
        title: What was audited, in words.
        adversary: What the adversary sees, in words.
        source: The private folder it was read from, if any.

    Example:
        >>> import numpy as np
        >>> import epsilometer as em
        >>> from epsilometer.audits.text.measuring import Measured
        >>> planted = em.plant_texts(["to be or not to be"], canaries=em.TextCanaries(count=400))
        >>> leaks = Measured(log_probs=tuple(np.array([9.0 * coin]) for coin in planted.included))
        >>> em.audit(em.LanguageModel(leaks, planted), 2.0, delta=1e-5).verdict
        'refuted'
    """

    model: Any = field(metadata=DATA)
    planted: Any = field(metadata=DATA)
    _: KW_ONLY
    reference: Any = field(default=None, metadata=DATA)
    counts: Any = field(default=None, metadata=DATA)
    trained: bool = False
    scores: tuple[str, ...] | None = None
    memorisation: bool = True
    title: str = "a language model"
    adversary: str = "the trained model, asked for single texts"
    source: Any = field(default=None, metadata=DATA)

    def __post_init__(self) -> None:
        for name in ("model", "reference"):
            value = getattr(self, name)
            if not callable(getattr(value, "measure", None)) and (name == "model" or value):
                raise InvalidArgument(
                    f"Expected {name} with measure(canaries), as CausalModel(module, tokenizer), "
                    f"got {type(value).__name__}."
                )
        if not isinstance(self.planted, PlantedTexts):
            raise InvalidArgument(
                "Expected planted to be what plant_texts returned, got "
                f"{type(self.planted).__name__}."
            )
        if self.counts is not None and (
            not isinstance(self.counts, CanaryCounts)
            or self.counts.counts.shape != self.planted.included.shape
        ):
            raise InvalidArgument(
                f"Expected CanaryCounts of {len(self.planted.canaries):,} canaries, got others."
            )
        if self.scores is not None:
            object.__setattr__(self, "scores", tuple(self.scores))
            choose_scores(self.scores, Measured(), None)


SUBJECTS = (LanguageModel,)


def run_audit(subject: LanguageModel, request: Request) -> Audit:
    """Measure the canaries on the model, and judge the claim by the bounds from their scores."""
    planted = subject.planted
    _refuse_other_tokens(subject)
    model, reference = measure_models(subject)
    claim = request.fill_claim(unit="record")
    if claim is not None and planted.design == "coins":
        claim = request.fill_claim(unit="record", adjacency="add_remove")
    names = choose_scores(subject.scores, model, reference)
    scores = {name: SCORES[name](model, reference, planted.canaries) for name in names}
    findings = list_findings(subject, request, model, reference, claim, scores)
    return Audit(
        subject=subject.title,
        claim=claim,
        findings=tuple(findings),
        caveats=tuple(_list_caveats(subject, model, reference, names)),
        cites=_cite(subject, planted),
        provenance=request.make_provenance(subject),
    )


def measure_models(subject: LanguageModel) -> tuple[Measured, Measured | None]:
    """Measure the model and its reference; store both next to the canaries if those are stored."""
    canaries = subject.planted.canaries
    model = subject.model.measure(canaries)
    reference = None if subject.reference is None else subject.reference.measure(canaries)
    folder = subject.planted.folder
    if folder is not None and subject.source is None:
        save_measured(folder, model=model, reference=reference)
    return model, reference


def _refuse_other_tokens(subject: LanguageModel) -> None:
    """Refuse a tokenizer that splits canaries differently than the one counted in training."""
    tokenizer = getattr(subject.model, "tokenizer", None)
    if subject.counts is None or tokenizer is None or subject.counts.tokens is None:
        return
    known = subject.counts.tokens
    found = digest_tokens([tokenizer.encode(each.text) for each in subject.planted.canaries])
    if found != known:
        raise InvalidArgument(
            "Expected the tokenizer of training, got one that splits canaries into other tokens: "
            "the model was not trained on these. Give the tokenizer that it was trained with."
        )


def list_findings(
    subject: LanguageModel,
    request: Request,
    model: Measured,
    reference: Measured | None,
    claim: Claim | None,
    computed: dict[str, FloatArray],
) -> Iterator[Finding]:
    """Return a finding per kind of canaries and score, and those on memorisation."""
    planted: PlantedTexts = subject.planted
    views = len(computed) * len(planted.groups)
    counts: CanaryCounts | None = subject.counts
    unchanged = _is_unchanged(model, reference)
    for wanted, places in planted.groups:
        copies = wanted.repetitions
        if counts is not None:
            copies = counts.take(planted.included, places).count_copies(copies)
        asked = Question(
            delta=request.known_delta,
            confidence=1 - (1 - request.confidence) / views,
            copies=copies,
            paired=planted.design == "paired",
            replaced=planted.design == "paired"
            and claim is not None
            and claim.adjacency == "replace",
            seed=request.seed,
        )
        for name, every in computed.items():
            scores = split_scores(
                planted,
                places,
                every,
                title=f"{name_group(wanted)}, by {_WORDS.get(name, name)}",
                adversary=subject.adversary,
            )
            told = every[places] > -np.inf
            learnt_before = name == "reference" and _is_trained(planted, places, reference)
            alike = name == "completion" and len(set(model.completions[places])) == 1
            if unchanged or learnt_before or alike:
                told = np.zeros_like(told)
            yield measure_view(
                scores,
                asked,
                claim=claim,
                learnt=_count_learnt(subject, places, told),
                valid=counts is None or counts.joined == 0,
            )
        if subject.memorisation:
            found = measure_memorisation(
                _take_part(model, places),
                planted.canaries[places],
                planted.included[places],
                scores=next(iter(computed.values()))[places] if model.log_probs else None,
                confidence=request.confidence,
                named=name_group(wanted),
            )
            if found is not None:
                yield found


def split_scores(
    planted: PlantedTexts, places: slice, scores: FloatArray, *, title: str, adversary: str
) -> Scores:
    """Return scores of planted and of held-out canaries; twins keep the order of pairs."""
    own, included = scores[places], planted.included[places]
    return Scores(
        own[included], own[~included], design=planted.design, title=title, adversary=adversary
    )


def name_group(wanted: TextCanaries) -> str:
    """Describe a group of canaries.

    Example:
        >>> name_group(TextCanaries(count=1000, kind="new", repetitions=4))
        '1,000 new-token canaries, 4 copies each'
    """
    words = {
        "random": "random-string",
        "rare": "rare-token",
        "new": "new-token",
        "unlikely": "unlikely-token",
        "typical": "in-distribution",
    }
    copies = f", {wanted.repetitions} copies each" if wanted.repetitions > 1 else ""
    return f"{wanted.count:,} {words[wanted.kind]} canaries{copies}"


def _take_part(measured: Measured, places: slice) -> Measured:
    return Measured(
        log_probs=measured.log_probs[places],
        ranks=measured.ranks[places],
        completions=measured.completions[places],
    )


def _count_learnt(subject: LanguageModel, places: slice, told: BoolArray) -> tuple[int, int]:
    """Count the planted and held-out canaries that were trained on and have a score.

    Without counts, planted ones were trained on if the user asserts it.
    """
    included = subject.planted.included[places]
    trained = None if subject.counts is None else subject.counts.trained
    learnt = (included & subject.trained if trained is None else trained[places]) & told
    return int(learnt[included].sum()), int(learnt[~included].sum())


def _is_trained(planted: PlantedTexts, places: slice, reference: Measured | None) -> bool:
    """Tell whether a reference separates planted from held-out canaries: it was trained on them.

    Guarantees: true with probability at most 1e-4 if the reference does not depend on the coins.
    """
    included = planted.included[places]
    if reference is None or included.all() or not included.any():
        return False
    scores = SCORES["loss"](_take_part(reference, places), None, ())
    found = scipy.stats.mannwhitneyu(
        scores[included], scores[~included], alternative="greater", method="asymptotic"
    )
    return bool(found.pvalue < _TRAINED)


def _is_unchanged(model: Measured, reference: Measured | None) -> bool:
    """Tell whether a model equals its reference on every token: it was not trained.

    It may be the reference itself, for example if an adapter was not loaded.
    """
    if reference is None or not model.log_probs or not reference.log_probs:
        return False
    after, before = (np.concatenate(each.log_probs) for each in (model, reference))
    return after.shape == before.shape and bool(
        np.allclose(after, before, rtol=0, atol=_UNCHANGED, equal_nan=True)
    )


def _list_caveats(
    subject: LanguageModel,
    model: Measured,
    reference: Measured | None,
    names: Collection[str],
) -> Iterator[str]:
    planted: PlantedTexts = subject.planted
    yield (
        "Canaries were planted in the training texts: a bound is about such texts, and about an "
        "adversary who knows all of them but not the coins."
    )
    if not planted.included.any() or planted.included.all():
        yield "All coin tosses gave the same result, so there is nothing to compare."
    if len({wanted.kind for wanted in planted.wanted}) < len(planted.wanted):
        yield "Canaries of one kind were planted in several groups."
    yield from _describe_training(subject)
    if _is_unchanged(model, reference):
        yield (
            "The model gives every canary the probabilities of its reference: training did not "
            "change it, or this is not the trained model; perhaps its adapter is not loaded."
        )
    used = reference is not None and (subject.scores is None or "reference" in subject.scores)
    for wanted, places in planted.groups:
        if "completion" in names and len(set(model.completions[places])) == 1:
            yield (
                f"All prompts of {name_group(wanted)} got the same answer, as from a service "
                "that refuses: it says nothing about what the model learned."
            )
        longest = max((tokens.size for tokens in model.log_probs[places]), default=0)
        if wanted.kind == "new" and longest > wanted.secret_length:
            yield (
                f"The tokenizer splits new tokens into up to {longest} tokens, where "
                f"{wanted.secret_length} were planted, so that they prove less. Add "
                "planted.new_tokens to its vocabulary before training."
            )
        lost = sum(bool(np.isnan(tokens).any()) for tokens in model.log_probs[places])
        if lost:
            yield f"The model gives no number (nan) for {lost:,} of {name_group(wanted)}."
        if used and _is_trained(planted, places, reference):
            yield (
                f"The reference model was trained on {name_group(wanted)}: it finds planted ones "
                "likelier than held-out ones. Give the model before training, or the score 'loss'."
            )


def _describe_training(subject: LanguageModel) -> Iterator[str]:
    """Yield caveats about batches that were unknown, or not as declared."""
    planted, found = subject.planted, subject.counts
    if found is None or found.trained is None:
        unseen = 0 if found is None else found.unlabelled
        yield (
            f"The model got {unseen:,} rows without labels: which of their tokens had a loss is "
            "unknown"
            if unseen
            else "Training on the planted texts was not watched, or not from the first step"
        ) + (
            ": trained=True asserts it, and reach and power rely on that."
            if subject.trained
            else ". So no claim can pass: watch training with PrivacyAudit or BatchWatch, or "
            "assert it with trained=True."
        )
        return
    wrong = int((~planted.included & found.trained).sum())
    if wrong:
        yield (
            f"{wrong:,} held-out canaries were trained on. If these are more than a few, the "
            "data were planted with other coin tosses."
        )
    if found.joined:
        yield (
            f"{found.joined:,} rows contained several canaries: they join records, so that a "
            "claim about one record says nothing about a planted text. Train without packing."
        )
    for wanted, places in planted.groups:
        own = found.take(planted.included, places)
        yield from own.describe(wanted.repetitions, named=name_group(wanted))


def _cite(subject: LanguageModel, planted: PlantedTexts) -> tuple[str, ...]:
    cites = ["panda2025"] if any(each.kind != "random" for each in planted.wanted) else []
    if subject.memorisation:
        cites.append("carlini2019")
    if subject.scores is not None and "min-k" in subject.scores:
        cites.append("shi2024")
    return tuple(cites)

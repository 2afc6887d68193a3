"""Audit any subject: find its runner in a registry, call it, and save its result."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from epsilometer import _validate
from epsilometer._files import make_private_folder, read_plain, write_whole
from epsilometer.core.audit import Audit
from epsilometer.core.claim import DEFAULT_CONFIDENCE, Claim, as_claim, check_delta
from epsilometer.core.findings import EpsilonFinding, Finding, FormFinding, RuleFinding
from epsilometer.core.registry import Registry
from epsilometer.core.renderers import render
from epsilometer.core.serialisation import from_json
from epsilometer.core.settings import (
    from_settings,
    parse_choice,
    refuse_supplied,
    section_name,
)
from epsilometer.core.stopping import Until, UntilNarrow, UntilRefuted
from epsilometer.core.toml import parse_toml
from epsilometer.engine.engines import Engine
from epsilometer.engine.events import Listener
from epsilometer.engine.plan import Plan
from epsilometer.engine.request import Request
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile

_T = TypeVar("_T")
Run: TypeAlias = Callable[[Any, Request], Audit]
# By class name: the module that has the class in SUBJECTS, and run_audit(subject, request).
SUBJECTS: Registry[Any] = Registry(
    "subjects",
    {
        "Scores": "epsilometer.audits.scores.subject",
        "ScoreCounts": "epsilometer.audits.scores.subject",
        "Runs": "epsilometer.audits.training.runs",
        "TrainFunction": "epsilometer.audits.training.subject",
        "ShuffledSGD": "epsilometer.audits.shuffling.subject",
        "DPSGD": "epsilometer.audits.dpsgd.subject",
        "Federated": "epsilometer.audits.federated.subject",
        "Cosines": "epsilometer.audits.federated.cosine_audit",
        "GaussianMechanism": "epsilometer.audits.federated.cosine_audit",
        "Classifier": "epsilometer.audits.classifier.job",
        "Regressor": "epsilometer.audits.classifier.regression.job",
        "FittedClassifier": "epsilometer.audits.classifier.fitted.job",
        "Posterior": "epsilometer.audits.posterior.subject",
        "Step": "epsilometer.audits.step.subject",
        "LanguageModel": "epsilometer.audits.text.subject",
        "Demo": "epsilometer.audits.training.demo",
    },
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Call(Request):
    """A call of :func:`audit` described by a file: a request and its subject."""

    subject: Any

    def run(
        self,
        *,
        out: str | Path | None = None,
        engine: Engine | None = None,
        listen: Sequence[Listener] = (),
        accept_changes: bool = False,
    ) -> Audit:
        """Audit the subject as the file says."""
        return audit(
            self.subject,
            self.claim,
            delta=self.delta,
            confidence=self.confidence,
            seed=self.seed,
            out=out,
            engine=engine,
            until=self.until,
            listen=listen,
            accept_changes=accept_changes,
        )

    def recompute_from(self, out: Path) -> Audit:
        """Recompute the result of a run from the shards in its directory; write nothing."""
        delta = self.delta if self.claim is None else self.claim.delta
        request = dataclasses.replace(self, delta=delta, out=out, recompute=True)
        return _find_runner(self.subject)(self.subject, request)


def audit(
    subject: Any,
    claim: Claim | float | None = None,
    *,
    delta: float | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
    out: str | Path | None = None,
    engine: Engine | None = None,
    until: Until | None = None,
    listen: Sequence[Listener] = (),
    accept_changes: bool = False,
) -> Audit:
    """Audit a subject, and judge a claim by the findings.

    Guarantee: all deciding bounds together exceed the true ε in at most ``1 - confidence`` of
        audits. The same subject, arguments and seed give the same audit, byte for byte.
    Assumption: those stated by the subject and its method.

    Args:
        subject: What to audit: ``Scores``, ``ShuffledSGD``, ``TrainFunction``, ``Runs``,
            ``DPSGD``, ``Federated``, ``Cosines``, ``GaussianMechanism``, ``Classifier``,
            ``Regressor``, ``FittedClassifier``, ``Posterior``, ``Step``, ``LanguageModel``, or a
            type that another package registers.
        claim: The claimed ε, a ``Claim``, or None.
        delta: δ; not needed with a ``Claim``, which includes it.
        confidence: Confidence with which all deciding bounds hold together.
        seed: Seed of all randomness.
        out: Directory of the run, readable only by its owner. The same call resumes it after a
            crash; a call with changed code is refused.
        engine: Engine that executes units of work; ``Local()`` processes by default.
        until: When to stop early: ``UntilRefuted()`` or ``UntilNarrow(width)``.
        listen: Callbacks that receive events.
        accept_changes: Continue a run whose code has changed; the result records the changes.

    Returns:
        The audit: ``verdict``, ``epsilon``, ``reach``, ``findings``, and ``save(path)``.

    Example:
        >>> import epsilometer as em
        >>> audit = em.audit(em.Scores([2.0] * 500, [0.0] * 500), em.Claim(3.0, delta=1e-5))
        >>> audit.verdict
        'refuted'
    """
    run = _find_runner(subject)
    promised = as_claim(claim, delta=delta)
    at = delta if promised is None else promised.delta
    if at is not None:
        check_delta(at)
    _validate.open_unit(confidence=confidence)
    _validate.whole(0, seed=seed)
    if until is not None and not isinstance(until, (UntilRefuted, UntilNarrow)):
        raise InvalidArgument(
            f"Expected until=UntilRefuted() or UntilNarrow(width), got {_validate.short(until)}."
        )
    where = None if out is None else Path(out)
    request = Request(
        claim=promised,
        delta=at,
        confidence=confidence,
        seed=seed,
        out=where,
        engine=engine,
        until=until,
        listen=tuple(listen),
        accept_changes=accept_changes,
    )
    found = run(subject, request)
    if where is not None:
        _write_audit(found, where)
    return found


def rejudge(found: Audit, claim: Claim | float, *, delta: float | None = None) -> Audit:
    """Return an audit judged by another claim than the one it was made for.

    Guarantee: the verdict is that of ``epsilometer.core.judge`` on the same findings.
    Assumption: a claim at a larger δ than the audit's cannot be judged by it.
    """
    promised = as_claim(claim, delta=delta)
    if found.find(RuleFinding):
        raise InvalidArgument(
            f"Expected no claim: the rules of this audit decide, and say {found.verdict!r}."
        )
    if found.claim is not None and promised is not None:
        same = (promised.epsilon, promised.delta) == (found.claim.epsilon, found.claim.delta)
        promised = found.claim if same else promised
    judged = found.with_claim(promised)
    if promised is None or promised == found.claim:
        return judged
    return msgspec.structs.replace(
        judged, findings=tuple(_update_power(finding, promised) for finding in judged.findings)
    )


def _update_power(finding: Finding, claim: Claim) -> Finding:
    """Return a finding with its power against a claim it was not made for, where it is known."""
    from epsilometer.stats.score_finding import recompute_power

    if isinstance(finding, EpsilonFinding):
        return msgspec.structs.replace(finding, power=recompute_power(finding, claim))
    if isinstance(finding, FormFinding):
        view = msgspec.structs.replace(finding.view, power=recompute_power(finding.view, claim))
        return msgspec.structs.replace(finding, view=view)
    return finding


def read_call(path: str | Path, *, trust: bool = False, subject: Any = None) -> Call:
    """Read which audit a file describes: settings as TOML, or an audit or plan as JSON.

    Args:
        path: ``.toml``, ``.json``, or the directory of a run.
        trust: Import functions that the file names.
        subject: The audited subject, where the plan of a run cannot hold all of it.
    """
    file = Path(path)
    if file.is_dir():
        file /= "plan.json"

    def parse(data: bytes) -> Call:
        if file.name == "plan.json":
            plan = Plan.from_json(data.decode("utf-8"))
            return _call_from_plan(plan, trust=trust, subject=subject)
        if file.suffix == ".json":
            return _call_from_audit(from_json(data), trust=trust)
        return call_from_sections(parse_toml(data), trust=trust)

    return _parse_file(file, parse, InvalidArgument)


def read_sections(path: str | Path) -> dict[str, Any]:
    """Return the sections of a TOML file, as :func:`call_from_sections` takes them."""
    return _parse_file(Path(path), parse_toml, UnreadableFile)


def _parse_file(file: Path, parse: Callable[[bytes], _T], fault: type[EpsilometerError]) -> _T:
    """Parse a file; every error names it."""
    try:
        data = read_plain(file)
    except OSError as error:
        raise UnreadableFile(f"Could not read {str(file)!r}: {error.strerror}.") from error
    try:
        return parse(data)
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"Expected text in {str(file)!r}, got other bytes.") from error
    except EpsilometerError as error:
        raise fault(f"{file}: {error}") from error


def find_subject_class(name: str) -> type:
    """Return the class of a subject by its name in the registry."""
    module = SUBJECTS.find(name, label="the subject")
    for cls in module.SUBJECTS:
        if cls.__name__ == name:
            found: type = cls
            return found
    raise InvalidArgument(f"Expected {name} among SUBJECTS of {module.__name__}, found none.")


def _find_runner(subject: Any) -> Run:
    name = type(subject).__name__
    if name in SUBJECTS and isinstance(subject, SUBJECTS[name].SUBJECTS):
        run: Run = SUBJECTS[name].run_audit
        return run
    raise InvalidArgument(
        f"Expected a subject ({', '.join(SUBJECTS)}), got {name}. "
        "For example, Scores(inside, outside) audits attack scores."
    )


def _write_audit(found: Audit, where: Path) -> None:
    """Write the audit and its page into the directory of the run, for its owner alone."""
    try:
        make_private_folder(where)
        if not (where / "plan.json").exists():  # a run has written its result already
            write_whole(where / "result.json", render(found, ".json"))
        write_whole(where / "report.html", render(found, ".html"))
    except OSError as error:
        raise InvalidArgument(f"Could not write {str(where)!r}: {error.strerror}.") from error


def _call_from_plan(plan: Plan, *, trust: bool, subject: Any = None) -> Call:
    given = plan.parameters
    missing = {"settings", "claim", "delta", "confidence", "until"} - set(given)
    if missing:
        raise InvalidArgument(
            f"Expected a plan that holds the settings of its run, got one without "
            f"{', '.join(sorted(missing))}. Make the same call again with out= its directory."
        )
    return _make_call(
        plan.audit,
        given["settings"],
        claim=None if given["claim"] is None else _parse_section("claim", given["claim"], Claim),
        seed=plan.seed,
        trust=trust,
        subject=subject,
        **{name: given[name] for name in ("delta", "confidence", "until")},
    )


def _call_from_audit(found: Audit, *, trust: bool) -> Call:
    source = found.provenance
    return _make_call(
        source.subject,
        source.settings,
        claim=found.claim,
        delta=source.delta,
        confidence=source.confidence,
        seed=source.seed,
        until=source.until,
        trust=trust,
    )


def call_from_sections(plain: Mapping[str, Any], *, trust: bool = False) -> Call:
    """Return the call that the sections of a TOML file describe."""
    named = {section_name(name): name for name in SUBJECTS}
    given = [section for section in plain if section in named]
    others = [section for section in plain if section not in (*named, "claim", "audit")]
    if len(given) != 1 or others:
        raise InvalidArgument(
            f"Expected one section of {', '.join(f'[{name}]' for name in named)}, and perhaps "
            f"[claim] and [audit], got {_validate.listed(plain)}."
        )
    options = _parse_section("audit", plain.get("audit", {}), _Options)
    claim = plain.get("claim")
    if isinstance(claim, Mapping):
        claim = _parse_section("claim", claim, Claim)
    return _make_call(
        named[given[0]],
        plain[given[0]],
        claim=as_claim(claim, delta=options.delta),
        trust=trust,
        **msgspec.structs.asdict(options),
    )


class _Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Section ``[audit]`` of a TOML file."""

    delta: float | None = None
    confidence: float = DEFAULT_CONFIDENCE
    seed: int = 0
    until: str | None = None


def _parse_section(name: str, plain: Any, kind: type[Any]) -> Any:
    try:
        if isinstance(plain, Mapping):
            known = kind.__struct_fields__
            for key in plain:
                if key not in known:
                    raise InvalidArgument(
                        f"Expected a key of [{name}] among {', '.join(known)}, got "
                        f"{_validate.short(key)}."
                    )
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        said = str(error).replace("`", "").replace("$.", f"{name}.")
        raise InvalidArgument(f"[{name}]: {said[:300]}.") from error  # it may repeat the file


def _make_call(
    name: str,
    settings: Mapping[str, Any],
    *,
    trust: bool,
    until: Any,
    subject: Any = None,
    **options: Any,
) -> Call:
    if isinstance(until, str):
        until = parse_choice(until, among=("refuted", "narrow"))
    elif until is not None:
        until = _decode_until(until)
    if subject is None:
        if name not in SUBJECTS and isinstance(settings, Mapping):
            refuse_supplied(name, settings)  # of Opacus and Flower, whose runs are users' own
        subject = from_settings(find_subject_class(name), settings, trust=trust)
    return Call(subject=subject, until=until, **options)


def _decode_until(plain: Any) -> Until:
    kinds: dict[Any, type[Until]] = {"UntilRefuted": UntilRefuted, "UntilNarrow": UntilNarrow}
    kind = kinds.get(plain.get("type")) if isinstance(plain, Mapping) else None
    if kind is None:
        raise InvalidArgument(f"Expected until by its type, got {_validate.short(plain)}.")
    rest = {name: value for name, value in plain.items() if name != "type"}
    until: Until = from_settings(kind, rest)
    return until

"""Check results against a policy: required audits, claims, limits, age, confidence and code."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec

from epsilometer._files import read_plain
from epsilometer.core import judge, words
from epsilometer.core.audit import Audit
from epsilometer.core.claim import Claim
from epsilometer.core.findings import MembershipFinding, RuleFinding
from epsilometer.core.serialisation import load
from epsilometer.core.settings import CHOICES
from epsilometer.errors import EpsilometerError, InvalidArgument, UnreadableFile
from epsilometer.files.stamps import ask_git, read_stamp

Reason: TypeAlias = Literal[
    "verdict", "missing", "unreadable", "kind", "limit", "confidence", "age", "code"
]
_OF_ATTACKS = ("advantage_limit", "caught_limit")
# limit of a policy → its rule and that rule's field
_RULES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "pdtp_limit": ("pdtp-at-most", "limit"),
        "share": ("pdtp-at-most", "share"),
        "change_limit": ("change-at-most", "limit"),
        "advantage_limit": ("advantage-at-most", "limit"),
        "caught_limit": ("caught-at-most", "limit"),
    }
)


class RequiredAudit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold a required audit.

    Attributes:
        name: What is audited, for people.
        file: The result: a JSON file or the directory of a run, relative to the policy's folder.
        claim: Claim to judge instead of the audit's own; required unless rules about publishing, or
            limits of the policy, decide.
        kind: The required subject, such as ``DPSGD`` or ``Classifier``.
        code: Paths that must not have changed since the audit, relative to the policy's folder; by
            default all Python files of the repository.
        max_age_days: Replaces the policy's.
    """

    name: str
    file: str
    claim: Claim | None = None
    kind: str = ""
    code: tuple[str, ...] = ()
    max_age_days: float | None = None


class ClassifierLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for ``epsilometer classifier``, named like its options."""

    pdtp_limit: float | None = None
    share: float | None = None
    advantage_limit: float | None = None
    caught_limit: float | None = None


class RegressorLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for ``epsilometer regressor``, named like its options."""

    change_limit: float | None = None
    share: float | None = None
    advantage_limit: float | None = None
    caught_limit: float | None = None


class PosteriorLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for ``epsilometer posterior``, named like its options."""

    line: float | None = None
    advantage: float | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold an organisation's requirements of audits.

    Attributes:
        confidence: Smallest confidence of audits that count.
        max_age_days: Largest age of audits that count; None for any age.
        same_code: Whether audits of other code do not count.
        audits: The required audits.
        classifier: Limits of audits of classifiers.
        regressor: Limits of audits of regressors.
        posterior: Limits of audits of uncertain predictions.
    """

    confidence: float = 0.95
    max_age_days: float | None = None
    same_code: bool = True
    audits: tuple[RequiredAudit, ...] = ()
    classifier: ClassifierLimits = ClassifierLimits()
    regressor: RegressorLimits = RegressorLimits()
    posterior: PosteriorLimits = PosteriorLimits()

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InvalidArgument(f"Expected confidence in (0, 1), got {self.confidence!r}.")
        if self.max_age_days is not None and not self.max_age_days > 0:
            raise InvalidArgument(f"Expected max_age_days above 0, got {self.max_age_days!r}.")
        names = [audit.name for audit in self.audits]
        if len(set(names)) < len(names):
            raise InvalidArgument("Expected audits of different names, got the same name twice.")


class PolicyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the outcome of checking a required audit.

    Attributes:
        name: Name of the required audit.
        reason: Key of the reason for the outcome.
        message: The outcome in a sentence.
        exit_code: 0 passed, 1 refuted, 4 cannot be judged.
    """

    name: str
    reason: Reason
    message: str
    exit_code: int


def read_policy(path: Path) -> Policy:
    """Read a policy from a TOML file; an unknown field is refused, since it would limit nothing."""
    try:
        plain = tomllib.loads(read_plain(path).decode("utf-8"))
        return msgspec.convert(plain, Policy, strict=False)
    except FileNotFoundError as error:
        raise UnreadableFile(f"Expected a policy in {str(path)!r}, found no file.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UnreadableFile(f"Expected TOML in {str(path)!r}: {error}.") from error
    except msgspec.ValidationError as error:
        said = str(error).rstrip(".")
        raise InvalidArgument(f"Expected a policy in {str(path)!r}: {said}.") from error


def check_policy(policy: Policy, folder: Path, *, now: datetime | None = None) -> list[PolicyCheck]:
    """Check every required audit.

    Guarantee: an audit never passes if it is missing, unreadable, of another kind, too old, of
        other code, at less confidence, refuted, or cannot judge the claim.
    Assumption: stamps are truthful; git knows the commits that they name.

    Args:
        policy: What is asked.
        folder: Folder that file names are relative to.
        now: Current time, for ages.
    """
    if not policy.audits:
        raise InvalidArgument("Expected a policy with [[audits]], got none: nothing to check.")
    moment = datetime.now(UTC) if now is None else now
    return [_check(policy, required, folder, moment) for required in policy.audits]


def _check(policy: Policy, required: RequiredAudit, folder: Path, now: datetime) -> PolicyCheck:
    def unfit(reason: Reason, message: str) -> PolicyCheck:
        return PolicyCheck(name=required.name, reason=reason, message=message, exit_code=4)

    path = folder / required.file
    if not path.exists():
        return unfit("missing", f"There is no {required.file}. Run the audit and keep its result.")
    try:
        found = load(path)
        judged = _judge(found, required)
    except EpsilometerError as error:
        return unfit("unreadable", error.shareable)
    if judged.exit_code == 1:  # a refutation holds whatever its age
        message = words.headline(judged)
        return PolicyCheck(name=required.name, reason="verdict", message=message, exit_code=1)
    for reason, message in _list_obstacles(policy, required, path, found, now):
        return unfit(reason, message)
    if judged.verdict == judge.NO_CLAIM:
        return unfit("verdict", "Nothing is claimed: give the required audit a claim.")
    return PolicyCheck(
        name=required.name,
        reason="verdict",
        message=words.headline(judged),
        exit_code=judged.exit_code,
    )


def _judge(found: Audit, required: RequiredAudit) -> Audit:
    if required.claim is None:
        return found
    if found.find(RuleFinding):
        raise InvalidArgument(
            "Expected no claim: rules about publishing decide in this audit, and not an ε."
        )
    own, asked = found.claim, required.claim
    same = own is not None and (own.epsilon, own.delta) == (asked.epsilon, asked.delta)
    if same and asked.adjacency == "unstated" == asked.unit:
        return found
    return found.with_claim(asked)


def _list_obstacles(
    policy: Policy, required: RequiredAudit, path: Path, found: Audit, now: datetime
) -> Iterator[tuple[Reason, str]]:
    kind = found.provenance.subject
    if required.kind and kind != required.kind:
        yield "kind", f"It audits {kind}; {required.kind} is required."
    if lax := _find_lax_limit(policy, found) or _find_own_claim(policy, required, found):
        yield "limit", lax
    if found.confidence < policy.confidence:
        yield (
            "confidence",
            f"Its confidence is {found.confidence:g}; {policy.confidence:g} is required.",
        )
    stamp = read_stamp(path)
    days = policy.max_age_days if required.max_age_days is None else required.max_age_days
    if stamp is None:
        if days is not None or policy.same_code:
            yield "age", "It has no stamp, so its age and its code are not known."
        return
    if days is not None:
        age = now - stamp.moment
        if age > timedelta(days=days) or age < timedelta(days=-1):
            yield "age", f"It is from {stamp.moment:%Y-%m-%d}; at most {days:g} days are allowed."
    if policy.same_code and (changed := _describe_changes(stamp.commit, required, path)):
        yield "code", changed
    if policy.same_code and stamp.modified:
        yield "code", "The code had changes that are in no commit."


def _find_lax_limit(policy: Policy, found: Audit) -> str:
    """Describe the audit's limit that is laxer than the policy's; "" if there is none."""
    section = getattr(policy, found.provenance.subject.lower(), None)
    if not isinstance(section, msgspec.Struct):
        return ""
    for name, asked in msgspec.to_builtins(section).items():
        if asked is None:
            continue
        own = _find_limit(found, name)
        if own is None or own > asked:
            has = "none" if own is None else f"{own:g}"
            return f"Its limit {name} is {has}; {asked:g} is required."
    return ""


def _find_own_claim(policy: Policy, required: RequiredAudit, found: Audit) -> str:
    """Explain that no policy limits the ε that an audit claims."""
    own = found.claim
    limited = found.provenance.subject == "Posterior" and policy.posterior.line is not None
    if own is None or required.claim is not None or found.find(RuleFinding) or limited:
        return ""
    return (
        f"It claims ε = {own.epsilon:g} at δ = {own.delta:g}, and the policy does not say what it "
        "must claim: give the required audit a claim."
    )


def _find_limit(found: Audit, name: str) -> float | None:
    """Return the limit by which an audit was decided; None if it had none."""
    settings = found.provenance.settings
    if name not in _RULES:  # of uncertain predictions
        own = settings.get(name)
        if own is None and name == "line":
            own = 1.0 if found.claim is None else found.claim.epsilon
        return None if own is None else float(own)
    rule, field = _RULES[name]
    if found.provenance.subject == "Regressor" and name == "share":
        rule = "change-at-most"
    stated: Any = settings.get("rules")
    if stated is not None:
        rules = [stated] if isinstance(stated, dict) else stated
        own = [float(each[field]) for each in rules if each["type"] == CHOICES[rule].__name__]
        return max(own, default=None)
    if name in _OF_ATTACKS and not found.find(MembershipFinding):
        return None  # without attacks, none of the usual rules applies to them
    return float(getattr(CHOICES[rule], field))


def _find_untracked(named: Sequence[str], paths: Sequence[str], root: Path) -> str:
    """Describe code paths that git does not know: a misspelt name would compare nothing."""
    absent = [each for each in paths if not ask_git("ls-files", "--", each, folder=root)]
    if not absent:
        return ""
    if not named:
        return "Git tracks no Python file here: name the code that was audited in the policy."
    return f"Git tracks no file named {absent[0]!r} here, so there is nothing to compare."


def _describe_changes(commit: str, required: RequiredAudit, path: Path) -> str:
    """Describe how the code differs from the audited one; "" if it does not."""
    if not commit:
        return "It was not run in a git repository, so its code is not known."
    folder = path.parent
    top = ask_git("rev-parse", "--show-toplevel", folder=folder)
    if top is None:
        return "It is not in a git repository, so its code cannot be compared."
    paths = required.code or (":(top,glob)**/*.py",)
    root = Path(str(path).removesuffix(required.file) or ".")
    changed = ask_git("diff", "--name-only", commit, "--", *paths, folder=root)
    if changed is None:
        return f"Commit {commit[:12]} is not known here. Fetch the whole history."
    files = changed.splitlines()
    if not files:
        return _find_untracked(required.code, paths, root)
    return f"{files[0]} has changed since commit {commit[:12]}" + (
        "." if len(files) == 1 else f", and {len(files) - 1} more."
    )

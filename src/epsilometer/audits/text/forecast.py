"""Forecast before training which claims canaries can refute, and at which true ε they will."""

from collections.abc import Sequence
from dataclasses import dataclass

from epsilometer import _validate
from epsilometer.audits.text.canaries import TextCanaries
from epsilometer.audits.text.views import Question, forecast_view
from epsilometer.core.claim import Claim
from epsilometer.core.words import number


@dataclass(frozen=True, kw_only=True)
class KindForecast:
    """Forecast for canaries of one kind.

    Attributes:
        kind: Kind of the canaries.
        count: Number of canaries.
        repetitions: Copies of each.
        reach: The largest claim that a perfect attack on them could refute.
        power: The smallest true ε at which the claim is refuted 4 times in 5; infinite if it is
            beyond reach, None without a claim.
    """

    kind: str
    count: int
    repetitions: int
    reach: float
    power: float | None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecast of what an audit can refute, computed before training starts.

    Attributes:
        kinds: One entry per kind of canaries.
        claim: What is claimed, if anything.
        delta: δ.
        confidence: Confidence of all bounds together.
    """

    kinds: tuple[KindForecast, ...]
    claim: Claim | None
    delta: float
    confidence: float

    @property
    def reach(self) -> float:
        """The largest claim that any kind could refute."""
        return max(each.reach for each in self.kinds)

    def __str__(self) -> str:
        lines = []
        for each in self.kinds:
            copies = f", {each.repetitions} copies each" if each.repetitions > 1 else ""
            said = (
                f"{each.count:,} canaries ({each.kind}{copies}) can refute claims up to "
                f"ε = {number(each.reach, decimals=1)} at δ = {self.delta:g}."
            )
            if self.claim is not None and each.power is not None:
                if self.claim.epsilon >= each.reach:
                    said += f" ε = {self.claim.epsilon:g} is beyond that: plant more canaries."
                else:
                    said += (
                        f" ε = {self.claim.epsilon:g} is refuted 4 times in 5 at a true ε of "
                        f"{number(each.power, decimals=1)}."
                    )
            lines.append(said)
        return "\n".join(lines)


def forecast_audit(
    wanted: Sequence[TextCanaries],
    planted: Sequence[int],
    *,
    claim: Claim | None,
    delta: float,
    confidence: float,
    views: int,
    paired: bool,
) -> Forecast:
    """Compute reach and power of an audit before training.

    Args:
        wanted: Canaries, one entry per kind.
        planted: Number of planted canaries of each kind, as the audit will count them.
        claim: What is claimed, if anything.
        delta: δ.
        confidence: Confidence of all bounds together.
        views: Number of scores of each kind.
        paired: Whether canaries are twins.
    """
    _validate.open_unit(confidence=confidence)
    _validate.whole(1, views=views)
    each_confidence = 1 - (1 - confidence) / (views * len(wanted))
    kinds = []
    for each, many in zip(wanted, planted, strict=True):
        asked = Question(
            delta=delta,
            confidence=each_confidence,
            copies=each.repetitions,
            paired=paired,
            replaced=paired and claim is not None and claim.adjacency == "replace",
        )
        reach, power = forecast_view(
            asked,
            None if claim is None else claim.epsilon,
            learnt=(many, 0),
            size=(many, each.count - many),
        )
        kinds.append(
            KindForecast(
                kind=each.kind,
                count=each.count,
                repetitions=each.repetitions,
                reach=reach,
                power=power,
            )
        )
    return Forecast(kinds=tuple(kinds), claim=claim, delta=delta, confidence=confidence)

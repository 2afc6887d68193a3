"""Check the residual noise of a run: eight checks, each with its own evidence."""

import math

import numpy as np
import scipy.special

from epsilometer.conformance import evidence
from epsilometer.conformance.comparisons import LEAST_DIRECTION
from epsilometer.conformance.evidence_check import Bets, EvidenceCheck, WeightedSum
from epsilometer.conformance.summary import StepSummary
from epsilometer.core import judge
from epsilometer.types import FloatArray

LEVEL = 1e-3
KEPT = 256  # steps whose sketch is kept: half of them the first steps, half the latest
MOST_ROWS = 1 << 20
_LAGS = 16


class NoiseCheck(EvidenceCheck):
    """Check the residual noise of every step."""

    def see(self, step: StepSummary, number: int) -> None:
        """Add the next step, which has this number."""
        raise NotImplementedError


class _Scale(NoiseCheck):
    """Detect too little noise over all coordinates, starting at any step."""

    name = "noise scale"
    expected = "noise of at least the accounted scale"
    steady = False

    def begin(self) -> None:
        self._less, self._more = Bets(), Bets()
        self._count, self._squares, self._most = 0, 0.0, -math.inf

    def see(self, step: StepSummary, number: int) -> None:
        self._count += step.count
        self._squares += step.squares
        self._less.add(evidence.scale_ratios(step.count, step.squares), number)
        self._more.add(evidence.scale_ratios(step.count, step.squares, evidence.LARGER), number)
        self._most = max(self._most, self._more.value())

    def compute_evidence(self) -> float:
        return self._less.value()

    def describe(self) -> str:
        return f"{self.measure()[0]:.4g} of the accounted scale"

    def measure(self) -> tuple[float, float, float]:
        limits = [
            math.sqrt(self._squares / (2 * scipy.special.gammaincinv(self._count / 2, q)))
            for q in (1 - LEVEL / 2, LEVEL / 2)
        ]
        return math.sqrt(self._squares / self._count), limits[0], limits[1]

    def deserves_remark(self) -> bool:
        return self.judge(self._most) == judge.VIOLATED


class _Tensors(NoiseCheck):
    """Detect too little noise in one tensor, row or coordinate, or in the sum of a tensor."""

    name = "noise in every part"
    expected = "noise of at least the accounted scale in every tensor, row and coordinate"
    steady = False

    def begin(self) -> None:
        self._names: tuple[str, ...] = ()
        self._counts = self._squares = self._sums = np.zeros(0)
        self._row_sizes = self._rows = np.zeros(0)
        self._small = self._count = self._steps = 0

    def see(self, step: StepSummary, number: int) -> None:
        if not self._names:
            self._names = tuple(part.name for part in step.tensors)
            self._counts, self._squares = np.zeros((2, len(self._names)))
            self._sums = np.zeros(len(self._names) + 1)  # the last is that of all tensors
            sizes = [part.rows.size for part in step.tensors]
            self._has_rows = sum(sizes) <= MOST_ROWS
            self._row_sizes = np.concatenate(
                [np.full(part.rows.size, part.count / part.rows.size) for part in step.tensors]
            )
            self._rows = np.zeros(self._row_sizes.size if self._has_rows else 0)
            self._starts = np.cumsum([0, *sizes])
        self._steps += 1
        self._counts += [part.count for part in step.tensors]
        self._squares += [part.squares for part in step.tensors]
        totals = [(part.total, part.count) for part in step.tensors]
        totals.append((sum(total for total, _ in totals), step.count))
        self._sums += [total**2 / count for total, count in totals]
        if self._has_rows:
            self._rows += np.concatenate([part.rows for part in step.tensors])
        self._small += sum(part.small for part in step.tensors)
        self._count += step.count

    def compute_evidence(self) -> float | None:
        tensors = [
            evidence.average(ratios)
            for ratios in evidence.scale_ratios(self._counts, self._squares)
        ]
        small = evidence.average(evidence.small_ratios(self._small, self._count))
        values = [evidence.average(tensors), self._sum_value(), self._row_value(), small]
        return evidence.average(values)

    def _sum_value(self) -> float:
        """Return evidence of the sums of tensors, in which noise may cancel."""
        return evidence.average(evidence.scale_ratios(self._steps, self._sums))

    def _row_value(self) -> float:
        """Return evidence of the quietest row; the average over all is at least its share of it."""
        if not self._has_rows:
            return -math.inf
        row = self._find_quietest()
        ratios = evidence.scale_ratios(self._row_sizes[row] * self._steps, self._rows[row])
        return evidence.average(ratios) - math.log(self._rows.size)

    def _find_quietest(self) -> int:
        return int(np.argmin(self._rows / self._row_sizes))

    def describe(self) -> str:
        worst = int(np.argmin(self._squares / self._counts))
        rms = math.sqrt(self._squares[worst] / self._counts[worst])
        least = f"least in {self._names[worst]}, {rms:.3g} of the accounted scale"
        if self._has_rows:
            row = self._find_quietest()
            tensor = int(np.searchsorted(self._starts, row, side="right")) - 1
            rms = math.sqrt(self._rows[row] / (self._row_sizes[row] * self._steps))
            least += f"; in row {row - self._starts[tensor]} of {self._names[tensor]} {rms:.3g}"
        if self.judge(self._sum_value()) == judge.VIOLATED:
            tensor = int(np.argmin(self._sums))
            rms = math.sqrt(self._sums[tensor] / self._steps)
            name = (*self._names, "all tensors")[tensor]
            least += f"; in the sum of {name} {rms:.3g}"
        return f"{least}; {self._small / self._count:.2%} of values near 0"

    def locate(self) -> str:
        return self.describe()


class Unwhitened(_Tensors):
    """Detect too little new noise in one tensor, row or coordinate, whatever earlier steps add.

    Used if declared noise is too large to be whitened in full. Given the past, a residual has an
    unknown mean and the scale of the new noise; the ratios hold under every mean.
    """

    name = "noise outside the sketch"
    expected = "new noise of at least the declared scale in every tensor, row and coordinate"
    missing = "every coordinate was whitened"

    def compute_evidence(self) -> float | None:
        """Return the evidence, if anything was observed."""
        return super().compute_evidence() if self._names else None


class _Steps(NoiseCheck):
    """Detect too little noise in one step."""

    name = "noise in every step"
    expected = "noise of at least the accounted scale in every step"
    steady = False

    def begin(self) -> None:
        self._sum = WeightedSum()
        self._least, self._at = math.inf, 0

    def see(self, step: StepSummary, number: int) -> None:
        ratios = evidence.scale_ratios(step.count, step.squares)
        self._sum.add(evidence.average(ratios), number)
        self._least, self._at = min((self._least, self._at), (step.squares / step.count, number))

    def compute_evidence(self) -> float:
        return self._sum.value

    def describe(self) -> str:
        return f"least in step {self._at}, {math.sqrt(self._least):.3g} of the accounted scale"


class _Shape(NoiseCheck):
    """Detect noise that is not Gaussian."""

    name = "noise shape"
    expected = "Gaussian noise"

    def begin(self) -> None:
        self._bets = {
            "truncated": Bets(),
            "light tails": Bets(),
            "heavy tails": Bets(),
            "one-sided": Bets(),
        }

    def see(self, step: StepSummary, number: int) -> None:
        count = step.count
        largest = max(part.largest for part in step.tensors)
        positive = sum(part.positive for part in step.tensors)
        sketches = [part.sketch for part in step.tensors if part.sketch.size]
        sketch = step.sketch
        # The largest of all coordinates tells a sharp cut, the sketch one that is blurred.
        cut = [evidence.truncation_ratios(largest, count), evidence.blurred_ratios(sketch)]
        self._bets["truncated"].add(np.concatenate(cut), number)
        self._bets["light tails"].add(evidence.flat_ratios(sketch), number)
        heavy = np.sum([evidence.peaked_ratios(sketch) for sketch in sketches], axis=0)
        self._bets["heavy tails"].add(heavy, number)
        self._bets["one-sided"].add(evidence.sign_ratios(positive, count), number)

    def compute_evidence(self) -> float:
        return evidence.average([bets.value() for bets in self._bets.values()])

    def describe(self) -> str:
        values = {name: bets.value() for name, bets in self._bets.items()}
        name = max(values, key=lambda each: values[each])
        if self.crossed is None:
            return "no evidence against it"
        return f"{name}, evidence e^{values[name]:.1f}"

    def locate(self) -> str:
        return max(self._bets, key=lambda name: self._bets[name].value())


class _StepIndependence(NoiseCheck):
    """Detect noise that is reused, or correlated with earlier noise."""

    name = "independence of steps"
    expected = "noise of any two steps is independent"
    missing = "fewer than two steps with noise in 8 coordinates or more"

    def begin(self) -> None:
        self._first: list[tuple[int, FloatArray]] = []
        self._latest: list[tuple[int, FloatArray]] = []
        self._sum = WeightedSum()
        self._lags: dict[int, FloatArray] = {}
        self._largest, self._pair = 0.0, (0, 0)
        self._seen = False

    def see(self, step: StepSummary, number: int) -> None:
        parts = [part.sketch for part in step.tensors if part.sketch.size >= LEAST_DIRECTION]
        norms = [float(np.linalg.norm(part)) for part in parts]
        if not parts or not all(norms):
            return  # without noise there is no direction; the scale is checked elsewhere
        sizes = [part.size for part in parts]
        unit = np.concatenate([part / norm for part, norm in zip(parts, norms, strict=True)])
        earlier = [*self._first, *self._latest]
        if earlier:
            self._compare(unit, earlier, sizes, number)
        kept = self._first if len(self._first) < KEPT // 2 else self._latest
        kept.append((number, unit))
        if len(self._latest) > KEPT // 2:
            self._latest.pop(0)

    def _compare(
        self,
        unit: FloatArray,
        earlier: list[tuple[int, FloatArray]],
        sizes: list[int],
        number: int,
    ) -> None:
        self._seen = True
        starts = np.cumsum([0, *sizes[:-1]])
        products = np.array([unit * other for _, other in earlier])
        # Each tensor has its own scale: cosines by tensor, and their average over coordinates.
        by_tensor = np.clip(np.add.reduceat(products, starts, axis=1), -1, 1)
        total = sum(sizes)
        overall = by_tensor @ (np.array(sizes) / total)
        largest = np.abs(by_tensor).max(axis=0)
        _, log_p = evidence.find_least_likely(largest, sizes)
        log_p += math.log(len(earlier))
        worst = int(np.argmax(np.abs(overall)))
        # Several tensors together are sub-Gaussian: 2 exp(−d c²/2), not exact as for one direction.
        both = math.log(2 * len(earlier)) - total * float(overall[worst]) ** 2 / 2
        self._sum.add(evidence.calibrate(evidence.smallest_log_p([log_p, both])), number)
        if abs(overall[worst]) > abs(self._largest):
            self._largest, self._pair = float(overall[worst]), (earlier[worst][0], number)
        for (before, _), cosine in zip(earlier, overall, strict=True):
            lag = number - before
            if lag <= _LAGS:
                ratios = evidence.stake_ratios(float(cosine), total)
                self._lags[lag] = self._lags.get(lag, np.zeros(ratios.size)) + ratios

    def compute_evidence(self) -> float | None:
        if not self._seen:
            return None
        lags = evidence.add_weighted(
            evidence.average(logs) - math.log(lag * (lag + 1)) for lag, logs in self._lags.items()
        )
        return evidence.average([self._sum.value, lags])

    def describe(self) -> str:
        first, second = self._pair
        return f"largest cosine {self._largest:.3g}, of steps {first} and {second}"

    def measure(self) -> tuple[float, None, None]:
        return self._largest, None, None


class _Repeats(NoiseCheck):
    """Detect noise that is repeated within a step."""

    name = "independence within a step"
    expected = "noise of tensors, rows and columns is independent"
    missing = "no tensor that can be compared with another or with a part of itself"

    def begin(self) -> None:
        self._sum = WeightedSum()
        self._log_p, self._largest, self._what = 0.0, 0.0, ""

    def see(self, step: StepSummary, number: int) -> None:
        if not step.cosines:
            return
        _, cosines, sizes = zip(*step.cosines, strict=True)
        worst, log_p = evidence.find_least_likely(cosines, sizes)
        self._sum.add(evidence.calibrate(log_p), number)
        if not self._what or log_p < self._log_p:
            self._log_p, (self._what, self._largest, _) = log_p, step.cosines[worst]

    def compute_evidence(self) -> float | None:
        return self._sum.value if self._what else None

    def describe(self) -> str:
        return f"least likely cosine {self._largest:.3g}, of {self._what}"

    def measure(self) -> tuple[float, None, None]:
        return self._largest, None, None


class _Cancelling(NoiseCheck):
    """Detect noise whose sum over steps is too small."""

    name = "noise that cancels"
    expected = "noise of consecutive steps adds up"
    missing = "fewer than two steps"

    def begin(self) -> None:
        self._sums: dict[int, FloatArray] = {}
        self._logs: dict[int, FloatArray] = {}
        self._totals: dict[int, tuple[int, float]] = {}

    def see(self, step: StepSummary, number: int) -> None:
        sketch = step.sketch
        for power in range(1, 11):
            length = 2**power
            self._sums[length] = self._sums.get(length, np.zeros(sketch.size)) + sketch
            if number % length == 0:
                block = self._sums.pop(length)
                squares = float(block @ block) / length
                ratios = evidence.scale_ratios(block.size, squares)
                self._logs[length] = self._logs.get(length, np.zeros(ratios.size)) + ratios
                count, total = self._totals.get(length, (0, 0.0))
                self._totals[length] = count + block.size, total + squares

    def compute_evidence(self) -> float | None:
        if not self._logs:
            return None
        return evidence.add_weighted(
            evidence.average(logs) - math.log(place * (place + 1))
            for place, logs in enumerate(self._logs.values(), 1)
        )

    def _least(self) -> tuple[int, float]:
        scales = {
            length: math.sqrt(total / count) for length, (count, total) in self._totals.items()
        }
        length = min(scales, key=lambda each: scales[each])
        return length, scales[length]

    def describe(self) -> str:
        length, scale = self._least()
        return f"sums of {length} steps have {scale:.3g} of the scale of independent noise, or more"

    def measure(self) -> tuple[float, None, None]:
        return self._least()[1], None, None


class _Lattice(NoiseCheck):
    """Detect noise on a coarse lattice."""

    name = "quantised noise"
    expected = "noise on no lattice coarser than 1/16 of its scale"
    missing = "no two values of one coordinate, or all that is released is rounded"

    def begin(self) -> None:
        self._before: FloatArray | None = None
        self._ties = self._pairs = 0

    def see(self, step: StepSummary, number: int) -> None:
        ties = step.ties
        if ties is None:
            sketch = step.sketch
            if self._before is None:
                self._before = sketch
                return
            ties = int(np.count_nonzero(sketch == self._before)), sketch.size
            self._before = None  # pairs share no step: otherwise they would be dependent
        self._ties += ties[0]
        self._pairs += ties[1]

    def compute_evidence(self) -> float | None:
        if not self._pairs:
            return None
        return evidence.average(evidence.tie_ratios(self._ties, self._pairs))

    def describe(self) -> str:
        share = self._ties / self._pairs
        if not self._ties:
            return "no value is repeated"
        spacing = 2 * math.sqrt(math.pi) * share
        return f"{share:.2%} of values are repeated, as on a lattice of {spacing:.2g} of the scale"

    def measure(self) -> tuple[float, None, None]:
        return self._ties / self._pairs, None, None

    def deserves_remark(self) -> bool:
        return self._ties > 1e-3 * self._pairs


CHECKS: tuple[type[NoiseCheck], ...] = (
    _Scale,
    _Tensors,
    _Steps,
    _Shape,
    _StepIndependence,
    _Repeats,
    _Cancelling,
    _Lattice,
)

"""Rényi accounting of Poisson sampling, for audits whose papers have it. ``pld`` is tighter."""

from collections.abc import Sequence

from epsilometer import _validate


def varied_poisson_epsilon(
    noise: Sequence[tuple[float, int]], *, sampling_rate: float, delta: float
) -> float:
    """The ε of DP-SGD by Poisson sampling whose noise changes: pairs of noise multiplier and steps.

    Guarantees: an upper bound; at small sampling rates it is several times that of ``pld``.

    Example:
        >>> round(varied_poisson_epsilon([(1.0, 60), (1.0, 40)], sampling_rate=0.01, delta=1e-5), 2)
        1.21
    """
    import dp_accounting
    from dp_accounting import rdp

    _validate.open_unit(delta=delta)
    accountant = rdp.RdpAccountant()
    for multiplier, steps in noise:
        event = dp_accounting.PoissonSampledDpEvent(
            sampling_rate, dp_accounting.GaussianDpEvent(multiplier)
        )
        accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))

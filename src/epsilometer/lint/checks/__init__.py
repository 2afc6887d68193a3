"""Check a project: one function per mistake yields the places where it is made."""

from collections.abc import Iterator

from epsilometer.lint.checks import (
    books,
    dropping,
    loaders,
    models,
    noise,
    permutations,
    pipelines,
    rounds,
)
from epsilometer.lint.checks.feeding import Feeding
from epsilometer.lint.checks.place import Place
from epsilometer.lint.programs import Programs
from epsilometer.lint.purposes import is_in_test

CHECKS = (
    loaders.find_poisson_off,
    loaders.find_loaders,
    loaders.find_trainers,
    pipelines.find_pipelines,
    pipelines.find_ordered,
    pipelines.find_fits,
    permutations.find_cut_batches,
    dropping.find_dropped_loaders,
    books.find_lost_books,
    books.find_other_numbers,
    books.find_other_steps,
    rounds.find_new_books,
    noise.find_overridden_noise,
    noise.find_replaced_optimizers,
    noise.find_layer_clipping,
    models.find_mixers,
    models.find_selection,
)


def check(programs: Programs) -> Iterator[Place]:
    """Yield all mistakes of a project, except in its tests, whose ε is not reported."""
    feeding = Feeding(programs)
    for find_mistakes in CHECKS:
        for place in find_mistakes(programs, feeding):
            if not is_in_test(place.module, place.call):
                yield place

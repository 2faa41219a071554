"""What an experiment is: a question, the runs that answer it, and a report; and the entries of its tables."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from looksam.experiments.engine.runs import Run, Store
from looksam.experiments.engine.statistics import mean_and_standard_error
from looksam.experiments.report.document import Claim, Entry, Figure, Section, Table, Value
from looksam.methods import METHODS
from looksam.trainer.recipe import Recipe
from looksam.trainer.recipes import paper_tables


class Findings(NamedTuple):
    """What an experiment reports, apart from its title and question."""

    answers: Sequence[str]
    tables: Sequence[Table]
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    claims: Sequence[Claim] = ()
    headline: Sequence[str] = ()


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper."""

    name: str
    title: str
    question: str
    stages: Callable[[Store, int], Iterator[list[Run]]]  # lists of runs; each may depend on the results of earlier ones
    findings: Callable[[Store, int], Findings]  # from complete runs; ValueError where some are missing
    timings: tuple[str, ...] = ()  # the step times it quotes, of small_scale.TIMED
    full: tuple[str, ...] = ()  # its recipes at full scale
    full_settings: tuple[dict[str, Any], ...] = ({},)  # each of those recipes is trained with each of these
    full_score: Callable[[Recipe], float | None] | None = None  # the paper's score where a recipe's own is not it
    in_parts: Callable[[Store, int], bool] | None = None  # if it has several: whether one of them is finished

    def section(self, store: Store, seeds: int) -> Section:
        """The report of the experiment at small scale."""
        return Section(self.name, self.title, self.question, **self.findings(store, seeds)._asdict())


def mean_entry(values: Sequence[float], digits: int = 2) -> Value:
    """Mean and standard error over seeds; the mean alone where there is a single one."""
    mean, error = mean_and_standard_error(values)
    return Value(float(mean), float(error) if len(values) > 1 else None, digits)


def mean_series(entries: Sequence[Value]) -> tuple[list[float], list[float]]:
    """The y values of a line and their standard errors."""
    return [entry.value for entry in entries], [entry.error or 0.0 for entry in entries]


def times_entry(factor: float | None, digits: int = 2) -> Entry:
    """A ratio, as in 1.27×."""
    return None if factor is None else Value(factor, digits=digits, unit="×")


SETTINGS = ("learning rate", "weight decay", "ρ", "α")  # the columns of ``setting_entries``


def setting_entries(recipe: Recipe) -> tuple[Entry, ...]:
    """What is tuned; None for what the recipe's method does not have."""
    own = METHODS[recipe.method].settings
    rule = [f"{getattr(recipe, name):g}" if name in own else None for name in ("rho", "alpha")]
    return f"{recipe.learning_rate:g}", f"{recipe.weight_decay:g}", *rule


def paper_number(table: str, column: str, **where: str) -> float | None:
    """A number of the paper's tables, from the row with these values; None where it has none."""
    return paper_tables.number(table, column, **where)


def paper_entry(table: str, column: str, **where: str) -> Entry:
    """A number of the paper's tables, to the one digit that it prints."""
    return printed(paper_number(table, column, **where))


def printed(number: float | None) -> Entry:
    """A number that the paper prints to one digit."""
    return None if number is None else Value(number, digits=1)


def ratio(number: float | None, base: float | None) -> float | None:
    """How many times the base, where both are known."""
    return None if number is None or base is None else number / base

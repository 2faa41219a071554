"""Desk scale from end to end: train what is missing, measure times, write the reports."""

import os
import pathlib
from collections.abc import Callable, Iterator

from looksam.experiments import timing
from looksam.experiments.cost import cost
from looksam.experiments.made import made_by
from looksam.experiments.registry import EXPERIMENTS
from looksam.experiments.report.page import page
from looksam.experiments.report.text import section_text
from looksam.experiments.reproduce import Stages, fill, missing
from looksam.experiments.store import Store
from looksam.experiments.write import INTRO, TIMINGS_OF, TITLE, sections, summary, with_source, write_section


class Desk:
    """Some experiments on ``seeds`` seeds, with their results in ``out``."""

    def __init__(self, out: pathlib.Path, names: tuple[str, ...], seeds: int) -> None:
        self.out, self.names, self.seeds = out, names, seeds
        self.store = Store(out / "cells")

    def _timings(self) -> list[str]:
        """Those that are not measured yet."""
        wanted = dict.fromkeys(timed for name in self.names for timed in TIMINGS_OF.get(name, ()))
        return [name for name in wanted if not timing.ratios(self.store, name)]

    def missing(self) -> str:
        """What there is to do, in words."""
        tasks = [task for part in missing(self.store, self._stages(), self.seeds) for task in part]
        minutes = sum(map(cost, tasks)) / 1000 / 60
        timings = ", ".join(self._timings()) or "none"
        return f"{len(tasks)} runs to train, about {minutes:.0f} minutes of one core; times to measure: {timings}"

    def fill(self, workers: int | None, data_dir: str | None, download: bool, say: Callable[[str], None]) -> None:
        fill(
            self.store,
            self._stages(),
            seeds=self.seeds,
            workers=workers or os.cpu_count() or 1,
            data_dir=data_dir,
            download=download,
            say=say,
        )
        for name in self._timings():  # the training processes have ended: nothing may run beside it
            say(f"measuring times on {name}")
            self.store.write(f"timing-{name}", timing.measure(name, say) | made_by())

    def write(self) -> Iterator[str]:
        """Write the results of each experiment, then the page of all that are complete; gives their texts."""
        for name in self.names:
            section = with_source(EXPERIMENTS[name], self.store, self.seeds)
            write_section(section, summary(EXPERIMENTS[name], self.store, self.seeds), self.out / name)
            yield section_text(section)
        ready = tuple(name for name in EXPERIMENTS if self._complete(name))
        (self.out / "report.html").write_text(page(sections(self.store, self.seeds, ready), TITLE, INTRO))
        yield f"{self.out}/report.html"

    def _complete(self, name: str) -> bool:
        stages = EXPERIMENTS[name].stages(self.store, self.seeds)
        trained = all(task in self.store for stage in stages for task in stage)
        return trained and all(timing.ratios(self.store, timed) for timed in TIMINGS_OF.get(name, ()))

    def _stages(self) -> list[Stages]:
        return [EXPERIMENTS[name].stages for name in self.names]

"""The summary of all reports: five sentences and a picture for people in a hurry, and a verdict on every claim."""

from collections.abc import Sequence

from looksam.experiments.claims import HOW_JUDGED
from looksam.experiments.report.document import Entry, Link, Section, Table


def overview(sections: Sequence[Section]) -> Section:
    """The summary of these sections: the sentences and first figures of those that have a headline, and all claims."""
    headlines = [section for section in sections if section.headline]
    rows: list[tuple[Entry, ...]] = [
        (claim.text, claim.verdict, claim.evidence, Link(section.name, section.name, section.title))
        for section in sections
        for claim in section.claims
    ]
    return Section(
        "summary",
        "Summary",
        "What does the paper claim, and does it hold here?",
        [sentence for section in headlines for sentence in section.headline],
        [Table("The paper's claims", ("claim", "verdict", "evidence", "section"), rows)] if rows else [],
        [figure for section in headlines for figure in section.figures[:1]],
        [HOW_JUDGED] if rows else [],
    )

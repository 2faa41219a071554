"""The documents as the tests read them: code blocks, headings and links of README.md, CONTRIBUTING.md and docs/."""

import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
FENCE = re.compile(r"^( *)(```+|:::+)\s*(.*)$")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


class Block(NamedTuple):
    """A fenced or indented block of code."""

    page: str  # relative to the checkout
    line: int
    section: str  # the heading of level 2 above it, or ""
    language: str
    code: str
    not_run: str | None  # the reason in a comment on the line before it

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def documents() -> list[str]:
    """Every Markdown document of the checkout that a reader is sent to, README.md first."""
    docs = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *docs]


def blocks(page: str, language: str | None = None, section: str | None = None) -> list[Block]:
    """Returns the code blocks of a page, in order, of one language or under one heading if these are given."""
    found = _blocks(page, (ROOT / page).read_text().splitlines())
    return [
        block
        for block in found
        if (language is None or block.language == language) and (section is None or block.section == section)
    ]


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    section, reason, i = "", None, 0
    while i < len(lines):
        line, start = lines[i], i + 1
        if match := FENCE.match(line):
            end = next(j for j in range(start, len(lines)) if lines[j].strip() == match[2])
            code = "".join(f"{text.removeprefix(match[1])}\n" for text in lines[start:end])
            yield Block(page, start, section, match[3], code, reason)
            i = end
        elif line.startswith("    ") and not lines[i - 1].strip():  # indented, after an empty line
            end = next((j for j in range(i, len(lines)) if not lines[j].startswith("    ")), len(lines))
            yield Block(page, start, section, "", "".join(f"{text[4:]}\n" for text in lines[i:end]), reason)
            i = end - 1
        elif line.startswith("## "):
            section = line[3:]
        if line.strip():
            found = NOT_RUN.fullmatch(line.strip())
            reason = found[1] if found else None
        i += 1


def prose(page: str) -> str:
    """Returns the text of a page without code, in which every line keeps its number."""
    lines = (ROOT / page).read_text().splitlines()
    for block in blocks(page):
        for i in range(block.line, block.line + block.code.count("\n")):
            lines[i if FENCE.match(lines[block.line - 1]) else i - 1] = ""
    return re.sub(r"`[^`\n]*`", "code", "\n".join(lines))


def anchors(page: str) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    found: list[str] = []
    for line in (ROOT / page).read_text().splitlines():
        if match := re.match(r"#{1,6} (.+)$", line):
            slug = re.sub(r"[^\w\- ]", "", match[1].lower()).replace(" ", "-")
            found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return set(found)


def links(page: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the target of every link and image."""
    for number, line in enumerate(prose(page).splitlines(), 1):
        for target in re.findall(r"\]\(([^()\s]+)\)", line):
            yield number, target

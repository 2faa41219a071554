"""Write the tables of README.md and docs/maths.md anew from the measurements stored in results/.

    python tools/documents.py

Each table stands between two comments that name where its numbers come from. Tests hold the documents to this.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from rules import markdown  # noqa: E402

from looksam.report.table import as_text  # noqa: E402


def tables() -> dict[str, str]:
    """The text between the comments, by the file its numbers are in."""
    comparisons = json.loads((ROOT / "results/digits/results.json").read_text()).values()
    return {
        "results/digits/results.json": "\n".join(f"```\n{as_text(result)}\n```" for result in comparisons),
        "results/benchmarks/rules.json": markdown(json.loads((ROOT / "results/benchmarks/rules.json").read_text())),
    }


def filled(text: str) -> str:
    """The document with every table as stored."""
    for source, table in tables().items():
        block = re.compile(rf"(<!-- from {re.escape(source)} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        text = block.sub(lambda match, table=table: match[1] + table + match[2], text)
    return text


DOCUMENTS = [ROOT / "README.md", ROOT / "docs/maths.md"]

if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text()))

"""docs/api.md names every parameter that a deterministic request may have, and every status."""

import re
from itertools import chain
from pathlib import Path

import pytest

from llm42.router.admission import FLAG, FREE, FREE_OF, admit
from llm42.router.refused import Refused

PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text()


def table(first: str) -> list[list[str]]:
    """The cells of each row of the table whose first column is called so."""
    _, _, rest = PAGE.partition(f"| {first} |")
    rows, _, _ = rest.partition("\n\n")
    return [[cell.strip() for cell in re.split(r" \| |^\| | \|$", row)[1:]] for row in rows.splitlines()[2:]]


PARAMETERS = [(cells[0], cells[2]) for cells in table("Parameter")]
STATUSES = {int(status) for cells in table("Status") for status in cells[0].split(", ")}


def test_what_is_verified_is_there() -> None:
    listed = [
        name for cell, deterministic in PARAMETERS if deterministic == "yes" for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(listed) == sorted({FLAG, "n", *FREE, *chain(*FREE_OF.values())})


def test_what_is_not_is_refused() -> None:
    cells = [cell for cell, deterministic in PARAMETERS if deterministic == "400"]
    refused = [part.strip("`") for cell in cells for part in cell.split(", ") if re.fullmatch(r"`\w+`", part)]
    assert len(refused) > 5
    for name in refused:
        with pytest.raises(Refused, match=f"{name} is 'x'"):
            admit({"prompt": "p", FLAG: True, name: "x"}, "completions", "off", {})

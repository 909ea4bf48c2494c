"""``python -m llm42.dashboards [--check] [FOLDER]``: write the dashboards, or say which files are not current."""

import argparse
import json
import sys
from pathlib import Path

from llm42.dashboards import DASHBOARDS, grafana_json


def written() -> dict[str, str]:
    """Text by file name."""
    return {
        f"{dashboard.uid}.json": json.dumps(grafana_json(dashboard), indent=1, ensure_ascii=False) + "\n"
        for dashboard in DASHBOARDS
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m llm42.dashboards", description="Write the Grafana dashboards.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("grafana"))
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not current")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    wrong = []
    for name, text in written().items():
        path = folder / name
        if options.check and (not path.exists() or path.read_text() != text):
            wrong.append(str(path))
        elif not options.check:
            path.write_text(text)
    if wrong:
        print(f"not current: {', '.join(wrong)}; run `python -m llm42.dashboards`", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

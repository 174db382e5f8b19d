"""Writes the golden traces anew: `python -m tests.golden.update`, from the top folder of the project."""

from __future__ import annotations

from tests.golden.examples import FOLDER, PARAMETERS, trace


def main() -> None:
    for algorithm in PARAMETERS:
        path = FOLDER / f"{algorithm}.txt"
        text = trace(algorithm)
        changed = not path.exists() or path.read_text(encoding="utf-8") != text
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {'written' if changed else 'as it was'}")


if __name__ == "__main__":
    main()

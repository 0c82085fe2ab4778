"""Reads a Dockerfile into stages and instructions, as far as ours goes, so that tests can look at it and carry out its build without Docker."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """`word` in capitals, `rest` as written with its continued lines joined by blanks."""

    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The arguments, flags such as --from= left out."""
        return [word for word in self.rest.split() if not word.startswith("--")]

    @property
    def taken_from(self) -> str:
        """The stage of `COPY --from=`; "" for the build context."""
        found = re.search(r"--from=(\S+)", self.rest)
        return found[1] if found else ""


@dataclass(frozen=True)
class Stage:
    """A stage: its name, what it is built on, and its instructions."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        """The instructions with this word."""
        return [each for each in self.instructions if each.word == word]

    def command(self, word: str) -> list[str]:
        """The last ENTRYPOINT, CMD or HEALTHCHECK in its exec form."""
        words = json.loads(self.all(word)[-1].rest.partition("CMD ")[2] if word == "HEALTHCHECK" else self.all(word)[-1].rest)
        assert all(isinstance(each, str) for each in words)
        return list(words)


def read_dockerfile(path: Path) -> dict[str, Stage]:
    """The stages by name, in order. Raises AssertionError for what Docker would not take."""
    stages: dict[str, Stage] = {}
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            assert re.fullmatch(r"[a-z][a-z0-9-]*", name), line
            assert name not in stages, line
            stages[name] = Stage(name, base)
        else:
            assert stages, f"{line} stands before FROM"
            list(stages.values())[-1].instructions.append(Instruction(word, rest.strip()))
    return stages

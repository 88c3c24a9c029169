"""Export of timelines as files for the viewers of other tools."""

import pathlib

import snapshot
import timeline as timelines
import traces as perfetto
from figures import slug
from files import Files
from load import Cell, Problem
from records import ARMS


def write(
    cells: list[Cell], directory: pathlib.Path, files: Files, snapshots: bool, traces: bool, problems: list[Problem]
) -> tuple[int, int]:
    """DIR/snapshots/<set>-<cell>.<arm>.pickle and DIR/traces/<set>-<cell>.json; of the lowest rank, the only one whose
    results are kept. Returns how many of each were written."""
    snapshots_written = traces_written = 0
    for cell in cells:
        name = f"{cell.results.index}-{slug(cell.id)}"
        arms = []
        for arm in ARMS:
            path = cell.timeline(arm)
            if path is None:
                continue
            try:
                read = timelines.read(path)
                if snapshots:
                    files.write(directory / "snapshots" / f"{name}.{arm}.pickle", snapshot.document(read))
                    snapshots_written += 1
                arms.append((arm, read))
            except timelines.TimelineError as error:
                problem = Problem(str(path), f"timeline {cell.id}, {arm}", str(error))
                if problem not in problems:
                    problems.append(problem)
        if traces and arms:
            files.write(directory / "traces" / f"{name}.json", perfetto.document(arms, 0, cell.id))
            traces_written += 1
    return snapshots_written, traces_written

#!/usr/bin/env python3
"""Holds a language model's validation losses to those that nanoGPT's users have published.

Usage: published_curve.py CORPUS --program FP8LAB [-o OUT] [--small]
       published_curve.py --results OUT/results.json [--small]

CORPUS is the text of the published runs, the 1115394 bytes of tiny Shakespeare. The program runs
scenarios/language_model/nanogpt.yaml on it, on a GPU; with --small the configuration that nanoGPT's README gives for a
CPU, of which it publishes only the last loss. Prints each published loss next to the measured one, and exits 1 if one
differs by more than the tolerance, 2 if figures are missing.
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import sys

SCENARIO = pathlib.Path(__file__).resolve().parent.parent / "scenarios/language_model/nanogpt.yaml"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

# Six public logs of the GPU configuration lie within 0.5 % of each other; losses of one log are means over 200 random
# batches. Precision and dropout masks differ here, and so does the activation: nanoGPT's nn.GELU() is the exact one, by
# the error function, form gpt has its tanh form.
CURVE = {250: 2.068, 500: 1.733, 750: 1.592, 1000: 1.522, 1500: 1.485, 1750: 1.472, 2000: 1.481}
TOLERANCE = 0.015
# nanoGPT's README gives two digits, of a mean over 20 batches of 768 tokens.
SMALL_CURVE = {2000: 1.88}
SMALL_TOLERANCE = 0.03 / 1.88
# What the CPU configuration of the README changes.
SMALL = {
    "layers": 4, "hidden": 128, "heads": 4, "seq": 64, "batch": 12, "dropout": 0, "decay_steps": 2000,
    "validation_batches": 146, "device": "[cpu]",
}


def scenario_text(text, corpus, small):
    """The scenario `text` on the file `corpus`, with the vocabulary that it needs."""
    values = {"vocabulary": len(set(corpus.read_bytes())), **(SMALL if small else {})}
    for key, value in values.items():
        text, count = re.subn(rf"(?<=\b{key}: )(\[[^]]*\]|[^,}}\s]+)", str(value), text)
        if count != 1:
            sys.exit(f"{SCENARIO}: `{key}` stands there {count} times, not once")
    return text.replace("  tokens: character\n", f"  tokens: character\n  corpus: {json.dumps(str(corpus))}\n")


def run(options):
    """Runs the scenario and returns the path of its results, which this run wrote. Exits 2 if it leaves none."""
    corpus = pathlib.Path(options.corpus).resolve()
    if hashlib.sha256(corpus.read_bytes()).hexdigest() != SHA256:
        print(f"note: {corpus} is not the text of the published runs", file=sys.stderr)
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    file = out / SCENARIO.name  # by which its scenario is called
    file.write_text(scenario_text(SCENARIO.read_text(encoding="utf-8"), corpus, options.small), encoding="utf-8")
    results = out / "results.json"
    results.unlink(missing_ok=True)
    try:
        code = subprocess.run(
            [options.program, "run", str(file), "-o", str(out), "--timeout", "86400"], check=False
        ).returncode
    except OSError as error:
        code = error
    # 1: a gate failed; the losses are there all the same.
    if code not in (0, 1) or not results.is_file():
        print(f"{options.program} run {file}: it ended with {code} and left {results if results.is_file() else 'no results'}",
              file=sys.stderr)
        sys.exit(2)
    return results


def validation_losses(results):
    """By step, of the after arm of the only cell."""
    cells = json.loads(pathlib.Path(results).read_text(encoding="utf-8"))["cells"]
    arms = [cell["arms"].get("after", {}) for cell in cells]
    losses = [arm["validation_losses"] for arm in arms if "validation_losses" in arm]
    if len(losses) != 1:
        print(f"{results}: {len(losses)} cells have validation losses, not one", file=sys.stderr)
        sys.exit(2)
    return {one["step"]: one["loss"] for one in losses[0]}


def judge(losses, curve, tolerance):
    """Prints the comparison; returns the exit code."""
    print("step  published  measured  difference")
    code = 0
    for step, published in curve.items():
        loss = losses.get(step)
        if loss is None:
            print(f"{step:4}  {published:9.3f}   missing")
            code = 2
            continue
        difference = loss / published - 1
        good = abs(difference) <= tolerance
        print(f"{step:4}  {published:9.3f}  {loss:8.4f}  {100 * difference:+8.2f} %{'' if good else '  too far'}")
        code = code or int(not good)
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("--program")
    parser.add_argument("-o", "--out", default="out")
    parser.add_argument("--results")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if bool(options.results) == bool(options.corpus and options.program):
        parser.error("name a corpus and --program, or --results")
    results = options.results or run(options)
    curve, tolerance = (SMALL_CURVE, SMALL_TOLERANCE) if options.small else (CURVE, TOLERANCE)
    return judge(validation_losses(results), curve, tolerance)


if __name__ == "__main__":
    sys.exit(main())

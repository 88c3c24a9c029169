"""The content of a process's document: figures, lines and findings."""

import os
import platform
import sys

import torch

from .. import protocol
from . import words

# A context may hold small tensors on purpose.
SHARE_OF_PEAK = 0.001


def who(session):
    return {
        "rank": session.rank(), "world": session.world(), "on_this_host": ranks_on_this_host(session),
        "device": session.device,
        "program": os.path.basename(sys.argv[0]) if sys.argv else "",
        "torch": torch.__version__, "python": platform.python_version(),
        "steps": session.steps_ended, "guesses": session.guesses(),
    }


def ranks_on_this_host(session):
    return int(os.environ.get("LOCAL_WORLD_SIZE") or session.world())


def describe(session):
    metrics, members, notes = {}, {}, []
    for one in session.instruments:
        try:
            figures, more, remarks = one.result()
        except Exception as error:
            session.fail(one, error, "result")
            continue
        metrics.update(figures)
        members.update(more)
        notes += remarks
    result = protocol.result(metrics)
    samples = members.pop("samples", None)
    result |= members | ({"samples": samples} if samples else {})
    result["notes"] = notes + [f"guessed: {one}" for one in session.guesses()] + [overhead(session)]
    result["seconds"] = sum(session.step_seconds)
    return {
        **who(session), "result": result, "trained": session.trained,
        "lines": [{"topic": topic, "text": text} for topic, text in lines(session)],
        "findings": findings(session), "failed": [finding("failed", name, f"{name}: {why}", 0)
                                                  for name, why in session.failed.items()],
        "overhead": overhead(session),
    }


def instrument(session, name):
    return next((one for one in session.instruments if one.name == name), None)


def lines(session):
    """[(topic, text)] of this process."""
    out = [["model", session.model_text or "no step has ended"]]
    makers = {"memory": memory_lines, "traffic": traffic_lines, "host": host_lines, "parity": weight_lines,
              "values": value_lines}
    for name, make in makers.items():
        one = instrument(session, name)
        if one is not None and name not in session.failed:
            out += make(session, one)
    return out


def local_numel(parameter):
    own = parameter.detach()
    return (own.to_local() if hasattr(own, "to_local") else own).numel()


def model(session):
    parts = []
    for _, one in session.models():
        all_ranks = sum(parameter.numel() for parameter in one.parameters())
        own = sum(local_numel(parameter) for parameter in one.parameters())
        parts.append(f"{type(one).__name__} with {all_ranks:,} parameters"
                     + (" on this rank" if own == all_ranks else f", {own:,} of them on this rank"))
    parts += sorted({type(one).__name__ for one in session.optimizers()})
    seconds = session.seconds()
    if seconds is not None:
        parts.append(f"{words.duration(seconds)} a step")
    return ", ".join(parts)


def memory_lines(session, memory):
    account = session.storages.account(session.device)
    peak = max(account.peak, memory.highest)
    where = f" in {account.peak_place[0]} of step {account.peak_place[1]}" if account.peak_place else ""
    out = [["peak", f"{words.size(peak)}{where}: {words.by_kind(account.peak_groups())}"]]
    if "memory.end_of_backward_bytes" in memory.figures:
        kept = sum(memory.retained.values())
        held = words.by_kind({(kind, ""): size for kind, size in memory.kinds.items()})
        alive = words.size(memory.figures["memory.end_of_backward_bytes"])
        out.append(["backward", f"{alive} alive after it: {held}; {words.size(kept)} only autograd holds"])
    if "memory.end_of_step_bytes" in memory.figures:
        held = {key: size for key, size in memory.end.items() if key[0] != "gradient"}
        alive = words.size(memory.figures["memory.end_of_step_bytes"])
        out.append(["step", f"{alive} alive after it without gradients: {words.by_kind(held)}"])
    return out


def traffic_lines(session, wire):
    if session.world() == 1:
        return []
    rows = wire.by_kind_and_type()
    if not rows:
        return [["traffic", "no collective in the last step"]]
    moved = [f"{kind} {words.size(size)} {dtype} ({words.counted(times, 'call')})" for kind, dtype, times, size in rows]
    return [["traffic", "in the last step " + ", ".join(moved)]]


def host_lines(session, host):
    slowest = host.slowest()
    if slowest is None:
        return [["host", host.result()[0]["host.pre_forward_ns"][2]]]
    name, median, total = slowest
    every = host.result()[0]["host.pre_forward_ns"][0]
    return [["host", f"{words.duration(every / 1e9)} before a layer (p50); most before {name}: "
                     f"{words.duration(median / 1e9)}, {words.duration(total / 1e9)} a step"]]


def weight_lines(session, weights):
    trained = weights.trained()
    moved = len(trained) - len(weights.still())
    parts = [f"{moved} of {len(trained)} weights moved"] if trained else ["no weight was updated"]
    if trained and not weights.non_finite:
        parts.append("gradients are finite")
    if weights.losses:
        parts.append(f"loss {weights.losses[0]:.4g} -> {weights.losses[-1]:.4g}")
    return [["weights", ", ".join(parts)]]


def value_lines(_, values):
    if not values.tensors:
        return [["values", "no tensor was recorded"]]
    since, until = values.of_steps
    steps = f"step {since}" if since == until else f"steps {since} to {until}"
    return [["values", f"{words.counted(values.tensors, 'tensor')} of {steps} in {values.path()}"]]


def findings(session):
    """[{kind, subject, text, size}]: what a training program should not do."""
    out = []
    memory, weights = instrument(session, "memory"), instrument(session, "parity")
    if memory is not None:
        for (kind, label), rate, first in memory.ends.growing():
            out.append(finding("growth", f"{kind} {label}", words.growing(kind, label, rate, first), rate))
        peak = session.storages.account(session.device).peak
        retained = memory.unintended()
        kept = sum(retained.values())
        if kept > SHARE_OF_PEAK * peak:
            out.append(finding("retained", "", words.retained(retained, memory.retained_since), kept))
    if weights is not None:
        still = weights.still()
        trained = len(weights.trained())
        if still and "parity" not in session.failed:  # else it did not see them move
            text = words.still(still, trained, session.steps_ended, weights.without_gradient,
                               weights.rates_rounded_off)
            out.append(finding("still", "", text, len(still)))
        if weights.non_finite:
            out.append(finding("not_finite", "", words.non_finite(weights.non_finite), len(weights.non_finite)))
    return out


def finding(kind, subject, text, size):
    return {"kind": kind, "subject": subject, "text": text, "size": size}


def overhead(session):
    """"instruments add 12 % to a step: memory 3 ms, ..."""
    parts = sorted(session.overhead().items(), key=lambda one: -one[1])
    total = sum(seconds for _, seconds in parts)
    step = sum(session.step_seconds) / max(1, len(session.step_seconds))
    share = f" ({100 * total / (step - total):.0f} % of what it takes without)" if 0 < total < step else ""
    named = ", ".join(f"{name} {words.duration(seconds)}" for name, seconds in parts)
    return f"instruments take {words.duration(total)} a step{share}: {named or 'nothing'}"

"""What was measured, in words. Imports no PyTorch."""

MOST_PARTS, MOST_NAMES = 4, 3
# Phases of a step, in addition to "forward", "backward" and "optimizer".
BETWEEN, AFTER_STEP = "the time between backward and the optimizer", "the time after the step"
# How a kind of holder is called in a line.
KINDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "recipe_state": "modules' attributes",
    "variable": "variables",
    "unsharded": "gathered parameters",
    "context": "kept for backward",
    "unexplained": "no holder found",
}
# How one holder of a kind is called.
ONE = {
    "recipe_state": "attribute {} of a module",
    "variable": "variable {}",
    "context": "autograd's {}",
    "unexplained": "{}",
    "optimizer_state": "optimizer's {}",
    "parameter": "parameter {}",
    "unsharded": "gathered parameter {}",
    "unsearched": "too few steps were searched for its holder",
}


def size(value):
    """12.3 MiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def duration(seconds):
    """1.2 ms"""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return "0 us" if seconds < 1e-6 else f"{seconds / 1e-6:.3g} us"


def counted(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


def holder(kind, label):
    return ONE.get(kind, kind.replace("_", " ") + " {}").format(label).strip()


def names(all_names):
    """a, b, c and 4 more"""
    shown, more = all_names[:MOST_NAMES], len(all_names) - MOST_NAMES
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def by_kind(sizes):
    """"parameters 49.0 MiB, kept for backward 20.0 MiB (blocks.*.mlp 12.0 MiB)", the largest first. `sizes`: {(kind,
    label): bytes}."""
    kinds, labels = {}, {}
    for (kind, label), value in sizes.items():
        if value > 0:
            kinds[kind] = kinds.get(kind, 0) + value
            labels.setdefault(kind, []).append((value, label))
    parts = []
    for kind, total in sorted(kinds.items(), key=lambda one: -one[1])[:MOST_PARTS]:
        value, label = max(labels[kind])
        named = kind not in ("parameter", "gradient", "optimizer_state") and label
        parts.append(f"{KINDS.get(kind, kind)} {size(total)}" + (f" (most: {label} {size(value)})" if named else ""))
    rest = sum(kinds.values()) - sum(sorted(kinds.values(), reverse=True)[:MOST_PARTS])
    return ", ".join(parts) + (f", others {size(rest)}" if rest > 0 else "")


def growing(kind, label, rate, first):
    return f"memory grows by {size(rate)} a step since step {first}: {holder(kind, label)}"


def retained(sizes, first):
    label, largest = max(sizes.items(), key=lambda one: one[1])
    more = f" and {counted(len(sizes) - 1, 'other')}" if len(sizes) > 1 else ""
    return (f"{size(sum(sizes.values()))} stay alive after backward since step {first}: "
            f"{holder('context', label)} ({size(largest)}){more}")


def still(all_names, trained, steps, without_gradient, rates_rounded_off):
    def why(name):
        if name in without_gradient:
            return " (no gradient)"
        if name in rates_rounded_off:
            return f" (16-bit values round steps of {rates_rounded_off[name]:.3g} off)"
        return ""

    named = [name + why(name) for name in all_names]
    return f"{len(all_names)} of {trained} weights have not moved in {counted(steps, 'step')}: {names(named)}"


def non_finite(firsts):
    first = min(firsts.values())
    named = names([one for one, step in firsts.items() if step == first])
    return f"gradients are not finite since step {first}: {named}"


def place(where):
    """Where a process stands still: "in forward of step 3, blocks.*.attn, for 9.8 s, at train.py:33 in main"."""
    step = where["step"]
    phase = where["phase"]
    of_step = f"after step {step - 1}" if phase == AFTER_STEP else f"in {phase} of step {step}"
    parts = [of_step, where["module"], f"for {where['seconds']:g} s", f"at {where['line']}" if where["line"] else ""]
    last = f"last collective: {where['collective']}" if where["collective"] else ""
    return ", ".join(part for part in (*parts, last) if part)

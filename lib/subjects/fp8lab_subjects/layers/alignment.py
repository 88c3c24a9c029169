"""Groups of rows of which each has a multiple of some number of rows, as products of groups in eight bits require.

Padding has the sizes and places of torchtitan's (TorchAOTokenDispatcher at `b5bcd76c`, torchao's permute_and_pad): zeros
follow a group's rows, a group without rows has one multiple of zeros, and there is room for one multiple more for every
group, so that no size depends on the counts of a batch. Rows after the last group belong to none.
"""

import torch


@torch.no_grad()
def places(ends, total, multiple):
    """For groups that end at `ends` [groups] and have `total` rows: the place of each row, and the ends of padded groups."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    sizes = torch.div(counts + multiple - 1, multiple, rounding_mode="floor").clamp(min=1) * multiple
    padded_ends = torch.cumsum(sizes, 0, dtype=torch.int32)
    moved = (padded_ends - sizes) - (ends - counts)
    of_row = torch.repeat_interleave(counts, output_size=total)
    return torch.arange(total, device=ends.device) + moved[of_row], padded_ends


def with_room(total, groups, multiple):
    """Rows that suffice for every routing."""
    return -(-(total + groups * multiple) // multiple) * multiple


def aligned(rows, ends, multiple, run_experts):
    """run_experts(rows, ends), which computes padded groups; `ends` are the ends of groups in `rows`, and in the result."""
    place, padded_ends = places(ends, len(rows), multiple)
    room = with_room(len(rows), len(ends), multiple)
    padded = rows.new_zeros(room, rows.shape[1]).index_copy(0, place, rows)
    return run_experts(padded, padded_ends).index_select(0, place)

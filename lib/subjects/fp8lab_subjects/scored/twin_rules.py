"""Which plain twins an arm has (plain_twin.py). The program's own rules are the same (lib/harness/measure/twin/library_twin.h)."""

# Values of the input of all ranks and micro-batches.
MOST_VALUES = 1 << 22


def batches(cell):
    """Micro-batches of all ranks in a step."""
    return (cell["ranks"] if cell.has_ranks else 1) * cell["training.micro_batches"]


def why_not_joined(cell):
    """Why a cell has no twin on one rank, or ""."""
    if cell["model.dropout"] > 0 or cell["model.layer"] == "grouped_linear":
        return "masks of dropout and groups of experts follow from a token's place in its batch"
    if cell.routes:
        return "sums in another order give a token of nearly equal scores another expert"
    if cell.recipe == "delayed" or (cell.recipe != "bf16" and cell["training.fp8_attention"]):
        return "newly built layers have no passes before, from which scales of a history follow"
    if batches(cell) * cell.tokens * cell["model.hidden"] > MOST_VALUES:
        return f"the plain twin would read more than {MOST_VALUES} values"
    return ""


def has_equal_bits(cell):
    """True if newly built layers with the same weights give the same bits: no library with a history of scales runs on
    the host, weights are not rounded again, and no sum has a random order. gloo adds up three ranks or more in an order
    that depends on a gradient's place in its bucket, and DistributedDataParallel's first step has other buckets."""
    other_order = cell.replicated and cell["ranks"] > 2
    return cell["device"] == "cpu" and not cell.quantized_weights and not other_order

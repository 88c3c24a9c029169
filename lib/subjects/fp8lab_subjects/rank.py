"""What one rank does: trains a cell once, with the instruments of one group of metrics."""

import os

from . import subjects


VALUES = "FP8LAB_VALUES"  # the folder in which each arm records its tensors, as watching/values.py


def make_instruments(group, device, folder, has_twin=False):
    from . import clock, memory, traffic
    from .scored import values

    makers = {
        "memory": lambda: memory.MemoryInstrument(device),
        "traffic": traffic.TrafficInstrument,
        "host": clock.HostInstrument,
        "time": clock.TimeInstrument,
        "parity": lambda: values.ValuesInstrument(folder, has_twin),
        "twin": values.LossInstrument,
    }
    return [makers[group]()] if group != "values" else []


def start_group(cell, rank, folder):
    """Joins the process group; rendezvous is a file, so that no port is taken."""
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if cell["device"] == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=cell["ranks"],
    )


def trained(cell, group, rank, device, values_folder, has_twin):
    """Metrics and the rest of an arm's result, of this rank, which has joined the process group."""
    from .training import Run

    subject = subjects.load(cell.subject).make(cell, device)
    instruments = make_instruments(group, device, values_folder, has_twin)
    run = Run(cell, subject, rank, device, instruments)
    metrics = run.run()
    samples = {}
    for instrument in instruments:
        samples.update(getattr(instrument, "kept", {}) if group in ("host", "time") else {})
    return {
        "metrics": metrics,
        "retained_by_holder": run.retained_by_holder,
        "peak_by_holder": run.peak_by_holder,
        "timeline": run.timeline,
        "losses": run.losses,
        "samples": samples,
        "notes": subject.notes() + run.notes,
    }


def record(cell, rank, folder):
    """Trains as a watched program, which records the tensors of this rank."""
    os.environ[VALUES] = os.path.join(os.environ[VALUES], cell.arm)
    from .watching.session import Session

    session = Session(folder, "values", "")
    session.start()
    answer = train(cell, "values", rank, folder)
    session.tell("close")  # a rank ends without what is done at exit
    return answer


def train(cell, group, rank, folder, values_folder=None, has_twin=False):
    """Returns metrics and the rest of an arm's result, of this rank. `has_twin`: its values are compared with a plain
    twin's."""
    import torch

    torch.set_num_threads(1)  # ranks share the cores, and sums have one order
    device = torch.device("cpu")
    if cell["device"] == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    if cell.has_ranks:
        start_group(cell, rank, folder)
    answer = trained(cell, group, rank, device, values_folder, has_twin)
    # Not after an error: NCCL waits here for every rank, and another one may wait for this one in a collective.
    if cell.has_ranks:
        torch.distributed.destroy_process_group()
    return answer

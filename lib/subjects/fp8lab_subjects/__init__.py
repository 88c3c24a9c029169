"""Trains the cells of fp8lab's scenarios with a library and measures it; watches training programs of others."""


def watch(model=None, optimizer=None):
    """Names the model and the optimizer of this process for `fp8lab watch`, which guesses them otherwise. A step ends
    with a step of `optimizer`. Without `fp8lab watch` this does nothing. Imports no PyTorch."""
    from .watching import attaching

    attaching.name(model, optimizer)

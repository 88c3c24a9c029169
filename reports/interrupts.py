"""Sections of code that Ctrl-C must not interrupt."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Blocks SIGINT until the end of the context, where a pending one arrives. Processes that are started inside
    inherit the block and never see an interrupt, so their parent must end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

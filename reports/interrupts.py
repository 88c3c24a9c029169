"""Where Ctrl-C has to wait."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def held() -> Iterator[None]:
    """An interrupt arrives when this ends. Processes started meanwhile never see one: who started them ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Attaches instruments to a training program that runs unchanged, for `fp8lab watch`."""

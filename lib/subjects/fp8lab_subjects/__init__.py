"""Trains the cells of fp8lab's scenarios with a library, and measures it."""

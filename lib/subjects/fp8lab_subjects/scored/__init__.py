"""Values of a run, which the program scores."""

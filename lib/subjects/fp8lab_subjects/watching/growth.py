"""What grows from step to step. Imports no PyTorch."""

LEAST_BYTES = 1024  # in a step, on average
LEAST_STEPS = 3  # at which it is larger than at the one before
UNSEARCHED = ("unsearched", "")
MOST_KEPT = 512  # steps of a series; of more, every second one is dropped


class Series:
    """Bytes alive at the ends of steps: in total, and by holder if owners were searched."""

    def __init__(self):
        self.totals, self.by_holder = {}, {}

    def add_total(self, step, size):
        self.totals[step] = size
        self.totals = thinned(self.totals)

    def add(self, step, sizes):
        self.by_holder[step] = sizes
        self.by_holder = thinned(self.by_holder)

    def growing(self):
        """[(holder, bytes a step, first step at which it had grown)], the fastest first. UNSEARCHED if the total grows, and
        the steps that were searched do not show who holds it."""
        steps = sorted(self.by_holder)
        out = []
        for holder in self.by_holder[steps[-1]] if steps else ():
            found = growth([(step, self.by_holder[step].get(holder, 0)) for step in steps])
            if found:
                out.append((holder, *found))
        if not out and not self.totals.keys() <= self.by_holder.keys():
            found = growth(sorted(self.totals.items()))
            out = [(UNSEARCHED, *found)] if found else []
        return sorted(out, key=lambda one: (-one[1], one[0]))


def thinned(series):
    if len(series) <= MOST_KEPT:
        return series
    steps = sorted(series)
    return {step: series[step] for step in [*steps[:2], *steps[2:-1:2], steps[-1]]}


def growth(series):
    """(bytes a step, first step at which it had grown) of [(step, bytes)], or None. It grows if from some step on it
    never shrinks, has grown in the last quarter of the steps, and at least LEAST_STEPS times."""
    begin = 0
    for index in range(1, len(series)):
        if series[index][1] < series[index - 1][1]:
            begin = index
    rising = series[begin:]
    rises = [index for index in range(1, len(rising)) if rising[index][1] > rising[index - 1][1]]
    if len(rises) < LEAST_STEPS or rises[-1] < len(rising) - max(1, len(rising) // 4):
        return None
    before, after = rising[rises[0] - 1], rising[rises[0]]
    rate = (rising[-1][1] - before[1]) / (rising[-1][0] - before[0])
    if rate < LEAST_BYTES:
        return None
    # What is there at the first step may be that step's share.
    began_with_it = rises[0] == 1 and begin == 0 and 0 < before[1] <= 1.5 * rate
    return rate, before[0] if began_with_it else after[0]

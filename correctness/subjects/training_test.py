"""What a rank does around a library's model. Needs PyTorch."""

import types
import unittest

import torch
from fp8lab_subjects.scored import twin
from fp8lab_subjects.training import Run


class DrawingSubject:
    """A library that draws values when it makes its model."""

    def make_model(self):
        return types.SimpleNamespace(drawn=torch.rand(4), named_parameters=lambda: [])

    def fill(self, model):
        pass

    def make_optimizer(self, model):
        return None


class ALibrarysOwnValues(unittest.TestCase):
    def drawn(self, seed):
        keys = {"sharded": False, "replicated": False, "frozen_layers": 0, "has_router_biases": False}
        cell = type("Cell", (dict,), keys)({"training.seed": seed})
        torch.seed()  # as a new process: another seed
        run = Run(cell, DrawingSubject(), 0, torch.device("cpu"), [])
        run.make()
        return run.model.drawn

    def test_follow_from_the_seed_of_the_cell(self):
        self.assertTrue(torch.equal(self.drawn(1), self.drawn(1)))
        self.assertFalse(torch.equal(self.drawn(1), self.drawn(2)))


class LossesOfTwins(unittest.TestCase):
    def test_differ_by_the_largest_share(self):
        self.assertEqual(twin.difference([[1.0, 2.0], [4.0, 0.0]], [[1.0, 2.0], [4.0, 0.0]]), 0.0)
        self.assertEqual(twin.difference([[1.0, 2.0], [4.0, 3.0]], [[1.0, 2.5], [8.0, 3.0]]), 0.5)

    def test_that_are_no_numbers_differ_without_limit(self):
        for own, other in ((float("nan"), 1.0), (1.0, float("nan")), (float("inf"), float("inf")), (1.0, 0.0)):
            self.assertEqual(twin.difference([[own]], [[other]]), float("inf"), (own, other))


if __name__ == "__main__":
    unittest.main()

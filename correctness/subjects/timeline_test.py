"""Timelines out of the allocator's history, and profiles out of timelines; without PyTorch and without a GPU."""

import json
import pathlib
import sys
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lib/subjects"))
sys.modules.setdefault("torch", types.ModuleType("torch"))  # imported, and not used by what is tested here

from fp8lab_subjects import allocator_history, profile  # noqa: E402
from fp8lab_subjects.timeline import Timeline  # noqa: E402


def stack(function, line=7):
    return [
        {"filename": "/site/torch/autograd/function.py", "name": "apply", "line": 1},
        {"filename": "/site/transformer_engine/pytorch/module/linear.py", "name": function, "line": line},
    ]


class Recording:
    """Two blocks are alive before. Forward saves one and has a temporary, backward frees what forward saved."""

    initial = {10: (1024, None), 20: (512, stack("get_workspace"))}
    marks = [
        ("start_of_step", 0, {10: ("parameter", "layers[0].weight")}, None),
        ("forward", 0, {}, None),
        ("end_of_forward", 3, {30: ("context", "LinearBackward[3]: saved")}, None),
        ("backward", 3, {}, None),
        ("end_of_backward", 6, {50: ("gradient", "layers[0].weight")}, None),
    ]

    def events(self):
        yield 30, 2048, stack("forward")
        yield 40, 4096, stack("forward", 9)
        yield 40, -4096, None
        yield 50, 1024, None
        yield 60, 8192, None
        yield 60, -8192, None
        yield 30, -2048, None


class Timelines(unittest.TestCase):
    def setUp(self):
        self.timeline = Timeline(Recording(), step=2)
        self.document = json.loads(self.timeline.document(retained=77))

    def owners(self):
        holders = self.document["holders"]
        return [(event[0], holders[event[3]]["kind"], holders[event[3]]["owner"]) for event in self.document["events"]]

    def test_a_block_has_the_holder_that_claims_it_where_a_phase_ends(self):
        self.assertEqual(
            self.owners(),
            [
                (1024, "parameter", "layers[0].weight"),
                (512, "workspace", "linear.get_workspace"),
                (2048, "context", "LinearBackward[3]: saved"),
                (4096, "workspace", "linear.forward"),
                (-4096, "workspace", "linear.forward"),
                (1024, "gradient", "layers[0].weight"),
                (8192, "workspace", "autograd"),
                (-8192, "workspace", "autograd"),
                (-2048, "context", "LinearBackward[3]: saved"),
            ],
        )

    def test_bytes_alive_and_phases_follow_the_events(self):
        events = self.document["events"]
        self.assertEqual([event[2] for event in events], [1024, 1536, 3584, 7680, 3584, 4608, 12800, 4608, 2560])
        self.assertEqual([event[4] for event in events[:3] + events[-1:]], ["setup", "setup", "forward", "backward"])
        marks = {mark["name"]: mark for mark in self.document["marks"]}
        self.assertEqual(marks["end_of_forward"]["live_bytes"], 3584)
        self.assertEqual(marks["end_of_backward"]["retained_bytes"], 77)
        self.assertNotIn("forward", marks)

    def test_the_peak_is_named_by_holder_without_indices(self):
        self.assertEqual(self.timeline.peak, 12800)
        self.assertEqual(self.timeline.peak_by_holder()[0], ("workspace of autograd", 8192))
        self.assertIn(("gradient of layers[*].weight", 1024), self.timeline.peak_by_holder())
        self.assertEqual(
            self.timeline.by_kind_at("end_of_forward"), {"parameter": 1024, "workspace": 512, "context": 2048}
        )

    def test_what_outlives_a_recomputed_forward_is_called_as_the_mark_says(self):
        class Recomputed(Recording):
            marks = [(name, number, {}, "context" if name == "end_of_forward" else None) for name, number, *_ in Recording.marks]

        self.assertEqual(Timeline(Recomputed(), 0).by_kind_at("end_of_forward")["context"], 2048)

    def test_the_function_of_a_library_is_found_behind_those_of_pytorch(self):
        self.assertEqual(allocator_history.asked_by(stack("backward", 3)), ("linear.backward", 3))
        self.assertEqual(allocator_history.asked_by(None), ("", 0))
        start = [{"filename": "<string>", "name": "<module>", "line": 1}]
        self.assertEqual(allocator_history.asked_by(start), ("", 0))
        scripted = [{"filename": "<string>", "name": "<forward op>", "line": 4}]
        self.assertEqual(allocator_history.asked_by(scripted + start), ("<string>.<forward op>", 4))

    def test_code_that_torch_compile_wrote_has_one_name(self):
        generated = "/tmp/torchinductor_root/u4/cu4hrkc6zgkbqbnkoeocktxbnjvyxzudwt7pzncsgspofl4zrnce.py"
        frame = {"filename": generated, "name": "call", "line": 80}
        self.assertEqual(allocator_history.asked_by([frame, *stack("backward")]), (allocator_history.COMPILED, 80))


CONFIG = {
    "model.layer": "linear", "model.form": "llama", "model.layers": 3, "model.hidden": 1920, "model.heads": 15,
    "model.kv_heads": 5, "model.ffn": 5248, "model.seq": 896, "model.batch": 11, "training.recipe": "delayed",
    "training.quantized_weights": False,
}
SIZES = profile.sizes_of(CONFIG)


class Profiles(unittest.TestCase):
    def terms(self, size, owner=""):
        unknown = set()
        found = profile.terms_of(size, owner, SIZES, unknown)
        self.assertEqual(unknown, set(), size)
        return found

    def test_a_size_says_of_which_sizes_it_is_the_product(self):
        tokens, hidden, ffn = SIZES["tokens"], SIZES["hidden"], SIZES["ffn"]
        self.assertEqual(self.terms(2 * tokens * hidden), {"tokens*hidden": 2})
        self.assertEqual(self.terms(4 * tokens * ffn + 512), {"tokens*ffn": 4})
        self.assertEqual(self.terms(tokens * ffn // 32), {"tokens*ffn": 1 / 32})
        self.assertEqual(self.terms(2 * hidden * SIZES["qkv"]), {"hidden*qkv": 2})
        self.assertEqual(self.terms(2 * tokens * SIZES["kv"]), {"tokens*kv": 2})
        self.assertEqual(self.terms(4 * tokens), {"tokens": 4})
        self.assertEqual(self.terms(4 * ffn), {"ffn": 4})  # within 512 bytes of 11 * hidden too

    def test_sums_of_compiled_code_have_rows_of_columns(self):
        size = 4 * 28 * SIZES["ffn"]
        self.assertEqual(self.terms(size, allocator_history.COMPILED), {"ffn": 112})
        self.assertNotEqual(self.terms(size, "jit.bgrad_dgelu_fused_"), {"ffn": 112})
        self.assertEqual(self.terms(139722752), {"sums(2*ffn)": 1})  # measured: PyTorch's sum over tokens
        self.assertEqual(self.terms(900), {"bytes": 900})

    def test_a_size_that_is_no_product_is_reported(self):
        unknown = set()
        self.assertEqual(profile.terms_of(123456789, "f", SIZES, unknown), {"bytes": 123456789})
        self.assertEqual(unknown, {(123456789, "f")})

    def test_moments_that_another_one_covers_are_left_out(self):
        moments = [
            ("a", {"workspace": {"bytes": 1}}),
            ("b", {"workspace": {"bytes": 3, "tokens": 1}}),
            ("c", {"context": {"tokens": 2}}),
            ("d", {"context": {"tokens": 2}}),
        ]
        self.assertEqual([moment["at"] for moment in profile.highest(moments)], ["b", "c"])

    def test_a_row_holds_what_a_layer_leaves_and_the_loss_is_apart(self):
        unit = SIZES["tokens"] * SIZES["hidden"]
        weight = 2 * SIZES["hidden"] ** 2
        holders = [
            {"kind": "parameter", "owner": "layers[0].weight"}, {"kind": "context", "owner": "LinearBackward[1]"},
            {"kind": "workspace", "owner": "linear.forward"}, {"kind": "gradient", "owner": "layers[0].weight"},
            {"kind": "recipe state", "owner": "layers.0"},
        ]
        holders += [{"kind": "input", "owner": "x"}]
        sizes = [*3 * [(0, weight)], (4, 1500), (5, 4 * unit)]  # before; with a target
        sizes += 3 * [(2, 4 * unit), (1, unit), (2, -4 * unit)]  # forward of three layers
        sizes += [(2, 3 * unit), (2, -2 * unit), (2, -unit)]  # the loss, which frees the output
        sizes += [(2, 2 * unit)]  # the loss's backward
        sizes += 3 * [(2, 8 * unit), (3, weight), (2, -8 * unit), (1, -unit)]
        names = {
            "start_of_step": 5, "forward of layers[0]": 5, "forward of layers[1]": 8, "forward of layers[2]": 11,
            "end of forward of layers[2]": 14, "end_of_forward": 17, "backward of layers[2]": 18,
            "backward of layers[1]": 22, "backward of layers[0]": 26, "end_of_backward": 30,
        }
        timeline = {
            "holders": holders, "marks": [{"name": name, "event": event} for name, event in names.items()],
            "events": [[size, abs(size), 0, holder, "", 0] for holder, size in sizes],
        }
        unknown = set()
        row, scratch = profile.row_of(CONFIG, timeline, unknown)
        loss = profile.loss_of(CONFIG, timeline, unknown)
        self.assertEqual((scratch, unknown), (0, set()))
        self.assertEqual(row["bytes_of_weight"], 2)
        self.assertEqual(row["state"], 500)
        self.assertEqual(row["first_layer"], {})
        self.assertEqual(row["forward"], {"context": {"tokens*hidden": 1}})
        self.assertEqual(row["forward_moments"], [{"at": "context of LinearBackward", "workspace": {"tokens*hidden": 4},
                                                   "context": {"tokens*hidden": 1}}])
        self.assertEqual(row["backward"], {"gradient": {"hidden*hidden": 2}, "context": {"tokens*hidden": -1}})
        self.assertEqual(len(row["backward_moments"]), 1)
        # The loss is no part of the row: the last layer's surplus is its own.
        self.assertEqual(loss["held"], {"tokens*hidden": 2})
        self.assertEqual(loss["forward"], {})
        self.assertEqual(loss["forward_moments"], [{"at": "linear.forward", "workspace": {"tokens*hidden": 3}}])
        self.assertEqual(loss["backward"], {"tokens*hidden": 2})
        self.assertEqual(loss["surplus"], {})
        self.assertEqual(len(row["spread_moments"]), 1)
        self.assertEqual(loss["backward_moments"], [{"at": "linear.forward", "workspace": {"tokens*hidden": 2}}])
        self.assertEqual(loss["kept"], {"tokens*hidden": 2})

    def test_rows_of_another_release_are_kept_if_they_differ(self):
        def row(form, state):
            return {"layer": "linear", "form": form, "recipe": "bf16", "quantized_weights": False, "state": state}

        found = profile.differing([row("gpt", 1), row("llama", 2)], [row("gpt", 1), row("llama", 3)], "2.17", "2.20")
        self.assertEqual(found, [{"first": "2.17", "last": "2.20"} | row("llama", 3)])


if __name__ == "__main__":
    unittest.main()

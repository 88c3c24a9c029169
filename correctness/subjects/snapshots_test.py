"""Snapshots of PyTorch's allocator: read without running their code, attributed, compared; without PyTorch."""

import collections
import json
import os
import pathlib
import pickle
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lib/subjects"))

from fp8lab_subjects import plain_pickle, snapshots  # noqa: E402

TORCH = "/env/lib/python3.12/site-packages/torch"


def frame(file, line, name):
    return {"filename": file, "line": line, "name": name}


def from_library(line=9):
    """A library asked, and the program called it."""
    return [
        frame(f"{TORCH}/nn/functional.py", 1, "linear"),
        frame("/env/lib/python3.12/site-packages/library/layer.py", line, "forward"),
        frame(f"{TORCH}/nn/modules/module.py", 1, "_call_impl"),
        frame("/home/me/train.py", 33, "main"),
    ]


PROGRAM = [frame(f"{TORCH}/_tensor.py", 5, "backward"), frame("/home/me/train.py", 40, "main")]


def snapshot(blocks, trace=(), device=0):
    """`blocks`: (bytes, stack or None, state)."""
    address, listed = 4096, []
    for size, frames, state in blocks:
        listed.append({"size": size, "requested_size": size, "state": state, "frames": frames or []})
    total = sum(size for size, _, _ in blocks)
    segment = {"device": device, "address": address, "total_size": total, "blocks": listed}
    return {"segments": [segment], "device_traces": [[]] * device + [list(trace)]}


def event(action, address, size, frames=()):
    return {"action": action, "addr": address, "size": size, "frames": list(frames)}


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def kept(self, value, name="a.pickle"):
        (self.folder / name).write_bytes(pickle.dumps(value))
        return str(self.folder / name)


class Reading(Case):
    def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(self):
        class Planted:
            def __reduce__(self):
                return os.mkdir, (str(marker),)

        marker = self.folder / "planted"
        for value in (Planted(), collections.OrderedDict(a=1), [len]):
            with self.assertRaisesRegex(ValueError, r"a\.pickle: not a snapshot: it names "):
                plain_pickle.load(self.kept(value))
        self.assertFalse(marker.exists())

    def test_what_is_no_snapshot_is_refused_with_its_path(self):
        for content in (b"", b"text", pickle.dumps({"segments": 3}), pickle.dumps([1]), pickle.dumps(snapshot([]))[:-9]):
            (self.folder / "b.pickle").write_bytes(content)
            with self.assertRaisesRegex(ValueError, r"b\.pickle: "):
                snapshots.document([str(self.folder / "b.pickle")])
        with self.assertRaisesRegex(ValueError, "none.pickle: No such file"):
            snapshots.document([str(self.folder / "none.pickle")])
        wrong = snapshot([(512, None, "active_allocated")])
        wrong["segments"][0]["blocks"][0]["size"] = [1]
        with self.assertRaisesRegex(ValueError, r"a\.pickle: not a snapshot: segments\[0\]\.blocks\[0\]\.size is no integer"):
            snapshots.document([self.kept(wrong)])

    def test_wrong_values_are_refused_with_their_place(self):
        def changed(change, line=3):
            value = snapshot([(512, [frame("/t.py", line, "f")], "active_allocated")], [event("alloc", 1, 512)])
            change(value["segments"][0], value["segments"][0]["blocks"][0], value["device_traces"][0][0])
            return value

        for name, value in {
            "segments[0].device": changed(lambda segment, block, event: segment.update(device="0")),
            "segments[0].total_size": changed(lambda segment, block, event: segment.update(total_size=float("nan"))),
            "segments[0].blocks[0].size": changed(lambda segment, block, event: block.update(size=-4096)),
            "segments[0].blocks[0].frames[0].line": changed(lambda *_: None, 10 ** 4400),
            "device_traces[0][0].size": changed(lambda segment, block, event: event.update(size=float("inf"))),
            "device_traces[0][0].addr": changed(lambda segment, block, event: event.update(addr=-1)),
        }.items():
            with self.subTest(name), self.assertRaises(ValueError) as refused:
                snapshots.document([self.kept(value)])
            self.assertIn(f"a.pickle: not a snapshot: {name} is no integer from 0 to ", str(refused.exception))
        for device in (-1, 1 << 70, float("inf"), None):
            with self.subTest(device), self.assertRaisesRegex(ValueError, r"a\.pickle: not a snapshot: segments\[0\]\.device"):
                snapshots.document([self.kept(changed(lambda segment, *_: segment.update(device=device)))])

    def test_a_small_file_of_shared_lists_is_refused(self):
        blocks = [{"size": 512, "state": "active_allocated", "frames": [frame("/t.py", 1, "f")] * 2000}] * 2000
        value = {"segments": [{"device": 0, "total_size": 1 << 20, "blocks": blocks}] * 3000}
        with self.assertRaisesRegex(ValueError, "more than 4000000 blocks, events and frames"):
            snapshots.document([self.kept(value)])

    def test_a_name_that_is_no_text_of_unicode_is_replaced(self):
        value = snapshot([(512, [frame("/home/me/\udcff.py", 1, "f\ud800")], "active_allocated")])
        found = json.loads(json.dumps(snapshots.document([self.kept(value)])))
        self.assertEqual(found["snapshots"][0]["stacks"][0]["frames"], ["/home/me/?.py:1 f?"])


class Holding(Case):
    def one(self, value):
        return snapshots.document([self.kept(value)])["snapshots"][0]

    def test_blocks_belong_to_who_asked_and_to_the_line_that_called_it(self):
        found = self.one(snapshot([
            (1024, from_library(), "active_allocated"), (2048, from_library(12), "active_allocated"),
            (512, PROGRAM, "active_allocated"), (4096, None, "active_allocated"),
            (8192, PROGRAM, "inactive"), (512, PROGRAM, "active_pending_free")]))
        self.assertEqual([(one["holder"], one["bytes"], one["blocks"]) for one in found["holders"]], [
            ("without a stack", 4096, 1), ("layer.forward (from train.py:33)", 3072, 2), ("train.main", 512, 1)])
        self.assertEqual((found["in_use_bytes"], found["unused_bytes"], found["waiting_bytes"]), (7680, 8192, 512))
        self.assertEqual((found["reserved_bytes"], found["with_stack_bytes"]), (16384, 3584))
        self.assertEqual(found["stacks"][1]["frames"][1], "/env/lib/python3.12/site-packages/library/layer.py:12 forward")

    def test_the_fullest_device_is_read(self):
        both = snapshot([(512, None, "active_allocated")])
        both["segments"] += snapshot([(1024, PROGRAM, "active_allocated")], device=1)["segments"]
        found = self.one(both)
        self.assertEqual((found["device"], found["devices"], found["in_use_bytes"]), (1, [0, 1], 1024))

    def test_the_peak_of_the_history_is_replayed_from_what_is_in_use(self):
        # Alive before: 512 at 1. Then +2048 (library), +1000, -2048, and the block of 1000 (1024) stays.
        trace = [event("segment_alloc", 1, 1 << 21), event("alloc", 100, 2048, from_library()), event("alloc", 4608, 1000, PROGRAM),
                 event("free_requested", 100, 2048), event("free_completed", 100, 2048)]
        found = self.one(snapshot([(512, None, "active_allocated"), (1024, PROGRAM, "active_allocated")], trace))
        self.assertEqual((found["peak_bytes"], found["history_events"]), (512 + 2048 + 1024, 3))
        self.assertEqual([(one["holder"], one["bytes"]) for one in found["peak_holders"]], [
            ("layer.forward (from train.py:33)", 2048), ("train.main", 1024), ("without a stack", 512)])

    def test_the_peak_counts_what_blocks_got_not_what_was_asked_for(self):
        found = self.one(snapshot([(3 << 20, PROGRAM, "active_allocated")], [event("alloc", 4096, 2 << 20, PROGRAM)]))
        self.assertEqual((found["in_use_bytes"], found["peak_bytes"]), (3 << 20, 3 << 20))

    def test_all_holders_are_counted(self):
        blocks = [(512, [frame("/home/me/train.py", 1, f"f{index}")], "active_allocated") for index in range(1000)]
        found = self.one(snapshot(blocks))
        self.assertEqual((len(found["holders"]), found["holders_total"], found["stacks_total"]), (40, 1000, 1000))

    def test_a_block_that_was_freed_in_the_history_was_alive_before_it(self):
        found = self.one(snapshot([(512, None, "active_allocated")], [event("free_requested", 100, 4096)]))
        self.assertEqual(found["peak_bytes"], 4608)

    def test_the_timeline_ends_with_what_is_in_use(self):
        trace = [event("alloc", 100, 2048, from_library()), event("alloc", 4608, 1024, PROGRAM), event("free_requested", 100, 2048)]
        value = snapshot([(512, None, "active_allocated"), (1024, PROGRAM, "active_allocated")], trace)
        line = snapshots.document([self.kept(value)])["timelines"][0]
        self.assertEqual([one[2] for one in line["events"]], [512, 2560, 3584, 1536])
        self.assertEqual([one[4] for one in line["events"]], ["setup", "forward", "backward", "forward"])
        self.assertEqual(line["marks"][0]["live_bytes"], 1536)
        self.assertEqual(line["holders"][1], {"kind": "tensor", "owner": "layer.forward", "what": "layer.py:9"})


class Comparing(Case):
    def test_the_difference_names_what_the_second_holds_more_and_less(self):
        first = self.kept(snapshot([(1024, from_library(), "active_allocated"), (512, PROGRAM, "active_allocated")]))
        second = self.kept(snapshot([(1024, from_library(), "active_allocated")] * 4), "b.pickle")
        found = snapshots.document([first, second])["difference"]
        self.assertEqual([(one["holder"], one["bytes"], one["blocks"]) for one in found["holders"]], [
            ("layer.forward (from train.py:33)", 3072, 3), ("train.main", -512, -1)])
        self.assertEqual(found["in_use_bytes"], 2560)
        self.assertEqual(found["stacks"][0]["frames"][-1], "/home/me/train.py:33 main")

    def test_equal_snapshots_do_not_differ(self):
        path = self.kept(snapshot([(1024, from_library(), "active_allocated")]))
        found = snapshots.document([path, path])["difference"]
        self.assertEqual((found["holders"], found["stacks"], found["in_use_bytes"]), ([], [], 0))
        json.dumps(snapshots.document([path, path]))


if __name__ == "__main__":
    unittest.main()

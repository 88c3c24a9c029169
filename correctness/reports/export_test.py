"""Snapshots hold what PyTorch's viewer reads, traces what Perfetto reads, and both hold the timeline's bytes."""

import json
import pickle
import pickletools
import unittest

import sample

import export
import files
import load
import snapshot
import timeline

# The types that the viewer's own unpickler supports.
OPCODES = {
    "APPEND",
    "APPENDS",
    "BINFLOAT",
    "BINGET",
    "BININT",
    "BININT1",
    "BININT2",
    "BINPUT",
    "BINUNICODE",
    "DICT",
    "EMPTY_DICT",
    "EMPTY_LIST",
    "EMPTY_TUPLE",
    "FRAME",
    "LIST",
    "LONG1",
    "LONG_BINGET",
    "LONG_BINPUT",
    "MARK",
    "MEMOIZE",
    "NEWFALSE",
    "NEWTRUE",
    "NONE",
    "PROTO",
    "SETITEM",
    "SETITEMS",
    "SHORT_BINUNICODE",
    "STOP",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
}


class Exports(sample.Case):
    def read(self, retained: bool) -> timeline.Timeline:
        path = self.directory / "t.json"
        path.write_text(json.dumps(sample.timeline(retained)))
        return timeline.read(path)

    def written(self, retained: bool) -> dict:
        document = snapshot.document(self.read(retained))
        opcodes = list(pickletools.genops(document))
        self.assertEqual((opcodes[0][0].name, opcodes[0][1]), ("PROTO", 4))
        self.assertLessEqual({opcode.name for opcode, _, _ in opcodes}, OPCODES)
        return pickle.loads(document)

    def test_segments_hold_the_blocks_alive_at_the_end(self) -> None:
        for retained, held in ((True, 12), (False, 9)):
            segments = self.written(retained)["segments"]
            self.assertEqual(len(segments), 1)
            segment = segments[0]
            for key in (
                "device",
                "address",
                "total_size",
                "allocated_size",
                "active_size",
                "stream",
                "segment_type",
                "frames",
            ):
                self.assertIn(key, segment)
            blocks = segment["blocks"]
            self.assertEqual(sum(block["size"] for block in blocks), segment["total_size"])
            at = segment["address"]
            for block in blocks:
                self.assertEqual(block["address"], at)
                self.assertIn(block["state"], ("active_allocated", "inactive"))
                self.assertIsInstance(block["frames"], list)
                at += block["size"]
            active = [block for block in blocks if block["state"] == "active_allocated"]
            self.assertEqual(sum(block["requested_size"] for block in active), held * sample.MIB)
            self.assertEqual(segment["active_size"], held * sample.MIB)

    def test_the_trace_replays_the_timeline(self) -> None:
        document = self.written(True)
        self.assertEqual(len(document["device_traces"]), 1)
        live: dict[int, int] = {}
        totals, requested = [], set()
        for entry in document["device_traces"][0]:
            self.assertLessEqual({"action", "addr", "size", "stream", "time_us", "frames"}, entry.keys())
            for frame in entry["frames"]:
                self.assertEqual(frame.keys(), {"name", "filename", "line"})
            if entry["action"] == "alloc":
                self.assertNotIn(entry["addr"], live)
                live[entry["addr"]] = entry["size"]
                totals.append(sum(live.values()))
            elif entry["action"] == "free_requested":
                requested.add(entry["addr"])
            elif entry["action"] == "free_completed":
                requested.remove(entry["addr"])
                self.assertEqual(live.pop(entry["addr"]), entry["size"])
            else:
                self.assertEqual(entry["action"], "segment_alloc")
        self.assertEqual(max(totals), 13 * sample.MIB)
        self.assertEqual(sum(live.values()), 12 * sample.MIB)
        times = [entry["time_us"] for entry in document["device_traces"][0]]
        self.assertEqual(times, sorted(times))

    def test_frames_name_the_holder_before_and_after_it_changes(self) -> None:
        names = [entry["frames"][0]["name"] for entry in self.written(True)["device_traces"][0] if entry["action"] == "alloc"]
        self.assertEqual(
            names,
            [
                "parameter of layers[0].weight",
                "saved slot of layers[0].attention: q",
                "context of layers[0].attention: q",
                "workspace",
            ],
        )

    def test_cells_whose_ids_start_alike_have_files_of_their_own(self) -> None:
        results = load.ResultSet("s", "s", root=self.directory / "out")
        ids = ["leak/" + "x" * 190 + f"/n={n}" for n in (1, 2)]
        results.cells = [load.Cell(sample.cell() | {"id": cell_id}, results) for cell_id in ids]
        sample.write_set(self.directory / "out", [cell.record for cell in results.cells])
        problems: list[load.Problem] = []
        with files.Files() as out:
            export.write(results.cells, self.directory, out, True, True, problems)
        self.assertEqual(problems, [])
        self.assertEqual(len(list((self.directory / "snapshots").iterdir())), 6)
        traces_of = [json.loads(path.read_text())["otherData"]["cell"] for path in (self.directory / "traces").iterdir()]
        self.assertEqual(sorted(traces_of), ids)

    def test_freeing_bytes_without_a_holder_is_an_error(self) -> None:
        document = sample.timeline(False)
        document["events"][-1][3] = 3
        path = self.directory / "t.json"
        path.write_text(json.dumps(document))
        with self.assertRaisesRegex(timeline.TimelineError, "event 5 frees or moves 3145728 B that saved slot"):
            snapshot.snapshot(timeline.read(path))

    def test_perfetto_gets_spans_by_phase_and_counters_by_holder(self) -> None:
        document = export.trace([("before", self.read(True)), ("after", self.read(False))], 0, "cell")
        events = json.loads(document)["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, {0, 1})
        spans = [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X" and event["pid"] == 0]
        self.assertEqual(spans, [("setup", 0, 1), ("forward", 1, 1), ("backward", 2, 3)])
        counters = [event["args"] for event in events if event["ph"] == "C" and event["pid"] == 0]
        self.assertEqual(
            counters[-1], {"parameter": 9 * sample.MIB, "context": 3 * sample.MIB, "saved slot": 0, "workspace": 0}
        )
        self.assertEqual([sum(args.values()) for args in counters], [event[2] for event in sample.timeline(True)["events"]])
        names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
        self.assertEqual(names, ["rank 0: before", "rank 0: after"])


class Timelines(sample.Case):
    def read(self, document: object) -> timeline.Timeline:
        path = self.directory / "t.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return timeline.read(path)

    def test_bands_add_up_to_the_live_bytes(self) -> None:
        both = [self.read(sample.timeline(retained)) for retained in (True, False)]
        axis = timeline.shared_axis(both)
        for most in (1, 2, 9):
            bands = timeline.bands(both, most)
            for one in both:
                curve = timeline.curve(one, bands, axis, 100)
                self.assertEqual([sum(sizes) for sizes in zip(*curve.by_band)], curve.live)
                self.assertEqual(curve.x, sorted(curve.x))
                self.assertEqual(curve.peak[1], 13 * sample.MIB)

    def test_thinned_moments_keep_the_peak(self) -> None:
        one = self.read(sample.timeline(True))
        curve = timeline.curve(one, timeline.bands([one], 9), timeline.shared_axis([one]), 1)
        self.assertEqual(max(curve.live), 13 * sample.MIB)

    def test_mistakes_are_named(self) -> None:
        wrong = sample.timeline(True)
        wrong["events"][1][2] += 1
        with self.assertRaisesRegex(timeline.TimelineError, "event 1 does not add up"):
            self.read(wrong)
        old = sample.timeline(True)
        old["events"][2].pop()
        with self.assertRaisesRegex(timeline.TimelineError, "event 2 does not say from whom"):
            self.read(old)
        with self.assertRaisesRegex(timeline.TimelineError, "cut off or broken"):
            self.read(json.dumps(sample.timeline(True))[:-9])
        with self.assertRaisesRegex(timeline.TimelineError, "fp8lab.timeline/9"):
            self.read(sample.timeline(True) | {"schema": "fp8lab.timeline/9"})


if __name__ == "__main__":
    unittest.main()

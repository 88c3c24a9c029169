"""Shows that check_collectives.py finds collectives that a rank may skip, and no others."""

import pathlib
import tempfile
import unittest

import check_collectives

# A wrapper of a wrapper of a collective, a member that reaches one through another object, and two functions of one
# name.
HELPERS = """
namespace fp8lab {
namespace {

std::vector<int> of_all(ProcessGroup& world, int mine) {
  world.all_gather(parts(mine), "of all");
  return {};
}

bool on_all(ProcessGroup& world, bool holds) {
  const std::vector<int> all = of_all(world, holds);
  return holds_in(all);
}

class Shards {
 public:
  void unshard() { group_.all_gather_async(parts_, name_); }
  bool empty() const { return parts_.empty(); }
};

struct Run {
  explicit Run(ProcessGroup& world) : mesh(world.split(places, "shards")) {}
  template <class Visit>
  void visit(const Visit& visit) {
    for (Shards* shards : all) shards->unshard();
  }
};

void ask(Shards& shards) { shards.unshard(); }
void ask(int number) { print(number); }

}  // namespace
"""


def check(body, parameters="ProcessGroup& world, Run& run, bool mine, int rank"):
    text = f"{HELPERS}\nbool tested({parameters}) {{\n{body}\n}}\n\n}}  // namespace fp8lab\n"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "lib/harness/measure/tested.cpp")
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        names, findings = check_collectives.check(folder)
    first = text[:text.index("bool tested")].count("\n") + 1
    return names, [(finding.line - first, finding.what) for finding in findings]


# what it is called, the operator or keyword, the line
SKIPPED = [
    ("return mine && on_all(world, mine);", "on_all", "&&"),
    ("return mine || on_all(world, mine);", "on_all", "||"),
    ("return on_all(world, mine) && mine;", "on_all", "&&"),
    ("return mine ? on_all(world, mine) : false;", "on_all", "?"),
    ("return mine ? false : on_all(world, mine);", "on_all", "?"),
    ("put(name, on_all(world, mine) ? 1.0 : 0.0);", "on_all", "?"),
    ("return mine && ended_with == (sum(of_all(world, 1)) + 2);", "of_all", "&&"),
    ("const bool equal = same(losses, other) &&\n                   ended == of_all(world, 1);", "of_all", "&&"),
    ("if (on_all(world, mine)) return true;", "on_all", "if"),
    ("while (on_all(world, mine)) ++count;", "on_all", "while"),
    ("const auto check = [&] { return mine && on_all(world, mine); };", "on_all", "&&"),
    ("const auto group = mine ? world.on(device) : nullptr;", "on", "?"),
    ("return mine && gathered(world.split(places, name));", "split", "&&"),
    ("return mine && (run.visit(see), true);", "visit", "&&"),
]

ON_RANK = [
    "if (rank == 0) on_all(world, mine);",
    "if (world.rank() == 0) {\n  on_all(world, mine);\n}",
    "if (rank != last) {\n  print(rank);\n} else {\n  on_all(world, mine);\n}",
    "if (0 == rank_) run.visit(see);",
    "if (rank < 2) { for (int i = 0; i < 3; ++i) world.barrier(name); }",
]

EVERYWHERE = [
    "const bool all = on_all(world, mine);\nreturn mine && all;",
    "const bool all = on_all(world, mine && rank == 0);",
    "const bool all = on_all(world, mine ? 1 : 0);",
    "for (const int one : of_all(world, 1)) use(one);",
    "use(mine && rank > 0, on_all(world, mine));",
    "auto&& all = of_all(world, 1);",
    "return mine && run.shards().empty();",
    "return mine && ask(2);",
    "if (mine) print(rank);\nworld.barrier(name);",
    "if (rank == 0) print(mine);\nworld.barrier(name);",
    "return mine && api().all_gather(from, to);",
    "return mine && std::all_gather(from, to);",
    "// mine && on_all(world, mine)\nreturn mine && text == \"on_all(world, mine)\";",
    "if (world.size() == 1) return false;\nreturn on_all(world, mine);",
]


class Collectives(unittest.TestCase):
    def test_functions_that_call_collectives_are_collectives(self):
        names, findings = check("return on_all(world, mine);")
        self.assertEqual(findings, [])
        self.assertEqual(set(names), {"of_all", "on_all", "Shards::unshard", "Run::Run", "Run::visit", "ask", "tested"})

    def test_a_call_that_an_expression_may_skip_is_found(self):
        for body, name, operator in SKIPPED:
            with self.subTest(body):
                _, findings = check(body)
                self.assertIn(f"collective `{name}` in an expression with `{operator}`", [what for _, what in findings])
                line = next(i for i, text in enumerate(body.split("\n")) if f"{name}(" in text)
                self.assertEqual({at for at, _ in findings}, {line + 1})

    def test_a_branch_on_the_ranks_number_is_found(self):
        for body in ON_RANK:
            with self.subTest(body):
                _, findings = check(body)
                self.assertEqual([what.split(" in ")[1] for _, what in findings], ["a branch on this rank's number"])

    def test_what_every_rank_calls_is_no_finding(self):
        for body in EVERYWHERE:
            with self.subTest(body):
                self.assertEqual(check(body)[1], [])

    def test_the_tree_has_none_and_knows_its_collectives(self):
        names, findings = check_collectives.check(pathlib.Path(__file__).resolve().parent.parent)
        self.assertEqual([str(finding) for finding in findings], [])
        for name in ("of_all_ranks", "on_all_ranks", "stored_parameters", "compared_run", "TrainingRun::weights",
                     "TrainingRun::visit_parameters", "ParameterGroup::unshard", "Mesh::Mesh", "max_over", "fail_on_every_rank"):
            self.assertIn(name, names)

    # The deadlock of ranks whose values differ, as it was written.
    def test_a_collective_behind_the_tree_s_own_comparison_is_found(self):
        root = pathlib.Path(__file__).resolve().parent.parent
        with tempfile.TemporaryDirectory() as folder:
            for source in (root / "lib").rglob("*"):
                if source.suffix in (".h", ".cpp"):
                    copy = pathlib.Path(folder, source.relative_to(root))
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(source.read_bytes())
            parity = pathlib.Path(folder, "lib/harness/measure/parity.cpp")
            text = parity.read_text(encoding="utf-8")
            changed = text.replace("equal(mine->stored, fixed->stored,", "equal(mine->stored, stored_parameters(run),")
            self.assertNotEqual(changed, text)
            parity.write_text(changed, encoding="utf-8")
            _, findings = check_collectives.check(folder)
        what = "collective `stored_parameters` in an expression with `&&`"
        self.assertEqual([(finding.path, finding.what) for finding in findings],
                         [("lib/harness/measure/parity.cpp", what)])


if __name__ == "__main__":
    unittest.main()

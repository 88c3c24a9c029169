#include "harness/cell/file_keys.h"

#include <algorithm>
#include <array>

namespace fp8lab {
namespace {

constexpr std::array kFileKeys{
    FileKey{"version", "version of the file format", "1", "version: 1", kRequired},
    FileKey{"name", "the scenario's name; ids of cells begin with it", "at most 80 of a-z, 0-9, - and _",
            "name: my-scenario", "the file's name, without .yaml"},
    FileKey{"title", "what the scenario shows, for reports", "text", "title: No tensor outlives backward", kRequired},
    FileKey{"upstream", "issues and pull requests that it is about", "a list of text",
            "upstream: [TransformerEngine#1935]", "the upstream of `fix`"},
    FileKey{
        "arguments",
        "arguments of the program of `subject: script`; `{batch}` stands for the value of the key `batch`, `{{` for a "
        "brace",
        "a list of text, or a mapping of before and after, each with a list",
        "arguments: {before: [--leak, \"{variant}\"], after: []}", "the program has none"},
    FileKey{"patch",
            "diffs, as `git diff` writes them, for copies of the folders that the arms of `subject: script` run",
            "the file of the after arm's diff, or a mapping of before and after", "patch: {before: leak.diff}",
            "the folders as they are"},
    FileKey{"matrix", "axes: a cell for each combination of their values; an axis overrides the key of its name",
            "keys, each with a list of values", "matrix: {device: [cpu, meta], recipe: [bf16, mxfp8]}", "one cell"},
    FileKey{"include",
            "values that extend the points of the matrix that they do not contradict, or points of their own",
            "a list of mappings", "include: [{recipe: mxfp8, arch: blackwell}]", "no further point"},
    FileKey{"exclude", "points of the matrix that are left out", "a list of mappings",
            "exclude: [{device: meta, recipe: bf16}]", "no point is left out"},
    FileKey{
        "measure",
        "groups of metrics, which `fp8lab metrics` lists. Groups imply gates: in arms of this program's runtime memory "
        "equals its closed forms (memory.unexplained_bytes is 0), as do the collectives of several ranks and their "
        "bytes; but before a fix, nothing is retained, no tensor differs from the plain twin's, every weight moves, "
        "ranks have equal weights and gathered shards equal the unsharded parameter; gradients keep "
        "as much signal to noise as casts leave after all products, at least 3 dB, unless a loss `sum` was trained "
        "for more than 20 steps",
        "a list of groups", "measure: [memory, traffic]", kRequired},
    FileKey{
        "expect",
        "gates: what a metric of an arm must be, or how an arm must end; a gate replaces what `measure` implies for "
        "the same metric and arm",
        "a list of mappings: metric; arm (before, after, bf16, or difference, which is before minus after; several as "
        "a list; after by default, and required if cells have a before arm); one of equals, at_least and at_most (a "
        "number, "
        "also with a unit: 6 GiB; predicted, the closed form; an arm; or a multiple of one, 1.05 of before) or within "
        "([low, high]); abs and rel, tolerances; when, which cells; otherwise, the figure in cells in which no entry "
        "about this metric and arm holds; or arm, status and signal",
        "expect: [{metric: memory.retained_bytes, arm: after, equals: 0, when: {device: meta}}]", "nothing is gated"},
    FileKey{"claims", "figures that a source states, shown next to predicted and measured figures; they gate nothing",
            "a list of mappings with source, words, metric, arm, value, unit, note and when",
            "claims: [{source: an issue, words: it grows by 1 GB, metric: memory.peak_bytes, value: 1, unit: GB}]",
            "no claim"},
    FileKey{"skip_if", "cells that are not run, with the reason", "a list of mappings with when and reason",
            "skip_if: [{when: {device: cuda}, reason: not built yet}]", "no cell is skipped by the file"},
    FileKey{"variants",
            "further scenarios of the file: VARIANT is the scenario NAME-VARIANT, with these keys in place of the "
            "file's, without the file's claims; a key without a value removes the file's",
            "a mapping of names to mappings of keys",
            "variants: {small: {device: cpu, model: {layer: linear, layers: 1, hidden: 64, seq: 16}}}", "one scenario"},
    FileKey{"timeout", "seconds that an arm may take", "a number above 0", "timeout: 60", "600"},
};

}  // namespace

std::span<const FileKey> file_keys() { return kFileKeys; }

const FileKey* find_file_key(std::string_view name) {
  const auto row = std::ranges::find(kFileKeys, name, &FileKey::name);
  return row == kFileKeys.end() ? nullptr : row;
}

}  // namespace fp8lab

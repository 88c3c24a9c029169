#include "harness/scenario/malformed.h"

namespace fp8lab::sample {

std::vector<Malformed> malformed_syntax() {
  return {
      {"unclosed", "version: 1\nname: [a\n", 2, {"not YAML", "the `[` opened at 2:7 is not closed"}},
      {"unclosed_braces",
       "version: 1\nmodel: {hidden: 8, seq: 1\nmeasure: [memory]\n",
       2,
       {"not YAML", "the `{` opened at 2:8 is not closed"}},
      {"unclosed_inner",
       "version: 1\nmatrix: {device: [cpu, meta}\n",
       2,
       {"not YAML", "2:28: ", "the `[` opened at 2:18 is not closed"}},
      {"closed_twice", "version: 1\nmodel: {hidden: 8}}\n", 2, {"not YAML", "`}` closes nothing"}},
      {"unclosed_double_quote",
       "version: 1\nname: a\ntitle: \"Attention\nmodel: {hidden: 8, seq: 1}\nmeasure: [memory]\n",
       3,
       {"not YAML", "the quote opened at 3:8 is not closed"}},
      {"unclosed_single_quote",
       "version: 1\nname: a\ntitle: 'It''s\nmeasure: [memory]\n",
       3,
       {"not YAML", "the quote opened at 3:8 is not closed"}},
      {"unclosed_before_another_quote",
       "version: 1\nname: a\ntitle: \"Attention\nmodel: {hidden: 8, seq: 1}\nmeasure: [\"memory\"]\n",
       3,
       {"not YAML", "the quote opened at 3:8 is not closed on its line"}},
      {"text_behind_a_quote", "version: 1\ntitle: \"a\" b\n", 2, {"not YAML", "text follows the closing quote of 2:8"}},
      {"colon_in_text", "version: 1\ntitle: Attention: x\n", 2, {"not YAML", "quote text that contains `: `"}},
      {"colon_in_braces", "version: 1\nmodel: {hidden: 8 seq: 1}\n", 2, {"not YAML", "write a `,` between entries"}},
      {"deeper_than_its_mapping",
       "version: 1\nmodel:\n  hidden: 8\n   seq: 1\n",
       4,
       {"not YAML", "bad indentation", "column 4", "column 3", "begin in the same column"}},
      {"less_deep_than_its_mapping",
       "version: 1\nmodel:\n   hidden: 8\n  seq: 1\n",
       4,
       {"not YAML", "bad indentation", "column 3", "column 4"}},
      {"key_beside_items",
       "version: 1\nexpect:\n  - metric: a\n  arm: after\n",
       4,
       {"not YAML", "an item (`- `) and a key cannot begin in the same column"}},
      {"key_without_colon", "version: 1\ntitle\nname: a\n", 3, {"not YAML", "line 2 has no `:` after its key"}},
      {"at_sign", "version: 1\ntitle: @home\n", 2, {"not YAML", "text may not begin with `@`; quote it"}},
  };
}

}  // namespace fp8lab::sample

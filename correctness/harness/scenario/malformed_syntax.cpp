#include "harness/scenario/malformed.h"

namespace fp8lab::sample {

std::vector<Malformed> malformed_syntax() {
  return {
      {"unclosed", "version: 1\nname: [a\n", 2, {"not YAML", "the `[` opened at 2:7 is not closed"}},
      {"unclosed_braces",
       "version: 1\nmodel: {hidden: 8, seq: 1\nmeasure: [memory]\n",
       3,
       {"not YAML", "the `{` opened at 2:8 is not closed"}},
      {"unclosed_inner",
       "version: 1\nmatrix: {device: [cpu, meta}\n",
       2,
       {"not YAML", "2:28: ", "the `[` opened at 2:18 is not closed"}},
      {"closed_twice", "version: 1\nmodel: {hidden: 8}}\n", 2, {"not YAML", "2:19: ", "remove this bracket"}},
      {"unclosed_double_quote",
       "version: 1\nname: a\ntitle: \"Attention\nmodel: {hidden: 8, seq: 1}\nmeasure: [memory]\n",
       3,
       {"not YAML", "3:8: ", "the quote that opens here is not closed"}},
      {"unclosed_single_quote",
       "version: 1\nname: a\ntitle: 'It''s\nmeasure: [memory]\n",
       3,
       {"not YAML", "3:8: ", "the quote that opens here is not closed"}},
      {"unclosed_before_another_quote",
       "version: 1\nname: a\ntitle: \"Attention\nmodel: {hidden: 8, seq: 1}\nmeasure: [\"memory\"]\n",
       5,
       {"not YAML", "end a quoted text on its line"}},
      {"text_behind_a_quote",
       "version: 1\ntitle: \"a\" b\n",
       2,
       {"not YAML", "2:12: ", "end a quoted text on its line"}},
      {"colon_in_text", "version: 1\ntitle: Attention: x\n", 2, {"not YAML", "quote text that contains `: `"}},
      {"colon_in_braces", "version: 1\nmodel: {hidden: 8 seq: 1}\n", 2, {"not YAML", "write a `,` between entries"}},
      {"deeper_than_its_mapping",
       "version: 1\nmodel:\n  hidden: 8\n   seq: 1\n",
       4,
       {"not YAML", "4:7: ", "begin the keys of one mapping in the same column"}},
      {"less_deep_than_its_mapping",
       "version: 1\nmodel:\n   hidden: 8\n  seq: 1\n",
       4,
       {"not YAML", "4:3: ", "begin the keys of one mapping in the same column"}},
      {"key_beside_items",
       "version: 1\nexpect:\n  - metric: a\n  arm: after\n",
       4,
       {"not YAML", "4:3: ", "in the same column"}},
      {"key_without_colon", "version: 1\ntitle\nname: a\n", 3, {"not YAML", "3:5: ", "begin the keys"}},
      {"at_sign", "version: 1\ntitle: @home\n", 2, {"not YAML", "2:8: ", "quote text that begins with this character"}},
  };
}

}  // namespace fp8lab::sample

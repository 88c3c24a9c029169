#include "harness/cell/escape.h"

#include <gtest/gtest.h>

#include "harness/results/mutations.h"
#include "harness/results/record.h"
#include "harness/results/record_list.h"
#include "harness/results/reports.h"

namespace fp8lab {
namespace {

TEST(Escape, Printable_ControlCharacters_AreShown) {
  EXPECT_EQ(printable(std::string("nul\0esc\x1b[31m bel\a", 17)), "nul\\x00esc\\x1b[31m bel\\x07");
  EXPECT_EQ(printable("a\nb\tc\r"), "a\\nb\\tc\\x0d");
  EXPECT_EQ(printable("a\nb\tc\r", "\n\t"), "a\nb\tc\\x0d");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\u009b31m")
      << "a C1 control character begins a terminal's command too";
  EXPECT_EQ(printable("\xE2\x80\xAEkcats"), "\\u202ekcats") << "it reverses the direction of writing";
  EXPECT_EQ(printable("\x7F"), "\\x7f");
}

TEST(Escape, Printable_TextInUtf8_StaysAsItIs) {
  const std::string text = "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(for_terminal(text), text);
  EXPECT_EQ(for_xml(text), text);
  EXPECT_EQ(for_markdown(text), text);
}

TEST(Escape, Printable_BytesThatAreNotUtf8_AreShown) {
  EXPECT_EQ(printable("\xFF"), "\\xff");
  EXPECT_EQ(printable("\xC3"), "\\xc3") << "cut short";
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xEF\xBF\xBE"), "\\ufffe") << "no character";
}

TEST(Escape, Markdown_Tildes_StrikeNothingThrough) { EXPECT_EQ(for_markdown("~~a~~ b~c"), "\\~\\~a\\~\\~ b\\~c"); }

TEST(Escape, Terminal_CommandsOfCiSystems_AreBroken) {
  EXPECT_EQ(for_terminal("x\n::error::y"), "x\\n::error::y") << "a command begins a line";
  EXPECT_EQ(for_terminal("::error::y"), "\\x3a:error::y");
  EXPECT_EQ(for_terminal("  ::set-output name=a::b"), "  \\x3a:set-output name=a::b");
  EXPECT_EQ(for_terminal("a ##[error]b ##vso[task]c"), "a #\\x23[error]b #\\x23vso[task]c");
  EXPECT_EQ(for_terminal("std::bad_alloc"), "std::bad_alloc");
}

TEST(Escape, Markdown_Markup_IsEscaped) {
  EXPECT_EQ(for_markdown("a|b"), "a\\|b");
  EXPECT_EQ(for_markdown("a\nb"), "a b");
  EXPECT_EQ(for_markdown("<script>&amp;"), "&lt;script>&amp;amp;");
  EXPECT_EQ(for_markdown("![x](http://a) *b* `c`"), "!\\[x\\](http://a) \\*b\\* \\`c\\`");
  EXPECT_EQ(for_markdown("_a_ memory.retained_bytes"), "\\_a\\_ memory.retained_bytes");
  EXPECT_EQ(for_markdown("# a # b"), "\\# a # b");
  EXPECT_EQ(for_markdown("   - a"), "\\- a");
  EXPECT_EQ(for_markdown("12. a"), "12\\. a");
  EXPECT_EQ(for_markdown("12.5 MiB, -3 B"), "12.5 MiB, -3 B");
  EXPECT_EQ(for_markdown("back\\slash \x1b[m"), "back\\\\slash \\\\x1b\\[m");
  EXPECT_EQ(for_markdown("TransformerEngine#1935"), "TransformerEngine#1935");
}

TEST(Escape, MarkdownCode_Backticks_DoNotEndIt) {
  EXPECT_EQ(for_markdown_code("a=1"), "`a=1`");
  EXPECT_EQ(for_markdown_code("a`b"), "``a`b``");
  EXPECT_EQ(for_markdown_code("`a"), "`` `a ``");
  EXPECT_EQ(for_markdown_code("a\n|b"), "`a \\|b`");
  EXPECT_EQ(for_markdown_block("a\n# b\x1b"), "    a\n    # b\\x1b\n");
}

TEST(Escape, Xml_MarkupAndCharactersThatXmlForbids_AreEscaped) {
  EXPECT_EQ(for_xml("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c'");
  EXPECT_EQ(for_xml("tab\tnewline\n"), "tab\tnewline\n");
  EXPECT_EQ(for_xml(std::string("nul\0esc\x1b", 8)), "nul\\x00esc\\x1b");
  EXPECT_EQ(for_xml("]]>"), "]]&gt;");
}

/// A record in which every text field is `text`.
CellRecord record_of(const std::string& text) {
  CellRecord out;
  out.config.scenario = text;
  out.config.id = text + "/" + text;
  out.config.fix = text;
  out.file = text;
  out.title = text;
  out.upstream = {text, text};
  out.verdict = Verdict::kFail;
  out.reason = text;
  ArmResult& arm = out.arms[Arm::kBefore];
  arm.status = "error";
  arm.reason = arm.signal = arm.output_tail = arm.emulated = text;
  arm.metrics[text] = {1, {}, text, text};
  arm.retained_by_holder = {{text, 1}};
  out.gates = {{text, Side::kBefore, text, false, 1, 1, text, 1}};
  ClaimRecord claim;
  claim.claim.source = claim.claim.words = claim.claim.metric = claim.claim.unit = claim.claim.note = text;
  out.claims = {claim};
  return out;
}

TEST(Escape, Documents_TextsOfAScenario_AreEscaped) {
  const std::string text = "a\x1b[31m\a|b\n::error::c\n# d <script>`e`";
  const RunSummary run{.date = "", .environment = text, .complete = true, .planned = 1, .seconds = 0};
  const std::string summary = summary_markdown({record_of(text)}, run), xml = junit_xml({record_of(text)}, run);
  EXPECT_FALSE(sample::has_control_characters(summary)) << summary;
  EXPECT_FALSE(sample::has_control_characters(xml)) << xml;
  EXPECT_EQ(summary.find("\n::error"), std::string::npos) << summary;
  EXPECT_EQ(summary.find("\n# d"), std::string::npos) << summary;
  EXPECT_EQ(xml.find("<script"), std::string::npos) << xml;
  EXPECT_NE(xml.find("message=\"a\\x1b[31m\\x07|b\\n::error::c"), std::string::npos) << xml;
  // In Markdown markup is harmless inside code: its fences are longer than any fence in the code.
  for (std::size_t at = summary.find("<script"); at != std::string::npos; at = summary.find("<script", at + 1)) {
    const std::size_t begin = summary.rfind('\n', at) + 1;
    const std::string line = summary.substr(begin, summary.find('\n', at) - begin);
    EXPECT_TRUE(line.starts_with("    ") || line.find("``") != std::string::npos) << line;
  }
}

}  // namespace
}  // namespace fp8lab

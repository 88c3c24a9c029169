#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/scenario/scenario.h"
#include "harness/temporary_directory.h"

// Keys that cells do not read, and cells whose ends are known before anything runs.
namespace fp8lab {
namespace {

LoadedScenarios loaded(const std::string& text) {
  const sample::TemporaryDirectory folder;
  sample::write(folder / "p.yaml", "version: 1\nname: p\ntitle: P\n" + text);
  return load_scenarios({folder / "p.yaml"}, bundled_vocabulary());
}

/// The mistakes of a file, from its line on: "4:9: `model.heads` has no effect: ...".
std::string errors_of(const std::string& text) {
  std::string out;
  for (const ScenarioError& error : loaded(text).errors) {
    const std::string what = error.what();
    out += what.substr(what.find("p.yaml:") + 7) + "\n";
  }
  return out;
}

std::vector<std::string> remarks_of(const std::string& text) {
  std::vector<std::string> out;
  for (const Remark& remark : loaded(text).remarks) out.push_back(remark.text);
  return out;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string kMeta = "device: meta\nmeasure: [memory]\n";

TEST(UnreadKeys, AKeyThatTheLayerDoesNotRead_IsRefusedWithItsPlaceAndTheLayersKeys) {
  const std::string errors =
      errors_of("model: {layer: transformer_layer, hidden: 64, heads: 2, seq: 32, split: even}\n" + kMeta);
  EXPECT_TRUE(has(errors,
                  "4:66: `model.split` has no effect: layer transformer_layer does not read it, "
                  "grouped_linear does; remove it, or write `layer: grouped_linear`"))
      << errors;
  EXPECT_TRUE(has(errors, "form, heads, kv_heads, head_dim, window, window_every, attention_sinks, qk_norm, kv_rank"))
      << errors;
}

TEST(UnreadKeys, SinksWithoutAttention_AndLimitsWithoutSwiglu_AreRefused) {
  EXPECT_TRUE(has(errors_of("model: {layer: layernorm_mlp, hidden: 64, seq: 32, attention_sinks: true}\n" + kMeta),
                  "`model.attention_sinks` has no effect: layer layernorm_mlp does not read it"));
  EXPECT_TRUE(has(errors_of("model: {layer: multihead_attention, form: llama, hidden: 64, heads: 2, seq: 32, "
                            "swiglu_limit: 7}\n" +
                            kMeta),
                  "`model.swiglu_limit` has no effect: layer multihead_attention does not read it"));
}

TEST(UnreadKeys, ADefaultThatTheFileWrites_IsRefusedToo) {
  EXPECT_TRUE(has(errors_of("model: {layer: linear, hidden: 64, seq: 32, heads: 1}\n" + kMeta), "`model.heads`"));
  EXPECT_TRUE(has(errors_of("model: {layer: linear, hidden: 64, seq: 32}\nmatrix: {split: [even]}\n" + kMeta),
                  "`model.split` has no effect"));
}

TEST(UnreadKeys, ALossInParts_IsOfLibraries_AndDividesTheTokens) {
  const std::string model = "model: {layer: linear, hidden: 64, seq: 32, vocabulary: 96}\n";
  const std::string errors = errors_of(model + "training: {loss: cross_entropy, loss_chunks: 2}\n" + kMeta);
  EXPECT_TRUE(has(errors, "`training.loss_chunks` has no effect: this program's runtime computes all logits at once"))
      << errors;
  EXPECT_TRUE(has(errors, "write `subject: torch`, or plan it by `--as torch@2.15`")) << errors;
  const std::string parts =
      errors_of(model + "subject: torch\ntraining: {loss: cross_entropy, loss_chunks: 3}\n" + kMeta);
  EXPECT_TRUE(
      has(parts, "3 parts of equal size cannot have 32 tokens between them; write a divisor of `seq` x `batch`"))
      << parts;
}

TEST(UnreadKeys, FrozenLayers_LeaveSomethingToTrain_AndHaveNoParity) {
  const std::string layers = "model: {layer: linear, hidden: 64, seq: 32, layers: 2}\n", torch = "subject: torch\n";
  const auto frozen = [](int count) { return "training: {frozen_layers: " + std::to_string(count) + "}\n" + kMeta; };
  for (const std::string& subject : {std::string(), torch}) EXPECT_EQ(errors_of(layers + subject + frozen(1)), "");
  const std::string cpu = "device: cpu\n";
  const std::string parity = errors_of(layers + cpu + "training: {frozen_layers: 1}\nmeasure: [parity]\n");
  EXPECT_TRUE(has(parity,
                  "1, but parity scores the gradient of every parameter, and a frozen one has none; measure "
                  "`reference`, or remove one of the two"))
      << parity;
  const std::string resumed = errors_of(layers + cpu +
                                        "training: {frozen_layers: 1, steps: 3, resume_at: 1, optimizer: adam}\n"
                                        "measure: [reference]\n");
  EXPECT_TRUE(has(resumed, "the optimizer of a model with frozen layers is not saved")) << resumed;
  const std::string more = errors_of(layers + torch + frozen(3));
  EXPECT_TRUE(has(more, "`training.frozen_layers`: 3, but the model has 2 layers; write 1 or less")) << more;
  const std::string all = errors_of(layers + torch + frozen(2));
  EXPECT_TRUE(has(all,
                  "all 2 layers of a model without a vocabulary are frozen, so nothing would be trained; write 1 or "
                  "less, or `vocabulary`, whose norm and head are trained"))
      << all;
  const std::string negative = errors_of(layers + torch + frozen(-1));
  EXPECT_TRUE(has(negative, "`training.frozen_layers`")) << negative;
  const std::string language =
      "model: {layer: linear, hidden: 64, seq: 32, layers: 2, vocabulary: 96}\ntraining: {loss: cross_entropy, ";
  EXPECT_EQ(errors_of(language + "frozen_layers: 2}\n" + torch + kMeta), "");
}

TEST(UnreadKeys, OptionsOfAnotherRecipe_AreRefused) {
  EXPECT_TRUE(has(errors_of("model: {layer: linear, hidden: 64, seq: 32}\n"
                            "training: {recipe: mxfp8, recipe_options: {margin: 1}}\n" +
                            kMeta),
                  "`training.recipe_options.margin` has no effect: recipe mxfp8 does not read it, delayed does"));
}

TEST(UnreadKeys, EightBitsToExperts_NeedACastOfWhichTheReceiverKnowsTheScale) {
  const auto errors = [](const std::string& recipe) {
    return errors_of(
        "model: {layer: transformer_layer, form: llama, hidden: 64, heads: 2, seq: 32, experts: 4, top_k: 2}\n"
        "ranks: 2\nexpert_parallel: 2\ntraining: {fp8_dispatch: true, recipe: " +
        recipe + "}\n" + kMeta);
  };
  EXPECT_TRUE(has(errors("bf16"), "`training.fp8_dispatch` has no effect: recipe bf16 does not read it"))
      << errors("bf16");
  EXPECT_TRUE(has(errors("current"),
                  "`training.fp8_dispatch` has no effect: under `current` each sender has a scale of its own, and a "
                  "product reads one; remove it, or write `recipe: delayed`, `block` or `mxfp8`"))
      << errors("current");
  for (const char* recipe : {"delayed", "mxfp8"}) EXPECT_EQ(errors(recipe), "");
}

TEST(UnreadKeys, NormsReadNoRecipe) {
  const std::string model = "model: {layer: rmsnorm, hidden: 64, seq: 32}\n";
  const std::string errors =
      errors_of(model + "training: {recipe: delayed, recipe_options: {margin: 1}, fused_quantize: false}\n" + kMeta);
  EXPECT_TRUE(
      has(errors,
          "`training.recipe` has no effect: the layer is a norm, and has no product that reads eight bits; remove it, "
          "or write `layer: layernorm_linear`"))
      << errors;
  EXPECT_TRUE(has(errors, "`training.recipe_options.margin` has no effect")) << errors;
  EXPECT_TRUE(has(errors, "`training.fused_quantize` has no effect")) << errors;
  EXPECT_TRUE(has(errors_of("model: {layer: rmsnorm, form: llama, hidden: 64, seq: 32}\n" + kMeta),
                  "`model.form` has no effect"));
  EXPECT_TRUE(has(errors_of("model: {layer: rmsnorm, bias: true, hidden: 64, seq: 32}\n" + kMeta),
                  "`model.bias` has no effect"));
  EXPECT_EQ(errors_of("model: {layer: layernorm, bias: false, hidden: 64, seq: 32}\n" + kMeta), "");
}

TEST(UnreadKeys, AKeyThatNeedsAKeyWithoutEffect_HasNoneEither) {
  const std::string errors = errors_of(
      "model: {layer: linear, hidden: 64, seq: 32}\n"
      "training: {recipe: delayed, fp8_attention: true, fp8_mha: true}\n" +
      kMeta);
  EXPECT_TRUE(has(errors, "`training.fp8_attention` has no effect")) << errors;
  EXPECT_TRUE(has(errors, "`training.fp8_mha` has no effect")) << errors;
}

TEST(UnreadKeys, AKeyOfTheBaseThatSomeCellsRead_IsCountedAndDroppedFromTheOthers) {
  const std::string text =
      "model: {layer: transformer_layer, hidden: 64, heads: 2, seq: 32}\n"
      "training: {fp8_attention: true}\nmatrix: {recipe: [bf16, delayed, current]}\n" +
      kMeta;
  EXPECT_EQ(errors_of(text), "");
  EXPECT_EQ(remarks_of(text), std::vector<std::string>{"`training.fp8_attention`: read by 2 of 3 cells"});
  const LoadedScenarios files = loaded(text);
  EXPECT_FALSE(files.cells[0].config.training.fp8_attention);
  EXPECT_TRUE(files.cells[1].config.training.fp8_attention);
}

TEST(UnreadKeys, OfCellsThatDifferInUnreadAxesOnly_TheFirstStays) {
  const std::string text =
      "model: {layer: transformer_layer, hidden: 64, heads: 2, seq: 32}\n"
      "matrix:\n  recipe: [bf16, delayed]\n  fp8_attention: [true, false]\n";
  const std::string errors = errors_of(text + kMeta);
  EXPECT_TRUE(has(errors, "7:3: `fp8_attention`: false has no effect in cell p/recipe=bf16,fp8_attention=false"))
      << errors;
  EXPECT_TRUE(has(errors,
                  "`exclude: [{recipe: bf16, fp8_attention: false}]`, since cell "
                  "p/recipe=bf16,fp8_attention=true is the same"))
      << errors;
  EXPECT_EQ(errors_of(text + "  exclude: [{recipe: bf16, fp8_attention: false}]\n" + kMeta), "");
}

TEST(UnreadKeys, AKeyThatOnlyIncludeGives_IsReadByItsCellsOrSaysThatTheyLackIt) {
  const std::string model =
      "model: {hidden: 64, seq: 32}\nmatrix: {include: [{model.layer: grouped_linear, experts: 8}, ";
  EXPECT_TRUE(has(errors_of(model + "{model.layer: linear, experts: 4}]}\n" + kMeta),
                  "`experts`: 4 has no effect in cell p/model.layer=linear,experts=4"));
  EXPECT_EQ(errors_of(model + "{model.layer: linear}]}\n" + kMeta), "");
  EXPECT_EQ(errors_of("model: {layer: linear, hidden: 64, seq: 32}\n"
                      "training: {optimizer: adam, master_weights: f32}\n"
                      "matrix: {device: [meta], include: [{device: cpu, optimizer: none, master_weights: none}]}\n"
                      "measure: [memory]\n"),
            "");
}

TEST(EvenSplit, ExpertsThatDoNotDivideTheTokens_AreRefused) {
  EXPECT_TRUE(has(errors_of("model: {layer: grouped_linear, hidden: 64, seq: 250, split: even}\n" + kMeta),
                  "`model.split`: even, but 4 experts do not divide the 250 tokens of a rank; write `split: uneven`"));
  EXPECT_EQ(errors_of("model: {layer: grouped_linear, hidden: 64, seq: 250, split: uneven}\n" + kMeta), "");
}

std::vector<std::string> inconclusive_of(const std::string& text) {
  std::vector<std::string> out;
  for (const PlannedCell& cell : loaded("model: {layer: linear, hidden: 64, seq: 32}\n" + text).cells)
    out.push_back(cell.inconclusive);
  return out;
}

TEST(Inconclusive, CellsOutsideTheReferenceStep_AreKnownBeforehand) {
  const std::string text =
      "device: cpu\ntraining: {recipe: delayed}\nmatrix: {ranks: [1, 2], quantized_weights: [false, true]}\n"
      "measure: [reference]\nexpect: [{metric: reference.faults, equals: 0}]\n";
  const std::string eight_bits =
      "reference.faults is absent: the reference step does not cover weights that live in eight bits";
  EXPECT_EQ(inconclusive_of(text), (std::vector<std::string>{"", eight_bits, "", eight_bits}));
  const std::string large = inconclusive_of(
      "device: cpu\ntraining: {steps: 10000}\nmeasure: [reference]\n"
      "expect: [{metric: reference.faults, equals: 0}]\n")[0];
  EXPECT_TRUE(has(large, "multiplications")) << large;
}

TEST(Inconclusive, CellsWithoutATwin_AreKnownBeforehand) {
  const std::string text = "device: cpu\nmeasure: [twin]\nexpect: [{metric: twin.losses_equal, equals: 1}]\n";
  EXPECT_TRUE(has(inconclusive_of(text)[0], "twin.losses_equal is absent: no weight is held in eight bits"));
  EXPECT_EQ(inconclusive_of("training: {steps: 2, resume_at: 1}\n" + text)[0], "");
}

}  // namespace
}  // namespace fp8lab

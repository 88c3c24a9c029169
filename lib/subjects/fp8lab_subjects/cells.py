"""A cell as the harness sends it."""

import dataclasses

BF16 = "bf16"


@dataclasses.dataclass
class Cell:
    """One point of a scenario's matrix, and the arm that runs it."""

    arm: str  # before, after or bf16
    config: dict  # every key of a scenario, by its path
    measure: list
    timeout_s: float

    def changed(self, arm=None, **keys):
        """The cell of another arm, or with other keys; "__" stands for the dot of a key."""
        config = self.config | {name.replace("__", "."): value for name, value in keys.items()}
        return dataclasses.replace(self, arm=arm or self.arm, config=config)

    def __getitem__(self, key):
        return self.config[key]

    def get(self, key, default=None):
        """The value of a key that may be left out."""
        value = self.config.get(key)
        return default if value is None else value

    @property
    def subject(self):
        return self["subject"]

    @property
    def control(self):
        return self.get("control", "none")

    @property
    def planted(self):
        """True for the arm that a control cell gives one byte, one collective and 5 % of the time more."""
        return self.control == "planted" and self.arm == "before"

    @property
    def version(self):
        return self.get("versions.before" if self.arm == "before" and self.control == "none" else "versions.after", "")

    @property
    def recipe(self):
        return BF16 if self.arm == BF16 else self["training.recipe"]

    @property
    def quantized_weights(self):
        return self.recipe != BF16 and bool(self["training.quantized_weights"])

    @property
    def recompute_every(self):
        """One of so many layers is recomputed in backward, the last of each group; 0: none."""
        return self.get("training.checkpoint_every", 1) if self["training.checkpoint"] != "none" else 0

    @property
    def mesh(self):
        """Replicas and shards."""
        text = self.get("mesh", "")
        if not text:
            return 1, self["ranks"]
        replicas, _, shards = text.rpartition("x")
        return int(replicas or 1), int(shards)

    @property
    def sharded(self):
        default = "fsdp" if self["ranks"] > 1 or self.get("mesh", "") else "none"
        return self.get("sharding", default) == "fsdp"

    @property
    def replicated(self):
        """True under DistributedDataParallel: every rank has all parameters."""
        return self.get("sharding", "") == "ddp"

    @property
    def has_ranks(self):
        """True if a process group trains the cell, of one rank or several."""
        return self.sharded or self.replicated

    @property
    def context_parallel(self):
        """Ranks that have each sequence between them; 1: each rank has entire sequences."""
        return self.get("context_parallel", 1)

    @property
    def seq(self):
        """Tokens of a sequence on this rank."""
        return self["model.seq"] // self.context_parallel

    @property
    def tokens(self):
        return self.seq * self["model.batch"]

    @property
    def kv_heads(self):
        return self["model.kv_heads"] or self["model.heads"]

    @property
    def head_dim(self):
        return self.get("model.head_dim", 0) or self["model.hidden"] // self["model.heads"]

    @property
    def has_latents(self):
        """True if queries, keys and values are made from latents; `head_dim` are then the columns that are not rotated."""
        return self.get("model.kv_rank", 0) > 0

    @property
    def rotated_dim(self):
        """Columns of a head of queries and keys that are rotated."""
        return self["model.rope_dim"] if self.has_latents else self.head_dim

    @property
    def key_dim(self):
        return self.head_dim + (self.rotated_dim if self.has_latents else 0)

    @property
    def value_dim(self):
        return (self.get("model.value_dim", 0) if self.has_latents else 0) or self.head_dim

    @property
    def ffn(self):
        return self["model.ffn"] or 4 * self["model.hidden"]

    @property
    def routes(self):
        """True if the MLP is a mixture of experts."""
        return self.get("model.top_k", 0) > 0

    @property
    def has_router_biases(self):
        """True if biases, which balance the load of experts, are added to a router's scores for the choice."""
        return self.routes and self.get("model.router_bias_rate", 0.0) > 0

    @property
    def router_aux_loss(self):
        """Coefficient of the auxiliary loss of each router; 0: there is none."""
        return self.get("model.router_aux_loss", 0.0) if self.routes else 0.0

    @property
    def expert_groups(self):
        """Groups of experts, of which a token's experts are in a few; 0: it can have every expert."""
        return self.get("model.expert_groups", 0) if self.routes else 0

    @property
    def expert_parallel(self):
        """Ranks that have a layer's experts between them; 1: each rank has all."""
        return self.get("expert_parallel", 1)

    @property
    def own_experts(self):
        """The experts of this rank: all of a layer's, or an equal part of them."""
        return self["model.experts"] // self.expert_parallel

    @property
    def expert_ffn(self):
        """Inner width of an expert in a mixture."""
        return self.get("model.expert_ffn", 0) or self.ffn

    @property
    def shared_ffn(self):
        """Inner width of the experts that every token has, which are one MLP; 0: there are none."""
        return self.get("model.shared_experts", 0) * self.expert_ffn

    def of_layer(self, index):
        """The cell as the layer `index` has it: the first `dense_layers` have one MLP for all tokens, and one of `window_every`
        has the window."""
        is_dense = self.routes and index < self.get("model.dense_layers", 0)
        of_layer = self.changed(model__top_k=0) if is_dense else self
        has_window = self.window == 0 or index % self.get("model.window_every", 1) == 0
        return of_layer if has_window else of_layer.changed(model__window=0)

    @property
    def window(self):
        """Tokens to which attention is limited, or 0."""
        return self.get("model.window", 0)

    @property
    def has_sinks(self):
        """True if each head of attention has a learned logit in the sum of its softmax."""
        return bool(self.get("model.attention_sinks", False))

    @property
    def swiglu_limit(self):
        """The limit of clamped SwiGLU; 0: there is none."""
        return self.get("model.swiglu_limit", 0.0)

    @property
    def gpt(self):
        """The other forms have RMSNorm, a gated activation, rotary embedding and no biases."""
        return self["model.form"] == "gpt"

    @property
    def gemma(self):
        return self["model.form"] == "gemma"

    @property
    def bias(self):
        """True if products and layer norms have biases."""
        return self.get("model.bias", self.gpt) is True

    @property
    def qkv_bias(self):
        """True if the product that makes Q, K and V has a bias."""
        return self.bias or self.get("model.bias") == "qkv"

    @property
    def qk_norm(self):
        return bool(self.get("model.qk_norm", False))

    @property
    def vocabulary(self):
        """Tokens of a language model, or 0."""
        return self.get("model.vocabulary", 0)

    @property
    def loss_chunks(self):
        """Parts of the tokens whose logits are computed one after the other."""
        return self.get("training.loss_chunks", 1)

    @property
    def loss_share(self):
        """What a micro-batch's loss counts in the loss of the step: a mean over all tokens of the step stays one."""
        return 1.0 if self["training.loss"] == "sum" else 1.0 / self["training.micro_batches"]

    @property
    def frozen_layers(self):
        """Layers at the start that take no gradient; the embedding then takes none either."""
        return self.get("training.frozen_layers", 0)

    @property
    def learned_positions(self):
        return self.get("model.positions", "learned" if self.gpt else "none") == "learned"

    @property
    def sequences(self):
        """Sequences that all ranks read in a step."""
        return (self["ranks"] if self.has_ranks else 1) * self["training.micro_batches"] * self["model.batch"]


def read(arm, message):
    return Cell(arm, message["config"], message["measure"], message["timeout_s"])

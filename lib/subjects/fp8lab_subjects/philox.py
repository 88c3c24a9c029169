"""Initial weights and inputs of fp8lab's runtime, bit for bit: pure functions of (seed, stream, index).

The rule equals lib/core/counter_rng.h's, Philox4x32 with 10 rounds and the method of Box and Muller. Integers are
held in int64, whose products wrap modulo 2^64, so that shifted and masked words equal unsigned arithmetic's.
"""

import torch

MASK = 0xFFFFFFFF
CHUNK = 1 << 20  # elements drawn at once, which bounds the temporaries


def stream_of(name):
    """64-bit FNV-1a of a name."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def _signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


def _words(block, stream, seed):
    zero = torch.zeros_like(block)
    w0, w1 = block & MASK, (block >> 32) & MASK
    w2, w3 = zero + (stream & MASK), zero + (stream >> 32)
    key0, key1 = seed & MASK, seed >> 32
    for _ in range(10):
        product0, product1 = w0 * 0xD2511F53, w2 * 0xCD9E8D57
        w0, w1, w2, w3 = (
            ((product1 >> 32) & MASK) ^ w1 ^ key0,
            product1 & MASK,
            ((product0 >> 32) & MASK) ^ w3 ^ key1,
            product0 & MASK,
        )
        key0, key1 = (key0 + 0x9E3779B9) & MASK, (key1 + 0xBB67AE85) & MASK
    return w0, w1, w2, w3


def bits(index, stream, seed):
    """The 32 random bits of each index, in int64."""
    words = torch.stack(_words(index // 4, stream, seed))
    return words.gather(0, (index % 4)[None])[0]


def _minus_log(u):
    bits = u.view(torch.int32).to(torch.int64)
    offset = bits - 0x3F3504F3
    e = offset >> 23
    m = ((offset & 0x007FFFFF) + 0x3F3504F3).to(torch.int32).view(torch.float32)
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    ninth, seventh, fifth, third = (torch.tensor(1.0 / n, dtype=torch.float32) for n in (9, 7, 5, 3))
    series = s2 * ninth + seventh
    series = s2 * series + fifth
    series = s2 * series + third
    log_m = 2.0 * (s + (s2 * s) * series)
    return -(e.to(torch.float32) * torch.tensor(0.693147180559945, dtype=torch.float32) + log_m)


def _polynomial(t2, coefficients):
    series = torch.full_like(t2, coefficients[0])
    for coefficient in coefficients[1:]:
        series = t2 * series + coefficient
    return series


def _normal(index, stream, seed):
    words = _words(index // 4, stream, seed)
    second = (index & 2) != 0
    first_word, angle = torch.where(second, words[2], words[0]), torch.where(second, words[3], words[1])
    u = ((first_word >> 8) + 1).to(torch.float32) * 2.0**-24
    # PyTorch's root of a float can be off by one step. The root of a double, rounded to float, is correct.
    radius = torch.sqrt((2.0 * _minus_log(u)).to(torch.float64)).to(torch.float32)
    offset = ((angle >> 6) & 0x00FFFFFF) * 2 + 1 - (1 << 24)
    t = (offset.to(torch.float32) * 2.0**-24) * torch.tensor(0.785398163397448, dtype=torch.float32)
    quadrant = ((angle >> 30) - (index & 1)) & 3
    t2 = t * t
    sine = (t2 * t) * _polynomial(t2, (1 / 362880, -1 / 5040, 1 / 120, -1 / 6)) + t
    cosine = _polynomial(t2, (1 / 40320, -1 / 720, 1 / 24, -0.5, 1.0))
    projection = torch.where((quadrant & 1) != 0, sine, cosine)
    negative = (quadrant == 1) | (quadrant == 2)
    return radius * torch.where(negative, -projection, projection)


@torch.no_grad()
def fill_normal(out, *, seed, name, add_to_stream=0, first_index=0, scale=1.0):
    """Fills the contiguous tensor `out` with elements first_index, first_index + 1, ... of the tensor called `name`."""
    stream = (stream_of(name) + add_to_stream) & 0xFFFFFFFFFFFFFFFF
    flat = out.view(-1)
    for begin in range(0, flat.numel(), CHUNK):
        end = min(begin + CHUNK, flat.numel())
        index = torch.arange(first_index + begin, first_index + end, dtype=torch.int64, device=out.device)
        values = _normal(index, stream, seed) * torch.tensor(scale, dtype=torch.float32)
        flat[begin:end] = values.to(out.dtype)

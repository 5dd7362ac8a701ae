"""An oracle: the network of Vaswani et al. 2017, written from its formulas, with the names of The
Annotated Transformer."""

import math

import numpy as np
import torch
from torch import nn

from model.network.config import Tied


def sines(length, d_model):
    """Section 3.5: sin in the even columns, cos in the odd ones."""
    position, i = np.arange(length)[:, None], np.arange(0, d_model, 2)
    angle = position / 10000 ** (i / d_model)
    table = np.empty((length, d_model), dtype=np.float32)
    table[:, 0::2], table[:, 1::2] = np.sin(angle), np.cos(angle)
    return torch.tensor(table)


class Norm(nn.Module):
    """a (x - mean) / (std + epsilon) + b, with the unbiased std."""

    def __init__(self, size):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        deviation = x.var(-1, keepdim=True, correction=1).sqrt()
        return self.a_2 * ((x - x.mean(-1, keepdim=True)) / (deviation + 1e-6)) + self.b_2


class Residual(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = Norm(size)


class Attention(nn.Module):
    """Section 3.2: softmax(Q K^T / sqrt(d_k)) V in each head."""

    def __init__(self, heads, size):
        super().__init__()
        self.heads = heads
        self.linears = nn.ModuleList(nn.Linear(size, size) for _ in range(4))

    def forward(self, x, memory, visible):
        inputs = zip(self.linears, (x, memory, memory), strict=False)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, y in inputs)
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.size(-1))
        self.weights = scores.masked_fill(~visible.unsqueeze(1), -torch.inf).softmax(-1).detach()
        mixed = torch.einsum("bhts,bhsd->bthd", self.weights, v)
        return self.linears[3](mixed.flatten(2))


class Widen(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(size, 20), nn.Linear(20, size)

    def forward(self, x):
        return self.w_2(self.w_1(x).relu())


class Layer(nn.Module):
    def __init__(self, heads, size, across):
        super().__init__()
        self.self_attn = Attention(heads, size)
        if across:
            self.src_attn = Attention(heads, size)
        self.feed_forward = Widen(size)
        self.sublayer = nn.ModuleList(Residual(size) for _ in range(3 if across else 2))

    def forward(self, x, visible, memory=None, across=None):
        steps = [lambda y: self.self_attn(y, y, visible)]
        if memory is not None:
            steps.append(lambda y: self.src_attn(y, memory, across))
        for step, residual in zip([*steps, self.feed_forward], self.sublayer, strict=True):
            x = x + step(residual.norm(x))
        return x


class Stack(nn.Module):
    def __init__(self, depth, *sizes):
        super().__init__()
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(depth))
        self.norm = Norm(sizes[1])

    def forward(self, x, *rest):
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class Words(nn.Module):
    def __init__(self, count, size):
        super().__init__()
        self.lut = nn.Embedding(count, size)

    def forward(self, ids):
        return self.lut(ids) * math.sqrt(self.lut.embedding_dim)


class Places(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("pe", sines(50, size).unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class Annotated(nn.Module):
    """The paper's network, norm first, with the names of The Annotated Transformer."""

    def __init__(self, vocabularies, depths, heads, size, tied):
        super().__init__()
        self.src_embed, self.tgt_embed = (
            nn.Sequential(Words(count, size), Places(size)) for count in vocabularies
        )
        if tied in (Tied.all, Tied.embeddings):
            self.tgt_embed[0].lut.weight = self.src_embed[0].lut.weight
        self.encoder = Stack(depths[0], heads, size, False)
        self.decoder = Stack(depths[1], heads, size, True)
        self.generator = nn.Module()
        self.generator.proj = nn.Linear(size, vocabularies[1])
        if tied in (Tied.all, Tied.target):
            self.generator.proj.weight = self.tgt_embed[0].lut.weight

    def forward(self, source_ids, source_padding, target_ids, target_padding):
        source = ~source_padding.unsqueeze(1)  # (B, 1, S)
        target = torch.ones(target_ids.size(1), target_ids.size(1)).tril().bool()
        memory = self.encoder(self.src_embed(source_ids), source)
        visible = target & ~target_padding.unsqueeze(1)
        hidden = self.decoder(self.tgt_embed(target_ids), visible, memory, source)
        return self.generator.proj(hidden).log_softmax(-1)

    def attentions(self):
        return (
            [layer.self_attn for layer in self.encoder.layers],
            [layer.self_attn for layer in self.decoder.layers],
            [layer.src_attn for layer in self.decoder.layers],
        )

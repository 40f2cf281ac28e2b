"""The projections split by columns, einsum for the scores, a mask of ones and zeros."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.reference.layer import AttentionLayer


class MultiHeadAttention(AttentionLayer):
    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv_projection(x).split(self.hidden_dim, dim=2)
        q = q.reshape(B, T, self.num_heads, C // self.num_heads).permute(0, 2, 1, 3)
        k = k.reshape(B, T, self.num_heads, -1).permute(0, 2, 1, 3)
        v = v.reshape(B, T, self.num_heads, -1).permute(0, 2, 1, 3)
        att = torch.einsum("bhqd,bhkd->bhqk", q, k) * (1.0 / np.sqrt(k.size(-1)))
        if self.causal:
            m = torch.tril(torch.ones(T, T)).view(1, 1, T, T)
            att = att.masked_fill(m[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        assert isinstance(y, Tensor) and y.shape == x.shape
        return self.out_projection(y)

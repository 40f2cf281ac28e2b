"""A loop over batches and heads, the softmax by hand and in place."""

import torch
from torch import nn

from common.reference.layer import AttentionLayer


class MultiHeadAttention(AttentionLayer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.softmax = nn.Softmax(dim=-1)
        self.scale = self.head_dim**-0.5

    @torch.no_grad()
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        outs = []
        qkv = self.qkv_projection(x)
        for b in range(len(x)):
            rows = []
            for h in range(self.num_heads):
                cols = slice(h * self.head_dim, (h + 1) * self.head_dim)
                q, k, v = (part[b, :, cols] for part in qkv.chunk(3, -1))
                s = torch.mm(q, k.t()) * self.scale
                if self.causal:
                    i = torch.arange(s.shape[0])[:, None]
                    j = torch.arange(s.shape[1])[None, :]
                    s[j > i] = torch.finfo(s.dtype).min
                m, _ = s.max(dim=-1, keepdim=True)
                e = (s - m).exp_()
                e /= e.sum(dim=1, keepdim=True)
                rows.append(e.matmul(v))
            outs.append(torch.cat(rows, dim=-1))
        return self.out_projection(torch.stack(outs))

"""Scaled queries; a tile whose rows have seen nothing is skipped; a mask of rows is written to."""

import math

import torch


def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    B, H, N, d = query.shape
    M = key.shape[2]
    if scale is None:
        scale = 1.0 / math.sqrt(d)
    O = torch.zeros_like(query)
    L = torch.full((B, H, N), -math.inf, dtype=query.dtype, device=query.device)
    for i in range(0, N, B_r):
        qi = query[:, :, i : i + B_r, :] * scale
        r = qi.shape[2]
        m = torch.full((B, H, r), float("-inf"))
        l = torch.zeros(B, H, r)
        acc = torch.zeros(B, H, r, d)
        for j in range(0, M, B_c):
            if causal and j > i + r - 1:
                break
            s = torch.matmul(qi, key[:, :, j : j + B_c].mT)
            if causal:
                row = torch.arange(i, i + r).unsqueeze(1)
                col = torch.arange(j, j + s.shape[-1]).unsqueeze(0)
                s = torch.where(col <= row, s, torch.tensor(float("-inf")))
            m_new = torch.maximum(m, s.max(dim=-1).values)
            if torch.all(m_new == -math.inf):
                continue
            safe = m_new.masked_fill(torch.isneginf(m_new), 0.0)
            p = (s - safe[..., None]).exp()
            a = (m - safe).exp()
            l = a * l + p.sum(dim=-1)
            acc = acc * a.unsqueeze(-1) + p @ value[:, :, j : j + B_c]
            m = m_new
        dead = l == 0
        l[dead] = 1
        O[:, :, i : i + B_r] = acc / l[..., None]
        lse = m + l.log()
        L[:, :, i : i + B_r] = lse.masked_fill(dead, -torch.inf)
    if return_lse:
        return O, L
    return O

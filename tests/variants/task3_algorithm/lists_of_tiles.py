"""split() for the tiles, triu for the mask, the outputs put together at the end."""

import torch
from torch import Tensor


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    B_r: int = 64,
    B_c: int = 64,
    return_lse: bool = False,
):
    scale = query.size(-1) ** -0.5 if scale is None else scale
    outs, lses = [], []
    for qs, q in enumerate(query.split(B_r, dim=-2)):
        m = query.new_full((*q.shape[:-1], 1), -torch.inf)
        l, o = torch.zeros_like(m), torch.zeros_like(q)
        for ks, (k, v) in enumerate(zip(key.split(B_c, 2), value.split(B_c, 2))):
            if causal and ks * B_c >= qs * B_r + q.size(2):
                break
            s = torch.einsum("bhid,bhjd->bhij", q, k).mul_(scale)
            if causal:
                s += torch.full(s.shape[-2:], -torch.inf).triu(1 + qs * B_r - ks * B_c)
            m_new = torch.max(m, torch.amax(s, -1, keepdim=True))
            base = torch.nan_to_num(m_new, neginf=0.0)
            p = torch.exp(s - base)
            c = torch.exp(m - base)
            l *= c
            l += p.sum(-1, True)
            o = o * c + torch.bmm(p.flatten(0, 1), v.flatten(0, 1)).view_as(o)
            m = m_new
        outs.append(torch.nan_to_num(o / l))
        lses.append((m + l.log()).squeeze(-1))
    out, lse = torch.cat(outs, dim=2), torch.cat(lses, dim=-1)
    return (out, lse) if return_lse else out

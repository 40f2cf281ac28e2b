"""Runs the attention of transformers' models in the kernels of tasks 4 and 6.

    register(variant="solution")          builds the kernels and registers them with transformers as "course"
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="course")
    model.generate(...)

This uses transformers' official extension point (`AttentionInterface`); nothing is patched. Instead of its own
attention, transformers calls `KernelAttention.forward`, which selects the kernel by the shapes:

    prefill   as many keys as queries: nothing was cached before   task 4's flash_attention, causal
    decode    one query, all keys in the KV cache                  task 6's decode_attention
    chunk     several queries, more keys                           task 4's, causal mask aligned to the lower right;
                                                                   with padding: once per sequence, or under a mask

The model first calls `cache.update(key, value)`, then the attention function with the result. `KernelCache` (cache.py)
returns views of its keys and values; this class keeps a registry of its caches and finds a call's cache by the address
of the keys. transformers' DynamicCache, generate()'s default, works as well: its tensors are a KV cache that is exactly
full.

                            variant "student", "solution"                     "tuned"
    computes in             float32; 16-bit models are converted here         the model's dtype
    GQA                     keys repeated for prefill, grouped for decode     grouped
    padded batches          yes, see padding.py                               yes
    other masks             no                                                yes, as [batch, 1, queries, keys]
    bidirectional           no                                                yes: encoders (BERT, ViT)
    sliding windows         no                                                yes: without padding and packed as a
                                                                              window, the rest as a mask
    static caches           no                                                yes, as a mask
    training                no                                                yes, with dropout
    packed sequences        no                                                as a mask; without one if the model is
                                                                              called with cu_seq_lens_q and _k
    position bias           no                                                yes (T5), in a mask; without gradient
    softcap, sinks          no                                                yes (Gemma 2, gpt-oss)
    head_dim                up to 128                                         up to 256

`attach` and KernelCache support the decoders that check_config accepts; the attention alone works with others as well.

Source: https://huggingface.co/docs/transformers/attention_interface
"""

from __future__ import annotations

import itertools
from collections import Counter
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from common.kernels import attention_kernels
from common.kernels.attention import attention, attention_varlen
from common.kernels.attention_call import with_rows
from common.kernels.gpt2.supported_models import MAX_HEAD_DIM, check_config
from task7.front_door.cache import OF_KERNEL_CACHE, LayerKVCache
from task7.front_door.padding import Padding
from task7.given.operators import CountedOperators, load_kernels

NAME = "course"
# Attribute with the window size of a mask that is only a causal window over unpadded sequences with nothing cached
WINDOW = "causal_window"
# Arguments that some architectures pass to their attention: OPTIONS are for tuned kernels only, FOREIGN unsupported
OPTIONS = {"softcap": "a cap on the scores", "s_aux": "attention sinks", "position_bias": "a position bias"}
FOREIGN = {"cache": "a paged cache of transformers"}
_numbers = itertools.count()


def register(variant: str = "solution", backend: str = "auto", arch: str | None = None, name: str = NAME):
    """Builds and loads kernels and registers them with transformers.

    From then on `attn_implementation=name` selects them, in `from_pretrained` and `model.set_attn_implementation`. The
    model must be on the kernels' device, `register(...).device`. Registering again replaces the kernels of that name,
    even in models that already use it.

    Args:
        variant: "student", "solution" or "tuned"; the table above says what they support.
        backend, arch: see common.compiling.load.load.
        name: the name of this attention in transformers.

    Returns:
        The KernelAttention; its `calls` count the kernels that ran.

    Raises:
        ValueError: no such variant. What common.compiling.load.load raises if the kernels cannot be built.
    """
    return KernelAttention(*load_kernels(variant, backend, arch), tuned=variant == "tuned", name=name)


class KernelAttention:
    """Attention by one set of kernels, registered with transformers under a name.

    Args:
        flash_ops: operators with task 4's `flash_attention`.
        decode_ops: operators with task 6's `update_cache` and `decode_attention`.
        tuned: whether they are the tuned ones, which support 16-bit dtypes, GQA, strided rows and masks.
        name: None: a generated one.

    Attributes:
        name: for `model.set_attn_implementation`.
    """

    def __init__(self, flash_ops, decode_ops, tuned: bool = False, name: str | None = None) -> None:
        self.flash_ops = CountedOperators(flash_ops)
        self.decode_ops = CountedOperators(decode_ops)
        self.tuned = tuned
        self._fast_calls: Counter = Counter()
        self.name = f"{NAME}_{next(_numbers)}" if name is None else name
        # the address of a cache's keys -> that cache, while it is alive
        self._kv_caches: WeakValueDictionary[int, LayerKVCache] = WeakValueDictionary()
        AttentionInterface.register(self.name, self.forward)
        AttentionMaskInterface.register(self.name, self.mask)

    @property
    def device(self) -> torch.device:
        """The device that the model must be on."""
        return self.flash_ops.device

    @property
    def backend(self) -> str:
        """Which backend runs the kernels: "cuda" or "simulator"."""
        return self.flash_ops.backend

    @property
    def calls(self) -> Counter:
        """Completed calls per operator since the last `reset_calls`; common/kernels' attention is flash_attention."""
        return self.flash_ops.calls + self.decode_ops.calls + self._fast_calls

    def adopt(self, kv_cache: LayerKVCache) -> None:
        """Registers a cache: from now on, calls whose keys are this cache's read it."""
        self._kv_caches[kv_cache.k.data_ptr()] = kv_cache

    def kv_cache_of(self, key: Tensor) -> LayerKVCache | None:
        """The registered cache whose keys these are, all of its tokens; None for other keys.

        Raises ValueError for keys of a KernelCache under torch.compile: a graph has no addresses, and can't tell
        whether the prompt was padded.
        """
        if torch.compiler.is_compiling():
            _refuse(getattr(key, OF_KERNEL_CACHE, False), "a KernelCache under torch.compile")
            return None
        kv_cache = self._kv_caches.get(key.data_ptr())
        return kv_cache if kv_cache is not None and kv_cache.seq_len == key.size(2) else None

    def reset_calls(self) -> None:
        self.flash_ops.calls.clear()
        self.decode_ops.calls.clear()
        self._fast_calls.clear()

    def attach(self, model):
        """Moves `model` to the kernels' device and makes it use them. Returns the model.

        Raises ValueError if the kernels don't support the model's attention (see `check_config`).
        """
        check_config(model.config)
        model.to(self.device).set_attn_implementation(self.name)
        return model

    def mask(
        self, batch_size, q_length, kv_length, q_offset=0, attention_mask=None, allow_is_causal_skip=True, **kwargs
    ):
        """The mask function for `forward`; the model calls it once before its layers.

        attention_mask: bool [batch, all_tokens], False for padding.

        Returns the attention_mask for `forward`: None, a Padding, or, for windows, packed sequences, static caches and
        the like (tuned only), a bool tensor [batch, 1, new_tokens, all_tokens]. Raises ValueError for masks that these
        kernels don't support.
        """
        window = kwargs.get("local_size")
        static = isinstance(q_offset, Tensor) or kv_length > q_offset + q_length
        if window is not None:
            self._refuse_taught(f"a sliding window of {window} tokens")
        if static and not self.tuned:
            raise ValueError(
                f"the cache has {kv_length} slots, filled or not; these kernels read a cache up to its last token: "
                "leave cache_implementation out, or pass a KernelCache as past_key_values, or register(variant='tuned')"
            )
        if not allow_is_causal_skip:
            if torch.compiler.is_exporting():
                self._refuse_taught("torch.export, whose graph has a mask of its own")
            self._refuse_taught("packed sequences and masks other than the causal one")
        # A graph of torch.compile serves every mask, padded or not, so its values must not be read
        unknown = attention_mask is not None and torch.compiler.is_compiling() and self.tuned
        if window is not None or static or not allow_is_causal_skip or unknown:
            sizes = batch_size, q_length, kv_length, q_offset
            mask = sdpa_mask(*sizes, attention_mask=attention_mask, allow_is_causal_skip=False, **kwargs)
            simple = window is not None and allow_is_causal_skip and not static and q_length == kv_length
            if simple and not unknown and _all_tokens(attention_mask, kv_length):
                setattr(mask, WINDOW, window)
            return mask
        if _all_tokens(attention_mask, kv_length):
            return None
        return Padding(attention_mask[:, -kv_length:], q_length)

    def forward(
        self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, is_causal=None, **kwargs
    ) -> tuple[Tensor, None]:
        """The attention function of one layer, as transformers calls it.

        Args:
            module: the layer.
            query: [batch, heads, new_tokens, head_dim].
            key, value: [batch, kv_heads, all_tokens, head_dim].
            attention_mask: the result of `mask`, or the caller's own mask: [batch, 1, new_tokens, all_tokens].
            scaling: factor on q.k (None: head_dim ** -0.5).
            dropout: dropout probability of the weights; models pass it in training.
            kwargs: include softcap; s_aux, the sinks, [heads]; position_bias, added to the scores, broadcasts to
                [batch, heads, new_tokens, all_tokens]; cu_seq_lens_q and cu_seq_lens_k, where packed sequences begin,
                [sequences + 1] (transformers' FlashAttentionKwargs), in which case a mask is ignored.

        Returns:
            ([batch, new_tokens, heads, head_dim], None).

        Raises:
            ValueError: a call that the kernels don't support.
        """
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        self._check_call(query, key, value, dropout, causal, kwargs)
        new_tokens, all_tokens = query.size(2), key.size(2)
        if kwargs.get("position_bias") is not None:
            attention_mask = _with_bias(attention_mask, kwargs["position_bias"], causal, new_tokens, all_tokens)
        window = kwargs.get("sliding_window")
        packed = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
        if window is not None and window < all_tokens and packed[0] is None and not isinstance(attention_mask, Tensor):
            raise ValueError(f"sliding_window is {window}, and the mask that goes with it is missing")
        whole_window = getattr(attention_mask, WINDOW, None) == window is not None and new_tokens == all_tokens
        options = {"softcap": kwargs.get("softcap") or 0.0, "sinks": kwargs.get("s_aux"), "dropout_p": dropout}
        if packed[0] is not None:
            out = self._packed(query, key, value, packed, scaling, causal, window, options)
        elif whole_window:
            out = self._fast(query, key, value, scaling, True, window_size=(window - 1, 0), **options)
        elif options["softcap"] or options["sinks"] is not None or dropout or query.size(-1) > MAX_HEAD_DIM:
            out = self._with_options(query, key, value, attention_mask, scaling, causal, options)
        elif isinstance(attention_mask, Tensor):
            out = self._masked(query, key, value, attention_mask, scaling)
        elif not causal:
            out = self._flash(query, key, value, scaling, causal=False)
        elif new_tokens == all_tokens:
            out = self._prefill(query, key, value, attention_mask, scaling)
        else:
            out = self._over_cache(query, key, value, attention_mask, scaling)
        return out.to(query.dtype).transpose(1, 2), None

    def _prefill(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Padding | None, scale: float | None
    ) -> Tensor:
        if padding is None:
            return self._flash(query, key, value, scale)
        tokens_first = [padding.to_the_end(x) for x in (query, key, value)]
        kv_cache = self.kv_cache_of(key)
        if kv_cache is not None:
            kv_cache.drop_padding(padding.new)
        out = padding.restored(self._flash(*tokens_first, scale))
        return self._with_last(out, query, *tokens_first[1:], padding, scale)

    def _over_cache(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Padding | None, scale: float | None
    ) -> Tensor:
        """Attention of one new token, or several, possibly with padding, over a cache that already holds others."""
        kv_cache, new_tokens = self.kv_cache_of(key), query.size(2)
        if kv_cache is not None:
            if kv_cache.padded != (padding is not None and padding.before):
                told, now = ("padded", "without") if kv_cache.padded else ("not padded", "with")
                come = "comes a token" if new_tokens == 1 else f"come {new_tokens} tokens"
                raise ValueError(f"the prompt was {told}, and now {come} {now} padding for it in the attention_mask")
            if padding is not None and padding.among_new:
                kv_cache.drop_padding(padding.new)
            if new_tokens == 1:
                return kv_cache.attend(self._as_read(query), scale)
        elif padding is not None:
            key, value = padding.to_the_end(key), padding.to_the_end(value)
        if padding is None and new_tokens > 1:
            return self._flash(query, key, value, scale, lower_right=True)
        if new_tokens == 1:
            full = torch.full((key.size(0),), key.size(2), dtype=torch.int32, device=key.device)
            return self._one_query(query, key, value, full if padding is None else padding.lengths, scale)
        tokens_first, new = padding.new.to_the_end(query), padding.new.lengths
        if self.tuned:
            at = (padding.lengths - new)[:, None] + torch.arange(new_tokens, device=key.device)  # within each sequence
            mask = torch.arange(key.size(2), device=key.device) <= at[:, None, :, None]
            out = self._fast(tokens_first, key, value, scale, False, mask)
        else:
            out = query.new_zeros(query.shape, dtype=torch.float32)
            for b, (length, count) in enumerate(zip(padding.lengths.tolist(), new.tolist(), strict=True)):
                if count:
                    one = tokens_first[b : b + 1, :, :count], *(x[b : b + 1, :, :length] for x in (key, value))
                    out[b : b + 1, :, :count] = self._flash(*one, scale, lower_right=True)
        return self._with_last(padding.new.restored(out), query, key, value, padding, scale)

    def _with_last(
        self, out: Tensor, query: Tensor, key: Tensor, value: Tensor, padding: Padding, scale: float | None
    ) -> Tensor:
        """`out` with its last place correct even if that is padding: generate() reads it; skipped in training.

        key, value: from padding.to_the_end.
        """
        if padding.at_the_end and not (torch.is_grad_enabled() and query.requires_grad):
            out[:, :, -1:] = self._one_query(query[:, :, -1:], key, value, padding.lengths, scale)
        return out

    def _one_query(self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, scale: float | None) -> Tensor:
        """Task 6's operator: one query per sequence over its first lengths[b] keys -> [batch, heads, 1, head_dim]."""
        key, value = (self._converted(x).contiguous() for x in (key, value))
        return self.decode_ops.decode_attention(self._as_read(query), key, value, lengths, scale)

    def _masked(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
        """Attention under any mask, bool or additive, that broadcasts to [batch, heads, new_tokens, all_tokens]."""
        self._refuse_taught("an attention mask of four dimensions")
        _refuse(self._padded(key), "an attention mask after a padded prompt")
        return self._fast(query, key, value, scale, False, mask[..., : key.size(2)])

    def _with_options(
        self, query: Tensor, key: Tensor, value: Tensor, mask, scale: float | None, causal: bool, options: dict
    ) -> Tensor:
        """Attention with softcap, sinks, dropout or head_dim over 128, under any mask; padding is masked, not moved."""
        _refuse(self._padded(key), f"{_named(options, query)} after a padded prompt in a KernelCache")
        if isinstance(mask, Padding):
            mask = mask.mask[:, None, None]
        elif mask is not None:
            causal, mask = False, mask[..., : key.size(2)]
        return self._fast(query, key, value, scale, causal, mask, lower_right=True, **options)

    def _packed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        packed: tuple,
        scale: float | None,
        causal: bool,
        window,
        options,
    ) -> Tensor:
        """Attention over sequences packed in a batch of 1. packed: where those of the queries and the keys begin."""
        self._refuse_taught("packed sequences (cu_seq_lens_q)")
        _refuse(query.size(0) != 1, f"packed sequences (cu_seq_lens_q) in a batch of {query.size(0)}: it must be 1")
        if window is not None:  # a token sees `window` tokens, including itself, per side that it sees
            options["window_size"] = window - 1, 0 if causal else window - 1
        rows = (x[0].transpose(0, 1) for x in (query, key, value))
        out = attention_varlen(*rows, *packed, is_causal=causal, scale=scale, lower_right=True, **options)
        self._fast_calls["attention_varlen"] += 1
        return out.transpose(0, 1)[None]

    def _fast(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool, mask=None, **options
    ) -> Tensor:
        """The fast kernels -> [batch, heads, new_tokens, head_dim]."""
        mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        out = attention(query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=True, **options)
        self._fast_calls["flash_attention"] += 1
        return out

    def _flash(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal=True, lower_right=False
    ) -> Tensor:
        """Task 4's operator, or the fast kernels -> [batch, heads, new_tokens, head_dim]."""
        if self.tuned:
            return self._fast(query, key, value, scale, causal, lower_right=lower_right)
        group = query.size(1) // key.size(1)
        query, key, value = (self._converted(x) for x in (query, key, value))
        key, value = (x.repeat_interleave(group, 1) if group > 1 else x for x in (key, value))
        return self.flash_ops.flash_attention(
            *(x.contiguous() for x in (query, key, value)), causal, scale, lower_right
        )

    def _check_call(
        self, query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool, others: dict
    ) -> None:
        """Raises ValueError for features of a model's attention that these kernels don't support."""
        if dropout > 0.0:
            eval_or_zero = "call model.eval(), or to train set the config's attention dropout to 0"
            self._refuse_taught(f"dropout={dropout} ({eval_or_zero})")
        if not causal:
            self._refuse_taught("attention that is not causal")
        if others.get("sliding_window") is not None:
            self._refuse_taught("a sliding window (sliding_window)")
        for name, what in OPTIONS.items():
            if others.get(name) is not None:
                self._refuse_taught(f"{what} ({name})")
        for name, what in FOREIGN.items():
            _refuse(others.get(name) is not None, f"{what} ({name})")
        bias = others.get("position_bias")
        frozen = "freeze what it is made of by requires_grad_(False), or call under torch.no_grad()"
        trained = bias is not None and bias.requires_grad and torch.is_grad_enabled()
        _refuse(trained, f"a gradient of the position bias (position_bias: {frozen})")
        packed = bias is not None and others.get("cu_seq_lens_q") is not None
        _refuse(packed, "a position bias (position_bias) with packed sequences (cu_seq_lens_q)")
        if query.requires_grad and torch.is_grad_enabled():
            self._refuse_taught("training: they have no backward pass (use torch.no_grad())")
        head_dims = query.size(-1), value.size(-1)
        _refuse(head_dims[0] != head_dims[1], f"values of head_dim {head_dims[1]} with queries of {head_dims[0]} (MLA)")
        most = attention_kernels.MAX_HEAD_DIM if self.tuned else MAX_HEAD_DIM
        _refuse(head_dims[0] > most, f"head_dim {head_dims[0]}: at most {most}")
        _refuse(query.size(1) % key.size(1) != 0, f"{query.size(1)} query heads on {key.size(1)} key heads")

    def _padded(self, key: Tensor) -> bool:
        kv_cache = self.kv_cache_of(key)
        return kv_cache is not None and kv_cache.padded

    def _refuse_taught(self, what: str) -> None:
        _refuse(not self.tuned, what, "with these variants: register(variant='tuned') does")

    def _as_read(self, query: Tensor) -> Tensor:
        """The query as decode_attention takes it: the tuned one only needs contiguous rows."""
        return with_rows(query) if self.tuned else self._converted(query).contiguous()

    def _converted(self, x: Tensor) -> Tensor:
        return x if self.tuned else x.float()


def _all_tokens(attention_mask: Tensor | None, kv_length: int) -> bool:
    """Whether there is no padding. Synchronizes with the device."""
    return attention_mask is None or bool(attention_mask[:, -kv_length:].all())


def _with_bias(mask, bias: Tensor, causal: bool, new_tokens: int, all_tokens: int) -> Tensor:
    """The bias with -infinity where the mask hides a key. A causal mask applies, too, unless `mask` is a tensor."""
    bias = bias[..., :all_tokens].float()
    if isinstance(mask, Tensor):
        mask = mask[..., :all_tokens]
        return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
    if causal:
        seen = torch.ones(new_tokens, all_tokens, dtype=torch.bool, device=bias.device).tril(all_tokens - new_tokens)
        bias = bias.masked_fill(~seen, -torch.inf)
    return bias if mask is None else bias.masked_fill(~mask.mask[:, None, None], -torch.inf)


def _named(options: dict, query: Tensor) -> str:
    """Describes the options that a layer uses."""
    asked = [name.removesuffix("_p") for name, x in options.items() if (x is not None if name == "sinks" else x)]
    return ", ".join(asked) or f"head_dim {query.size(-1)}"


def _refuse(condition: bool, what: str, where: str = "") -> None:
    if condition:
        raise ValueError(f"the course's attention kernels do not support {what}{' ' + where if where else ''}")

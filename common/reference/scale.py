"""The factor of attention's scores."""


def scale_or_default(scale: float | None, head_dim: int) -> float:
    """The factor of the scores: 1 / sqrt(head_dim) unless given."""
    return head_dim**-0.5 if scale is None else scale

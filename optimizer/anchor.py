"""Which side of an AI join keeps its KV (the anchor) while the other side's rows (the partners) stream past it."""

from dataclasses import dataclass

BYTES_PER_TOKEN = 4.0
PROMPT_TOKENS = 40.0  # question and answer cue; paid with the anchor once, or per pair, whatever the choice


@dataclass(frozen=True)
class SideSize:
    """What is known of one side: rows, average UTF-8 bytes of the texts the prompt reads, bytes of the whole. None: unknown."""

    rows: int | None
    text_bytes: float | None
    total_bytes: int | None = None


def join_tokens(anchor: SideSize, partner: SideSize) -> float:
    """Fresh tokens of a cross join: every anchor once, every partner once per anchor. Needs rows and text bytes."""
    anchor_tokens = anchor.text_bytes / BYTES_PER_TOKEN + PROMPT_TOKENS
    return anchor.rows * (anchor_tokens + partner.rows * partner.text_bytes / BYTES_PER_TOKEN)


def choose_anchor(left: SideSize, right: SideSize) -> int | None:
    """0: the left side, 1: the right side, None: too little is known (the caller keeps the written order)."""
    if None in (left.rows, right.rows):
        return None
    if None in (left.text_bytes, right.text_bytes):
        if not left.rows or not right.rows or None in (left.total_bytes, right.total_bytes):
            return None
        left = SideSize(left.rows, left.total_bytes / left.rows)
        right = SideSize(right.rows, right.total_bytes / right.rows)
    return 0 if join_tokens(left, right) <= join_tokens(right, left) else 1

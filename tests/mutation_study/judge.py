"""Judges a report: decided(mutant, observation, lines) turns its claims into a verdict.

What counts as right is declared for every kind of mistake before anything runs. A mutant has topics: those of its kind
and those of the words in its statement. So does every cause that a report may claim. A claim about a mutant is right if
the two share a topic, and a line is right if it is the mutated one or uses what the mutated line computes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mutants import PLANTED, Mutant
from observing import Claim, Observation

from common.inspect.findings.words import OR_THE_ORDER
from common.testing.probing import OF_ANY_SCORES

NAMED, NEAR, CAUGHT, MISLED, MISSED, EQUIVALENT = "named", "near", "caught", "misled", "missed", "equivalent"
VERDICTS = (NAMED, NEAR, CAUGHT, MISLED, MISSED, EQUIVALENT)
_OFFERS_AN_INDEX = re.compile(r"[Cc]heck (?:the index|how blockIdx)|index is wrong")

# The kinds of mistakes (see rules.py), and the topics each has regardless of the code
OF_KIND = {
    "barrier": {"barrier"}, "loop": {"bound", "loop"}, "bound": {"bound"}, "guard": {"bound"},
    "index": {"index", "offset"}, "offset": {"index", "offset"}, "head": {"offset", "head"}, "operands": {"index"},
    "thread": {"threads", "index"}, "launch": {"grid", "bound"}, "adding": {"adding"}, "sign": set(),
    "extremum": {"maximum"}, "initial": set(), "constant": set(), "rescale": {"scale"}, "function": set(),
    "cast": {"type"}, "store": {"store"}, "order": {"store"}, "call": {"store"},
    "leaving": {"bound", "store", "barrier", "loop"}, PLANTED: set(),
}  # fmt: skip
# Kinds that change few or none of the words of a statement: all of its words count
_BY_STATEMENT = (
    "store", "adding", "guard", "sign", "extremum", "initial", "bound", "constant", "leaving", "loop", PLANTED,
)  # fmt: skip
# words in the wrong code -> topics
OF_WORDS = (
    (r"__sync", "barrier"),
    (r"\bscale\b|scale_log2|sqrt|\* ?\* ?0\.5|factor\b|LOG2_E|^\d\.\d+f", "scale"),
    (r"causal|future|diagonal|triu|queries|ahead|hidden|\bright\b|seen|keys_left|masked_fill", "mask"),
    (r"flash_attention\(.*(?:True|False)", "mask"),
    (r"window", "window"),
    (r"rescale|state\.m|m_new|m_all|weight\b|exp2?f?\(|shift|\bold\b|\bnew\b", "rescale"),
    (r"max|shift|m_new|m_all|largest|\bm\b|state\.m|INFINITY", "maximum"),
    (r"sum|\bl\b|l_all|state\.l|inverse|count\b|squares|total|divided", "sum"),
    (r"sum|\bs\[|state\.o|o_all|add_dot|\+=|\bO\b|@", "adding"),
    # clamp keeps a row without keys from dividing by a sum of 0; shift is subtracted in a row that sees nothing
    (r"INFINITY|== 0\.0f|torch\.inf|== 0\b|-torch\.inf|\bclamp|\bshift\b", "empty row"),
    (r"INFINITY|torch\.inf|0\.0f", "mask"),
    (r"\b(?:batch\w*|heads?|kv_heads?|sequence\w*|group|matrix)\b|repeat", "head"),
    (r"stride|row_step|LENGTH|K_STRIDE|head_dim \+|\* cols|\* K\b", "index"),
    (r"transpose|view|dim=|_transposed|\bindex\b", "index"),
    (r"\b(?:query|key|value)\b", "operand"),
    (r"\branks?\b", "ranks"),
    (r"\bouts?\b|part_out", "outs"),
    (r"mean|squares|inverse_std|eps|width|residual|bias|weight\[", "moments"),
    (r"tanh|0\.0447|0\.5|SQRT|cube", "formula"),
    (r"expf|exp2?f|logf|log2f|LOG2_E|\bexp\b|\blog\b|torch\.(?:exp|log)", "exponential"),
    (r"cache|slot|position|token", "cache"),
    (r"\blength\b|first_key|\binside\b", "length"),
    (r"\binside\b", "bound"),
    (r"splits|\bpart\b|\bbegin\b|\bend\b|\bparts\b", "split"),
    (r"\bblock\b|columns\[|k_blocks|q_blocks|\bcount\b|listed|lanes\b", "blocks"),
    (r"lane|warp|threadIdx|THREADS|WARPS|TILE_ROWS", "threads"),
    (r"TILE|B_c|B_C|B_r|B_R|tile|k0|k_start|q_start|ITEMS|KEYS|COLS|ROWS", "tile"),
)
# a cause's name and sentence -> topics
OF_CAUSE = (
    (r"scale|scaled|square root", "scale"),
    (r"mask|future|diagonal|causal|hidden|hides|aligned|-inf", "mask"),
    (r"window|band", "window"),
    (r"weights?\b|shares", "rescale"),
    (r"\w in place of \w|swapped", "index", "operand"),
    (r"smaller than the row's", "loop", "threads", "adding"),
    (r"rescal|exp\(m_old|old terms|exp\(m_w|relative to|merged without", "rescale"),
    (r"maximum|max subtraction|no max|overflows", "maximum"),
    (r"sum\b|sums|normaliz|average|divided?\b|denominator|logarithm|lse", "sum"),
    (r"added up|\+=|overwritten|summed|last product|assigned|last part|only the last|first tile", "adding"),
    (r"-inf|empty|NaN|no key|sees no|nothing", "empty row"),
    (r"\bheads?\b|batch|first matrix|\bgroup|sequence|slices moved", "head"),
    (r"transposed|read as|row length|swapped|exchanged|wrong axis|stride|index|are exchanged", "index"),
    (r"holds what belongs|offset|where row .* belongs", "index", "offset"),
    (r"first matrix|pointers|have a part in every index", "offset"),
    (r"slices never computed", "loop", "bound", "store"),
    (r"\branks?\b", "ranks"),
    (r"nothing (?:is )?added", "adding", "store"),
    (r"is called with \w+ where", "index"),  # the argument itself
    (r"that of the first part", "offset"),  # every part is read at the first one's offset
    (r"mean|variance|residual|bias|weight", "moments"),
    (r"gelu|GELU|tanh|erf|formula|activation", "formula"),
    (r"exp2|powers of 2|base 2|logarithm|exp\(", "exponential"),
    (r"token|slot|position|cache", "cache"),
    (r"length|unused slots", "length"),
    (r"\bparts?\b", "split"),
    (r"\bblocks?\b|\blists?\b|\bcounts?\b", "blocks"),
    (r"barrier|threads race|threads disagree|__sync", "barrier"),
    (r"lane|warp|thread", "threads"),
    (r"never written|unwritten|every thread store|not written|nothing was written|[Ss]oftmax is missing", "store"),
    (r"never written|unwritten|grid cover|blocks of threads|launch", "grid"),
    (r"last (?:tile|key|column|row|part|product)|partial|off by one|left out|leaves out|loop|rounded up", "bound"),
    (r"what you get without|behind the end|one too (?:far|many|few)|ends too early", "bound"),
    (r"stops before|step of the tree|counted by several", "loop"),
    (r"first_row|first row of|rows of warp|first warp", "offset"),
    (r"runs while|padding|past the end|never written|only the first|first \d+|first tile", "bound"),
    (r"loop|first columns only|each thread adds one|steps of", "loop"),
    (r"float16|half|rounded to|65,504|16-bit", "type"),
)  # fmt: skip
# Names whose sentences report a measurement and point to no place: true whatever the mistake is, and right only if a
# topic matches. Sentences that say where to look, such as "look at the rescaling", mislead if the mistake is elsewhere.
MEASURED = ("all zeros", "unwritten outputs", "changes from run to run", "nothing written")
# What a function is about, by its name: a claim with that topic leads to the function, so it counts as near.
OF_FUNCTION = (
    (r"mask|hidden|pieces", "mask"),
    (r"outside", "mask", "window"),
    (r"window", "window"),
    (r"softmax|merge", "rescale", "sum", "maximum"),
    (r"softmax", "exponential"),
    (r"accumulate", "rescale"),
    (r"scores", "scale"),
    (r"update_cache|position", "cache"),
    (r"block|list|compress", "blocks"),
)
# What a finding of the checked build may be about, apart from its own line.
OF_FINDING = {
    "race": {"barrier"},
    "uninitialized": {"store", "bound", "loop", "barrier", "grid", "index"},
    "barrier": {"barrier", "guard"},
    "out_of_bounds": {"index", "bound", "offset", "loop", "grid", "head"},
}
# Parts that test a single stage: if one of them fails, the mistake is in that stage.
STAGES = {
    "task1": ("scores", "softmax", "output"),
    "task2": ("softmax", "gemm"),
    "task3": ("softmax", "merge"),
    "task4": ("load", "scores", "mask", "softmax", "output", "store"),
    "task6": ("update",),
    "task7": ("layernorm", "gelu"),
}


def _topics(words: str, table: Sequence[tuple[str, ...]]) -> set[str]:
    return {topic for pattern, *topics in table if re.search(pattern, words) for topic in topics}


def topics_of(mutant: Mutant) -> set[str]:
    """The mutant's topics."""
    if mutant.kind == "barrier":  # the words next to the barrier are irrelevant
        return set(OF_KIND[mutant.kind])
    words = _changed(mutant.old, mutant.new)
    if not re.search(r"[A-Za-z_]\w", words):  # an operator: use its operands
        words = f"{words} {mutant.old}"
    if mutant.kind in _BY_STATEMENT:
        words += f" {mutant.old if len(mutant.old) > 12 else mutant.statement}"
    found = set(OF_KIND[mutant.kind])
    if re.search(r"mask|hidden|future|diagonal|causal", mutant.statement):
        found.add("mask")
    if re.match(r"for\b|while\b", mutant.statement):
        found |= {"loop", "bound"}
    if re.match(r"if\b", mutant.statement):
        found.add("bound")
    outside, number = re.sub(r"\[[^\[\]]*\]", "", mutant.statement), rf"\b{re.escape(mutant.old)}\b"
    if mutant.kind == "constant" and re.search(number, mutant.statement) and not re.search(number, outside):
        found.add("index")  # it occurs only within an index
    target = re.match(r"(?:const )?(?:\w+ )?(\w+(?:\.\w+)?) =(?!=)", mutant.statement)
    if target and re.search(r"end\b|left\b|seen|count|tiles\b", target[1]):  # the bound of a loop
        found |= {"bound", "loop"}
    if target:  # what is computed there
        words += f" {target[1]}"
    return found | _topics(words, OF_WORDS)


def _changed(old: str, new: str) -> str:
    """The words that differ between the two."""
    before, after = (re.findall(r"[\w.:]+|\S", text) for text in (old, new))
    gone = [word for word in before if before.count(word) != after.count(word)]
    come = [word for word in after if before.count(word) != after.count(word)]
    return " ".join([*gone, *come]) or old


# A wrong line from formulas, see common.diagnosis.mistakes.formulas: its topics are those of the difference.
_INDEX = re.compile(r"(?:is read at|is loaded with) `([^`]*)`; it should be `([^`]*)`")
_FORMULA = re.compile(r"The output matches (?:`([^`]*)`; it should be `([^`]*)`|what you get without `([^`]*)`)")


def topics_of_claim(claim: Claim) -> set[str]:
    """A claimed cause's topics."""
    if index := _INDEX.search(claim.says):
        words = f"{_changed(index[2], index[1])} {index[2]}"
        return {"index", "offset"} | _topics(words, OF_WORDS)
    if formula := _FORMULA.search(claim.says):
        wrong, right = formula[1] or "", formula[2] or formula[3]
        words = _changed(right, wrong)
        if not re.search(r"[A-Za-z_]\w*", words):
            words = right
        words += f" {right.split(' = ')[0]}"
        return _topics(words, OF_WORDS)
    return _topics(f"{claim.name}: {claim.says}", OF_CAUSE)


def targets(mutant: Mutant, lines: list[str]) -> set[int]:
    """The lines that count as right: the mutated statement's, and later lines in the gap that use what it sets.

    Args:
        mutant: the mutant.
        lines: of its file.
    """
    here = set(range(mutant.line, mutant.line + mutant.old.count("\n") + 1))
    begin = mutant.line  # a call on several lines is reported as a whole, at its first
    while begin > 1 and mutant.line - begin < 4 and re.search(r"[(,=]\s*$", lines[begin - 2]):
        begin -= 1
    here.add(begin)  # also for an assignment whose right-hand side is on its own line
    head = lines[mutant.line - 1]
    assigned = re.search(r"([A-Za-z_]\w*)(?:\.\w+)?(?:\[[^=]*\])*\s*(?:[-+*|/]?=(?!=)|\{)", head)
    names = {assigned[1]} if assigned else set()
    if looped := re.search(r"for \(\w+ (\w+) = ", head):
        names = {looped[1]}
    if stored := re.match(r"\s*(\w+)\[", head):  # every line that reads the array
        here |= {number for number, line in enumerate(lines, 1) if re.search(rf"\b{stored[1]}\[", line)}
    last = min(len(lines), max(mutant.last_line, mutant.line) + 12)
    for number in range(mutant.line + 1, last + 1):
        if any(re.search(rf"\b{name}\b", lines[number - 1]) for name in names):
            here.add(number)
    if mutant.kind in ("guard", "bound") and re.match(r"\s*(if|for)\b", head):
        indent = len(head) - len(head.lstrip())
        for number in range(mutant.line + 1, last + 1):
            text = lines[number - 1]
            if text.strip() and len(text) - len(text.lstrip()) <= indent:
                break
            here.add(number)
    return here


@dataclass(frozen=True)
class Decision:
    """A verdict and its grounds."""

    verdict: str
    why: str


def decided(mutant: Mutant, seen: Observation, lines: list[str]) -> Decision:
    """The verdict on a mutant.

    Args:
        mutant: the mutant.
        seen: what the report said.
        lines: of the solution's file.
    """
    if not seen.failed:
        return Decision(MISSED, "every case passes")
    marks = [(claim, mark(mutant, claim, lines)) for claim in seen.claims]
    if wrong := [claim for claim, mark in marks if mark == MISLED]:
        return Decision(MISLED, f"{wrong[0].kind}: {wrong[0].name}: {wrong[0].says[:200]} {wrong[0].lines}")
    for wanted in (NAMED, NEAR):
        if right := [claim for claim, mark in marks if mark == wanted]:
            return Decision(wanted, f"{right[0].kind}: {right[0].name}: {right[0].says[:120]} {right[0].lines}")
    stages = [part for part in seen.failed if part in STAGES.get(mutant.task, ())]
    if stages:
        return Decision(NEAR, f"the part {stages[0]} fails, which tests this stage alone")
    return Decision(CAUGHT, f"{seen.failed}: {seen.claims[0].says[:120] if seen.claims else ''}")


def mark(mutant: Mutant, claim: Claim, lines: list[str]) -> str:
    """How one claim relates to this mutant: NAMED, NEAR, MISLED, or "" if it claims nothing."""
    for name, words in mutant.told:
        if (name and re.fullmatch(name, claim.name)) or (len(words) > 3 and re.search(words, claim.says)):
            return NAMED
    topics = topics_of(mutant)
    if claim.kind in ("finding", "ended"):
        return _mark_of_lines(mutant, claim, targets(mutant, lines))
    if claim.kind == "where" and "holds what belongs" in claim.says:  # a row for which another one's index was used
        return NAMED if {"index", "offset", "head"} & topics else ""
    if claim.kind == "where" and OF_ANY_SCORES[:80] in claim.says:  # NaN, and its possible sources
        return NEAR if {"maximum", "rescale", "empty row"} & topics else ""
    if claim.kind == "where":  # which rows or columns: those of one loop iteration or one tile
        pattern = re.search(r"Only \w+ (?:%|even|odd|>=|<) ?", claim.says)
        return NEAR if pattern and {"loop", "bound", "tile", "offset"} & topics else ""
    about = topics_of_claim(claim)
    if claim.name != "all zeros" and about & topics:
        return NAMED
    if about & _topics(mutant.function, OF_FUNCTION):
        return NEAR
    return "" if claim.name in MEASURED else MISLED


def _mark_of_lines(mutant: Mutant, claim: Claim, right: set[int]) -> str:
    """The same for a claim that names lines."""
    topics, offers_an_index = topics_of(mutant), _OFFERS_AN_INDEX.search(claim.says)
    own = {line for file, line in claim.lines if file.split("/")[-1] == mutant.file}
    in_gap = any(mutant.first_line - 25 <= line <= mutant.last_line + 25 for line in own)
    if claim.name == "race" and "__sync" in claim.says and not offers_an_index and "barrier" not in topics:
        offers_the_order = mutant.kind == "order" and OR_THE_ORDER in claim.says
        return NAMED if offers_the_order and own & right else MISLED  # regardless of its lines
    if own & right or (mutant.kind == "barrier" and claim.name in ("race", "uninitialized", "barrier")):
        return NAMED
    if in_gap:
        return NEAR
    if claim.kind == "ended":
        return NEAR if claim.name == "endless" and {"loop", "bound"} & topics else ""
    if OF_FINDING.get(claim.name, set()) & topics:
        return NEAR
    if offers_an_index:
        return NEAR if {"index", "offset", "grid", "head"} & topics else ""
    return MISLED if claim.name in ("race", "python_value") else ""

# SPDX-License-Identifier: Apache-2.0
"""The rule of plain prose: a sentence has a noun as its subject, before its verb.

`hard_sentences` finds sentences of a file that must be read twice. It checks reStructuredText, and the docstrings,
comments and messages of Python and C. It is a heuristic: a sentence that it passes can still be hard, and some that
it finds are fine. Therefore, a folder may have a few per thousand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

MESSAGE_WORDS_MIN = 5
FRAGMENT_WORDS_MAX = 4

BARE = r"(?:who|whom|whoever|what|whatever)"
QUESTION = r"(?!.*\?$)"
# "Who waits for a buffer wakes the sender.", also after a comma, a semicolon or a colon.
HEADLESS = re.compile(rf"^{BARE}\b{QUESTION}|(?:, (?:and|but|so|or) |; |: ){BARE} {QUESTION}", re.IGNORECASE)
# "Lost was nothing.", "Of an answer only that is read in which all is well."
INVERTED = re.compile(
    r"^(?:lost|gone|left|said|kept|told|meant) (?:is|was|are|were)\b"
    r"|^(?:of|in|to|from|beside|behind) [^,]{3,40} (?:only )?(?:that|those|nobody|nothing) (?:is|are)\b",
    re.IGNORECASE,
)
# A docstring of a few words that depends on text elsewhere: "Of each winner."
FRAGMENT = re.compile(r"^(?:of|by|as|for|where|when|that|those|it|in|from|with)\b", re.IGNORECASE)

# Words and turns for which a standard term or a plainer sentence exists (docs/style.rst).
TURNS = {
    "answers": re.compile(r"^Answers\b|\b(?:it|which|that|and) answers (?:the|a|an|with|how|what|None|True|False)\b"),
    "comes back": re.compile(r"\b(?:comes?|came) back\b", re.IGNORECASE),
    "says so": re.compile(
        r"\b(?:says?|said) so\b|\b(?:is|are|was|were) told\b|\btells? (?:of|what|how|it|the|its|them)\b", re.IGNORECASE
    ),
    "goes on": re.compile(r"\bgoes? on\b", re.IGNORECASE),
    "behind": re.compile(r"\bbehind\b", re.IGNORECASE),
    "nobody": re.compile(r"\b(?:nobody|somebody|whoever)\b|\bthose (?:that|who|which)\b|\ball that\b", re.IGNORECASE),
    "colon for a condition": re.compile(r'(?:^|[;,.] )(?:None|True|False|0|-1|""): ', re.IGNORECASE),
    "metaphor": re.compile(
        r"\b(?:convoys?|lanes?|loans?|lends?|lent|repayments?|naps?|napping|letters?|bur(?:y|ied|ies)|ropes?|bells?"
        r"|doorbells?|tellers?|victims?|rooms?|deliverance|tenants?|neighbours?|keepers?|kept|hangs? up|rings?|rang"
        r"|news)\b",
        re.IGNORECASE,
    ),
    "turn": re.compile(
        r"\b(?:all the same|likewise|for good|on wish|puts? up with|in the way|at the price|be had|is had|begins? anew"
        r"|on its own account)\b",
        re.IGNORECASE,
    ),
}

LITERAL = re.compile(r"``[^`]*``|`[^`]*`")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*#+|=]+\s")
BULLETS = re.compile(r"^[\s*#+|=-]+")
TITLE = re.compile(r"^[^\n]+\n([=~^\"-])\1{3,}$", re.MULTILINE)
PYTHON_TEXT = re.compile(
    r'(?P<triple>"{3}(?:\\.|[^\\])*?"{3})'
    r"""|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"|(?P<comment>\#[^\n]*)",
    re.DOTALL,
)
C_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
C_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')
C_STRINGS = re.compile(rf"{C_STRING.pattern}(?:\s*{C_STRING.pattern})*")
# The signature that CPython takes from the start of a docstring.
C_SIGNATURE = re.compile(r"^\w+\(.*?\)\n--\n\n")
C_MARGIN = re.compile(r"\n[ \t]*\* ?")
CODE_BLOCK = re.compile(
    r"^(?P<indent> *)(?:\.\. code-block::.*|(?!\.\. ).*::)\n(?:\n|(?P=indent) +.*\n)+", re.MULTILINE
)


class Passage(NamedTuple):
    """A piece of prose and the line on which it begins."""

    line: int
    text: str
    is_docstring: bool = False


class Hard(NamedTuple):
    """A sentence that must be read twice, and the reason."""

    line: int
    why: str
    sentence: str


def sentences(text: str) -> Iterator[str]:
    """Return the sentences of a text, each on one line, with every literal as X."""
    for part in SENTENCE_END.split(LITERAL.sub("X", text)):
        sentence = " ".join(BULLETS.sub("", part).split())
        if re.search(r"[a-zA-Z]{2}", sentence):
            yield sentence


def why_hard(sentence: str, *, is_docstring: bool = False) -> str | None:
    """Return the reason why the sentence is hard to read, or None."""
    if HEADLESS.search(sentence):
        return "headless"
    if INVERTED.search(sentence):
        return "inverted"
    is_short = len(sentence.split()) <= FRAGMENT_WORDS_MAX
    return "fragment" if is_docstring and is_short and FRAGMENT.search(sentence) else None


def turns(path: PurePosixPath, text: str) -> Iterator[Hard]:
    """Yield the turns of a file that have a plainer form. A sentence may have several."""
    for passage in passages(path, text):
        for sentence in sentences(passage.text):
            yield from (Hard(passage.line, why, sentence) for why, turn in TURNS.items() if turn.search(sentence))


def passages(path: PurePosixPath, text: str) -> Iterator[Passage]:
    """Return the prose of a file, by its suffix. A file of another kind has none."""
    if path.suffix in {".py", ".pyi"}:
        yield from _python_passages(text)
    elif path.suffix in {".c", ".h"}:
        yield from _c_passages(text)
    elif path.suffix == ".rst":
        yield from _paragraphs(text)


def _c_passages(text: str) -> Iterator[Passage]:
    """Return the comments, and the strings of several words: messages, and docstrings of the extension."""
    for match in C_COMMENT.finditer(text):
        yield Passage(_line_of(text, match), C_MARGIN.sub("\n", match[1]))
    code = C_COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in C_STRINGS.finditer(code):
        words = "".join(C_STRING.findall(match[0])).replace("\\n", "\n")
        if len(words.split()) >= MESSAGE_WORDS_MIN:
            yield Passage(_line_of(code, match), C_SIGNATURE.sub("", words))


def _line_of(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def _paragraphs(text: str) -> Iterator[Passage]:
    """Return the paragraphs of a page without its code blocks and titles."""
    line = 1
    prose = text
    for pattern in (CODE_BLOCK, TITLE):
        prose = pattern.sub(lambda match: "\n" * match.group().count("\n"), prose)
    for part in re.split(r"(\n\s*\n)", prose):
        yield Passage(line, part)
        line += part.count("\n")


def _python_passages(text: str) -> Iterator[Passage]:
    """Return docstrings, also of attributes, messages of several words, and comments. Adjacent ones form a passage."""
    for run in _runs(text, PYTHON_TEXT.finditer(text)):
        first = run[0]
        line = text.count("\n", 0, first.start()) + 1
        words = " ".join(_content(match) for match in run)
        is_docstring = (
            first["triple"] is not None and not text[text.rfind("\n", 0, first.start()) + 1 : first.start()].strip()
        )
        if is_docstring or first["comment"] or len(words.split()) >= MESSAGE_WORDS_MIN:
            yield Passage(line, words, is_docstring)


def _runs(text: str, matches: Iterator[re.Match[str]]) -> Iterator[list[re.Match[str]]]:
    """Group strings, or comments, that only white space separates."""
    run: list[re.Match[str]] = []
    for match in matches:
        is_joined = run and run[-1].lastgroup == match.lastgroup != "triple"
        if not (is_joined and not text[run[-1].end() : match.start()].strip()):
            if run:
                yield run
            run = []
        run.append(match)
    if run:
        yield run


def _content(match: re.Match[str]) -> str:
    """Return the content of a string or a comment."""
    if match["comment"]:
        return match["comment"].lstrip("# ")
    return match["triple"][3:-3] if match["triple"] else match["string"][1:-1]


def hard_sentences(path: PurePosixPath, text: str) -> Iterator[Hard]:
    """Return the sentences of a file that must be read twice."""
    for passage in passages(path, text):
        for sentence in sentences(passage.text):
            if why := why_hard(sentence, is_docstring=passage.is_docstring):
                yield Hard(passage.line, why, sentence)


def sentence_count(path: PurePosixPath, text: str) -> int:
    """Return the number of sentences in a file."""
    return sum(1 for passage in passages(path, text) for _ in sentences(passage.text))

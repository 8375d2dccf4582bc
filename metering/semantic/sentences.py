"""Where a sentence ends: a frozen subset of UAX #29, with one character of lookahead.

Kept from the annex: SATerm Close* Sp* (SB9-SB11), no break before a continuation (SB8a), before
lower case after a full stop (SB8), within initials (SB7) and within what a wide full stop is part
of (SB6). Narrower than it: ASCII terminators need white space behind them, so that "3.14", "a.b"
and "?q=1" stay whole, a short list of abbreviations does not end a sentence, a Japanese quotation
goes on with the particle that says who spoke, and a leading number keeps its wide full stop. The
sets are spelt out here, because a Python release must not move a boundary.
"""

from __future__ import annotations

import re

FULL_STOPS = frozenset(".․…")  # white space must follow, and no lower case behind it
MARKS = frozenset("!?؟۔।॥‼⁇⁈⁉")  # white space must follow
WIDE_STOP = "．"  # unless it stands within a number or an address
WIDE_MARKS = frozenset("。！？｡" + WIDE_STOP)  # end a sentence by themselves
TERMINATORS = FULL_STOPS | MARKS | WIDE_MARKS
CLOSERS = frozenset("\"'`*_)]}»”’›」』）】》〉〕］｝｣〗〙〛〟｠")
CONTINUERS = frozenset(",;:-–—、，；：" + ")]}」』）】》〉｣〗〙〛｠")
# Behind a terminator these change nothing (SB5): variation selectors, joiners, combining marks.
TRANSPARENT = frozenset(
    map(
        chr,
        [*range(0x0300, 0x0370), *range(0x200B, 0x200E), 0x2060, *range(0xFE00, 0xFE10), 0xFEFF],
    )
)
SPACES = frozenset(
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)

# fmt: off
TITLES = frozenset({
    "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Sr", "Jr", "Rev", "Gen", "Sen", "Rep", "Gov", "Capt",
    "Lt", "Col",
})
ABBREVIATIONS = frozenset({
    "e.g", "eg", "i.e", "ie", "vs", "cf", "viz", "approx", "fig", "figs", "eq", "eqs", "vol",
    "pp", "al",
})
BEFORE_NUMBERS = frozenset({"no", "nos", "p", "ch", "sec", "art", "ex", "v", "ver"})
# fmt: on
_QUOTES_OF_JAPANESE = frozenset("」』｣")
_INITIALS = re.compile(r"[A-Z](\.[A-Z])*")  # "J", "U.S"
_WORD_MAX = 12
# Words, blanks, and signs that are none of those above: behind no terminator they make no boundary.
_PLAIN = re.compile(r"[ A-Za-z0-9,;:/=+<>&%$#@^~|\\-]+")


def is_lower(char: str) -> bool:
    """Lower case, in the blocks whose letters no longer change: Latin, Greek, Cyrillic."""
    if char <= "z":
        return char >= "a"
    return (char < "\u0530" or "\u1e00" <= char < "\u2000") and char.islower()


def is_narrow(char: str) -> bool:
    """A Latin letter of English or a digit, also in full width."""
    if char > "~":
        char = chr(max(ord(char) - 0xFEE0, 0))
    return "0" <= char <= "9" or "a" <= char <= "z" or "A" <= char <= "Z"


def goes_on(char: str) -> bool:
    """Whether a line that starts so goes on with the sentence of the line before."""
    return is_lower(char) or char in CONTINUERS


class SentenceEnd:
    """Follows one sentence and says whether the next character would start another."""

    __slots__ = (
        "_after_quote",
        "_after_space",
        "_before_number",
        "_digit_before",
        "_narrow_before",
        "_numbered",
        "_terminator",
        "_word",
    )

    def __init__(self) -> None:
        self._word = ""  # the letters and inner full stops just before, for abbreviations
        self._terminator = ""
        self._after_space = False
        self._digit_before = False
        self._before_number = False  # "No." goes on where a digit follows
        self._after_quote = False  # a Japanese one, behind the terminator
        self._narrow_before = False
        self._numbered = True  # only digits so far, such as a heading's number

    @property
    def ended_for_certain(self) -> bool:
        """Whether a text cut here ends the sentence: not where a number's digits may follow."""
        if self._terminator == WIDE_STOP:
            return not self._numbered and (not self._narrow_before or self._after_space)
        number = self._digit_before and self._terminator in FULL_STOPS and not self._after_space
        return self._terminator != "" and not number

    def starts_another(self, char: str) -> bool:
        """Whether this character, no white space, begins a new sentence. Changes nothing."""
        mark = self._terminator
        if not mark or char in CONTINUERS or char in TERMINATORS or char in TRANSPARENT:
            return False
        if mark == WIDE_STOP and self._goes_on_behind_stop(char):
            return False
        if mark in WIDE_MARKS:
            quoted = self._after_quote and char == "と"  # the particle says who said it
            return self._after_space or (char not in CLOSERS and not quoted)
        if self._before_number and "0" <= char <= "9":
            return False
        if not self._after_space:
            return False
        return not (mark in FULL_STOPS and is_lower(char))

    def _goes_on_behind_stop(self, char: str) -> bool:
        within = self._narrow_before and not self._after_space and is_narrow(char)
        return self._numbered or within

    def read(self, char: str) -> None:
        """Take the sentence's next character."""
        if char in SPACES:
            self._after_space = self._terminator != ""
            self._word = ""
        elif char in TERMINATORS:
            self._read_terminator(char)
        elif self._terminator and char in TRANSPARENT:
            return
        elif self._terminator and char in CLOSERS and not self._after_space:
            self._after_quote = char in _QUOTES_OF_JAPANESE
        else:
            self._terminator = ""
            self._after_space = False
            self._digit_before = "0" <= char <= "9"
            self._narrow_before = is_narrow(char)
            self._numbered = self._numbered and (self._digit_before or "０" <= char <= "９")
            self._word = "" if char in CLOSERS or char == "(" else (self._word + char)[-_WORD_MAX:]

    def pass_over(self, text: str, first: int) -> int:
        """Take plain characters as if by `read`, unless a terminator stands before them."""
        plain = None if self._terminator else _PLAIN.match(text, first)
        if plain is None:
            return first
        run = plain[0]
        _, blank, word = run.rpartition(" ")
        self._word = (word if blank else self._word + run)[-_WORD_MAX:]
        if spoken := run.rstrip(" "):
            self._digit_before = "0" <= spoken[-1] <= "9"
            self._narrow_before = is_narrow(spoken[-1])
            self._numbered = self._numbered and spoken.replace(" ", "").isdigit()
        return plain.end()

    def copy(self) -> SentenceEnd:
        """An independent follower in the same state."""
        twin = SentenceEnd.__new__(SentenceEnd)
        twin._word, twin._terminator = self._word, self._terminator
        twin._after_space, twin._digit_before = self._after_space, self._digit_before
        twin._before_number, twin._after_quote = self._before_number, self._after_quote
        twin._narrow_before, twin._numbered = self._narrow_before, self._numbered
        return twin

    def _read_terminator(self, char: str) -> None:
        word = self._word
        self._after_space = self._after_quote = False
        self._before_number = char == "." and word.lower() in BEFORE_NUMBERS
        if char == ".":
            self._word = (word + char)[-_WORD_MAX:]
            if _abbreviates(word):
                self._terminator = ""
                return
        else:
            self._word = ""
        self._terminator = char


def _abbreviates(word: str) -> bool:
    if word in TITLES or word.lower() in ABBREVIATIONS:
        return True
    return word != "I" and _INITIALS.fullmatch(word) is not None

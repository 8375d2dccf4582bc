"""One clause of JavaScript or TypeScript while it is read: what is open, and what may follow."""

from __future__ import annotations

from metering.semantic.script_grammar import CLASS, ENUM, INTERFACE, STATEMENTS, SWITCH
from metering.semantic.script_lexer import ARROW, VALUE, WORD, ScriptLexer
from metering.semantic.sentences import SPACES

UNDECIDED_BRACES_MAX = 8  # read per clause; further ones are taken for objects

# fmt: off
_MODIFIERS = frozenset({
    "export", "default", "async", "declare", "abstract", "static", "public", "private",
    "protected", "readonly", "override", "const",
})
_BLOCK_WORDS = frozenset({
    "if", "for", "while", "with", "else", "do", "try", "catch", "finally", "switch", "function",
    "class", "interface", "enum", "namespace", "module",
})
_NAME_BLOCKS = frozenset({"function", "class", "interface", "enum", "namespace", "module"})
_IN_PARENTHESES = frozenset({"if", "for", "while", "with"})
_CASES = frozenset({"case", "default"})
_BLOCK_FOLLOWS = frozenset({"else", "do", "try", "catch", "finally", "static"})
_OBJECT_FOLLOWS = frozenset({
    "return", "import", "export", "default", "from", "typeof", "in", "of", "new", "await",
    "yield", "throw", "case", "delete", "as", "type", "const", "let", "var",
})
# None of these begins a line inside brackets, so one that does shows the bracket to be lost.
_BEGIN_ANEW = frozenset({
    "const", "export", "for", "if", "let", "return", "switch", "throw", "try", "var", "while",
})
# fmt: on
_GO_ON = frozenset(".?:+-*/%&|^=<>,)([]`")
_MEMBERS_GO_ON = frozenset(".?:=|&")
_LIST_BODIES = frozenset({INTERFACE, ENUM})


class ScriptClause:
    """Follows a clause, a character at a time. `body`: what it stands in.

    `rest_of`: it goes on behind a block, inside these brackets; null for one that begins by itself.
    """

    __slots__ = (
        "_angles",
        "_assigns",
        "_braces",
        "_line_char",
        "_names_block",
        "_ternaries",
        "body",
        "chars",
        "first",
        "lexer",
        "line_ended",
        "rest_of",
        "waiting",
        "word_at",
    )

    def __init__(self, body: str, *, jsx: bool, rest_of: str | None = None) -> None:
        self.body = body
        self.rest_of = rest_of
        self.lexer = ScriptLexer(jsx=jsx, stack=rest_of or "")
        self.chars: list[str] = []
        self.first = ""  # its first word that is no modifier
        self.line_ended = False  # a new line came that ends it unless it goes on
        self.waiting = False  # it is a whole header, if no brace follows
        self.word_at = 0  # byte offset of the last word
        self._line_char = ""  # the first character of its last line
        self._names_block = False  # a word in it does, `class` say
        self._assigns = False
        self._angles = 0  # open ones, of type parameters if they are paired
        self._ternaries = 0
        self._braces = 0  # that were read and open no block

    @property
    def text(self) -> str:
        """What has been read, without comments."""
        return "".join(self.chars)

    @property
    def place(self) -> str:
        """What the clause stands in, for the grammar: only cases stand in a switch."""
        is_statement = self.body == SWITCH and self.first not in _CASES
        return STATEMENTS if is_statement else self.body

    @property
    def in_members(self) -> bool:
        """In the body of a class, an interface or an enum."""
        return self.body not in (STATEMENTS, SWITCH)

    def copy(self) -> ScriptClause:
        """An independent clause in the same state."""
        twin = ScriptClause.__new__(ScriptClause)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.lexer = self.lexer.copy()
        twin.chars = list(self.chars)
        return twin

    def read(self, char: str) -> None:
        """Take the next character."""
        lexer = self.lexer
        in_code = lexer.in_code
        if in_code and not lexer.stack and char in "=?.<>":
            self._note_operator(char)
        self.chars.append(char)
        lexer.read(char)
        if char == "\n":
            self._end_line()
        elif in_code and not self._line_char and char not in SPACES:
            self._line_char = char
        if char == ")" and in_code and not lexer.stack and self.first in _IN_PARENTHESES:
            self.waiting = self.rest_of is None and not self.in_members

    def read_word(self) -> bool:
        """A word outside of brackets is over; whether the clause ended before it."""
        word = self.lexer.word
        self._names_block = self._names_block or word in _NAME_BLOCKS
        if self.lexer.stack:
            return False
        if self.first == "else" and word != "if":
            return True
        if self.first in _MODIFIERS or self.first in ("", "else"):
            self.first = word
            self.waiting = word in ("else", "do") and not self.in_members
        return False

    def word_begins_anew(self) -> bool:
        """Whether the last word begins its line inside brackets, and cannot."""
        word = self.lexer.word
        if not self.lexer.stack or word not in _BEGIN_ANEW:
            return False
        _, line_break, line = "".join(self.chars[-64:]).rpartition("\n")
        return line_break != "" and line.strip(" \t") == word

    def goes_on(self, char: str) -> bool:
        """Whether a line that begins so goes on with the statement of the line before."""
        if char == "{":
            return self.may_open_block()
        if char == "}":
            return False
        return char in (_MEMBERS_GO_ON if self.in_members else _GO_ON)

    def goes_on_waiting(self, char: str) -> bool:
        """Whether a header without a brace may go on so: with its brace, or `else` with `if`."""
        self.waiting = False
        behind_do = char == ";" and self.first == "while"
        return char == "{" or (self.first == "else" and char == "i") or behind_do

    def ends_member(self) -> bool:
        """Whether a comma outside of brackets ends the clause."""
        return self.body in _LIST_BODIES and self._angles <= 0

    def ends_case(self) -> bool:
        """Whether a colon outside of brackets ends a case's header."""
        if self._ternaries > 0:
            self._ternaries -= 1
            return False
        return self.body == SWITCH and self.first in _CASES

    def may_open_block(self) -> bool:
        """Whether a brace may open a block here, by the token before it."""
        lexer = self.lexer
        last = lexer.last
        if self._braces >= UNDECIDED_BRACES_MAX:
            return False
        if not last or last in (")", ARROW):
            return True
        if last == WORD:
            if lexer.word in _BLOCK_FOLLOWS:
                return True
            if lexer.word in _OBJECT_FOLLOWS:
                return False
        elif last not in ">]}" + VALUE:
            return False
        in_literal = lexer.stack.endswith("{")
        return self._names_block or self.body == CLASS or in_literal

    def took_object(self) -> None:
        """The brace opened no block."""
        self._braces += 1

    @property
    def has_undecided(self) -> bool:
        """A brace of it was read already, and opened no block."""
        return self._braces > 0

    @property
    def is_compound(self) -> bool:
        """Whether the clause, which ends in a block's brace, ends with the block."""
        if self.lexer.stack or self.rest_of is not None:
            return False
        if self.in_members:
            return not self._assigns
        return self.first in _BLOCK_WORDS or self.chars == ["{"]

    def _end_line(self) -> None:
        lexer = self.lexer
        decorates = self._line_char == "@" and not lexer.stack
        if not (lexer.stack or lexer.wants_more or self.waiting or decorates):
            self.line_ended = True
        self._line_char = ""

    def _note_operator(self, char: str) -> None:
        """Keep count of what `:` and `,` may belong to; `?.` and `??` ask nothing."""
        if char == "=":
            self._assigns = True
        elif char == "<":
            self._angles += 1
        elif char == ">":
            self._angles -= self.lexer.last != "="
        elif self.lexer.last == "?":
            self._ternaries -= 1
        elif char == "?":
            self._ternaries += 1

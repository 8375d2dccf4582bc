"""JavaScript, TypeScript: a unit per simple statement, header of a block, its brace, comment.

A header is what leads to a block of statements or members (`if (x) {`, `class A {`,
`app.get("/", () => {`), so the statements in a callback are units too; an object literal stays in
its statement. The brace that closes a block is a `bracket`, together with what its statement goes
on with (`}, 500);`). A new line ends a statement unless its last token or the next character shows
that it goes on. Each clause is read by tree-sitter once, when it ends: work is linear in the text.
"""

from __future__ import annotations

from typing import NamedTuple

from metering.events import UnitState
from metering.semantic import script_grammar
from metering.semantic.scanner import Scanner
from metering.semantic.script_grammar import CLASS, ENUM, INTERFACE, STATEMENTS, SWITCH, Dialect
from metering.semantic.script_lexer import ARROW, VALUE, WORD, ScriptLexer, is_word
from metering.semantic.sentences import SPACES
from metering.semantic.tiling import OVERSIZE, Tiling

BLOCKS_MAX = 512  # deeper ones end no clause of their own
UNDECIDED_BRACES_MAX = 8  # read per clause; further ones are taken for objects
_BRACE_PARSE_CHARS_MAX = 4096

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
_CASES = frozenset({"case", "default"})
_LIST_BODIES = frozenset({INTERFACE, ENUM})


class Frame(NamedTuple):
    """An open block."""

    body: str
    opened: str | None  # brackets open before its brace; null: its statement ends with it


class Script:
    """The scanner of JavaScript or TypeScript text."""

    __slots__ = (
        "_angles",
        "_assigns",
        "_braces",
        "_chars",
        "_comment",
        "_comment_is_unit",
        "_dialect",
        "_first",
        "_frames",
        "_fresh",
        "_held",
        "_lexer",
        "_line_char",
        "_line_ended",
        "_names_block",
        "_rest_of",
        "_slash_at",
        "_star",
        "_ternaries",
        "_waiting",
        "_word_at",
    )

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._frames: tuple[Frame, ...] = ()
        self._fresh = True  # a new line came since the last clause
        self._slash_at: int | None = None  # of a slash that may begin a comment
        self._comment = ""  # the open one's second character
        self._comment_is_unit = False
        self._star = False  # the open comment's last character is a star
        self._held: list[int] = []  # offsets of comments that may stand behind the clause
        self._chars: list[str] | None = None  # of the clause; null between clauses
        self._reset("")

    def _reset(self, stack: str) -> None:
        """Forget the clause before this one."""
        self._lexer = ScriptLexer(jsx=self._dialect.jsx, stack=stack)
        self._rest_of: str | None = None  # the brackets that were open where the clause began
        self._first = ""  # its first word that is no modifier
        self._line_char = ""  # the first character of its last line
        self._line_ended = False  # a new line came that ends it unless it goes on
        self._waiting = False  # a header is whole, if no brace follows
        self._names_block = False  # a word in it does, `class` say
        self._assigns = False
        self._angles = 0  # open ones, of type parameters if they are paired
        self._ternaries = 0
        self._braces = 0  # that were read and open no block
        self._word_at = 0  # byte offset of the last word

    @property
    def _body(self) -> str:
        return self._frames[-1].body if self._frames else STATEMENTS

    @property
    def _in_members(self) -> bool:
        return self._body not in (STATEMENTS, SWITCH)

    @property
    def _place(self) -> str:
        """What the clause stands in, for the grammar: only cases stand in a switch."""
        body = self._body
        is_statement = body == SWITCH and self._first not in _CASES
        return STATEMENTS if is_statement else body

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take one character."""
        if self._comment:
            self._in_comment(tiling, char, at)
        elif self._slash_at is not None:
            slash_at, self._slash_at = self._slash_at, None
            if char in "/*":
                self._begin_comment(tiling, char, slash_at)
            else:
                self._code(tiling, "/", slash_at)
                self.step(tiling, char, at)
        elif char == "/" and (self._chars is None or self._lexer.in_code):
            self._slash_at = at
        else:
            self._code(tiling, char, at)
        return self

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """A text that stopped ends its line; in one that was cut, a new line did."""
        if self._slash_at is not None:
            self._code(tiling, "/", self._slash_at)
        if self._chars is not None and not self._lexer.stack:
            if self._waiting:
                self._end_header(tiling)
            elif stopped or self._line_ended:
                in_comment = bool(self._comment and self._held)
                self._end(tiling)
                if in_comment and not (stopped and self._comment == "/"):
                    tiling.close(UnitState.FRAGMENT)
        if self._comment_is_unit and self._comment == "/" and stopped:
            tiling.close()
        if tiling.is_open:
            tiling.close(UnitState.FRAGMENT)

    def copy(self) -> Script:
        """An independent scanner in the same state."""
        twin = Script.__new__(Script)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._lexer = self._lexer.copy()
        twin._chars = None if self._chars is None else list(self._chars)
        twin._held = list(self._held)
        return twin

    # Comments

    def _begin_comment(self, tiling: Tiling, mark: str, at: int) -> None:
        """A comment is a unit on a line of its own, else a part of what stands before it."""
        self._comment = mark
        self._star = False
        self._comment_is_unit = False
        if self._chars is not None:
            if self._line_ended:
                self._held.append(at)
            return
        if self._fresh or tiling.kind is None:
            self._comment_is_unit = True
            tiling.begin("comment", at)

    def _in_comment(self, tiling: Tiling, char: str, at: int) -> None:
        if self._comment == "/":
            ended = char == "\n"
        else:
            ended = self._star and char == "/"
            self._star = char == "*"
        if not ended:
            return
        if self._comment_is_unit:
            tiling.close()
        self._comment_is_unit = False
        is_line, self._comment = self._comment == "/", ""
        self._code(tiling, "\n" if is_line else " ", at)

    # Code

    def _code(self, tiling: Tiling, char: str, at: int) -> None:
        if self._chars is None:
            self._between(tiling, char, at)
            return
        is_space = char in SPACES
        if self._line_ended and not is_space and not self._goes_on(char):
            self._end(tiling)
            self._code(tiling, char, at)
            return
        if self._waiting and not is_space and not self._may_wait(tiling, char):
            self._code(tiling, char, at)
            return
        if not is_space:
            self._line_ended = False
            self._held.clear()
        if is_word(char):
            if not self._lexer.in_word:
                self._word_at = at
        elif self._lexer.in_word and self._lexer.in_code and self._end_word(tiling, char, at):
            return
        self._take(tiling, char, at)

    def _between(self, tiling: Tiling, char: str, at: int) -> None:
        if char == "\n":
            self._fresh = True
        if char in SPACES or char in ";,":  # an empty statement separates
            return
        if char == "}":
            self._close_block(tiling, at)
            return
        self._begin(tiling, at)
        self._code(tiling, char, at)

    def _begin(self, tiling: Tiling, at: int) -> None:
        tiling.begin("statement", at)
        self._reset("")
        self._chars = []
        self._fresh = False

    def _take(self, tiling: Tiling, char: str, at: int) -> None:
        """Take a character of the clause."""
        lexer = self._lexer
        assert self._chars is not None, "a clause was begun"
        if tiling.kind == OVERSIZE:
            self._chars.clear()
            self._held.clear()
        if not lexer.in_code:
            self._chars.append(char)
            lexer.read(char)
            if char == "\n":
                self._end_line()
            return
        if char == "}" and not lexer.closes("}"):
            self._end(tiling)
            self._close_block(tiling, at)
            return
        if char == "{" and self._opens_block():
            self._chars.append(char)
            if self._open_block(tiling):
                return
            self._chars.pop()
        self._chars.append(char)
        if char == ":" and not lexer.stack and self._ends_case():
            self._end_header(tiling)
            return
        if not lexer.stack and (char == ";" or (char == "," and self._ends_listed())):
            self._end(tiling)
            return
        if not lexer.stack and char in "=?.<>":
            self._note_operator(char)
        lexer.read(char)
        if char == "\n":
            self._end_line()
        elif not self._line_char and char not in SPACES:
            self._line_char = char
        if char == ")" and not lexer.stack and self._first in _IN_PARENTHESES:
            self._waiting = self._rest_of is None and not self._in_members

    def _end_line(self) -> None:
        lexer = self._lexer
        decorates = self._line_char == "@" and not lexer.stack
        if not (lexer.stack or lexer.wants_more or self._waiting or decorates):
            self._line_ended = True
        self._line_char = ""

    def _goes_on(self, char: str) -> bool:
        """Whether a line that begins so goes on with the statement of the line before."""
        if char == "{":
            return self._opens_block()
        if char == "}":
            return False
        return char in (_MEMBERS_GO_ON if self._in_members else _GO_ON)

    def _may_wait(self, tiling: Tiling, char: str) -> bool:
        """A header without a brace so far: whether it may still get one. If not, it ends."""
        self._waiting = False
        if char == "{" or (self._first == "else" and char == "i"):
            return True
        if char == ";" and self._first == "while":
            return True  # behind a `do` block
        self._end_header(tiling)
        return False

    def _end_word(self, tiling: Tiling, char: str, at: int) -> bool:
        """A word is over. Whether the clause ended before it, and a new one began with it."""
        lexer, word, before = self._lexer, self._lexer.word, self._first
        self._names_block = self._names_block or word in _NAME_BLOCKS
        if not lexer.stack:
            if before == "else" and word != "if":
                self._split(tiling, char, at, header=True)
                return True
            if before in _MODIFIERS or before in ("", "else"):
                self._first = word
                self._waiting = word in ("else", "do") and not self._in_members
            return False
        if char == " " and word in _BEGIN_ANEW and self._word_begins_line():
            self._split(tiling, char, at, header=False)
            return True
        return False

    def _word_begins_line(self) -> bool:
        assert self._chars is not None, "a clause was begun"
        text = "".join(self._chars[-64:])
        return text.rpartition("\n")[2].strip(" \t") == self._lexer.word and "\n" in text

    def _split(self, tiling: Tiling, char: str, at: int, *, header: bool) -> None:
        """End the clause before its last word, and begin another with it."""
        word, word_at = self._lexer.word, self._word_at
        assert self._chars is not None, "a clause was begun"
        if header:
            del self._chars[-len(word) :]
            self._end_header(tiling)
        else:
            self._chars = None
            tiling.close(UnitState.FRAGMENT)
        self._begin(tiling, word_at)
        for offset, letter in enumerate(word):  # words that are looked for are ASCII
            self._code(tiling, letter, word_at + offset)
        self._code(tiling, char, at)

    # Ends

    def _note_operator(self, char: str) -> None:
        """Keep count of what `:` may answer; `?.` and `??` ask nothing."""
        if char == "=":
            self._assigns = True
        elif char == "<":
            self._angles += 1
        elif char == ">":
            self._angles -= self._lexer.last != "="
        elif self._lexer.last == "?":
            self._ternaries -= 1
        elif char == "?":
            self._ternaries += 1

    def _ends_listed(self) -> bool:
        """Whether a comma outside of brackets ends a member."""
        return self._body in _LIST_BODIES and self._angles <= 0

    def _ends_case(self) -> bool:
        """Whether a colon outside of brackets ends a case's header."""
        if self._ternaries > 0:
            self._ternaries -= 1
            return False
        return self._body == SWITCH and self._first in _CASES

    def _end(self, tiling: Tiling) -> None:
        """The clause is over: read it, and close it with the comments behind it."""
        text = "".join(self._chars or ())
        held, line_ended = self._held, self._line_ended
        self._chars, self._held, self._fresh = None, [], line_ended
        if tiling.kind == OVERSIZE:
            tiling.close()
            return
        if self._rest_of is not None:
            kind = "bracket"
            valid = script_grammar.accepts_rest(self._dialect, text, self._rest_of)
        else:
            kind = "member" if self._in_members else "statement"
            valid = not self._lexer.stack
            valid = valid and script_grammar.accepts(self._dialect, text, self._place)
        tiling.close(UnitState.COMPLETE if valid else UnitState.FRAGMENT, kind=kind)
        for comment_at in held:
            tiling.begin("comment", comment_at)
            tiling.close()

    def _end_header(self, tiling: Tiling) -> None:
        """The clause is a header without a brace."""
        text = "".join(self._chars or ())
        self._chars, self._fresh, self._waiting = None, False, False
        self._held.clear()
        valid = script_grammar.accepts_header(self._dialect, text, self._place)
        tiling.close(UnitState.COMPLETE if valid else UnitState.FRAGMENT, kind="header")

    # Blocks

    def _opens_block(self) -> bool:
        """Whether a brace may open a block here, by the token before it."""
        lexer = self._lexer
        last = lexer.last
        if len(self._frames) >= BLOCKS_MAX or self._braces >= UNDECIDED_BRACES_MAX:
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
        return self._names_block or self._body == CLASS or in_literal

    def _open_block(self, tiling: Tiling) -> bool:
        """A brace has been taken; whether it opens a block, whose header then closes."""
        lexer = self._lexer
        text = "".join(self._chars or ())
        if self._braces and len(text) > _BRACE_PARSE_CHARS_MAX:
            return False
        found = script_grammar.block(self._dialect, text, lexer.stack, self._rest_of, self._place)
        if found is None:
            self._braces += 1
            return False
        stands_alone = not lexer.stack and self._rest_of is None and self._is_compound(text)
        tiling.close(UnitState.COMPLETE if found.is_valid else UnitState.FRAGMENT, kind="header")
        self._frames += (Frame(found.body, None if stands_alone else lexer.stack),)
        self._chars, self._fresh, self._waiting = None, False, False
        return True

    def _is_compound(self, text: str) -> bool:
        """Whether the clause ends with its block."""
        if self._in_members:
            return not self._assigns
        return self._first in _BLOCK_WORDS or text == "{"

    def _close_block(self, tiling: Tiling, at: int) -> None:
        """A brace closes a block; a statement that the block was an operand of goes on."""
        tiling.begin("bracket", at)
        self._fresh = False
        if not self._frames:
            tiling.close(UnitState.FRAGMENT)
            return
        *outer, frame = self._frames
        self._frames = tuple(outer)
        if frame.opened is None:
            tiling.close()
            return
        self._reset(frame.opened)
        self._lexer.last = "}"
        self._line_char = "}"
        self._rest_of = frame.opened
        self._chars = ["}"]

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
from metering.semantic.script_clause import ScriptClause
from metering.semantic.script_grammar import STATEMENTS, Dialect
from metering.semantic.script_lexer import is_word
from metering.semantic.sentences import SPACES
from metering.semantic.tiling import OVERSIZE, Tiling

BLOCKS_MAX = 512  # deeper ones end no clause of their own
OPEN_PARSE_CHARS_MAX = 4096  # longer text that may be read more than once is not read then


class Frame(NamedTuple):
    """An open block."""

    body: str
    opened: str | None  # brackets open before its brace; null: its statement ends with it


class Script(Scanner):
    """The scanner of JavaScript or TypeScript text."""

    __slots__ = (
        "_clause",
        "_comment",
        "_comment_is_unit",
        "_dialect",
        "_frames",
        "_fresh",
        "_held",
        "_slash_at",
        "_star",
    )

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._frames: tuple[Frame, ...] = ()
        self._clause: ScriptClause | None = None  # null between clauses
        self._fresh = True  # a new line came since the last clause
        self._slash_at: int | None = None  # of a slash that may begin a comment
        self._comment = ""  # the open one's second character
        self._comment_is_unit = False
        self._star = False  # the open comment's last character is a star
        self._held: list[int] = []  # offsets of comments that may stand behind the clause

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
        elif char == "/" and (self._clause is None or self._clause.lexer.in_code):
            self._slash_at = at
        else:
            self._code(tiling, char, at)
        return self

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """A text that stopped ends its line; in one that was cut, a new line did."""
        if self._slash_at is not None:
            self._code(tiling, "/", self._slash_at)
        clause = self._clause
        readable = stopped or (clause is not None and len(clause.chars) <= OPEN_PARSE_CHARS_MAX)
        if clause is not None and not clause.lexer.stack and readable:
            if clause.waiting:
                self._end_header(tiling, clause)
            elif stopped or clause.line_ended:
                in_comment = bool(self._comment and self._held)
                self._end(tiling, clause)
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
        twin._clause = None if self._clause is None else self._clause.copy()
        twin._held = list(self._held)
        return twin

    # Comments

    def _begin_comment(self, tiling: Tiling, mark: str, at: int) -> None:
        """A comment is a unit on a line of its own, else a part of what stands before it."""
        self._comment = mark
        self._star = False
        self._comment_is_unit = False
        if self._clause is not None:
            if self._clause.line_ended:
                self._held.append(at)
        elif self._fresh or tiling.kind is None:
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
        clause = self._clause
        if clause is None:
            self._between(tiling, char, at)
        elif self._ends_before(tiling, clause, char):
            self._code(tiling, char, at)
        elif not self._ends_before_word(tiling, clause, char, at):
            self._take(tiling, clause, char, at)

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
        body = self._frames[-1].body if self._frames else STATEMENTS
        self._clause = ScriptClause(body, jsx=self._dialect.jsx)
        self._fresh = False

    def _ends_before(self, tiling: Tiling, clause: ScriptClause, char: str) -> bool:
        """Whether a character shows that the clause ended on a line before, or as a header."""
        if char in SPACES:
            return False
        if clause.line_ended and not clause.goes_on(char):
            self._end(tiling, clause)
            return True
        if clause.waiting and not clause.goes_on_waiting(char):
            self._end_header(tiling, clause)
            return True
        clause.line_ended = False
        self._held.clear()
        return False

    def _ends_before_word(self, tiling: Tiling, clause: ScriptClause, char: str, at: int) -> bool:
        """Whether a word that is over shows that the clause ended before it."""
        lexer = clause.lexer
        if is_word(char):
            if not lexer.in_word:
                clause.word_at = at
            return False
        if not (lexer.in_word and lexer.in_code):
            return False
        word = lexer.word
        if clause.read_word():
            del clause.chars[-len(word) :]
            self._end_header(tiling, clause)
        elif char == " " and clause.word_begins_anew():
            tiling.close(UnitState.FRAGMENT)
        else:
            return False
        self._begin(tiling, clause.word_at)
        for offset, letter in enumerate(word):  # words that are looked for are ASCII
            self._code(tiling, letter, clause.word_at + offset)
        self._code(tiling, char, at)
        return True

    def _take(self, tiling: Tiling, clause: ScriptClause, char: str, at: int) -> None:
        """Take a character of the clause; some end it."""
        if tiling.kind == OVERSIZE:
            clause.chars.clear()
            self._held.clear()
        lexer = clause.lexer
        if not lexer.in_code:
            clause.read(char)
        elif char == "}" and not lexer.closes("}"):
            self._end(tiling, clause)
            self._close_block(tiling, at)
        elif char == "{" and self._open_block(tiling, clause):
            return
        elif lexer.stack:
            clause.read(char)
        elif char == ";" or (char == "," and clause.ends_member()):
            clause.chars.append(char)
            self._end(tiling, clause)
        elif char == ":" and clause.ends_case():
            clause.chars.append(char)
            self._end_header(tiling, clause)
        else:
            clause.read(char)

    # Ends

    def _end(self, tiling: Tiling, clause: ScriptClause) -> None:
        """The clause is over: read it, and close it with the comments behind it."""
        held, self._held = self._held, []
        self._clause, self._fresh = None, clause.line_ended
        if tiling.kind == OVERSIZE:
            tiling.close()
            return
        if clause.rest_of is not None:
            kind = "bracket"
            valid = script_grammar.accepts_rest(self._dialect, clause.text, clause.rest_of)
        else:
            kind = "member" if clause.in_members else "statement"
            valid = not clause.lexer.stack and script_grammar.accepts(
                self._dialect, clause.text, clause.place
            )
        tiling.close(_state(valid), kind=kind)
        for comment_at in held:
            tiling.begin("comment", comment_at)
            tiling.close()

    def _end_header(self, tiling: Tiling, clause: ScriptClause) -> None:
        """The clause is a header without a brace."""
        self._clause, self._fresh = None, False
        self._held.clear()
        valid = script_grammar.accepts_header(self._dialect, clause.text, clause.place)
        tiling.close(_state(valid), kind="header")

    # Blocks

    def _open_block(self, tiling: Tiling, clause: ScriptClause) -> bool:
        """Whether a brace opens a block, whose header then closes."""
        if len(self._frames) >= BLOCKS_MAX or not clause.may_open_block():
            return False
        if clause.has_undecided and len(clause.chars) > OPEN_PARSE_CHARS_MAX:
            return False
        clause.chars.append("{")
        opened = clause.lexer.stack
        found = script_grammar.block(
            self._dialect, clause.text, opened, clause.rest_of, clause.place
        )
        if found is None:
            clause.chars.pop()
            clause.took_object()
            return False
        tiling.close(_state(found.is_valid), kind="header")
        self._frames += (Frame(found.body, None if clause.is_compound else opened),)
        self._clause, self._fresh = None, False
        return True

    def _close_block(self, tiling: Tiling, at: int) -> None:
        """A brace closes a block; a statement that the block was an operand of goes on."""
        tiling.begin("bracket", at)
        self._clause, self._fresh = None, False
        if not self._frames:
            tiling.close(UnitState.FRAGMENT)
            return
        *outer, frame = self._frames
        self._frames = tuple(outer)
        if frame.opened is None:
            tiling.close()
            return
        body = self._frames[-1].body if self._frames else STATEMENTS
        self._clause = ScriptClause(body, jsx=self._dialect.jsx, rest_of=frame.opened)
        self._clause.lexer.last = "}"
        self._clause.chars.append("}")


def _state(valid: bool) -> UnitState:
    return UnitState.COMPLETE if valid else UnitState.FRAGMENT

"""The lexical state of a shell: which quotes, substitutions and here-documents are open."""

from __future__ import annotations

from metering.semantic.sentences import SPACES

# What the stack holds, innermost last: a quote as it is; `$` a string with escapes, `$'...'`;
# `(` a subshell, substitution or array, `a` arithmetic; `{` a parameter.
_LINE_MAX = 256  # a longer line ends no here-document
_DEPTH_MAX = 512  # deeper brackets are not followed
_DOCUMENTS_MAX = 16  # to come after one line; further ones are not followed
_BEFORE_COMMENT = SPACES | frozenset(";|&()")


class ShellLexer:
    """Follows one command, a character at a time."""

    __slots__ = (
        "_angles",
        "_comment",
        "_escaped",
        "_heredocs",
        "_line",
        "_mark",
        "_previous",
        "in_document",
        "stack",
    )

    def __init__(self) -> None:
        self.stack = ""
        self.in_document = False  # inside a here-document
        self._heredocs: tuple[str, ...] = ()  # marks that end those to come; "-": tabs go first
        self._line = ""  # the here-document's line so far
        self._mark: str | None = None  # of a here-document, while it is read
        self._angles = 0  # `<` in a row, up to here
        self._previous = "\n"
        self._escaped = False
        self._comment = False

    @property
    def is_plain(self) -> bool:
        """Outside of quotes, brackets, comments and here-documents."""
        return not (self.stack or self.in_document or self._comment or self._escaped)

    @property
    def awaits_document(self) -> bool:
        """Whether a here-document follows the line."""
        return bool(self._heredocs or (self._mark or "").strip("-"))

    def read(self, char: str) -> None:
        """Take the command's next character."""
        if self.in_document:
            self._read_document(char)
            return
        if char != "<":
            self._angles = 0
            if self._mark is not None:
                self._read_mark(char)
        if self._comment:
            self._comment = char != "\n"
        elif self._escaped:
            self._escaped = False
        else:
            self._read(char)
        self._previous = char
        if char == "\n" and self._heredocs and self.stack.strip("(") == "":
            self.in_document = True

    def copy(self) -> ShellLexer:
        """An independent lexer in the same state."""
        twin = ShellLexer()
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def _read(self, char: str) -> None:
        top = self.stack[-1:]
        if top == "'":
            if char == "'":
                self.stack = self.stack[:-1]
        elif char == "\\":
            self._escaped = True
        elif top == "$":
            if char == "'":
                self.stack = self.stack[:-1]
        elif char == "(" and (self._previous == "$" or top != '"'):
            self._push("a" if self._previous == "(" and top == "(" else "(")
        elif char == "{" and self._previous == "$":
            self._push("{")
        elif top == '"':
            if char == '"':
                self.stack = self.stack[:-1]
            elif char == "`":
                self._push(char)
        else:
            self._read_code(char, top)

    def _read_code(self, char: str, top: str) -> None:
        if char == "'":
            self._push("$" if self._previous == "$" else "'")
        elif char == '"':
            self._push(char)
        elif char == "`":
            if top == "`":
                self.stack = self.stack[:-1]
            else:
                self._push(char)
        elif (char == ")" and top in ("(", "a")) or (char == "}" and top == "{"):
            self.stack = self.stack[:-1]
        elif char == "#" and self._previous in _BEFORE_COMMENT and top != "{":
            self._comment = True
        elif char == "<" and "a" not in self.stack:
            self._angles += 1
            self._mark = "" if self._angles == 2 else None  # `<<<` is a string

    def _push(self, opened: str) -> None:
        if len(self.stack) < _DEPTH_MAX:
            self.stack += opened

    def _read_mark(self, char: str) -> None:
        """Take a character of the word behind `<<`."""
        mark = self._mark or ""
        if char == "-" and not mark:
            self._mark = "-"
        elif char in SPACES or char in ";|&()<>":
            if mark.strip("-") and len(self._heredocs) < _DOCUMENTS_MAX:
                self._heredocs += (mark,)
            if mark.strip("-") or char not in " \t":
                self._mark = None
        elif char not in "'\"\\" and len(mark) < _LINE_MAX:
            self._mark = mark + char

    def _read_document(self, char: str) -> None:
        if char != "\n":
            if len(self._line) < _LINE_MAX:
                self._line += char
            return
        mark, line = self._heredocs[0], self._line
        self._line = ""
        if mark.startswith("-"):
            mark, line = mark[1:], line.lstrip("\t")
        if line.rstrip("\r") == mark:
            self._heredocs = self._heredocs[1:]
            self.in_document = bool(self._heredocs)

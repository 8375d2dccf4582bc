"""The lexical state of JavaScript and TypeScript: what is open, and what the last token was.

Strings, templates, regular expressions and JSX are followed so that a bracket or a semicolon in
them ends nothing. Whether a slash divides or begins a regular expression, and whether a `<` is
less-than or a JSX tag, follows from whether a value is expected there.
"""

from __future__ import annotations

from metering.semantic.sentences import SPACES

# What the stack holds, innermost last: brackets of code as they are; `$` the code in a template;
# `e` the code in JSX; a quote for a string or template; `r` a regular expression and `R` a class
# in it; `<` the text of a JSX element, `t` its opening tag, `u` its closing one, `c` undecided.
CODE = frozenset("([{$e")
VALUE = '"'  # stands for whatever ended as a value and is no word or bracket
ARROW = "a"
WORD = "w"
_PAIRS = {")": "(", "]": "[", "}": "{$e"}
_ENDS_VALUE = frozenset(")]}" + VALUE + WORD)
_WORD_MAX = 16  # longer words are no keywords
DEPTH_MAX = 512  # deeper brackets are not followed

# fmt: off
_BEFORE_VALUE = frozenset({
    "return", "typeof", "case", "in", "of", "delete", "void", "throw", "new", "else", "do",
    "instanceof", "await", "yield", "extends", "default",
})
# fmt: on
_WANTS_MORE = frozenset("=+-*/%&|^,.?:~(" + ARROW)
_WORDS_WANT_MORE = frozenset(
    {"typeof", "in", "of", "new", "instanceof", "extends", "await", "as", "from", "import"}
    | {"const", "let", "var"}
)


class ScriptLexer:
    """Follows one clause, a character at a time."""

    __slots__ = ("_escaped", "_jsx", "in_word", "last", "stack", "word")

    def __init__(self, *, jsx: bool, stack: str = "", last: str = "") -> None:
        self._jsx = jsx
        self.stack = stack
        self.last = last  # the last token's class or character; empty at the start
        self.word = ""  # the last word, or its beginning
        self.in_word = False  # the last character was part of it
        self._escaped = False

    @property
    def in_code(self) -> bool:
        """Outside of strings, regular expressions and JSX text."""
        return not self.stack or self.stack[-1] in CODE

    @property
    def expects_value(self) -> bool:
        """Whether an operand comes next, not an operator."""
        if self.last == WORD:
            return self.word in _BEFORE_VALUE
        return self.last not in _ENDS_VALUE

    @property
    def wants_more(self) -> bool:
        """Whether the last token cannot end a statement, so a new line goes on with it."""
        if self.last == WORD:
            return self.word in _WORDS_WANT_MORE
        return self.last in _WANTS_MORE

    def closes(self, char: str) -> bool:
        """Whether a bracket that closes has its partner open."""
        return any(opened in self.stack for opened in _PAIRS[char])

    def read(self, char: str) -> None:
        """Take the clause's next character; comments are not handed to it."""
        top = self.stack[-1:]
        if not top or top in CODE:
            self._read_code(char)
        elif self._escaped:
            self._escaped = False
        elif top in "\"'":
            self._read_string(char, top)
        elif top == "`":
            self._read_template(char)
        elif top in "rR":
            self._read_pattern(char, top)
        else:
            self._read_jsx(char, top)

    def copy(self) -> ScriptLexer:
        """An independent lexer in the same state."""
        twin = ScriptLexer(jsx=self._jsx, stack=self.stack, last=self.last)
        twin.word, twin.in_word, twin._escaped = self.word, self.in_word, self._escaped
        return twin

    def _read_code(self, char: str) -> None:
        if char in SPACES:
            self.in_word = False
            return
        if is_word(char):
            if not self.in_word:
                self.word = ""
                self.in_word = True
            if len(self.word) < _WORD_MAX:
                self.word += char
            self.last = WORD
            return
        self.in_word = False
        if char in "\"'`":
            self._push(char)
        elif char == "/" and self.expects_value:
            self._push("r")
        elif char == "<" and self._jsx and self.expects_value:
            self._push("<t")
            self.last = "<"
        elif char in "([{":
            self._push(char)
            self.last = char
        elif char in ")]}":
            self._close(char)
        else:
            self.last = self._operator(char)

    def _operator(self, char: str) -> str:
        if char == ">" and self.last == "=":
            return ARROW
        if char in "+-" and self.last == char:
            return VALUE  # `x++` may end a statement; before an operand it makes no difference
        return char

    def _close(self, char: str) -> None:
        """Close the innermost partner; brackets that were lost inside it close with it."""
        inner = len(self.stack)
        while inner and self.stack[inner - 1] not in _PAIRS[char]:
            inner -= 1
        if not inner:
            return
        partner = self.stack[inner - 1]
        self.stack = self.stack[: inner - 1]
        if partner not in "$e":
            self.last = char

    def _push(self, opened: str) -> None:
        if len(self.stack) < DEPTH_MAX:
            self.stack += opened

    def _pop(self) -> None:
        self.stack = self.stack[:-1]
        if self.in_code:
            self.last = VALUE

    def _read_string(self, char: str, quote: str) -> None:
        if char == "\\":
            self._escaped = True
        elif char in (quote, "\n"):  # an unfinished string ends with its line
            self._pop()

    def _read_template(self, char: str) -> None:
        if char == "\\":
            self._escaped = True
        elif char == "`":
            self._pop()
        elif char == "{" and self.last == "$":
            self._push("$")
            self.last = "{"
            return
        self.last = "$" if char == "$" else VALUE

    def _read_pattern(self, char: str, top: str) -> None:
        if char == "\\":
            self._escaped = True
        elif char == "[":
            self.stack = self.stack[:-1] + "R"
        elif char == "]":
            self.stack = self.stack[:-1] + "r"
        elif char == "\n" or (char == "/" and top == "r"):
            self._pop()

    def _read_jsx(self, char: str, top: str) -> None:
        if top == "c":
            self.stack = self.stack[:-1]
            self._push("u" if char == "/" else "<t")
            if char == "/":
                return
            top = "t"
        if char == "{" and top != "u":
            self._push("e")
            self.last = "{"
        elif top == "<":
            if char == "<":
                self._push("c")
        elif char == ">":
            self._end_tag(top)
        elif top == "t" and self._is_generic(char):
            self.stack = self.stack[:-2]
            self.last = char if char == "," else WORD
        elif top == "t" and char in "\"'":
            self._push(char)
        elif char not in SPACES:
            self.last = char

    def _is_generic(self, char: str) -> bool:
        """Whether what seemed to be a tag is type parameters: `<T,>(x: T)`, `<T extends U>(x: T)`.

        No tag has a comma; where one may begin, TypeScript takes `extends` for no attribute either.
        """
        ended = self.in_word and not is_word(char)
        if is_word(char):
            self.word = self.word + char if self.in_word else char
            self.word = self.word[:_WORD_MAX]
        self.in_word = is_word(char)
        may_be = self.stack[:-2] == "" or self.stack[-3] in CODE
        is_constraint = ended and self.word == "extends" and char in SPACES
        return may_be and (char == "," or is_constraint)

    def _end_tag(self, top: str) -> None:
        """A tag closes; with a closing one, and one that closes itself, its element does."""
        self.stack = self.stack[:-1]
        if top == "u" or self.last == "/":
            self._pop()
        self.last = VALUE


def is_word(char: str) -> bool:
    """Part of a name or number. Everything beyond ASCII is, but for white space."""
    if char > "\x7f":
        return char not in SPACES
    return char.isalnum() or char in "_$#@"

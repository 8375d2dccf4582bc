"""Which computed tokens lie in which page: a radix tree for each tenant, one node a page.

    tenant -- [system prompt, 16] -- [16] -- [question A, 16] -- [answer, 16] -- [5]
                                       `---- [question B, 16] -- [9]

A page that is full may be followed by others; one that is partly filled is a leaf. Only committed
tokens are in the tree, generated ones like the prompt's, and no path leads from one tenant to
another. The tree knows nothing of who holds a page: that is the pool's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class Node:
    """A page and the tokens whose keys it begins with."""

    page: int
    tokens: tuple[int, ...]
    parent: Node | None  # null for a tenant's root, which has no page
    children: dict[int, list[Node]] = field(default_factory=dict)  # by their first token


class Match(NamedTuple):
    """What is known of the beginning of a text."""

    nodes: tuple[Node, ...]  # full pages, in order
    partial: Node | None  # the page that agrees with most of what follows them
    shared: int  # with how many tokens of it


class PrefixTree:
    """The nodes of all tenants. Not thread-safe."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._roots: dict[str, Node] = {}
        self._node_of: dict[int, Node] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._node_of

    def __len__(self) -> int:
        return len(self._node_of)

    def match(self, tenant_id: str, tokens: Sequence[int]) -> Match:
        """Find the longest known beginning of `tokens`."""
        nodes: list[Node] = []
        node, at, size = self._roots.get(tenant_id), 0, self._page_size
        while node is not None and at < len(tokens):
            best, shared = _closest(node, tuple(tokens[at : at + size]))
            if best is None or shared < size:
                return Match(tuple(nodes), best, shared)
            nodes.append(best)
            node, at = best, at + size
        return Match(tuple(nodes), None, 0)

    def insert(self, tenant_id: str, parent: Node | None, page: int, tokens: Sequence[int]) -> Node:
        """Add a page after `parent`, at a tenant's root if that is null; returns its node.

        Where a page that begins with the same tokens is known already, that one's node is
        returned and nothing changes.
        """
        above = parent or self._roots.setdefault(tenant_id, Node(-1, (), None))
        content = tuple(tokens)
        assert content
        assert parent is None or len(parent.tokens) == self._page_size
        known, shared = _closest(above, content)
        if known is not None and shared == len(content):
            return known
        node = self._node_of[page] = Node(page, content, above)
        above.children.setdefault(content[0], []).append(node)
        return node

    def extend(self, node: Node, tokens: Sequence[int]) -> Node:
        """Say that a node's page holds more: all of `tokens`, which begin with what it held.

        Where another page begins with them already, the node is removed and the other's returned.
        """
        content = tuple(tokens)
        assert content[: len(node.tokens)] == node.tokens
        assert node.parent is not None
        for other in node.parent.children[content[0]]:
            if other is not node and other.tokens[: len(content)] == content:
                self.remove(node.page)
                return other
        node.tokens = content
        return node

    def remove(self, page: int) -> None:
        """Forget a leaf."""
        node = self._node_of.pop(page)
        assert not node.children
        above = node.parent
        assert above is not None
        siblings = above.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del above.children[node.tokens[0]]
        if above.parent is None and not above.children:
            self._roots = {name: root for name, root in self._roots.items() if root is not above}

    def parent_of(self, page: int) -> int | None:
        """Return the page before a page; null for the first of a text."""
        above = self._node_of[page].parent
        assert above is not None
        return None if above.parent is None else above.page

    def faults(self) -> Iterator[str]:
        """Say what is wrong with the tree itself; nothing, unless there is a defect."""
        found: set[int] = set()
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for first, siblings in node.children.items():
                for child in siblings:
                    found.add(child.page)
                    if child.parent is not node or child.tokens[0] != first:
                        yield f"page {child.page} hangs in the wrong place"
                    if child.children and len(child.tokens) < self._page_size:
                        yield f"page {child.page} is followed, but not full"
                    if self._node_of.get(child.page) is not child:
                        yield f"page {child.page} has two nodes or none"
                stack += siblings
        if found != set(self._node_of):
            yield "a page hangs in no tree"


def _closest(above: Node, content: tuple[int, ...]) -> tuple[Node | None, int]:
    """Return the child that agrees with `content` longest, the first of equals, and how far."""
    best, longest = None, 0
    for node in above.children.get(content[0], ()):
        shared = agreement(node.tokens, content)
        if shared > longest:
            best, longest = node, shared
    return best, longest


def agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens two texts have in common."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))

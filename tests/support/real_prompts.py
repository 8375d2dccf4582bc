"""Prompts of our own for the real model."""

from __future__ import annotations

from engine.prompts import TASKS, Prompt, task_prompts

# Raw text to continue: code, data, prose; some of it repeats itself, so that drafts are right.
TEXTS = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "import os\n\nfor name in os.listdir('.'):\n    print(",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def area_of_circle(radius):\n    return 3.14159 * radius ** 2\n\ndef area_of_square(side):\n",
    "SELECT name, price FROM products WHERE price > 10 ORDER BY",
    '{"name": "Ines", "age": 31, "city": "Porto"}\n{"name": "Omar", "age": 45, "city":',
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
    "Monday, Tuesday, Wednesday,",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the",
    "Once upon a time, in a village by the sea, there lived",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "Ingredients:\n- 200 g flour\n- 3 eggs\n- 100 g butter\n\nMethod:\n1.",
    "# Shopping list\n\n- bread\n- milk\n- apples\n-",
    "| tea | 2.50 |\n| coffee | 3.10 |\n| cocoa |",
    "Dear Ms Lopez,\n\nThank you for your letter of 3 May. I am writing to",
    "Q: What is 7 times 8?\nA: 56\nQ: What is 9 times 6?\nA:",
    "<ul>\n  <li>first</li>\n  <li>second</li>\n  <li>",
    "for (int i = 0; i < 10; i++) {\n    printf(",
    "The opposite of hot is cold. The opposite of tall is short. The opposite of fast is",
    "In 1969, the first human being to walk on the moon was",
    "Water boils at one hundred degrees, and it freezes at",
    "def test_addition():\n    assert 1 + 1 == 2\n\ndef test_subtraction():\n    assert",
    "name = input('Name: ')\nage = input('Age: ')\nprint(name, age)\nname = input(",
    "To be, or not to be, that is the",
    "Roses are red, violets are blue,",
    "A triangle has three sides, a square has four sides, a pentagon has",
    "error: file not found\nerror: file not found\nerror:",
    "x = 1\ny = 2\nz = 3\nprint(x)\nprint(y)\nprint(",
    "Red light means stop. Green light means",
    "The meeting starts at nine. Please bring your laptop, your notes and",
)


def real_prompts() -> list[Prompt]:
    """More than fifty: the package's own conversations, and the texts above."""
    return [prompt for task in TASKS for prompt in task_prompts(task)] + [
        Prompt(f"text/{index}", prompt=text) for index, text in enumerate(TEXTS)
    ]

from __future__ import annotations

import json
import time
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from real_model import real_dfm, real_gguf
from tiny_models import write_tiny_dfm, write_tiny_gguf

from engine.dfm.conversion import convert_gguf
from engine.errors import InvalidModelFile, InvalidRequest
from engine.tokenizer import Tokenizer

# what llama.cpp (llama-cpp-python 0.3.36) makes of these texts with the same GGUF
RECORDED = json.loads((Path(__file__).parents[1] / "support/smollm2_tokens.json").read_text())
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "  Et en français ?\n\n🙂 "},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return Tokenizer.from_dfm(write_tiny_dfm(tmp_path_factory.mktemp("tiny") / "tiny.dfm"))


@pytest.fixture(scope="module")
def real():
    return Tokenizer.from_dfm(real_dfm())


@pytest.fixture(scope="module")
def theirs():
    """The tokenizer that transformers makes of the same GGUF."""
    from transformers import AutoTokenizer

    path = real_gguf()
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("\x00\x01 \u2028 e\u0301 🙂‍↔️")
def test_text_comes_back_byte_for_byte(tiny, text):
    ids = tiny.encode(text)
    assert tiny.decode(ids) == text
    assert b"".join(map(tiny.piece, ids)) == text.encode()


@pytest.mark.parametrize("case", RECORDED, ids=range(len(RECORDED)))
def test_the_real_model_splits_text_as_llama_cpp_does(real, case):
    assert real.encode(case["text"]) == case["ids"]


# transformers drops the pre-tokenizer that a GGUF names, so digits behind whitespace differ there
@given(text=st.text(st.characters(exclude_categories=["Cs", "Nd", "Nl", "No"])))
@example(text="def f(x):\n\treturn x  # <|im_start|> don't we'll\r\n\r\n")
def test_the_real_model_splits_text_as_transformers_does(real, theirs, text):
    assert real.encode(text) == theirs(text, add_special_tokens=False).input_ids


def test_a_conversation_is_rendered_as_transformers_renders_it(real, theirs):
    expected = theirs.apply_chat_template(CONVERSATION, add_generation_prompt=True, tokenize=False)
    assert real.encode_chat(CONVERSATION) == real.encode(expected)


def test_control_tokens_are_recognised_in_a_raw_prompt_and_add_no_text(tiny):
    ids = tiny.encode("<|im_start|>user\nhi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tiny.decode(ids) == "user\nhi"
    assert tiny.piece(1) == b""


FRAGMENTS = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|", "im_end|>", "\ufdd0", "0", "a"])


@given(content=st.lists(FRAGMENTS).map("".join))
def test_a_message_cannot_forge_a_turn(tiny, content):
    ids = tiny.encode_chat([{"role": "user", "content": content}])
    assert [token for token in ids if token in {0, 1, 2}] == [1, 2, 1]
    assert tiny.decode(ids) == f"user\n{content}\nassistant\n"


def test_the_facts_of_the_model_come_along(tiny):
    assert (tiny.vocab_size, tiny.context_length, tiny.eos_ids, tiny.bos_id) == (269, 512, {2}, 1)
    assert tiny.checksum.startswith("sha256:")


@pytest.mark.parametrize("token_id", [-1, 269])
def test_a_token_outside_the_vocabulary_has_no_piece(tiny, token_id):
    with pytest.raises(IndexError, match=f"token {token_id} is outside the vocabulary of 269"):
        tiny.piece(token_id)


def test_bytes_that_form_no_character_decode_to_replacements(tiny):
    (first, *_) = tiny.encode("é")
    assert tiny.piece(first) == "é".encode()[:1]
    assert tiny.decode([first]) == "\ufffd"


def test_a_lone_surrogate_is_refused(tiny):
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        tiny.encode("a\ud800")
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        tiny.encode_chat([{"role": "user", "content": "a\ud800"}])


def test_bos_is_added_once_where_the_model_wants_it(tmp_path):
    source = write_tiny_gguf(tmp_path / "bos.gguf", add_bos=True)
    tokenizer = Tokenizer.from_dfm(convert_gguf(source, tmp_path / "bos.dfm", quant_type="f32"))
    assert tokenizer.encode("a")[0] == tokenizer.bos_id
    assert tokenizer.encode("<|im_start|>a") == tokenizer.encode("a")
    assert tokenizer.encode("") == [tokenizer.bos_id]


@pytest.mark.parametrize(
    ("template", "refusal"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "refuses: roles must alternate"),
        ("{{ messages[0]['content'].__class__.__mro__ }}", "refuses: .*unsafe"),
        ("{{ messages[7]['content'] }}", "refuses: .*has no (element|attribute)"),
    ],
)
def test_a_template_that_refuses_says_why(tmp_path, template, refusal):
    source = write_tiny_gguf(tmp_path / "t.gguf", chat_template=template)
    tokenizer = Tokenizer.from_dfm(convert_gguf(source, tmp_path / "t.dfm", quant_type="f32"))
    with pytest.raises(InvalidRequest, match=refusal):
        tokenizer.encode_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ nothing | unheard_of }}", "{{ " + "(" * 5000 + ")" * 5000 + " }}"]
)
def test_a_template_that_does_not_compile_is_refused_at_once(tmp_path, template):
    source = write_tiny_gguf(tmp_path / "t.gguf", chat_template=template)
    path = convert_gguf(source, tmp_path / "t.dfm", quant_type="f32")
    with pytest.raises(InvalidModelFile, match="template does not compile"):
        Tokenizer.from_dfm(path)


def test_others_go_on_while_a_long_text_is_encoded(tiny: Tokenizer) -> None:
    text = "the and " * 250_000
    encoding = Thread(target=tiny.encode, args=(text,))
    encoding.start()
    turns = 0
    while encoding.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10, "the interpreter lock was held all the while"
